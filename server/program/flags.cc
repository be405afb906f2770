#include "server/program/flags.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <vector>

#include "base/flags/help_page.h"
#include "base/flags/job_flags.h"
#include "base/flags/number_checks.h"
#include "base/units_text.h"
#include "health/metrics_flag.h"

namespace longhaul::server {
namespace {

void AddGrantFlags(CLI::App& app, ServerFlags& f) {
  app.add_option("--capacity", f.capacity,
                 "rate of the link into the server that the workers share, e.g. 200mbit; auto = estimated")
      ->check(cli::IsRate() | CLI::IsMember({"auto"}));
  app.add_option("--capacity-floor", f.capacity_floor, "the estimate is never below this")
      ->check(cli::IsRate());
  app.add_option("--capacity-cap", f.capacity_cap, "the estimate is never above this")->check(cli::IsRate());
  app.add_option(
         "--share", f.share,
         "in a file of --jobs: the job's part of --capacity is this in the sum over the jobs that run")
      ->check(CLI::Range(1, 1000));
  app.add_option("--worker-rate-cap", f.worker_rate_cap, "no worker may send faster")->check(cli::IsRate());
  app.add_option(
         "--worker-rate-floor", f.worker_rate_floor,
         "every worker that has something to send may send as fast as this, as far as the capacity goes")
      ->check(cli::IsRate());
  app.add_flag("--no-grants", f.no_grants, "do not tell workers how fast to send");
}

// REQUIRES: the flags have passed their checks.
void TakeGrantFlags(const ServerFlags& f, ServerOptions* options) {
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

}  // namespace

void AddFlags(CLI::App& app, ServerFlags& f) {
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
  app.add_option(
      "--min-incarnation", f.server.min_incarnation,
      "refuse workers with a lower --incarnation, or without one: those of an earlier attempt of the "
      "job; 0 = none");
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
  app.add_option(
         "--plugin", f.plugins,
         "a shared object with optimizers of the user's, which workers name as they name the built-in "
         "ones, and aggregations (docs/howto/your_own_optimizer.md); its code has all rights of the "
         "server; may be given several times")
      ->type_name("FILE");
  app.add_option("--plugin-aggregation", f.server.plugin_aggregation,
                 "how the workers' gradients become one: the rule of this name of a plug-in, instead of "
                 "--aggregation; none = as --aggregation says")
      ->type_name("NAME");
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
  app.add_option(
         "--jobs", f.jobs_file,
         "several jobs, isolated: a TOML file with a section [job.NAME] for each, 256 at most, of any of "
         "these options; those before the first section are for all. It ends when all have ended; SIGHUP "
         "starts jobs that are new in it and ends in order those that have left it")
      ->type_name("FILE");
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
      "SIGUSR2 (with --round-log) hands the job over: results on their way leave, the server ends with 0, "
      "and the workers\n"
      "that have --reconnect-timeout go on with the server that is started next on the same "
      "--checkpoint-dir.\n"
      "A worker may have 64 barriers open that are not complete (4096 / --workers if that is less), and 4096 "
      "tensors\n"
      "make a job; what is beyond a limit is refused by an answer to that call.\n"
      "With --progress json every line is an object with \"event\": metrics, listening, join, start, round, "
      "leave, "
      "refused,\n"
      "rejected, left_out, waiting, weight_bounded, handshake_failed, suppressed, kick,\n"
      "expiring, bench, checkpoint, server, abort or finished; with --jobs it has the \"job\", and each job "
      "says\n"
      "last how it has \"ended\". The exit code is then the highest of all jobs'.");
}

std::span<const std::string_view> ProcessOptions() {
  static constexpr std::string_view kNames[] = {
      "jobs",   "config",   "capacity",  "plugin",  "metrics", "allow-core-dump", "no-seccomp",
      "inject", "progress", "log-level", "version", "help",    "help-markdown"};
  return kNames;
}

Status TakeFlags(const CLI::App& app, ServerFlags* flags) {
  ServerOptions& o = flags->server;
  o.max_model = ByteCount(flags->max_model_bytes);
  o.half_open_timeout = FromSeconds(flags->half_open_seconds);
  o.max_memory = ByteCount(flags->max_memory_bytes);
  TakeGrantFlags(*flags, &o);
  // What is there only when it is given.
  if (app.count("--allow") > 0) o.allow = SplitNames(o.allow);
  const auto invalid = [](const std::string& why) { return Status(StatusCode::kInvalidArgument, why); };
  if (o.min_workers > o.workers) {
    return invalid("--min-workers " + std::to_string(o.min_workers) + " is more than --workers " +
                   std::to_string(o.workers));
  }
  const uint32_t least = o.min_workers == 0 ? o.workers : o.min_workers;
  if (o.start_workers == 0 || (o.start_workers >= least && o.start_workers <= o.workers)) return {};
  return invalid("--start-workers " + std::to_string(o.start_workers) + " is not in " +
                 std::to_string(least) + ".." + std::to_string(o.workers) + " (--min-workers..--workers)");
}

}  // namespace longhaul::server
