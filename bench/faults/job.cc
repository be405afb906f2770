#include "bench/faults/job.h"

#include <poll.h>
#include <signal.h>

#include <algorithm>
#include <fstream>
#include <utility>

#include "wan/link_options.h"

namespace longhaul::bench::faults {
namespace {

constexpr const char* kServerSite = "A";
// More would be a program that says the same thing for ever.
constexpr size_t kMaxLines = 1u << 20;

void Append(Words* words, const Words& more) { words->insert(words->end(), more.begin(), more.end()); }

}  // namespace

Result<std::unique_ptr<Job>> Job::Start(const JobOptions& options) {
  std::unique_ptr<Job> job(new Job(options));
  if (Status begun = job->Begin(); !begun.ok()) return begun;
  return job;
}

Job::~Job() {
  for (auto& worker : workers_) {
    if (worker) worker->Signal(SIGCONT), worker->Signal(SIGKILL);
  }
  for (cli::ChildProcess& other : others_) other.Signal(SIGKILL);
  if (server_) server_->Signal(SIGCONT), server_->Signal(SIGKILL);
}

Status Job::Begin() {
  auto protection = Protection::Make(false);
  if (!protection.ok()) return protection.status();
  protection_.emplace(std::move(*protection));
  const auto link = wan::ParseLinkOptions(options_.link);
  if (!link.ok()) return link.status();
  wan::TunWan::Options wan{
      .sites = {kServerSite}, .link = *link, .seed = options_.seed, .backend = wan::Backend::kTun};
  for (size_t worker = 0; worker < options_.workers; ++worker) wan.sites.push_back(WorkerSite(worker));
  auto up = wan::TunWan::Up(std::move(wan));
  if (!up.ok()) return up.status();
  wan_ = *std::move(up);
  StartServerAgain();
  if (!RunUntil(Clock::now() + std::chrono::seconds(10), [&] {
        return std::ranges::any_of(
            lines_, [](const Line& line) { return line.text.find("\"listening\"") != std::string::npos; });
      })) {
    return {StatusCode::kInternal, "the server does not listen: " + LastLine(scratch_.File("server0.log"))};
  }
  for (size_t worker = 0; worker < options_.workers; ++worker) {
    workers_.emplace_back();
    if (Status started = StartWorker(worker, WorkerCommand(worker)); !started.ok()) return started;
  }
  return {};
}

Words Job::WorkerCommand(size_t worker) const {
  if (!options_.member.empty() && (options_.all_members || worker + 1 == options_.workers)) {
    return {ProgramPath("longhaul_faults_bench"),
            "member",
            options_.member,
            "--join",
            kServerAddress,
            "--key",
            key_file(),
            "--rank",
            std::to_string(worker),
            "--world-size",
            std::to_string(options_.workers),
            "--idle-timeout",
            std::to_string(options_.idle_timeout),
            "--ledger",
            LedgerOf(worker)};
  }
  Words words = {ProgramPath("longhaul-worker"),
                 "--join",
                 kServerAddress,
                 "--rank",
                 std::to_string(worker),
                 "--world-size",
                 std::to_string(options_.workers),
                 "--site",
                 WorkerSite(worker),
                 "--progress",
                 "json",
                 "--rounds",
                 "100000",
                 "--optimizer",
                 "sgd:lr=0.05",
                 "--idle-timeout",
                 std::to_string(options_.idle_timeout)};
  Append(&words, protection_->ClientFlags());
  Append(&words, options_.worker_words);
  if (worker < options_.worker_words_of.size()) Append(&words, options_.worker_words_of[worker]);
  return words;
}

Status Job::StartWorker(size_t worker, const Words& words) {
  const std::string name = "worker" + std::to_string(worker);
  const std::string log = scratch_.File(name + "." + std::to_string(starts_++) + ".log");
  auto child = StartIn(wan_.get(), WorkerSite(worker), name, words, log);
  if (!child.ok()) return child.status();
  if (workers_[worker]) others_.push_back(*std::exchange(workers_[worker], std::nullopt));
  workers_[worker].emplace(std::move(*child));
  logs_.push_back({name, log});
  return {};
}

void Job::StartWorkerAgain(size_t worker, const Words& more) {
  Words words = WorkerCommand(worker);
  Append(&words, more);
  if (Status started = StartWorker(worker, words); !started.ok()) OnLine("bench", started.ToString());
}

void Job::StartServerAgain() {
  Words words = {ProgramPath("longhaul-server"),
                 "--listen",
                 kServerAddress,
                 "--progress",
                 "json",
                 "--workers",
                 std::to_string(options_.workers),
                 "--idle-timeout",
                 std::to_string(options_.idle_timeout)};
  Append(&words, protection_->ServerFlags());
  if (options_.keeps_state) Append(&words, {"--checkpoint-dir", checkpoints()});
  Append(&words, options_.server_words);
  const std::string log = scratch_.File("server" + std::to_string(starts_++) + ".log");
  auto child = StartIn(wan_.get(), kServerSite, "server", words, log);
  if (!child.ok()) return OnLine("bench", child.status().ToString());
  if (server_) others_.push_back(*std::exchange(server_, std::nullopt));
  server_.emplace(std::move(*child));
  logs_.push_back({"server", log});
}

void Job::StartStranger(size_t site, const std::string& name, const Words& words) {
  const std::string log = scratch_.File("stranger" + std::to_string(starts_++) + ".log");
  auto child = StartIn(wan_.get(), WorkerSite(site), "stranger", words, log);
  if (!child.ok()) return OnLine("bench", child.status().ToString());
  others_.push_back(std::move(*child));
  logs_.push_back({name, log});
}

void Job::RunInSite(const std::string& site, const Words& words) {
  const auto code = wan_->RunInSite(site, words);
  if (!code.ok() || *code != 0) OnLine("bench", words.front() + " failed in " + site);
}

void Job::Set(const std::string& from, const std::string& to, const std::string& words) {
  const auto link = wan::ParseLinkOptions(words);
  const Status set = link.ok() ? wan_->SetLink(from, to, *link) : link.status();
  if (!set.ok()) OnLine("bench", set.ToString());
}

void Job::SetUp(size_t worker, const std::string& words) { Set(WorkerSite(worker), kServerSite, words); }
void Job::SetDown(size_t worker, const std::string& words) { Set(kServerSite, WorkerSite(worker), words); }

void Job::SetAllLinks(const std::string& words) {
  for (size_t worker = 0; worker < options_.workers; ++worker) SetLink(worker, words);
}

void Job::OnLine(const std::string& program, const std::string& text) {
  const auto now = Clock::now();
  if (program == "worker0" && text.find("\"event\":\"round\"") != std::string::npos) {
    rounds_.push_back(now);
    return;
  }
  // What the others say of every round tells nothing here.
  if (text.find("\"event\":\"round\"") != std::string::npos || lines_.size() >= kMaxLines) return;
  lines_.push_back({now, program, text});
}

void Job::ReadLogs() {
  for (Log& log : logs_) {
    std::ifstream file(log.file);
    file.seekg(static_cast<std::streamoff>(log.read));
    for (std::string line; std::getline(file, line) && !file.eof();) {
      log.read += line.size() + 1;
      OnLine(log.program, line);
    }
  }
}

void Job::TakeIn() {
  std::vector<pollfd> polls;
  std::vector<cli::ChildProcess*> children;
  if (server_ && read_server_) children.push_back(&*server_);
  for (auto& worker : workers_) {
    if (worker) children.push_back(&*worker);
  }
  for (cli::ChildProcess& other : others_) children.push_back(&other);
  for (const cli::ChildProcess* child : children) {
    if (child->output() >= 0) polls.push_back({child->output(), POLLIN, 0});
  }
  ::poll(polls.data(), polls.size(), 20);
  for (cli::ChildProcess* child : children) {
    child->ReadLines([&](const std::string& line) { OnLine(child->name(), line); });
    child->Poll();
  }
  ReadLogs();
}

bool Job::AllWorkersEnded() {
  for (auto& worker : workers_) {
    if (!worker->Poll()) return false;
  }
  return true;
}

bool Job::AllEnded() { return server_->Poll() && AllWorkersEnded(); }

std::vector<int> Job::WorkerExitCodes() {
  std::vector<int> codes;
  for (auto& worker : workers_) codes.push_back(worker->Poll() ? worker->exit_code() : -1);
  return codes;
}

std::string Job::ExitCodes() {
  std::string text;
  const auto add = [&](const std::string& name, cli::ChildProcess& child) {
    if (child.Poll()) text += (text.empty() ? "" : ", ") + name + " " + std::to_string(child.exit_code());
  };
  add("server", *server_);
  for (size_t worker = 0; worker < workers_.size(); ++worker)
    add("worker " + std::to_string(worker), *workers_[worker]);
  return text.empty() ? "all run" : text;
}

}  // namespace longhaul::bench::faults
