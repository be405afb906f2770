#include "cli/run.h"

#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
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
#include "cli/child_process.h"
#include "cli/job_view.h"
#include "transport/keys/temporary_key.h"
#include "wan/link_options.h"
#include "wan/tun/tun_wan.h"

namespace longhaul::cli {
namespace {

using Clock = std::chrono::steady_clock;
using Json = nlohmann::json;

// How long children get to end in order after the job is over or was interrupted.
constexpr Duration kGrace = std::chrono::seconds(5);
// Exit code of the daemons for what their command line says wrong.
constexpr int kUsage = 2;
// A server that has not said that it listens by then never will.
constexpr Duration kServerStart = std::chrono::seconds(10);

int FailRun(const std::string& what, int code = 1) {
  std::fprintf(stderr, "longhaul run: %s\n", what.c_str());
  return code;
}

// The WAN of the job: links between namespaces, or nothing but loopback with the daemons' fault injectors.
struct Wan {
  std::unique_ptr<wan::TunWan> links;
  std::string fault_spec;  // for each worker, when there are no links
  std::string server_host = "127.0.0.1";
  int server_namespace = -1;
  int worker_namespace = -1;
  std::string description;

  ~Wan() {
    if (server_namespace >= 0) ::close(server_namespace);
    if (worker_namespace >= 0) ::close(worker_namespace);
  }
};

Result<wan::LinkOptions> LinkOf(const RunOptions& o) {
  std::string words = "rate " + o.rate + " delay " + o.delay + " queue " + o.queue;
  if (o.loss != "0") words += " loss " + o.loss;
  if (o.loss_burst >= 1) words += " burst " + std::to_string(o.loss_burst);
  return wan::ParseLinkOptions(words);
}

// The fault injector sits in each worker, on what it sends and what it receives: per worker, not shared.
std::string FaultSpec(const RunOptions& o, const wan::LinkOptions& link) {
  char spec[256];
  std::snprintf(spec, sizeof spec, "drop=%.6f,delay=%lldus,rate=%lldbit,queue=%lldus,seed=%llu", link.loss,
                static_cast<long long>(link.delay.count() / 1000),
                static_cast<long long>(link.rate.bits_per_second() / o.workers),
                static_cast<long long>(link.queue_time.count() / 1000),
                static_cast<unsigned long long>(o.seed));
  return spec;
}

Status MakeWan(const RunOptions& o, const wan::LinkOptions& link, Wan* wan) {
  const auto loopback = [&](const std::string& why) {
    wan->fault_spec = FaultSpec(o, link);
    wan->description = "loopback with the seeded fault injector in every worker (" + wan->fault_spec + ")" +
                       (why.empty() ? "" : "; no network namespaces: " + why);
    return Status::Ok();
  };
  if (o.wan == "loopback") return loopback("");
  wan::TunWan::Options options;
  options.sites = {"A", "B"};
  options.link = link;
  options.seed = o.seed;
  options.backend = o.wan == "netem" ? wan::Backend::kNetem
                    : o.wan == "tun" ? wan::Backend::kTun
                                     : wan::Backend::kAuto;
  Result<std::unique_ptr<wan::TunWan>> up = wan::TunWan::Up(options);
  if (!up.ok()) {
    if (o.wan == "auto" && up.status().code() != StatusCode::kInvalidArgument) {
      return loopback(up.status().message());
    }
    return up.status();
  }
  wan->links = std::move(*up);
  wan->server_host = wan->links->sites().front().address;
  Result<int> a = wan->links->OpenSiteNamespace("A");
  if (!a.ok()) return a.status();
  wan->server_namespace = *a;
  Result<int> b = wan->links->OpenSiteNamespace("B");
  if (!b.ok()) return b.status();
  wan->worker_namespace = *b;
  wan->description = std::string(wan::BackendName(wan->links->backend())) +
                     " between two network namespaces (" + wan->links->backend_reason() + ")";
  return Status::Ok();
}

std::function<int()> Entering(int network_namespace) {
  if (network_namespace < 0) return {};
  return [network_namespace] { return ::setns(network_namespace, CLONE_NEWNET); };
}

std::filesystem::path ProgramDirectory() {
  return std::filesystem::read_symlink("/proc/self/exe").parent_path();
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
  Job(const RunOptions& options, std::string key_file, Wan* wan, std::string logs,
      const process::SignalWatcher& signals)
      : options_(options),
        key_file_(std::move(key_file)),
        wan_(wan),
        logs_(std::move(logs)),
        signals_(signals),
        view_(options.workers, options.rounds) {}

  // 0, 1, 2 or 130; `elapsed` is the time from the first worker's start to the end.
  int Run(Duration* elapsed) {
    const Status started = StartServer();
    if (!started.ok()) return Explain(started.message());
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

  Status StartServer() {
    std::vector<std::string> argv = {(ProgramDirectory() / "longhaul-server").string(),
                                     "--listen",
                                     wan_->server_host + (wan_->links ? ":7700" : ":0"),
                                     "--workers",
                                     std::to_string(options_.workers),
                                     "--seed",
                                     std::to_string(options_.seed),
                                     "--progress",
                                     "json",
                                     "--once"};
    AddSecurity(&argv);
    argv.insert(argv.end(), options_.server_words.begin(), options_.server_words.end());
    if (wan_->links && options_.insecure) argv.push_back("--insecure-bind");
    Result<ChildProcess> child =
        ChildProcess::Start("server", argv, Entering(wan_->server_namespace), logs_ + "/server.log");
    if (!child.ok()) return child.status();
    server_.emplace(std::move(*child));
    const auto deadline = Clock::now() + kServerStart;
    while (view_.server_address().empty()) {
      WaitForOutput(50);
      if (server_->Poll()) return Status(StatusCode::kInternal, "the server ended at its start");
      if (Clock::now() > deadline)
        return Status(StatusCode::kInternal, "the server does not say that it listens");
      if (signals_.interrupted()) return Status(StatusCode::kCancelled, "interrupted");
    }
    return Status::Ok();
  }

  Status StartWorkers() {
    const std::string address = wan_->links ? wan_->server_host + ":7700" : view_.server_address();
    for (uint32_t rank = 0; rank < options_.workers; ++rank) {
      std::vector<std::string> argv = {(ProgramDirectory() / "longhaul-worker").string(),
                                       "--join",
                                       address,
                                       "--rank",
                                       std::to_string(rank),
                                       "--world-size",
                                       std::to_string(options_.workers),
                                       "--site",
                                       "B",
                                       "--rounds",
                                       std::to_string(options_.rounds),
                                       "--seed",
                                       std::to_string(options_.seed),
                                       "--progress",
                                       "json"};
      AddSecurity(&argv);
      const auto option = [&](const char* flag, const std::string& value) {
        if (!value.empty()) argv.insert(argv.end(), {flag, value});
      };
      option("--fault", wan_->fault_spec);
      option("--data", options_.data);
      argv.insert(argv.end(), options_.worker_words.begin(), options_.worker_words.end());
      const std::string name = "worker" + std::to_string(rank);
      Result<ChildProcess> child =
          ChildProcess::Start(name, argv, Entering(wan_->worker_namespace), logs_ + "/" + name + ".log");
      if (!child.ok()) return child.status();
      workers_.push_back(std::move(*child));
    }
    return Status::Ok();
  }

  // Until every child has ended, one has failed, or we are interrupted.
  int Watch() {
    ProgressPrinter printer;
    for (;;) {
      WaitForOutput(100);
      printer.Print(view_);
      if (signals_.interrupted()) {
        printer.End();
        std::fprintf(stderr, "longhaul run: interrupted, stopping the job\n");
        StopAll();
        return 130;
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
      if (all_ended) {
        Drain();
        printer.Print(view_, true);
        printer.End();
        return 0;
      }
    }
  }

  std::vector<ChildProcess*> Children() {
    std::vector<ChildProcess*> children;
    for (ChildProcess& worker : workers_) children.push_back(&worker);
    if (server_) children.push_back(&*server_);
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
    for (size_t rank = 0; rank < workers_.size(); ++rank) {
      workers_[rank].ReadLines(
          [&](const std::string& line) { view_.OnWorkerLine(static_cast<uint32_t>(rank), line); });
    }
  }

  void StopAll() {
    for (ChildProcess* child : Children()) child->Signal(SIGTERM);
    for (ChildProcess* child : Children()) {
      if (!child->WaitFor(kGrace)) child->Signal(SIGKILL);
    }
  }

  // Says what failed with the last words of everyone who has something to say.
  int Explain(const std::string& what) {
    // A wrong option is the same mistake in every worker: one says it.
    for (ChildProcess* child : Children()) {
      if (!child->Poll() || child->exit_code() != kUsage) continue;
      StopAll();
      FailRun(what);
      PrintLastWords(child->name());
      return kUsage;
    }
    // The others learn of the failure by themselves; give them the time to say what they saw.
    const auto deadline = Clock::now() + kGrace;
    while (Clock::now() < deadline && !signals_.interrupted()) {
      WaitForOutput(50);
      const auto children = Children();
      if (std::all_of(children.begin(), children.end(), [](ChildProcess* c) { return c->Poll(); })) break;
    }
    StopAll();
    FailRun(what);
    for (ChildProcess* child : Children()) PrintLastWords(child->name());
    return 1;
  }

  void PrintLastWords(const std::string& name) const {
    std::ifstream log(logs_ + "/" + name + ".log");
    std::vector<std::string> lines;
    for (std::string line; std::getline(log, line);) {
      lines.push_back(line);
      if (lines.size() > 3) lines.erase(lines.begin());
    }
    for (const std::string& line : lines) std::fprintf(stderr, "  %s: %s\n", name.c_str(), line.c_str());
  }

  const RunOptions& options_;
  std::string key_file_;
  Wan* wan_;
  std::string logs_;
  const process::SignalWatcher& signals_;
  JobView view_;
  std::optional<ChildProcess> server_;
  std::vector<ChildProcess> workers_;
};

Json LinkReport(Wan& wan) {
  Json links = Json::array();
  if (!wan.links) return links;
  for (const wan::TunWan::LinkReport& link : wan.links->Links()) {
    const wan::LinkCounters& c = link.counters;
    links.push_back(
        {{"from", link.from},
         {"to", link.to},
         {"packets", c.packets_in},
         {"bytes", c.bytes_in},
         {"dropped_loss", c.dropped_loss},
         {"dropped_queue", c.dropped_queue},
         {"loss",
          c.packets_in == 0 ? 0.0 : static_cast<double>(c.dropped()) / static_cast<double>(c.packets_in)},
         {"max_queue_ms", static_cast<double>(c.max_queue_delay.count()) / 1e6}});
  }
  return links;
}

void PrintSummary(const Json& s, const Json& links) {
  const auto number = [&](const char* key) { return s.value(key, 0.0); };
  std::printf("\n  accuracy        %.2f %%  after %.0f rounds in %.1f s, %.0f workers\n",
              number("accuracy") * 100, number("rounds"), number("seconds"), number("workers"));
  std::printf("  round time      p50 %.0f ms, p99 %.0f ms\n", number("round_ms_p50"), number("round_ms_p99"));
  std::printf("  bytes           up %.1f MB, down %.1f MB\n", number("bytes_up") / 1e6,
              number("bytes_down") / 1e6);
  std::printf(
      "  loss seen       %.2f %%;  repaired %.0f chunks by FEC, retransmitted %.0f, lost %.0f, filled %.0f\n",
      number("observed_loss") * 100, number("repaired_chunks"), number("retransmissions"),
      number("lost_chunks"), number("filled_chunks"));
  for (const Json& link : links) {
    std::printf("  link %s -> %s     %lld packets, dropped %lld by loss and %lld by the queue (%.2f %%)\n",
                link["from"].get<std::string>().c_str(), link["to"].get<std::string>().c_str(),
                link["packets"].get<long long>(), link["dropped_loss"].get<long long>(),
                link["dropped_queue"].get<long long>(), link["loss"].get<double>() * 100);
  }
}

}  // namespace

int RunJob(const RunOptions& options) {
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
  Wan wan;
  if (Status status = MakeWan(options, *link, &wan); !status.ok())
    return FailRun("no WAN: " + status.ToString());
  std::printf(
      "longhaul run: %u workers in site B, one server in site A, %s each way, RTT %.0f ms, loss %s each "
      "way\n",
      options.workers, options.rate.c_str(), static_cast<double>(link->delay.count()) * 2e-6,
      options.loss.c_str());
  std::printf("  WAN: %s\n  traffic is %s%s%s\n", wan.description.c_str(),
              options.insecure ? "NOT encrypted (--insecure)"
              : own_key        ? "encrypted, by a key made for this run"
                               : "encrypted",
              own_logs ? "" : "; logs in ", own_logs ? "" : logs.c_str());
  std::fflush(stdout);

  Duration elapsed{0};
  int code = 0;
  Json summary;
  {
    Job job(options, key_file, &wan, logs, signals);
    code = job.Run(&elapsed);
    summary = job.view().Summary(elapsed);
    std::ofstream(logs + "/rounds.tsv") << job.view().RoundsTable();
  }  // no child is left
  const Json links = LinkReport(wan);
  if (wan.links) {
    if (Status down = wan.links->Down(); !down.ok()) FailRun("taking the WAN down: " + down.ToString());
  }
  uint64_t drops = 0;
  for (const Json& l : links) drops += l["dropped_loss"].get<uint64_t>() + l["dropped_queue"].get<uint64_t>();
  summary["link_drops"] = drops;
  summary["links"] = links;
  summary["wan"] = wan.description;
  summary["seed"] = options.seed;
  summary["policy"] = NameOf(options.job_spec.policy);
  summary["encrypted"] = !options.insecure;
  summary["asked"] = {{"rate", options.rate},           {"delay", options.delay},
                      {"loss", options.loss},           {"queue", options.queue},
                      {"server", options.server_words}, {"workers", options.worker_words}};
  summary["ok"] = code == 0;
  if (code == 0) PrintSummary(summary, links);
  if (!options.json_file.empty()) {
    const Status written = WriteFileAtomically(options.json_file, summary.dump(2) + "\n");
    if (!written.ok()) code = std::max(code, FailRun("--json: " + written.message()));
  }
  if (code == 0 && !(summary.value("accuracy", 0.0) >= options.min_accuracy)) {
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
