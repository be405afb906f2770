#include "server/program/jobs.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <exception>
#include <nlohmann/json.hpp>
#include <optional>
#include <system_error>
#include <utility>

#include "base/flags/exit_codes.h"
#include "bench/load/sink.h"
#include "server/daemon.h"
#include "server/grants/link_share.h"
#include "server/report/server_metrics.h"

namespace longhaul::server {
namespace {

// How often ends and summaries are looked for.
constexpr Duration kPoll = std::chrono::milliseconds(100);

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
  bool silent = false;  // the health port's thread: it did not answer

  std::mutex mutex;  // guards what follows
  bool started = false;
  bool stopping = false;
  Status not_started;
  std::shared_ptr<Server> server;  // while it serves
  std::optional<Status> outcome;   // it has ended
  int code = 0;

  std::shared_ptr<Server> Serving() {
    const std::lock_guard lock(mutex);
    return server;
  }
  bool ToldToStop() {
    const std::lock_guard lock(mutex);
    return stopping;
  }
};

Jobs::Jobs(std::vector<JobFlags> jobs, const Options& options) : options_(options) {
  const auto total = std::make_shared<LinkShare::Total>(0);
  for (JobFlags& job : jobs) {
    jobs_.push_back(std::make_unique<Job>(std::move(job), options_));
    Job& added = *jobs_.back();
    ServerOptions& server = added.given.flags.server;
    server.capacity = options_.capacity;
    if (!options_.capacity.IsZero()) added.link = std::make_shared<LinkShare>(total, added.given.flags.share);
    server.log = [log = options_.log, &added](LogLevel level, std::string_view text) {
      if (log) log(level, added.progress.Named(std::string(text)));
    };
  }
  for (const auto& job : jobs_) {
    try {
      job->starter = std::thread([this, &job = *job] { Serve(job); });
    } catch (const std::system_error& error) {
      const std::lock_guard lock(job->mutex);
      job->not_started = {StatusCode::kInternal, std::string("no thread for the job: ") + error.what()};
      job->started = true;
    }
  }
}

Jobs::~Jobs() = default;

// In a thread of its own, which nothing leaves but its end.
void Jobs::Serve(Job& job) {
  std::shared_ptr<Server> serving;
  Status status;
  try {
    auto server = Daemon::Start(
        job.given.flags.server, [&job](const ServerEvent& event) { job.progress.On(event); },
        load::MakeSink(job.given.flags.load), std::move(job.link));
    if (!server.ok()) status = server.status();
    if (server.ok()) serving = std::make_shared<Server>(*std::move(server));
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

void Jobs::SayWhereItListens(Job& job, const Server& server) const {
  if (job.given.flags.server.insecure) {
    options_.log(LogLevel::kWarning, job.progress.Named("INSECURE: everyone who can reach " +
                                                        server.address() + " may read and change the job"));
  }
  options_.log(LogLevel::kInfo,
               job.progress.Named("listens on " + server.address() + ", " + server.security()));
  job.progress.PrintListening(server, server.security());
}

void Jobs::Stop() {
  for (const auto& job : jobs_) {
    const std::lock_guard lock(job->mutex);
    job->stopping = true;
    if (job->server) Daemon::BeginStop(*job->server);
  }
}

int Jobs::Wait() {
  for (;;) {
    size_t ended = 0;
    for (const auto& job : jobs_) ended += Look(*job) ? 1 : 0;
    if (ended == jobs_.size()) break;
    std::this_thread::sleep_for(kPoll);
  }
  int worst = 0;
  for (const auto& job : jobs_) {
    worst = std::max(worst, job->code);
    job->progress.Print("ended with exit code " + std::to_string(job->code) + ", " + job->outcome->ToString(),
                        nlohmann::json{{"event", "ended"},
                                       {"exit_code", job->code},
                                       {"code", StatusCodeName(job->outcome->code())},
                                       {"message", job->outcome->message()}}
                            .dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
  }
  return worst;
}

bool Jobs::Look(Job& job) {
  {
    const std::lock_guard lock(job.mutex);
    if (job.outcome) return true;
    if (!job.started) return false;
  }
  if (job.starter.joinable()) job.starter.join();
  const auto server = job.Serving();
  if (!server) {
    End(job, cli::ExitCodeOf(job.not_started), job.not_started);
    return true;
  }
  job.progress.WriteSummary();
  const auto outcome = server->WaitFor(Duration(0));
  if (!outcome) return false;
  job.progress.WriteSummary();
  const bool once = job.given.flags.server.once;
  // Without --once only a signal or a failure ends a server.
  const bool fine = once ? job.progress.finished() : job.ToldToStop();
  const Status untimely(StatusCode::kCancelled, "told to stop before a job was finished");
  End(job, fine && !job.progress.json_failed() ? 0 : cli::kExitFailure,
      once && !fine && outcome->ok() ? untimely : *outcome);
  return true;
}

void Jobs::End(Job& job, int code, const Status& outcome) {
  const std::string line = "ended with exit code " + std::to_string(code) + ", " + outcome.ToString();
  options_.log(code == 0 ? LogLevel::kInfo : LogLevel::kWarning, job.progress.Named(line));
  const std::lock_guard lock(job.mutex);
  job.server.reset();
  job.outcome = outcome;
  job.code = code;
}

void Jobs::Reload(const std::vector<JobFlags>& jobs) {
  for (const auto& job : jobs_) {
    const auto server = job->Serving();
    if (!server) continue;
    const auto now = std::ranges::find(jobs, job->given.name, &JobFlags::name);
    Status reloaded(StatusCode::kNotFound, "it is not in the file any more, and goes on as it was");
    if (now != jobs.end()) reloaded = server->Reload(now->flags.server);
    options_.log(reloaded.ok() ? LogLevel::kInfo : LogLevel::kWarning,
                 job->progress.Named(reloaded.ok() ? "SIGHUP: reloaded key, next-key and allow"
                                                   : "SIGHUP: nothing is reloaded: " + reloaded.ToString()));
  }
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
  turn_ = (turn_ + 1) % jobs_.size();
  bool turn = true;
  const auto not_ready = [&state](const Job& job, const std::string& why) {
    if (state.not_ready.empty()) state.not_ready = "job " + job.given.name + ": " + why;
  };
  for (size_t i = 0; i < jobs_.size(); ++i) {
    Job& job = *jobs_[(turn_ + i) % jobs_.size()];
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
  if (ended == jobs_.size()) state = {.answers = true, .not_ready = "ending"};
  return state;
}

bool Jobs::Collect(health::MetricPage* page) {
  std::vector<NamedStats> all;
  std::vector<health::MetricPage::Sample> up;
  for (const auto& job : jobs_) {
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
