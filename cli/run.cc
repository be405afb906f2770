#include "cli/run.h"

#include <poll.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/files.h"
#include "base/process/signal_watcher.h"
#include "base/process/spawn.h"
#include "cli/child_process.h"
#include "cli/job_view.h"
#include "cli/run_wan.h"
#include "transport/keys/temporary_key.h"

namespace longhaul::cli {
namespace {

using Clock = std::chrono::steady_clock;
using Json = nlohmann::json;

// How long children get to end in order after the job is over or was interrupted.
constexpr Duration kGrace = std::chrono::seconds(5);
// Exit code of the daemons for what their command line says wrong.
constexpr int kUsage = 2;
// A daemon that has not said that it listens by then never will.
constexpr Duration kDaemonStart = std::chrono::seconds(10);
// Of a longhaul-offload with --server.
constexpr uint32_t kMaxOffloadRanks = 62;

int FailRun(const std::string& what, int code = 1) {
  std::fprintf(stderr, "longhaul run: %s\n", what.c_str());
  return code;
}

std::string TemporaryDirectory() {
  char name[] = "/tmp/longhaul-run-XXXXXX";
  const char* made = ::mkdtemp(name);
  return made == nullptr ? std::string() : std::string(made);
}

// Rewrites one line on a terminal; on anything else prints a line every few seconds.
class ProgressPrinter {
 public:
  ProgressPrinter() : terminal_(::isatty(STDOUT_FILENO) == 1) {}

  void Print(const JobView& view, bool force = false) {
    const auto now = Clock::now();
    const auto interval = terminal_ ? std::chrono::milliseconds(100) : std::chrono::milliseconds(3000);
    if (!force && now - last_ < interval) return;
    last_ = now;
    winsize size{};
    size_t width = 160;
    if (terminal_ && ::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 20)
      width = size.ws_col - 1u;
    const std::string line = view.ProgressLine(width);
    std::printf(terminal_ ? "\r\033[K%s" : "%s\n", line.c_str());
    std::fflush(stdout);
  }
  void End() const {
    if (terminal_) std::printf("\n");
  }

 private:
  bool terminal_;
  Clock::time_point last_{};
};

class Job {
 public:
  Job(const RunOptions& options, std::string key_file, const RunWan& wan, std::string logs,
      const process::SignalWatcher& signals)
      : options_(options),
        key_file_(std::move(key_file)),
        wan_(wan),
        logs_(std::move(logs)),
        signals_(signals),
        view_(options.workers(), options.rounds, options.offload ? options.sites : 0) {}

  // The words of a command's last lines are a trace of calls.
  static constexpr size_t kLastWords = 3, kLastWordsOfCommand = 20;

  // 0, 1, 2 or 130; `elapsed` is the time from the first worker's start to the end.
  int Run(Duration* elapsed) {
    if (Status server = StartServer(); !server.ok()) return Explain(server.message());
    for (uint32_t site = 0; options_.offload && site < options_.sites; ++site) {
      if (Status offload = StartOffload(site); !offload.ok()) return Explain(offload.message());
    }
    const auto begin = Clock::now();
    if (Status workers = StartWorkers(); !workers.ok()) return Explain(workers.message());
    const int code = Watch();
    *elapsed = Clock::now() - begin;
    return code;
  }
  const JobView& view() const { return view_; }

 private:
  void AddSecurity(std::vector<std::string>* argv) const {
    if (options_.insecure) {
      argv->push_back("--insecure");
    } else {
      argv->insert(argv->end(), {"--key", key_file_});
    }
  }

  using Argv = std::vector<std::string>;

  static Argv Program(const char* program) { return {process::Beside(program)}; }
  Argv Command(const char* program, const Argv& words) const {
    Argv argv = Program(program);
    argv.insert(argv.end(), {"--progress", "json"});
    argv.insert(argv.end(), words.begin(), words.end());
    return argv;
  }
  // What a member of the job says of itself and of its connection.
  Argv MemberWords(uint32_t member, uint32_t site) const {
    Argv words = {"--rank", std::to_string(member), "--world-size", std::to_string(options_.members()),
                  "--site", SiteName(site)};
    AddSecurity(&words);
    if (!wan_.fault_spec().empty()) words.insert(words.end(), {"--fault", wan_.fault_spec()});
    words.insert(words.end(), options_.connection_words.begin(), options_.connection_words.end());
    return words;
  }
  Result<ChildProcess> StartChild(const std::string& name, const Argv& argv,
                                  const std::function<int()>& entering) {
    return ChildProcess::Start(name, argv, entering, logs_ + "/" + name + ".log");
  }

  // Waits for its "listening", which ends up in `address`.
  Status AwaitListening(ChildProcess* daemon, const std::string& address) {
    const auto deadline = Clock::now() + kDaemonStart;
    while (address.empty()) {
      WaitForOutput(50);
      if (daemon->Poll()) return Status(StatusCode::kInternal, daemon->name() + " ended at its start");
      if (Clock::now() > deadline) {
        return Status(StatusCode::kInternal, daemon->name() + " does not say that it listens");
      }
      if (signals_.interrupted()) return Status(StatusCode::kCancelled, "interrupted");
    }
    return Status::Ok();
  }

  Status StartServer() {
    Argv argv = Command("longhaul-server",
                        {"--listen", wan_.listen_address(), "--workers", std::to_string(options_.members()),
                         "--seed", std::to_string(options_.seed), "--once"});
    AddSecurity(&argv);
    argv.insert(argv.end(), options_.server_words.begin(), options_.server_words.end());
    if (wan_.has_links() && options_.insecure) argv.push_back("--insecure-bind");
    Result<ChildProcess> child = StartChild("server", argv, wan_.EnteringServer());
    if (!child.ok()) return child.status();
    server_.emplace(std::move(*child));
    return AwaitListening(&*server_, view_.server_address());
  }

  Status StartOffload(uint32_t site) {
    Argv argv = Command("longhaul-offload", {"--server", view_.server_address(), "--listen",
                                             logs_ + "/site" + SiteName(site) + ".sock", "--ranks-per-node",
                                             std::to_string(options_.ranks)});
    const Argv words = MemberWords(site, site);
    argv.insert(argv.end(), words.begin(), words.end());
    Result<ChildProcess> child = StartChild("offload" + SiteName(site), argv, wan_.EnteringSite(site));
    if (!child.ok()) return child.status();
    offloads_.push_back(std::move(*child));
    return AwaitListening(&offloads_.back(), view_.site_address(site));
  }

  // How a worker gets into the job: directly, or by its site's longhaul-offload.
  Argv JoinWords(uint32_t rank, uint32_t site) const {
    if (options_.offload) return {"--offload", view_.site_address(site)};
    Argv words = MemberWords(rank, site);
    words.insert(words.end(), {"--join", view_.server_address()});
    return words;
  }

  Status StartWorkers() {
    if (!options_.command.empty()) return StartCommand();
    for (uint32_t rank = 0; rank < options_.workers(); ++rank) {
      const uint32_t site = rank / options_.ranks;
      Argv argv = Command("longhaul-worker", {"--rounds", std::to_string(options_.rounds), "--seed",
                                              std::to_string(options_.seed)});
      if (!options_.data.empty()) argv.insert(argv.end(), {"--data", options_.data});
      const Argv words = JoinWords(rank, site);
      argv.insert(argv.end(), words.begin(), words.end());
      if (options_.offload) argv.insert(argv.end(), {"--site-rank", std::to_string(rank % options_.ranks)});
      argv.insert(argv.end(), options_.worker_words.begin(), options_.worker_words.end());
      Result<ChildProcess> child = StartChild("worker" + std::to_string(rank), argv, wan_.EnteringSite(site));
      if (!child.ok()) return child.status();
      workers_.push_back(std::move(*child));
    }
    return Status::Ok();
  }

  // In each site a longhaul-worker that runs its ranks.
  Status StartCommand() {
    for (uint32_t site = 0; site < options_.sites; ++site) {
      Argv argv = Program("longhaul-worker");
      for (const Argv& words : {JoinWords(site * options_.ranks, site),
                                Argv{"--ranks", std::to_string(options_.ranks), "--"}, options_.command}) {
        argv.insert(argv.end(), words.begin(), words.end());
      }
      Result<ChildProcess> child = StartChild("workers" + SiteName(site), argv, wan_.EnteringSite(site));
      if (!child.ok()) return child.status();
      workers_.push_back(std::move(*child));
    }
    return Status::Ok();
  }

  // Until every child has ended, one has failed, or we are interrupted.
  int Watch() {
    ProgressPrinter printer;
    std::optional<Clock::time_point> ranks_ended;  // of a command, which may never have joined
    for (;;) {
      WaitForOutput(100);
      if (options_.command.empty()) printer.Print(view_);
      if (signals_.interrupted()) {
        printer.End();
        return Interrupted();
      }
      bool all_ended = true;
      for (ChildProcess* child : Children()) {
        if (!child->Poll()) {
          all_ended = false;
        } else if (child->exit_code() != 0) {
          Drain();
          printer.End();
          return Explain(child->name() + " ended with code " + std::to_string(child->exit_code()));
        }
      }
      if (!options_.command.empty() && !all_ended && std::ranges::all_of(workers_, &ChildProcess::Poll)) {
        if (!ranks_ended) ranks_ended = Clock::now();
        if (Clock::now() - *ranks_ended > kGrace)
          return Explain("the command's ranks have ended, and the job has not: did they join it?");
      }
      if (all_ended) {
        Drain();
        if (!options_.command.empty()) return 0;
        printer.Print(view_, true);
        printer.End();
        return 0;
      }
    }
  }

  // In the order in which the end of one ends the others: the first that has failed is why they have.
  std::vector<ChildProcess*> Children() {
    std::vector<ChildProcess*> children;
    if (server_) children.push_back(&*server_);
    for (ChildProcess& offload : offloads_) children.push_back(&offload);
    for (ChildProcess& worker : workers_) children.push_back(&worker);
    return children;
  }

  void WaitForOutput(int milliseconds) {
    std::vector<pollfd> polls;
    for (const ChildProcess* child : Children()) {
      if (child->output() >= 0) polls.push_back({child->output(), POLLIN, 0});
    }
    ::poll(polls.data(), polls.size(), milliseconds);
    Drain();
  }

  void Drain() {
    if (server_) server_->ReadLines([&](const std::string& line) { view_.OnServerLine(line); });
    for (size_t site = 0; site < offloads_.size(); ++site) {
      offloads_[site].ReadLines(
          [&](const std::string& line) { view_.OnSiteLine(static_cast<uint32_t>(site), line); });
    }
    for (size_t rank = 0; rank < workers_.size(); ++rank) {
      workers_[rank].ReadLines([&](const std::string& line) {
        if (!options_.command.empty()) return (void)(std::puts(line.c_str()), std::fflush(stdout));
        view_.OnWorkerLine(static_cast<uint32_t>(rank), line);
      });
    }
  }

  void StopAll() {
    std::vector<ChildProcess*> children = Children();
    std::reverse(children.begin(), children.end());
    for (ChildProcess* child : children) child->Signal(SIGTERM);
    for (ChildProcess* child : children) {
      if (!child->WaitFor(kGrace)) child->Signal(SIGKILL);
    }
  }

  int Interrupted() {
    std::fprintf(stderr, "longhaul run: interrupted, stopping the job\n");
    StopAll();
    return 130;
  }

  // Says what failed with the last words of everyone who has something to say.
  int Explain(const std::string& what) {
    if (signals_.interrupted()) return Interrupted();
    if (Misused()) return kUsage;
    // The others learn of the failure by themselves; give them the time to say what they saw.
    const auto deadline = Clock::now() + kGrace;
    while (Clock::now() < deadline && !signals_.interrupted()) {
      WaitForOutput(50);
      const auto children = Children();
      if (std::all_of(children.begin(), children.end(), [](ChildProcess* c) { return c->Poll(); })) break;
    }
    if (Misused()) return kUsage;
    StopAll();
    FailRun(what);
    for (ChildProcess* child : Children()) PrintLastWords(child->name());
    return 1;
  }

  // Whether a child has found its command line wrong; then that is said. It is the same mistake in every
  // worker: one says it.
  bool Misused() {
    for (ChildProcess* child : Children()) {
      if (!child->Poll() || child->exit_code() != kUsage) continue;
      StopAll();
      FailRun(child->name() + " ended with code " + std::to_string(kUsage));
      PrintLastWords(child->name());
      return true;
    }
    return false;
  }

  void PrintLastWords(const std::string& name) const {
    std::ifstream log(logs_ + "/" + name + ".log");
    std::vector<std::string> lines;
    for (std::string line; std::getline(log, line);) {
      lines.push_back(line);
      if (lines.size() > (options_.command.empty() ? kLastWords : kLastWordsOfCommand)) {
        lines.erase(lines.begin());
      }
    }
    for (const std::string& line : lines) std::fprintf(stderr, "  %s: %s\n", name.c_str(), line.c_str());
  }

  const RunOptions& options_;
  std::string key_file_;
  const RunWan& wan_;
  std::string logs_;
  const process::SignalWatcher& signals_;
  JobView view_;
  std::optional<ChildProcess> server_;
  std::vector<ChildProcess> offloads_;  // of the sites
  std::vector<ChildProcess> workers_;
};

// kInvalidArgument: more than one machine or one longhaul-offload takes.
Status CheckShape(const RunOptions& o) {
  if (o.workers() > kMaxRunWorkers) {
    return {StatusCode::kInvalidArgument,
            "--sites " + std::to_string(o.sites) + " of --ranks " + std::to_string(o.ranks) + " are " +
                std::to_string(o.workers()) + " workers; " + std::to_string(kMaxRunWorkers) + " at most"};
  }
  if (o.offload && o.ranks > kMaxOffloadRanks) {
    return {StatusCode::kInvalidArgument, "--offload takes at most --ranks " +
                                              std::to_string(kMaxOffloadRanks) + " a site, not " +
                                              std::to_string(o.ranks)};
  }
  return Status::Ok();
}

// What the links carried: with IP and UDP headers, also what they dropped. Without links it is the UDP
// payload that the server received and sent.
void AddLinks(const Json& links, Json* summary) {
  uint64_t drops = 0, up = 0, down = 0;
  for (const Json& link : links) {
    drops += link["dropped_loss"].get<uint64_t>() + link["dropped_queue"].get<uint64_t>();
    (link["to"] == "A" ? up : down) += link["bytes"].get<uint64_t>();
  }
  (*summary)["link_drops"] = drops;
  (*summary)["links"] = links;
  (*summary)["wan_bytes_up"] = links.empty() ? (*summary)["bytes_up"].get<uint64_t>() : up;
  (*summary)["wan_bytes_down"] = links.empty() ? (*summary)["bytes_down"].get<uint64_t>() : down;
}

// "4 workers in site B", "4 workers in each of the sites B, C, added up by a longhaul-offload".
std::string WhoIsWhere(const RunOptions& o) {
  std::string text = std::to_string(o.ranks) + " workers in site " + SiteName(0);
  if (o.sites > 1) {
    text = std::to_string(o.ranks) + " workers in each of the sites " + SiteName(0);
    for (uint32_t site = 1; site < o.sites; ++site) text += ", " + SiteName(site);
  }
  return text + (o.offload ? ", added up by a longhaul-offload" : "");
}

void PrintSummary(const Json& s, const Json& links) {
  const auto number = [&](const char* key) { return s.value(key, 0.0); };
  if (s.contains("accuracy")) {
    std::printf("\n  accuracy        %.2f %%  after %.0f rounds in %.1f s, %.0f workers\n",
                number("accuracy") * 100, number("rounds"), number("seconds"), number("workers"));
    std::printf("  round time      p50 %.0f ms, p99 %.0f ms\n", number("round_ms_p50"),
                number("round_ms_p99"));
  } else {
    std::printf("\n  the command     %.1f s, %.0f ranks\n", number("seconds"), number("workers"));
  }
  std::printf("  WAN bytes       up %.1f MB, down %.1f MB\n", number("wan_bytes_up") / 1e6,
              number("wan_bytes_down") / 1e6);
  std::printf("  loss seen       %.2f %%;  repaired %.0f chunks by FEC, ", number("observed_loss") * 100,
              number("repaired_chunks"));
  if (s.contains("retransmissions")) std::printf("retransmitted %.0f, ", number("retransmissions"));
  std::printf("lost %.0f, filled %.0f\n", number("lost_chunks"), number("filled_chunks"));
  for (const Json& link : links) {
    std::printf("  link %s -> %s     %lld packets, dropped %lld by loss and %lld by the queue (%.2f %%)\n",
                link["from"].get<std::string>().c_str(), link["to"].get<std::string>().c_str(),
                link["packets"].get<long long>(), link["dropped_loss"].get<long long>(),
                link["dropped_queue"].get<long long>(), link["loss"].get<double>() * 100);
  }
}

}  // namespace

int RunJob(const RunOptions& options) {
  if (Status shape = CheckShape(options); !shape.ok()) return FailRun(shape.message(), 2);
  Result<wan::LinkOptions> link = LinkOf(options);
  if (!link.ok()) return FailRun(link.status().message(), 2);
  // Found out now, not after minutes of training.
  if (Status file = PrepareResultFile(options.json_file); !file.ok()) {
    return FailRun("--json: " + file.message(), 2);
  }
  const bool own_logs = options.log_directory.empty();
  const std::string logs = own_logs ? TemporaryDirectory() : options.log_directory;
  std::error_code error;
  std::filesystem::create_directories(logs, error);
  if (logs.empty() || error) return FailRun("cannot make the log directory " + logs, 2);

  std::optional<keys::TemporaryKey> own_key;
  std::string key_file = options.key_file;
  if (!options.insecure && key_file.empty()) {
    Result<keys::TemporaryKey> made = keys::TemporaryKey::Make("default");
    if (!made.ok()) return FailRun(made.status().message());
    own_key.emplace(*std::move(made));
    key_file = own_key->path();
  }
  process::SignalWatcher signals;  // before the first thread
  signals.Guard([](int) {});       // the loops that wait ask it
  Result<RunWan> wan = RunWan::Make(options, *link);
  if (!wan.ok()) return FailRun("no WAN: " + wan.status().ToString());
  std::printf("longhaul run: %s, one server in site A, %s each way, RTT %.0f ms, loss %s each way\n",
              WhoIsWhere(options).c_str(), options.rate.c_str(),
              static_cast<double>(link->delay.count()) * 2e-6, options.loss.c_str());
  std::printf("  WAN: %s\n  traffic is %s%s%s\n", wan->description().c_str(),
              options.insecure ? "NOT encrypted (--insecure)"
              : own_key        ? "encrypted, by a key made for this run"
                               : "encrypted",
              own_logs ? "" : "; logs in ", own_logs ? "" : logs.c_str());
  std::fflush(stdout);

  Duration elapsed{0};
  int code = 0;
  Json summary;
  {
    Job job(options, key_file, *wan, logs, signals);
    code = job.Run(&elapsed);
    summary = job.view().Summary(elapsed);
    std::ofstream rounds(logs + "/rounds.tsv");
    if (!(rounds << job.view().RoundsTable()).flush()) {
      std::fprintf(stderr, "longhaul run: %s/rounds.tsv was not written: %s\n", logs.c_str(),
                   std::strerror(errno));
    }
  }  // no child is left
  const Json links = wan->LinkReports();
  if (Status down = wan->Down(); !down.ok()) FailRun("taking the WAN down: " + down.ToString());
  if (!options.command.empty()) {  // what a trainer of ours says of itself
    for (const char* key : {"accuracy", "training_loss", "rounds", "seconds_p50", "round_ms_p50",
                            "round_ms_p99", "retransmissions"}) {
      summary.erase(key);
    }
    summary["command"] = options.command;
  }
  AddLinks(links, &summary);
  summary["wan"] = wan->description();
  summary["sites"] = options.sites;
  summary["ranks"] = options.ranks;
  summary["offload"] = options.offload;
  summary["seed"] = options.seed;
  summary["policy"] = NameOf(options.job_spec.policy);
  summary["encrypted"] = !options.insecure;
  summary["asked"] = {{"rate", options.rate},
                      {"delay", options.delay},
                      {"loss", options.loss},
                      {"queue", options.queue},
                      {"server", options.server_words},
                      {"workers", options.worker_words},
                      {"connections", options.connection_words}};
  summary["ok"] = code == 0;
  if (code == 0) PrintSummary(summary, links);
  if (!options.json_file.empty()) {
    const Status written = WriteFileAtomically(options.json_file, summary.dump(2) + "\n");
    if (!written.ok()) code = std::max(code, FailRun("--json: " + written.message()));
  }
  if (code == 0 && options.command.empty() && !(summary.value("accuracy", 0.0) >= options.min_accuracy)) {
    code = FailRun("accuracy is below --min-accuracy");
  }
  if (code == 0 && own_logs) {
    std::filesystem::remove_all(logs, error);
  } else if (code != 0) {
    std::fprintf(stderr, "longhaul run: the logs are in %s\n", logs.c_str());
  }
  return code;
}

}  // namespace longhaul::cli
