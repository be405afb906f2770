// longhaul-server: flags, signals, exit codes around longhaul::Server.
//
// Exit codes: docs/reference/exit_codes.md.
#include <spdlog/spdlog.h>
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
#include "base/flags/job_flags.h"
#include "base/flags/number_checks.h"
#include "base/process/output.h"
#include "base/process/signal_watcher.h"
#include "base/units_text.h"
#include "bench/load/sink.h"
#include "health/metrics_flag.h"
#include "longhaul/server.h"
#include "server/daemon.h"
#include "server/report/server_metrics.h"
#include "transport/keys/key_file.h"
#include "transport/keys/load_security.h"

namespace longhaul {
namespace {

using cli::kExitFailure;
using cli::kExitUsage;
// How often the main thread looks for a summary to write.
constexpr Duration kSummaryPoll = std::chrono::milliseconds(100);

struct Flags {
  ServerOptions server;
  load::SinkOptions load;
  int64_t max_model_bytes = int64_t{1} << 30;
  int64_t max_memory_bytes = 0;
  std::string progress = "text";
  std::string json_file;
  std::string metrics;
  std::string log_level = "info";
  bool no_grants = false;
  bool allow_core_dump = false;
  bool no_seccomp = false;
  double half_open_seconds = 5;
  std::string capacity = "auto";
  std::string capacity_floor;
  std::string capacity_cap;
  std::string worker_rate_cap;
  std::string worker_rate_floor;
};

void AddGrantFlags(CLI::App& app, Flags& f) {
  app.add_option("--capacity", f.capacity,
                 "rate of the link into the server that the workers share, e.g. 200mbit; auto = estimated")
      ->check(cli::IsRate() | CLI::IsMember({"auto"}));
  app.add_option("--capacity-floor", f.capacity_floor, "the estimate is never below this")
      ->check(cli::IsRate());
  app.add_option("--capacity-cap", f.capacity_cap, "the estimate is never above this")->check(cli::IsRate());
  app.add_option("--worker-rate-cap", f.worker_rate_cap, "no worker may send faster")->check(cli::IsRate());
  app.add_option(
         "--worker-rate-floor", f.worker_rate_floor,
         "every worker that has something to send may send as fast as this, as far as the capacity goes")
      ->check(cli::IsRate());
  app.add_flag("--no-grants", f.no_grants, "do not tell workers how fast to send");
}

// REQUIRES: the flags have passed their checks.
void TakeGrantFlags(const Flags& f, ServerOptions* options) {
  const auto take = [](const std::string& text, Bandwidth* rate) {
    if (!text.empty() && text != "auto") *rate = *ParseRate(text);
  };
  options->grants = !f.no_grants;
  take(f.capacity, &options->capacity);
  take(f.capacity_floor, &options->capacity_floor);
  take(f.capacity_cap, &options->capacity_cap);
  take(f.worker_rate_cap, &options->worker_rate_cap);
  take(f.worker_rate_floor, &options->worker_rate_floor);
}

void AddFlags(CLI::App& app, Flags& f) {
  app.set_version_flag("--version", "longhaul-server 0.1.0");
  app.option_defaults()->always_capture_default();
  app.add_option("--listen", f.server.listen, "HOST:PORT to listen on; port 0 takes any free one");
  app.add_option("--workers", f.server.workers,
                 "workers of a job; it starts when all are in, or --start-workers")
      ->check(CLI::Range(1, 1024));
  app.add_option("--min-workers", f.server.min_workers, "fewer workers abort a started job; 0 = all of them")
      ->check(CLI::Range(0, 1024));
  app.add_option(
         "--start-workers", f.server.start_workers,
         "so many workers start a job when no other has come for a second; others take part from when "
         "they come; 0 = all of them")
      ->check(CLI::Range(0, 1024));
  app.add_option("--servers", f.server.servers,
                 "servers of the job, over which its tensors are spread; this is the first one")
      ->check(CLI::Range(1, 64));
  app.add_option(
         "--first-server", f.server.first_server,
         "this is one more server of the job whose first one listens there; workers, servers and the job's "
         "settings are given to that one")
      ->type_name("HOST:PORT");
  app.add_option(
         "--advertise", f.server.advertise,
         "one of several servers: where workers reach this one; none = at the port of --listen, and the "
         "address that it reaches --first-server from")
      ->type_name("HOST:PORT");
  app.add_option(
         "--key", f.server.key_file,
         "key file of the job (longhaul keygen): one that all of it share, or this server's certificate")
      ->type_name("FILE");
  app.add_option("--next-key", f.server.next_key_file,
                 "a second shared key that is valid beside --key, while members move to it")
      ->type_name("FILE");
  app.add_option(
      "--allow", f.server.allow,
      "with a certificate: who may connect, separated by commas, each "
      "[worker/|tool/]NAME[:RANKS[xWORKERS]][+SUCCESSOR], e.g. fra:0+fra2,nyc:1-3,tool/ops; none "
      "= all of the job, a worker with one rank; WORKERS of a reloaded list count for tensors that are "
      "declared later, the status shows them at once");
  cli::AddEnum(app, "--cipher", &f.server.cipher, "of the packets; any = what the worker likes best");
  app.add_option("--job", f.server.job,
                 "name of the job; workers of another one are refused; none = the key's, or \"default\"");
  cli::AddJobFlags(app, &f.server.job_spec);
  app.add_option("--datagram-size", f.server.datagram_bytes, "bytes of UDP payload per datagram")
      ->check(CLI::Range(1200, 65507));
  app.add_option(
         "--max-model-bytes", f.max_model_bytes,
         "bound on 4 bytes x elements of all tensors, e.g. 1gb; the server's memory grows, as they are used, "
         "to five times that with Adam; one worker alone may take one part of --workers (a 16th at least) "
         "before most others have declared the same")
      ->transform(cli::AsBytes())
      ->check(CLI::Range(int64_t{4}, int64_t{1} << 40));
  app.add_option(
         "--max-memory-bytes", f.max_memory_bytes,
         "bound on what the tensors' state may take, e.g. 20gb; a tensor that may need more than is left is "
         "refused; 0 = 7/8 of what the machine, its cgroups and ulimit -v leave at the start")
      ->transform(cli::AsBytes())
      ->check(CLI::Range(int64_t{0}, int64_t{1} << 50));
  app.add_option("--checkpoint-dir", f.server.checkpoint_dir,
                 "write checkpoints there, and go on from the newest good one that is there; none = neither")
      ->type_name("DIR");
  app.add_option(
         "--checkpoint-every", f.server.checkpoint_every,
         "rounds from one checkpoint to the next; the last one follows when the job or the server ends")
      ->check(CLI::Range(1, 1'000'000));
  app.add_flag("--round-log", f.server.round_log,
               "with --checkpoint-dir: every round is on the disk before workers have its result, so that a "
               "server that was killed goes on with the job");
  app.add_option("--checkpoint-keep", f.server.checkpoint_keep, "checkpoints that stay, the newest ones")
      ->check(CLI::Range(1, 1000));
  AddGrantFlags(app, f);
  app.add_option(
         "--max-half-open", f.server.max_half_open,
         "handshakes under way at once, half of them with one host; beyond a quarter newcomers need a cookie")
      ->check(CLI::Range(2, 65536));
  app.add_option("--half-open-timeout", f.half_open_seconds,
                 "seconds after which a handshake that is not finished gives its place up")
      ->check(CLI::Range(0.1, 60.0));
  app.add_option("--max-load-generators", f.load.max_connections,
                 "load generators (longhaul bench flow) that are served at once, each for up to 64 MiB; 0 "
                 "refuses them")
      ->check(CLI::Range(0, 1024));
  app.add_flag("--bench-during-job", f.load.during_job,
               "serve load generators also while a job is running, which they disturb");
  app.add_flag("--once", f.server.once, "end after the first job; exit code 1 when it did not finish");
  app.add_flag("--insecure", f.server.insecure,
               "instead of a key: no encryption and no authentication, on loopback addresses only")
      ->excludes("--key");
  app.add_flag("--insecure-bind", f.server.insecure_bind,
               "with --insecure: also on addresses that other machines can reach")
      ->needs("--insecure");
  health::AddMetricsFlag(app, &f.metrics);
  app.add_flag("--allow-core-dump", f.allow_core_dump,
               "with a key: a crash may leave a core dump, which contains it");
  app.add_flag("--no-seccomp", f.no_seccomp,
               "keep the right to make any system call; else those that a server does not need are given up "
               "once it listens");
  app.add_option("--fault", f.server.fault,
                 "faults injected into this process' traffic, e.g. drop=0.02,delay=25ms,seed=7");
  cli::AddInjectFlag(app);
  app.add_option("--progress", f.progress, "what is printed on standard output")
      ->check(CLI::IsMember({"none", "text", "json"}));
  app.add_option("--json", f.json_file, "file that the summary of the latest job is written to");
  app.add_option("--log-level", f.log_level, "what is logged on standard error")
      ->check(CLI::IsMember({"debug", "info", "warn", "error", "off"}));
  app.footer(
      "Exit codes: 0 fine, 1 the job did not finish (with --once), the server failed or --json cannot be "
      "written,\n"
      "2 wrong usage, 3 cannot listen (also --metrics) or use --checkpoint-dir, 130 and 143 ended at once by "
      "a signal. A "
      "second SIGINT or SIGTERM "
      "ends "
      "it at\n"
      "once. SIGHUP with a terminal ends it in order; without one it reads key files again, and --key, "
      "--next-key,\n"
      "--allow and --log-level from --config: whom they leave out is disconnected, the job goes on.\n"
      "A worker may have 64 barriers open that are not complete (4096 / --workers if that is less), and 4096 "
      "tensors\n"
      "make a job; what is beyond a limit is refused by an answer to that call.\n"
      "With --progress json every line is an object with \"event\": metrics, listening, join, start, round, "
      "leave, "
      "refused,\n"
      "rejected, left_out, waiting, weight_bounded, handshake_failed, suppressed, kick,\n"
      "expiring, bench, checkpoint, server, abort or finished.");
}

// CLI11's own delimiter would drop what is empty, so that a list of nothing would let every peer in.
std::vector<std::string> SplitNames(const std::vector<std::string>& lists) {
  std::vector<std::string> names;
  for (const std::string& list : lists) {
    for (size_t begin = 0; begin <= list.size();) {
      const size_t end = std::min(list.find(',', begin), list.size());
      names.push_back(list.substr(begin, end - begin));
      begin = end + 1;
    }
  }
  return names.empty() ? std::vector<std::string>{""} : names;
}

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

void PrintListening(const Flags& flags, const Server& server, const std::string& security,
                    process::Output* output) {
  if (flags.progress == "json") {
    output->Print("{\"event\":\"listening\",\"address\":\"" + server.address() +
                  "\",\"port\":" + std::to_string(server.port()) + ",\"fec\":\"" + server.fec_backend() +
                  "\",\"security\":\"" + security + "\"}");
  } else if (flags.progress == "text") {
    output->Print("listening on " + server.address());
  }
}

// Prints events; keeps the summary of the latest job for --json.
class Progress {
 public:
  // health: may be null.
  Progress(const Flags& flags, process::Output* output, health::HealthPort* health)
      : flags_(flags), output_(output), health_(health) {}

  // In the server's thread, which a file must not hold up.
  void On(const ServerEvent& event) {
    if (health_ != nullptr && event.kind == ServerEvent::Kind::kRound) health_->NoteProgress();
    if (flags_.progress == "json") output_->Print(cli::WithFlagNames(event.json));
    if (flags_.progress == "text") output_->Print(cli::WithFlagNames(event.text));
    const bool finished = event.kind == ServerEvent::Kind::kFinished;
    if (!finished && event.kind != ServerEvent::Kind::kAbort) return;
    const std::lock_guard lock(mutex_);
    summary_ = event.json;
    finished_ = finished;
  }
  // What has come since the last call.
  void WriteSummary() {
    std::optional<std::string> summary;
    {
      const std::lock_guard lock(mutex_);
      summary.swap(summary_);
    }
    if (!summary || flags_.json_file.empty()) return;
    const Status written = WriteFileAtomically(flags_.json_file, *summary + "\n");
    if (written.ok()) return;
    json_failed_ = true;
    output_->Complain("--json: " + written.message());
  }
  // Of any job so far. In the thread that writes summaries.
  bool json_failed() const { return json_failed_; }
  // Whether the latest job that is over has finished.
  bool finished() {
    const std::lock_guard lock(mutex_);
    return finished_;
  }

 private:
  const Flags& flags_;
  process::Output* output_;
  health::HealthPort* health_;
  bool json_failed_ = false;
  std::mutex mutex_;  // guards the next two
  std::optional<std::string> summary_;
  bool finished_ = false;
};

int CannotStart(const Status& why, process::Output* output) {
  output->Complain(cli::WithFlagNames(why.ToString()));
  return cli::ExitCodeOf(why);
}

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
  if (flags.server.once && !progress->finished()) {
    output->Complain(outcome->ok() ? "told to stop before a job was finished" : outcome->ToString());
    return kExitFailure;
  }
  return progress->json_failed() ? kExitFailure : 0;
}

void DescribeCommandLine(CLI::App& app, Flags& flags) {
  AddFlags(app, flags);
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
    if (stats.ok()) server::AddMetrics(*stats, page);
    return stats.status().code() != StatusCode::kDeadlineExceeded;
  };
  return {look, collect};
}

// What is there only when it is given.
void TakeAllow(const CLI::App& app, Flags* flags) {
  if (app.count("--allow") > 0) flags->server.allow = SplitNames(flags->server.allow);
}

// SIGHUP: what may change while a server runs is read again, from the file that --config names and from the
// key files. All of it, or nothing.
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
    TakeAllow(app, &flags);
    if (Status taken = Apply(flags); !taken.ok()) {
      return spdlog::error("SIGHUP: nothing is reloaded: {}", cli::WithFlagNames(taken.ToString()));
    }
    spdlog::set_level(LogLevelOf(flags));
    const std::string later = ChangedForLater(app);
    spdlog::info("SIGHUP: reloaded {}--log-level {}; all other options are read at the start{}",
                 flags.server.insecure ? "" : "--key, --next-key, --allow and ", flags.log_level,
                 later.empty() ? "" : ", also what has changed: " + later);
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
  flags.server.max_model = ByteCount(flags.max_model_bytes);
  flags.server.half_open_timeout =
      std::chrono::duration_cast<Duration>(std::chrono::duration<double>(flags.half_open_seconds));
  flags.server.max_memory = ByteCount(flags.max_memory_bytes);
  TakeGrantFlags(flags, &flags.server);
  if (flags.server.min_workers > flags.server.workers) {
    std::fprintf(stderr, "longhaul-server: --min-workers %u is more than --workers %u\n",
                 flags.server.min_workers, flags.server.workers);
    return kExitUsage;
  }
  const uint32_t least = flags.server.min_workers == 0 ? flags.server.workers : flags.server.min_workers;
  if (flags.server.start_workers != 0 &&
      (flags.server.start_workers < least || flags.server.start_workers > flags.server.workers)) {
    std::fprintf(stderr, "longhaul-server: --start-workers %u is not in %u..%u (--min-workers..--workers)\n",
                 flags.server.start_workers, least, flags.server.workers);
    return kExitUsage;
  }
  TakeAllow(app, &flags);
  if (!flags.server.key_file.empty() && !flags.allow_core_dump) keys::ForbidCoreDumps();
  // A wrong key is a wrong command line, unlike a port that this user may not have.
  const auto security = keys::LoadSecurity({.key_file = flags.server.key_file,
                                            .insecure = flags.server.insecure,
                                            .job = flags.server.job,
                                            .role = crypto::Role::kServer,
                                            .cipher = flags.server.cipher,
                                            .next_key_file = flags.server.next_key_file,
                                            .allow = flags.server.allow});
  if (!security.ok()) {
    std::fprintf(stderr, "longhaul-server: %s\n", cli::WithFlagNames(security.status().ToString()).c_str());
    return kExitUsage;
  }
  // Found out now, not after hours of training.
  if (Status file = PrepareResultFile(flags.json_file); !file.ok()) {
    std::fprintf(stderr, "longhaul-server: --json: %s\n", file.message().c_str());
    return kExitUsage;
  }
  Reloader reloader(argc, argv, app);
  process::SignalWatcher signals([&reloader] { reloader.Reload(); });  // before the first thread
  process::Output output("longhaul-server", flags.progress == "json", LogLevelOf(flags));

  // What the progress says, the log does not say again on the same terminal.
  const bool said = flags.progress == "text" && ::isatty(STDOUT_FILENO) == 1 && ::isatty(STDERR_FILENO) == 1;
  flags.server.log = [said](LogLevel level, std::string_view text) {
    if (said && level == LogLevel::kInfo) return;
    spdlog::log(level == LogLevel::kDebug
                    ? spdlog::level::debug
                    : (level == LogLevel::kInfo ? spdlog::level::info : spdlog::level::warn),
                "{}", cli::WithFlagNames(std::string(text)));
  };
  // Before the server, which may read a checkpoint for long: it is not ready meanwhile.
  const auto health = health::OpenPort(flags.metrics, "longhaul-server");
  if (!health.ok()) return CannotStart(health.status(), &output);
  if (*health && flags.progress != "none") output.Print(PortLine(**health, flags.progress == "json"));
  Progress progress(flags, &output, health->get());
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
  PrintListening(flags, *server, security->kind, &output);
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
