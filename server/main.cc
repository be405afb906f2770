// longhaul-server: flags, signals, exit codes around longhaul::Server.
//
// Exit codes: docs/reference/exit_codes.md.
#include <spdlog/spdlog.h>
#include <sys/resource.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <exception>
#include <mutex>
#include <optional>
#include <string>

#include "base/files.h"
#include "base/flags/config_file.h"
#include "base/flags/exit_codes.h"
#include "base/flags/flag_names.h"
#include "base/flags/help_page.h"
#include "base/flags/number_checks.h"
#include "base/inject.h"
#include "base/process/output.h"
#include "base/process/signal_watcher.h"
#include "codec/policy/optimizer.h"
#include "health/metrics_flag.h"
#include "longhaul/server.h"
#include "server/daemon.h"
#include "server/machine_memory.h"
#include "server/program/flags.h"
#include "server/program/jobs.h"
#include "server/program/jobs_file.h"
#include "server/program/progress.h"
#include "server/report/server_metrics.h"
#include "transport/keys/key_file.h"
#include "transport/keys/load_security.h"
#include "transport/udp/resolve.h"

namespace longhaul {
namespace {

using cli::kExitFailure;
using cli::kExitUsage;
using server::Jobs;
using server::Progress;
using Flags = server::ServerFlags;
// How often the main thread looks for a summary to write.
constexpr Duration kSummaryPoll = std::chrono::milliseconds(100);

spdlog::level::level_enum LogLevelOf(const Flags& flags) {
  return spdlog::level::from_str(flags.log_level == "error" ? "err" : flags.log_level);
}

void SayWhatIsUsed(const Flags& flags, const Server& server, const keys::LoadedSecurity& security) {
  if (flags.server.insecure) {
    spdlog::warn("INSECURE: everyone who can reach {} may read and change the job", server.address());
  }
  spdlog::info("security: {}", server.security());
  if (security.kind == "tls-psk") {
    spdlog::info("shared key {}{}", security.trusts.front(),
                 security.trusts.size() > 1 ? ", and the next one " + security.trusts.back() : "");
  }
  if (!security.allow.empty()) {
    spdlog::info("may connect (--allow): {}", security.allow.ToString());
  } else if (security.kind == "tls-certificates") {
    spdlog::info("may connect: every certificate of the authority for this job (--allow names some)");
  }
  if (!flags.server.first_server.empty()) {
    spdlog::info("job \"{}\", with the settings of its first server {}", server.job(),
                 flags.server.first_server);
  } else {
    spdlog::info("job \"{}\" of {}, policy {}, FEC {} with k = {}", server.job(),
                 flags.server.workers == 1 ? "1 worker" : std::to_string(flags.server.workers) + " workers",
                 NameOf(flags.server.job_spec.policy), server.fec_backend(), flags.server.job_spec.fec_k);
  }
  if (flags.no_grants) {
    spdlog::info("workers send as fast as they like (--no-grants)");
  } else {
    spdlog::info("workers are granted shares of {}",
                 flags.capacity == "auto" ? "the link's rate, estimated from what arrives" : flags.capacity);
  }
  if (!flags.server.fault.empty()) spdlog::warn("faults are injected: {}", flags.server.fault);
  if (inject::AnyEnabled()) spdlog::warn("rare events are injected (--inject): this is a test");
}

int CannotStart(const Status& why, process::Output* output) {
  output->Complain(cli::WithFlagNames(why.ToString()));
  return cli::ExitCodeOf(why);
}

void DescribeCommandLine(CLI::App& app, Flags& flags) {
  server::AddFlags(app, flags);
  cli::AddConfigFile(app, "workers = 4");
  cli::CheckValues(app);
  cli::AddHelpPage(app);
}

// What probes and scrapes ask of the server's loop.
health::HealthSource SourceOf(const Server& server) {
  const auto look = [&server] {
    const Status takes = server::Daemon::TakesMembers(server);
    return health::LoopState{.answers = takes.code() != StatusCode::kDeadlineExceeded,
                             .not_ready = takes.message()};
  };
  const auto collect = [&server](health::MetricPage* page) {
    const auto stats = server::Daemon::Stats(server);
    if (stats.ok()) server::AddMetrics({{"", *stats}}, page);
    return stats.status().code() != StatusCode::kDeadlineExceeded;
  };
  return {look, collect};
}

void SayHandOver(const Status& begun) {
  if (begun.ok())
    return spdlog::info("SIGUSR2: handing over; the workers wait for the server that starts next");
  spdlog::error("SIGUSR2: nothing is handed over: {}", cli::WithFlagNames(begun.message()));
}

// SIGHUP: what may change while a server runs is read again, from the file that --config names and from the
// key files. All of it, or nothing. SIGUSR2: the job is handed over.
class Reloader {
 public:
  Reloader(int argc, char** argv, const CLI::App& running) : argc_(argc), argv_(argv), running_(running) {}

  // Null: the server has not started yet, or is gone.
  void SetServer(Server* server) {
    const std::lock_guard lock(mutex_);
    server_ = server;
  }
  void Reload() {
    CLI::App app;
    Flags flags;
    DescribeCommandLine(app, flags);
    try {
      app.parse(argc_, argv_);
    } catch (const CLI::ParseError& error) {
      return spdlog::error("SIGHUP: nothing is reloaded: {}", error.what());
    }
    Status taken = server::TakeFlags(app, &flags);
    if (taken.ok()) taken = Apply(flags);
    if (!taken.ok()) {
      return spdlog::error("SIGHUP: nothing is reloaded: {}", cli::WithFlagNames(taken.ToString()));
    }
    spdlog::set_level(LogLevelOf(flags));
    const std::string later = ChangedForLater(app);
    spdlog::info("SIGHUP: reloaded {}--log-level {}; all other options are read at the start{}",
                 flags.server.insecure ? "" : "--key, --next-key, --allow and ", flags.log_level,
                 later.empty() ? "" : ", also what has changed: " + later);
  }

  void HandOver() {
    const std::lock_guard lock(mutex_);
    const Status begun = server_ != nullptr
                             ? server::Daemon::BeginHandOver(*server_)
                             : Status(StatusCode::kFailedPrecondition, "the server is not running");
    SayHandOver(begun);
  }

 private:
  Status Apply(const Flags& flags) {
    if (flags.server.insecure) return {};
    const std::lock_guard lock(mutex_);
    return server_ != nullptr ? server_->Reload(flags.server)
                              : Status(StatusCode::kFailedPrecondition, "the server is not running");
  }
  std::string ChangedForLater(const CLI::App& app) const {
    std::string later;
    for (const CLI::Option* option : app.get_options({})) {
      const std::string name = option->get_name();
      const CLI::Option* before = running_.get_option_no_throw(name);
      if (before == nullptr || before->results() == option->results()) continue;
      if (name == "--log-level" || name == "--key" || name == "--next-key" || name == "--allow") continue;
      later += (later.empty() ? "" : ", ") + name;
    }
    return later;
  }

  int argc_;
  char** argv_;
  const CLI::App& running_;
  std::mutex mutex_;
  Server* server_ = nullptr;
};

// Waits for the end of the server, which a signal brings about in order.
int WaitForEnd(const Flags& flags, Server& server, Progress* progress, process::SignalWatcher* signals,
               health::HealthPort* health, process::Output* output) {
  signals->Guard([&server, health](int signal) {
    if (health != nullptr) health->SetStopping("told to stop by signal " + std::to_string(signal));
    spdlog::info("signal {}: telling the workers and shutting down", signal);
    server.Stop();
  });
  std::optional<Status> outcome;
  while (!(outcome = server.WaitFor(kSummaryPoll))) progress->WriteSummary();
  progress->WriteSummary();
  signals->Guard({});
  if (flags.server.once && !progress->finished() && !(server::Daemon::HandsOver(server) && outcome->ok())) {
    output->Complain(outcome->ok() ? "told to stop before a job was finished" : outcome->ToString());
    return kExitFailure;
  }
  return progress->json_failed() ? kExitFailure : 0;
}

// Says what is wrong with the command line.
int WrongUsage(const std::string& what) {
  std::fprintf(stderr, "longhaul-server: %s\n", cli::WithFlagNames(what).c_str());
  return kExitUsage;
}

LogCallback LogTo(bool said) {
  return [said](LogLevel level, std::string_view text) {
    if (said && level == LogLevel::kInfo) return;
    spdlog::log(level == LogLevel::kDebug
                    ? spdlog::level::debug
                    : (level == LogLevel::kInfo ? spdlog::level::info : spdlog::level::warn),
                "{}", cli::WithFlagNames(std::string(text)));
  };
}

// What the progress says, the log does not say again on the same terminal.
bool SaidAlready(const Flags& flags) {
  return flags.progress == "text" && ::isatty(STDOUT_FILENO) == 1 && ::isatty(STDERR_FILENO) == 1;
}

Result<std::unique_ptr<health::HealthPort>> OpenHealth(const Flags& flags, process::Output* output) {
  auto health = health::OpenPort(flags.metrics, "longhaul-server");
  if (health.ok() && *health && flags.progress != "none")
    output->Print(PortLine(**health, flags.progress == "json"));
  return health;
}

// Whether anything is looked up by its name, now or later.
bool LooksUp(const ServerOptions& options) {
  if (!options.first_server.empty()) return true;  // again when that is lost
  const auto parsed = udp::ParseHostPort(options.listen);
  return !parsed.ok() || parsed->host.find_first_not_of("0123456789abcdefABCDEF.:") != std::string::npos;
}

// Of the options of a job none stands on the command line, or in --config.
Status CheckJobsFlags(const CLI::App& app) {
  const auto names = server::ProcessOptions();
  for (const CLI::Option* option : app.get_options({})) {
    const std::string name = option->get_name();
    if (option->count() == 0 || std::ranges::find(names, name.substr(2)) != names.end()) continue;
    return {StatusCode::kInvalidArgument,
            name + " is a job's: with --jobs it stands in that file, before the first section for all jobs"};
  }
  return {};
}

// At the start, and at each SIGHUP.
Result<std::vector<server::JobFlags>> LoadJobs(const Flags& flags) {
  auto jobs = server::ReadJobs(flags.jobs_file, flags.capacity != "auto");
  if (!jobs.ok()) return jobs;
  for (server::JobFlags& job : *jobs) job.flags.server.plugins = flags.server.plugins;
  const auto has_key = [](const server::JobFlags& job) { return !job.flags.server.key_file.empty(); };
  if (std::ranges::any_of(*jobs, has_key) && !flags.allow_core_dump) keys::ForbidCoreDumps();
  return jobs;
}

// A job has six descriptors; many a shell's limit is 1,024, and more may be had without a privilege.
void RaiseDescriptorLimit() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  (void)::setrlimit(RLIMIT_NOFILE, &limit);  // where that fails, jobs beyond the limit cannot start, by name
}

// Before system calls are given up. What it needs stays loaded, for jobs that start later as well.
Status LoadPlugins(const Flags& flags, std::vector<const longhaul_plugin*>* plugins) {
  codec::Rules rules;  // names that are taken are said now, not by each job
  for (const std::string& file : flags.plugins) {
    const auto plugin = LoadPlugin(file);
    if (!plugin.ok()) return plugin.status();
    if (Status fits = rules.Add(*plugin); !fits.ok())
      return {fits.code(), "plug-in " + file + ": " + fits.message()};
    plugins->push_back(*plugin);
  }
  return {};
}

// --jobs.
int RunJobs(const CLI::App& app, const Flags& flags) {
  if (Status fits = CheckJobsFlags(app); !fits.ok()) return WrongUsage(fits.message());
  auto jobs = LoadJobs(flags);
  if (!jobs.ok()) return WrongUsage(jobs.status().message());
  const uint64_t memory = server::AvailableMemory();
  if (Status divided = server::DivideMemory(memory, &*jobs); !divided.ok())
    return WrongUsage(divided.message());
  bool looks_up = false;
  for (const server::JobFlags& job : *jobs) {
    looks_up = looks_up || LooksUp(job.flags.server);
    if (Status file = PrepareResultFile(job.flags.json_file); !file.ok())
      return WrongUsage("job " + job.name + ": --json: " + file.message());
  }
  RaiseDescriptorLimit();
  std::mutex mutex;  // guards the next one
  Jobs* running = nullptr;
  const auto reload = [&] {
    const std::lock_guard lock(mutex);
    if (running == nullptr) return;
    auto now = LoadJobs(flags);
    const Status reloaded = now.ok() ? running->Reload(*std::move(now)) : now.status();
    if (!reloaded.ok()) return spdlog::error("SIGHUP: nothing is reloaded: {}", reloaded.message());
    spdlog::info("SIGHUP: the jobs are those of {} now", flags.jobs_file);
  };
  process::SignalWatcher signals(reload, [&] {
    const std::lock_guard lock(mutex);
    if (running != nullptr) SayHandOver(running->HandOver());
  });
  process::Output output("longhaul-server", flags.progress == "json", LogLevelOf(flags));
  const auto health = OpenHealth(flags, &output);
  if (!health.ok()) return CannotStart(health.status(), &output);
  // Before the jobs, which start side by side.
  if (!flags.no_seccomp) {
    process::ConfineOrWarn(looks_up ? process::Confinement::kWorker : process::Confinement::kServer,
                           *health != nullptr);
  }
  spdlog::info("{} jobs, of {}{}", jobs->size(), flags.jobs_file,
               flags.capacity == "auto" ? "" : ", which share " + flags.capacity);
  if (inject::AnyEnabled()) spdlog::warn("rare events are injected (--inject): this is a test");
  Jobs all(*std::move(jobs), {.capacity = flags.capacity == "auto" ? Bandwidth() : *ParseRate(flags.capacity),
                              .memory = memory,
                              .progress = flags.progress,
                              .log = LogTo(SaidAlready(flags)),
                              .output = &output,
                              .health = health->get()});
  const auto set_running = [&](Jobs* now) {
    const std::lock_guard lock(mutex);
    running = now;
  };
  set_running(&all);
  signals.Guard([&](int signal) {
    if (*health) (*health)->SetStopping("told to stop by signal " + std::to_string(signal));
    spdlog::info("signal {}: telling the workers of all jobs and shutting down", signal);
    all.Stop();
  });
  const health::HealthWatch watch(health->get(), all.Source());
  const int code = all.Wait();
  signals.Guard({});
  set_running(nullptr);
  return code;
}

int Run(int argc, char** argv) {
  (void)keys::WipeFreedKeys();
  CLI::App app{"The parameter server of longhaul: aggregates gradients of workers across a lossy WAN.",
               "longhaul-server"};
  Flags flags;
  DescribeCommandLine(app, flags);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : kExitUsage;
  }
  if (Status loaded = LoadPlugins(flags, &flags.server.plugins); !loaded.ok())
    return WrongUsage("--plugin: " + loaded.message());
  if (!flags.jobs_file.empty()) return RunJobs(app, flags);
  if (app.count("--share") > 0) return WrongUsage("--share is for a file of --jobs");
  if (Status taken = server::TakeFlags(app, &flags); !taken.ok()) return WrongUsage(taken.message());
  if (!flags.server.key_file.empty() && !flags.allow_core_dump) keys::ForbidCoreDumps();
  // A wrong key is a wrong command line, unlike a port that this user may not have.
  const auto security = keys::LoadSecurity({.key_file = flags.server.key_file,
                                            .insecure = flags.server.insecure,
                                            .job = flags.server.job,
                                            .role = crypto::Role::kServer,
                                            .cipher = flags.server.cipher,
                                            .next_key_file = flags.server.next_key_file,
                                            .allow = flags.server.allow});
  if (!security.ok()) return WrongUsage(security.status().ToString());
  // Found out now, not after hours of training.
  if (Status file = PrepareResultFile(flags.json_file); !file.ok())
    return WrongUsage("--json: " + file.message());
  Reloader reloader(argc, argv, app);
  // Before the first thread.
  process::SignalWatcher signals([&reloader] { reloader.Reload(); }, [&reloader] { reloader.HandOver(); });
  process::Output output("longhaul-server", flags.progress == "json", LogLevelOf(flags));

  flags.server.log = LogTo(SaidAlready(flags));
  // Before the server, which may read a checkpoint for long: it is not ready meanwhile.
  const auto health = OpenHealth(flags, &output);
  if (!health.ok()) return CannotStart(health.status(), &output);
  Progress progress({.form = flags.progress, .json_file = flags.json_file}, &output, health->get());
  auto server = server::Daemon::Start(
      flags.server, [&progress](const ServerEvent& event) { progress.On(event); },
      load::MakeSink(flags.load));
  if (!server.ok()) return CannotStart(server.status(), &output);
  // A name of the first server's is looked up again when that is lost.
  const bool looks_up = !flags.server.first_server.empty();
  if (!flags.no_seccomp) {
    process::ConfineOrWarn(looks_up ? process::Confinement::kWorker : process::Confinement::kServer,
                           *health != nullptr);
  }
  SayWhatIsUsed(flags, *server, *security);
  progress.PrintListening(*server, security->kind);
  reloader.SetServer(&*server);
  const health::HealthWatch watch(health->get(), SourceOf(*server));
  const int code = WaitForEnd(flags, *server, &progress, &signals, health->get(), &output);
  reloader.SetServer(nullptr);
  return code;
}

}  // namespace
}  // namespace longhaul

int main(int argc, char** argv) try {
  return longhaul::Run(argc, argv);
} catch (const std::exception& error) {  // memory, or threads, that the system does not give
  std::fprintf(stderr, "longhaul-server: %s\n", error.what());
  return 1;
}
