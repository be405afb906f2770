#include "cli/job_view.h"

#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <limits>
#include <sstream>

#include "base/quantile.h"

namespace longhaul::cli {
namespace {

using Json = nlohmann::json;

std::string Format(const char* format, ...) __attribute__((format(printf, 1, 2)));
std::string Format(const char* format, ...) {
  char text[256];
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  return text;
}

}  // namespace

double JobView::At(const Json& object, const char* key, double otherwise) const {
  const auto it = object.find(key);
  return it != object.end() && it->is_number() ? it->get<double>() : otherwise;
}

void JobView::OnServerLine(const std::string& line) {
  const Json event = Json::parse(line, nullptr, false);
  if (!event.is_object()) return;
  const std::string kind = event.value("event", "");
  if (kind == "listening") {
    server_address_ = event.value("address", "");
  } else if (kind == "round") {
    last_server_round_ = event;
    repaired_ += static_cast<uint64_t>(At(event, "repaired_chunks", 0));
    filled_ += static_cast<uint64_t>(At(event, "filled_chunks", 0));
  } else if (kind == "finished") {
    server_finished_ = event;
  }
}

void JobView::OnWorkerLine(uint32_t rank, const std::string& line) {
  const Json event = Json::parse(line, nullptr, false);
  if (!event.is_object()) return;
  const std::string kind = event.value("event", "");
  if (kind == "finished" && rank < worker_finished_.size()) worker_finished_[rank] = event;
  if (rank != 0) return;
  if (kind == "round") {
    round_ = static_cast<uint64_t>(At(event, "round", static_cast<double>(round_)));
    training_loss_ = At(event, "training_loss", training_loss_);
    lost_share_ = sites_.empty() ? At(event, "observed_loss", 0) : At(last_server_round_, "loss", 0);
  }
  if (event.contains("accuracy")) {
    accuracy_ = At(event, "accuracy", accuracy_);
    has_accuracy_ = true;
  }
  if (kind == "round" && history_.size() < kMaxRounds) {
    history_.push_back({round_, At(event, "seconds", 0), training_loss_,
                        has_accuracy_ ? accuracy_ : std::numeric_limits<double>::quiet_NaN(), lost_share_,
                        repaired_, filled_});
  }
}

void JobView::OnSiteLine(uint32_t site, const std::string& line) {
  const Json event = Json::parse(line, nullptr, false);
  if (!event.is_object() || site >= sites_.size()) return;
  const std::string kind = event.value("event", "");
  if (kind == "listening") sites_[site].address = event.value("address", "");
  if (kind == "finished") sites_[site].finished = event;
}

double JobView::RttMs() const {
  const auto members = last_server_round_.find("rtt_ms");
  const bool known = members != last_server_round_.end() && members->is_array() && !members->empty();
  return known && members->front().is_number() ? members->front().get<double>() : 0;
}

std::string JobView::RoundsTable() const {
  std::ostringstream table;
  table << "round\tseconds\ttraining_loss\taccuracy\tlost_share\trepaired_chunks\tfilled_chunks\n";
  for (const Round& r : history_) {
    table << r.round << '\t' << r.seconds << '\t' << r.training_loss << '\t' << r.accuracy << '\t'
          << r.lost_share << '\t' << r.repaired << '\t' << r.filled << '\n';
  }
  return table.str();
}

std::string JobView::ProgressLine(size_t width) const {
  constexpr size_t kBar = 20;
  const double share =
      rounds_ == 0 ? 0 : std::min(1.0, static_cast<double>(round_) / static_cast<double>(rounds_));
  const auto filled = static_cast<size_t>(share * kBar);
  std::string line = "[" + std::string(filled, '#') + std::string(kBar - filled, '.') + "]";
  line += Format(" round %llu/%llu", static_cast<unsigned long long>(round_),
                 static_cast<unsigned long long>(rounds_));
  line += Format(" | loss %.3f", training_loss_);
  line += has_accuracy_ ? Format(" | accuracy %.2f %%", accuracy_ * 100) : std::string(" | accuracy  -");
  line += Format(" | up %.1f Mbit/s", At(last_server_round_, "up_mbps", 0));
  line += Format(" | lost %.1f %%", lost_share_ * 100);
  line += Format(" | repaired %llu filled %llu", static_cast<unsigned long long>(repaired_),
                 static_cast<unsigned long long>(filled_));
  line += Format(" | rtt %.0f ms", RttMs());
  if (line.size() > width) line.resize(width);
  return line;
}

Json JobView::Summary(Duration elapsed) const {
  Json summary;
  double retransmissions = At(server_finished_, "retransmissions", 0);
  const auto add = [&](const Json& finished, const char* counters) {
    const auto found = finished.find(counters);
    if (found != finished.end()) retransmissions += At(*found, "retransmissions", 0);
  };
  for (const Json& worker : worker_finished_) add(worker, "totals");
  for (const Site& site : sites_) add(site.finished, "wan");
  summary["accuracy"] = accuracy_;
  summary["training_loss"] = training_loss_;
  summary["rounds"] = round_;
  summary["seconds"] = static_cast<double>(elapsed.count()) * 1e-9;
  summary["workers"] = worker_finished_.size();
  summary["security"] = server_finished_.value("security", "");
  for (const char* key : {"bytes_up", "bytes_down", "chunk_bytes_up", "chunk_bytes_down", "repaired_chunks",
                          "filled_chunks", "tolerated_chunks", "lost_chunks"}) {
    summary[key] = static_cast<uint64_t>(At(server_finished_, key, 0));
  }
  summary["observed_loss"] = At(server_finished_, "observed_loss", 0);
  summary["rtt_ms"] = RttMs();
  summary["retransmissions"] = static_cast<uint64_t>(retransmissions);
  std::vector<double> seconds;
  for (const Round& round : history_) seconds.push_back(round.seconds);
  summary["seconds_p50"] = Quantile(seconds, 0.50);
  summary["round_ms_p50"] = Quantile(seconds, 0.50) * 1e3;
  summary["round_ms_p99"] = Quantile(seconds, 0.99) * 1e3;
  return summary;
}

}  // namespace longhaul::cli
