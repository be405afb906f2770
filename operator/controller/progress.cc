#include "operator/controller/progress.h"

#include <curl/curl.h>

#include <charconv>
#include <cmath>
#include <deque>
#include <list>
#include <utility>

namespace longhaul::kube {
namespace {

// "longhaul_server_rounds_total 17", or with labels in braces.
std::optional<int64_t> ValueOf(std::string_view page, std::string_view name) {
  for (size_t at = 0; at < page.size();) {
    const size_t end = std::min(page.find('\n', at), page.size());
    std::string_view line = page.substr(at, end - at);
    at = end + 1;
    if (!line.starts_with(name)) continue;
    line.remove_prefix(name.size());
    if (line.starts_with('{')) line.remove_prefix(std::min(line.find('}'), line.size() - 1) + 1);
    if (!line.starts_with(' ')) continue;
    line.remove_prefix(1);
    double value = 0;
    const auto [rest, error] = std::from_chars(line.data(), line.data() + line.size(), value);
    if (error == std::errc() && value >= 0 && value < 9e15) return static_cast<int64_t>(value);
  }
  return std::nullopt;
}

}  // namespace

std::optional<int64_t> ParseRound(std::string_view page) {
  const auto rounds = ValueOf(page, "longhaul_server_rounds_total");
  if (!rounds) return std::nullopt;
  // Those of a server before this one are in its checkpoint.
  const auto kept = ValueOf(page, "longhaul_server_checkpoint_rounds");
  return std::max(*rounds, kept.value_or(0));
}

struct ProgressReader::Impl {
  struct Transfer {
    std::string job, uid, page;
    CURL* easy = nullptr;
  };
  struct Job {
    std::string uid;
    Instant next = {};
    bool open = false;
    std::optional<int64_t> round = {};
  };
  CURLM* multi = nullptr;
  std::list<Transfer> open;
  std::map<std::string, Job> jobs;
  std::deque<std::string> changed;

  static size_t OnBody(char* data, size_t size, size_t count, void* to) {
    auto* transfer = static_cast<Transfer*>(to);
    if (transfer->page.size() + size * count > kMostBytes) return 0;
    transfer->page.append(data, size * count);
    return size * count;
  }
};

ProgressReader::ProgressReader() : impl_(std::make_unique<Impl>()) {
  curl_global_init(CURL_GLOBAL_DEFAULT);  // counts; RestClient has done it
  impl_->multi = curl_multi_init();
}

ProgressReader::~ProgressReader() {
  for (Impl::Transfer& transfer : impl_->open) {
    curl_multi_remove_handle(impl_->multi, transfer.easy);
    curl_easy_cleanup(transfer.easy);
  }
  curl_multi_cleanup(impl_->multi);
}

void ProgressReader::Ask(const std::string& job, const std::string& uid, const std::string& ip, int port,
                         Instant now) {
  if (ip.empty() || impl_->multi == nullptr) return;
  Impl::Job& of = impl_->jobs[job];
  if (of.uid != uid) of = {uid};
  if (of.open || now < of.next) return;
  if (impl_->open.size() >= kMostOpen) {
    ++counters_.refused;
    return;
  }
  CURL* easy = curl_easy_init();
  if (easy == nullptr) return;
  of.next = now + kEvery;
  of.open = true;
  Impl::Transfer& transfer = impl_->open.emplace_back();
  transfer.job = job;
  transfer.uid = uid;
  transfer.easy = easy;
  const std::string host = ip.find(':') == std::string::npos ? ip : "[" + ip + "]";
  curl_easy_setopt(easy, CURLOPT_URL, ("http://" + host + ":" + std::to_string(port) + "/metrics").c_str());
  curl_easy_setopt(easy, CURLOPT_PROTOCOLS_STR, "http");
  curl_easy_setopt(easy, CURLOPT_FOLLOWLOCATION, 0L);
  curl_easy_setopt(easy, CURLOPT_PROXY, "");
  curl_easy_setopt(easy, CURLOPT_NOSIGNAL, 1L);
  curl_easy_setopt(easy, CURLOPT_FAILONERROR, 1L);
  curl_easy_setopt(easy, CURLOPT_TIMEOUT_MS,
                   static_cast<long>(std::chrono::duration_cast<std::chrono::milliseconds>(kLimit).count()));
  curl_easy_setopt(easy, CURLOPT_WRITEFUNCTION, &Impl::OnBody);
  curl_easy_setopt(easy, CURLOPT_WRITEDATA, static_cast<void*>(&transfer));
  curl_multi_add_handle(impl_->multi, easy);
  ++counters_.reads;
}

void ProgressReader::Poll() {
  if (impl_->open.empty()) return;
  int running = 0;
  curl_multi_perform(impl_->multi, &running);
  int left = 0;
  while (const CURLMsg* message = curl_multi_info_read(impl_->multi, &left)) {
    if (message->msg != CURLMSG_DONE) continue;
    const bool fine = message->data.result == CURLE_OK;
    for (auto one = impl_->open.begin(); one != impl_->open.end(); ++one) {
      if (one->easy != message->easy_handle) continue;
      const auto round = fine ? ParseRound(one->page) : std::nullopt;
      if (!round) ++counters_.failures;
      if (const auto of = impl_->jobs.find(one->job); of != impl_->jobs.end() && of->second.uid == one->uid) {
        of->second.open = false;
        if (round && round != of->second.round) {
          of->second.round = round;
          impl_->changed.push_back(one->job);
        }
      }
      curl_multi_remove_handle(impl_->multi, one->easy);
      curl_easy_cleanup(one->easy);
      impl_->open.erase(one);
      break;
    }
  }
}

std::optional<std::string> ProgressReader::NextChanged() {
  if (impl_->changed.empty()) return std::nullopt;
  std::string job = std::move(impl_->changed.front());
  impl_->changed.pop_front();
  return job;
}

std::optional<int64_t> ProgressReader::RoundOf(const std::string& job, const std::string& uid) const {
  const auto found = impl_->jobs.find(job);
  return found == impl_->jobs.end() || found->second.uid != uid ? std::nullopt : found->second.round;
}

void ProgressReader::Forget(const std::string& job) { impl_->jobs.erase(job); }
bool ProgressReader::busy() const { return !impl_->open.empty(); }

}  // namespace longhaul::kube
