#include "server/program/jobs.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <chrono>
#include <exception>
#include <iterator>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string_view>
#include <system_error>
#include <utility>

#include "base/files.h"
#include "base/flags/exit_codes.h"
#include "bench/load/sink.h"
#include "server/daemon.h"
#include "server/grants/link_share.h"
#include "server/report/server_metrics.h"

namespace longhaul::server {
namespace {

// How often ends and summaries are looked for.
constexpr Duration kPoll = std::chrono::milliseconds(100);
// A server that stops has 2 s for its rounds and 20 s for its last checkpoint (Server::Stop).
constexpr Duration kLongestDrain = std::chrono::seconds(30);
// What SIGHUP applies to a job that runs.
constexpr std::string_view kLive[] = {"key", "next-key", "allow"};

}  // namespace

struct Jobs::Job {
  Job(JobFlags the_flags, const Options& options)
      : given(std::move(the_flags)),
        progress({.form = options.progress, .json_file = given.flags.json_file, .job = given.name},
                 options.output, options.health) {}

  JobFlags given;
  Progress progress;
  std::shared_ptr<LinkShare> link;  // until it starts
  std::thread starter;
  bool silent = false;   // the health port's thread: it did not answer
  bool leaving = false;  // Jobs::mutex_: it is not in the file any more

  std::mutex mutex;  // guards what follows
  bool started = false;
  bool stopping = false;
  bool handed_over = false;
  Status not_started;
  std::shared_ptr<Server> server;  // while it serves
  std::optional<Status> outcome;   // it has ended

  std::shared_ptr<Server> Serving() {
    const std::lock_guard lock(mutex);
    return server;
  }
  // Whether its end is the one that was asked for.
  bool EndsWell(bool once, bool finished, const Status& how) {
    const std::lock_guard lock(mutex);
    const bool hands_over = handed_over || (server && Daemon::HandsOver(*server));
    return (hands_over && how.ok()) || (once ? finished : stopping);
  }
  bool Ended() {
    const std::lock_guard lock(mutex);
    return outcome.has_value();
  }
  void Stop() {
    const std::lock_guard lock(mutex);
    stopping = true;
    if (server) Daemon::BeginStop(*server);
  }
  void HandOver() {
    const std::lock_guard lock(mutex);
    stopping = handed_over = true;
    // One that still starts has no job yet, and stops.
    if (server) (void)Daemon::BeginHandOver(*server);
  }
};

Jobs::Jobs(std::vector<JobFlags> jobs, const Options& options)
    : options_(options), total_(std::make_shared<LinkShare::Total>(0)) {
  for (JobFlags& job : jobs) Add(std::move(job));
}

Jobs::~Jobs() = default;

Jobs::List Jobs::All() const {
  const std::lock_guard lock(mutex_);
  return jobs_;
}

void Jobs::Add(JobFlags flags) {
  jobs_.push_back(std::make_shared<Job>(std::move(flags), options_));
  Job& job = *jobs_.back();
  ServerOptions& server = job.given.flags.server;
  server.capacity = options_.capacity;
  if (!options_.capacity.IsZero()) job.link = std::make_shared<LinkShare>(total_, job.given.flags.share);
  server.log = [log = options_.log, &job](LogLevel level, std::string_view text) {
    if (log) log(level, job.progress.Named(std::string(text)));
  };
  try {
    job.starter = std::thread([this, &job] { Serve(job); });
  } catch (const std::system_error& error) {
    const std::lock_guard lock(job.mutex);
    job.not_started = {StatusCode::kInternal, std::string("no thread for the job: ") + error.what()};
    job.started = true;
  }
}

// In a thread of its own, which nothing leaves but its end.
void Jobs::Serve(Job& job) {
  std::shared_ptr<Server> serving;
  Status status;
  try {
    status = PrepareResultFile(job.given.flags.json_file);  // of one that SIGHUP starts
    if (status.ok()) {
      auto server = Daemon::Start(
          job.given.flags.server, [&job](const ServerEvent& event) { job.progress.On(event); },
          load::MakeSink(job.given.flags.load), std::move(job.link));
      status = server.status();
      if (server.ok()) serving = std::make_shared<Server>(*std::move(server));
    }
    if (serving) SayWhereItListens(job, *serving);
  } catch (const std::exception& error) {  // memory, or threads, that the system does not give
    status = {StatusCode::kResourceExhausted, std::string("it cannot start: ") + error.what()};
    serving.reset();
  }
  const std::lock_guard lock(job.mutex);
  job.started = true;
  job.not_started = std::move(status);
  job.server = std::move(serving);
  if (job.stopping && job.server) Daemon::BeginStop(*job.server);
}

void Jobs::Say(LogLevel level, const Job& job, const std::string& text) const {
  options_.log(level, job.progress.Named(text));
}

void Jobs::SayWhereItListens(Job& job, const Server& server) const {
  if (job.given.flags.server.insecure) {
    Say(LogLevel::kWarning, job,
        "INSECURE: everyone who can reach " + server.address() + " may read and change the job");
  }
  Say(LogLevel::kInfo, job, "listens on " + server.address() + ", " + server.security());
  job.progress.PrintListening(server, server.security());
}

void Jobs::Stop() {
  const std::lock_guard lock(mutex_);
  over_ = true;
  pending_.clear();
  for (const auto& job : jobs_) job->Stop();
}

Status Jobs::HandOver() {
  const std::lock_guard lock(mutex_);
  if (over_) return {StatusCode::kFailedPrecondition, "all jobs end"};
  for (const auto& job : jobs_) {
    const auto server = job->leaving ? nullptr : job->Serving();
    const Status may = server ? Daemon::MayHandOver(*server) : Status();
    if (!may.ok()) return {may.code(), "job " + job->given.name + ": " + may.message()};
  }
  over_ = true;
  pending_.clear();
  for (const auto& job : jobs_) {
    if (!job->leaving) job->HandOver();
  }
  return {};
}

int Jobs::Wait() {
  while (Turn()) std::this_thread::sleep_for(kPoll);
  return worst_;
}

bool Jobs::Turn() {
  for (const auto& job : All()) Look(*job);
  const std::lock_guard lock(mutex_);
  std::erase_if(jobs_, [](const auto& job) { return job->leaving && job->Ended(); });
  const bool drained = std::ranges::none_of(jobs_, [](const auto& job) { return job->leaving; });
  if (drained || std::chrono::steady_clock::now() >= pending_until_) {
    for (JobFlags& job : std::exchange(pending_, {})) Add(std::move(job));
  }
  const bool done =
      pending_.empty() && std::ranges::all_of(jobs_, [](const auto& job) { return job->Ended(); });
  over_ = over_ || done;
  return !done;
}

void Jobs::Look(Job& job) {
  {
    const std::lock_guard lock(job.mutex);
    if (job.outcome || !job.started) return;
  }
  if (job.starter.joinable()) job.starter.join();
  const auto server = job.Serving();
  if (!server) return End(job, cli::ExitCodeOf(job.not_started), job.not_started);
  job.progress.WriteSummary();
  const auto outcome = server->WaitFor(Duration(0));
  if (!outcome) return;
  job.progress.WriteSummary();
  const bool once = job.given.flags.server.once;
  // Without --once only a signal or a failure ends a server.
  const bool fine = job.EndsWell(once, job.progress.finished(), *outcome);
  const Status untimely(StatusCode::kCancelled, "told to stop before a job was finished");
  End(job, fine && !job.progress.json_failed() ? 0 : cli::kExitFailure,
      once && !fine && outcome->ok() ? untimely : *outcome);
}

void Jobs::End(Job& job, int code, const Status& outcome) {
  const std::string line = "ended with exit code " + std::to_string(code) + ", " + outcome.ToString();
  Say(code == 0 ? LogLevel::kInfo : LogLevel::kWarning, job, line);
  job.progress.Print(line, nlohmann::json{{"event", "ended"},
                                          {"exit_code", code},
                                          {"code", StatusCodeName(outcome.code())},
                                          {"message", outcome.message()}}
                               .dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
  worst_ = std::max(worst_, code);
  const std::lock_guard lock(job.mutex);
  job.server.reset();
  job.outcome = outcome;
}

Status Jobs::Reload(std::vector<JobFlags> now) {
  std::vector<std::pair<std::shared_ptr<Job>, JobFlags>> staying;
  {
    const std::lock_guard lock(mutex_);
    if (over_) return {StatusCode::kFailedPrecondition, "all jobs end"};
    List gone;
    std::vector<JobFlags> bounds;  // on memory: those of jobs that run stay, new ones have what these leave
    for (const auto& job : jobs_) {
      if (job->leaving) continue;
      const auto same = std::ranges::find(now, job->given.name, &JobFlags::name);
      if (same == now.end()) {
        gone.push_back(job);
        continue;
      }
      if (!job->Ended()) bounds.push_back(job->given);
      staying.emplace_back(job, std::move(*same));
      now.erase(same);
    }
    const auto running = static_cast<ptrdiff_t>(bounds.size());
    std::ranges::move(now, std::back_inserter(bounds));
    if (Status divided = DivideMemory(options_.memory, &bounds); !divided.ok()) return divided;
    pending_.assign(bounds.begin() + running, bounds.end());
    pending_until_ = std::chrono::steady_clock::now() + kLongestDrain;
    for (const auto& job : gone) {
      if (!job->Ended()) Say(LogLevel::kInfo, *job, "SIGHUP: it has left the file, and ends in order");
      job->leaving = true;
      job->Stop();
    }
    for (const JobFlags& job : pending_)
      options_.log(LogLevel::kInfo, "job " + job.name + ": SIGHUP: it is new in the file, and starts");
  }
  for (const auto& [job, flags] : staying) Reread(*job, flags);
  return {};
}

void Jobs::Reread(Job& job, const JobFlags& now) const {
  const bool insecure = job.given.flags.server.insecure;
  std::set<std::string> changed;
  const auto compare = [&](const JobFlags& a, const JobFlags& b) {
    for (const auto& [option, text] : a.options) {
      if (!insecure && std::ranges::find(kLive, option) != std::end(kLive)) continue;
      const auto other = b.options.find(option);
      if (other == b.options.end() || other->second != text) changed.insert(option);
    }
  };
  compare(job.given, now);
  compare(now, job.given);
  std::string later;
  for (const std::string& option : changed) later += (later.empty() ? "" : ", ") + option;
  if (!later.empty()) {
    Say(LogLevel::kWarning, job,
        "SIGHUP: " + later + (changed.size() == 1 ? " has" : " have") +
            " changed in the file, which counts when the job starts again (line " + std::to_string(now.line) +
            ")");
  }
  const auto server = job.Serving();
  if (job.Ended())
    return Say(LogLevel::kInfo, job, "SIGHUP: it has ended; a SIGHUP without its section forgets it");
  if (insecure) return;
  const Status reloaded = server ? server->Reload(now.flags.server)
                                 : Status(StatusCode::kFailedPrecondition, "it has not started yet");
  Say(reloaded.ok() ? LogLevel::kInfo : LogLevel::kWarning, job,
      reloaded.ok() ? "SIGHUP: reloaded key, next-key and allow"
                    : "SIGHUP: nothing is reloaded: " + reloaded.ToString());
}

// --- Probes and scrapes: on the health port's thread ---

health::HealthSource Jobs::Source() {
  return {[this] { return LookAtLoops(); }, [this](health::MetricPage* page) { return Collect(page); }};
}

// Each question to a loop that stands still takes two seconds: one of those is asked at a time, so that what
// is known of the others is fresh.
std::shared_ptr<Server> Jobs::Ask(Job& job, bool* turn) {
  if (job.silent && !std::exchange(*turn, false)) return nullptr;
  return job.Serving();
}

health::LoopState Jobs::LookAtLoops() {
  health::LoopState state;
  size_t ended = 0;
  const List jobs = All();
  turn_ = (turn_ + 1) % std::max<size_t>(jobs.size(), 1);
  bool turn = true;
  const auto not_ready = [&state](const Job& job, const std::string& why) {
    if (state.not_ready.empty()) state.not_ready = "job " + job.given.name + ": " + why;
  };
  for (size_t i = 0; i < jobs.size(); ++i) {
    Job& job = *jobs[(turn_ + i) % jobs.size()];
    const auto server = Ask(job, &turn);
    if (!server) {
      const std::lock_guard lock(job.mutex);
      ended += job.outcome ? 1 : 0;
      if (job.outcome) continue;
      state.answers = state.answers || !job.started;
      not_ready(job, job.started ? "the loop does not answer" : "it starts");
      continue;
    }
    const Status takes = Daemon::TakesMembers(*server);
    job.silent = takes.code() == StatusCode::kDeadlineExceeded;
    state.answers = state.answers || !job.silent;
    if (!takes.ok()) not_ready(job, job.silent ? "the loop does not answer" : takes.message());
  }
  if (ended == jobs.size()) state = {.answers = true, .not_ready = "ending"};
  return state;
}

bool Jobs::Collect(health::MetricPage* page) {
  std::vector<NamedStats> all;
  std::vector<health::MetricPage::Sample> up;
  for (const auto& job : All()) {
    const auto server = job->silent ? nullptr : job->Serving();
    auto stats = server ? Daemon::Stats(*server) : Result<ServerStats>(Status(StatusCode::kNotFound, ""));
    job->silent = job->silent || stats.status().code() == StatusCode::kDeadlineExceeded;
    up.push_back({stats.ok() ? 1.0 : 0.0, {{"job", job->given.name}}});
    if (stats.ok()) all.push_back({job->given.name, *std::move(stats)});
  }
  page->AddFamily("longhaul_job_up",
                  "1 while the job's server serves, 0 before, after, and while it stands still", false, up);
  AddMetrics(all, page);
  return true;
}

}  // namespace longhaul::server
