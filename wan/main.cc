// longhaul-wan: a WAN between network namespaces, from the command line.
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <iostream>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "base/files.h"
#include "base/flags/help_page.h"
#include "base/flags/number_checks.h"
#include "base/signals.h"
#include "wan/tun/namespaces.h"
#include "wan/tun/process.h"
#include "wan/tun/run_state.h"
#include "wan/tun/tun_wan.h"

namespace longhaul::wan {
namespace {

enum ExitCode : int { kSuccess = 0, kFailure = 1, kUsage = 2, kPermission = 3, kNotAvailable = 4 };

constexpr const char* kDescription =
    "Emulates a WAN between network namespaces, one for each site, so that real programs (TCP included)\n"
    "cross links with a rate, a delay, a queue, losses, bursts, reordering, duplicates and outages.\n";

constexpr const char* kFooter = R"(EXAMPLES
  Two datacenters, 200 Mbit/s, round trip 50 ms (25 ms each way), 2 % loss each way:
    longhaul-wan up --sites A,B --rate 200mbit --delay 25ms --loss 2%
    longhaul-wan exec B -- iperf3 -s            (in a second terminal; A is 10.77.1.1, B is 10.77.2.1)
    longhaul-wan exec A -- iperf3 -c 10.77.2.1  (in a third)

  Losses in bursts of 10 packets, and a bad way back from C:
    longhaul-wan up --sites A,B,C --rate 100mbit --delay 20ms --gemodel "5% burst 10" \
                    --link C-A:loss=20%,rate=10mbit

  In the background, counters to a file, and its end:
    longhaul-wan up --sites A,B --rate 1gbit --delay 40ms --queue 100ms --json /tmp/wan.json --daemon
    longhaul-wan status
    longhaul-wan down

EXIT CODES
  0 done, 1 failed, 2 wrong usage, 3 permission denied, 4 not available on this kernel.
  `exec` exits with the code of the command.
)";

int CodeFor(const Status& status) {
  switch (status.code()) {
    case StatusCode::kOk:
      return kSuccess;
    case StatusCode::kInvalidArgument:
      return kUsage;
    case StatusCode::kPermissionDenied:
      return kPermission;
    case StatusCode::kUnavailable:
      return kNotAvailable;
    default:
      return kFailure;
  }
}

int Fail(const Status& status) {
  std::fprintf(stderr, "longhaul-wan: %s\n", status.ToString().c_str());
  if (status.code() == StatusCode::kPermissionDenied) {
    std::fprintf(
        stderr, "longhaul-wan: it needs root, or user namespaces and a TUN device that this user may open\n");
  }
  return CodeFor(status);
}

// ---- up
// ----------------------------------------------------------------------------------------------------

struct UpArguments {
  std::vector<std::string> sites;
  // Values of the link options by their word, as ParseLinkOptions() reads them.
  std::map<std::string, std::string> words;
  std::vector<std::string> outages;
  bool jitter_reorders = false;
  std::vector<std::string> links;
  uint64_t seed = 1;
  std::string backend = "auto";
  std::string json_path;
  std::string tag;
  std::string tun_device = "/dev/net/tun";
  std::string state_directory;
  int mtu = 1500;
  bool daemon = false;
  bool quiet = false;
};

// "A-B:rate=10mbit,loss=5%"
Result<TunWan::LinkOverride> ParseLink(const std::string& text, const LinkOptions& base) {
  const size_t colon = text.find(':');
  const size_t hyphen = text.substr(0, colon).find('-');
  if (colon == std::string::npos || hyphen == std::string::npos) {
    return Status(StatusCode::kInvalidArgument,
                  "--link '" + text + "': write FROM-TO:options, such as A-B:rate=10mbit,loss=5%");
  }
  const auto options = ParseLinkOptions(std::string_view(text).substr(colon + 1), base);
  if (!options.ok())
    return Status(options.status().code(), "--link '" + text + "': " + options.status().message());
  return TunWan::LinkOverride{text.substr(0, hyphen), text.substr(hyphen + 1, colon - hyphen - 1), *options};
}

Result<TunWan::Options> ToOptions(const UpArguments& arguments) {
  std::string words = arguments.jitter_reorders ? "jitter-reorders " : "";
  for (const auto& [word, value] : arguments.words) {
    if (!value.empty()) words += word + " " + value + " ";
  }
  for (const std::string& outage : arguments.outages) words += "outage " + outage + " ";
  const auto link = ParseLinkOptions(words);
  if (!link.ok()) return link.status();
  TunWan::Options options;
  options.sites = arguments.sites;
  options.link = *link;
  for (const std::string& text : arguments.links) {
    auto one = ParseLink(text, *link);
    if (!one.ok()) return one.status();
    options.overrides.push_back(std::move(*one));
  }
  options.seed = arguments.seed;
  options.tag = arguments.tag;
  options.mtu = arguments.mtu;
  options.tun_device = arguments.tun_device;
  options.state_directory = arguments.state_directory;
  options.command_line = true;
  if (arguments.backend == "tun") options.backend = Backend::kTun;
  if (arguments.backend == "netem") options.backend = Backend::kNetem;
  return options;
}

void PrintHeader(TunWan& wan) {
  std::printf("longhaul-wan: up, tag %s, BACKEND %s: %s\n", wan.tag().c_str(), BackendName(wan.backend()),
              wan.backend_reason().c_str());
  for (const auto& site : wan.sites()) {
    std::printf("  site %-8s %-12s namespace %s\n", site.name.c_str(), site.address.c_str(),
                site.namespace_path.c_str());
  }
  for (const auto& link : wan.Links()) {
    std::printf("  link %s->%s: %s\n", link.from.c_str(), link.to.c_str(), link.options.ToString().c_str());
  }
  std::fflush(stdout);
}

double Mbps(uint64_t bytes, double seconds) { return static_cast<double>(bytes) * 8e-6 / seconds; }

void PrintTableHead() {
  std::printf("%7s  %-12s %9s %9s %8s | %8s %8s %8s %8s | %6s %6s %6s\n", "time", "link", "in Mb/s",
              "out Mb/s", "queue ms", "lost", "q-full", "outage", "too big", "dup", "reord", "corr");
}

// What happened between two moments on one link.
void PrintRow(double time, const TunWan::LinkReport& now, const LinkCounters& before, double seconds) {
  const LinkCounters& c = now.counters;
  const auto delta = [](uint64_t a, uint64_t b) { return static_cast<unsigned long long>(a - b); };
  std::printf("%6.1fs  %-12s %9.2f %9.2f %8.2f | %8llu %8llu %8llu %8llu | %6llu %6llu %6llu%s\n", time,
              (now.from + "->" + now.to).c_str(), Mbps(c.bytes_in - before.bytes_in, seconds),
              Mbps(c.bytes_delivered - before.bytes_delivered, seconds),
              static_cast<double>(now.queue_delay.count()) / 1e6, delta(c.dropped_loss, before.dropped_loss),
              delta(c.dropped_queue, before.dropped_queue), delta(c.dropped_outage, before.dropped_outage),
              delta(c.dropped_mtu, before.dropped_mtu), delta(c.duplicated, before.duplicated),
              delta(c.reordered, before.reordered), delta(c.corrupted, before.corrupted),
              now.drops_are_merged ? "  (lost = loss + queue)" : "");
}

class Reporter {
 public:
  Reporter(TunWan& wan, bool quiet, std::string json_path)
      : wan_(wan), quiet_(quiet), json_path_(std::move(json_path)), start_(Seconds()), last_(start_) {}

  void Tick() {
    const double now = Seconds();
    const auto links = wan_.Links();
    if (!quiet_) {
      if (ticks_++ % 20 == 0) PrintTableHead();
      for (const auto& link : links) {
        PrintRow(now - start_, link, before_[link.from + "-" + link.to], std::max(now - last_, 1e-3));
      }
      std::fflush(stdout);
    }
    for (const auto& link : links) before_[link.from + "-" + link.to] = link.counters;
    last_ = now;
    WriteFiles(true);
  }

  void Summary() {
    WriteFiles(false);
    if (quiet_) return;
    const double seconds = std::max(Seconds() - start_, 1e-3);
    std::printf("\ntotals after %.1f s (rates are averages)\n", seconds);
    PrintTableHead();
    for (const auto& link : wan_.Links()) PrintRow(seconds, link, {}, seconds);
    const ForwarderStats f = wan_.ForwarderStatistics();
    const TunKernelCounters k = wan_.KernelCounters();
    const uint64_t lost = f.overload + f.write_errors + k.dropped_before_read + k.dropped_after_write;
    if (f.packets_read > 0) {
      std::printf(
          "forwarder: %llu packets, late by p50 %.0f us, p99 %.0f us, max %.0f us; %.2f s of CPU; dropped "
          "outside "
          "the model: %llu\n",
          static_cast<unsigned long long>(f.packets_read), Micro(f.lateness.Quantile(0.5)),
          Micro(f.lateness.Quantile(0.99)), Micro(f.lateness.max()),
          static_cast<double>(f.cpu_time.count()) / 1e9, static_cast<unsigned long long>(lost));
    }
    std::fflush(stdout);
  }

 private:
  static double Seconds() {
    timespec t{};
    clock_gettime(CLOCK_MONOTONIC, &t);
    return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_nsec) / 1e9;
  }
  static double Micro(Duration t) { return static_cast<double>(t.count()) / 1e3; }

  void WriteFiles(bool live) {
    const std::string json = wan_.StatsJson();
    if (live) (void)WriteFileAtomically(CountersPath(wan_.state_directory(), wan_.tag()), json);
    if (json_path_.empty()) return;
    if (Status s = WriteFileAtomically(json_path_, json); !s.ok()) {
      std::fprintf(stderr, "longhaul-wan: %s\n", s.ToString().c_str());
    }
  }

  TunWan& wan_;
  bool quiet_;
  std::string json_path_;
  double start_;
  double last_;
  int ticks_ = 0;
  std::map<std::string, LinkCounters> before_;
};

// A daemon's word to the terminal that started it: the exit code, then what to print.
class ReadyPipe {
 public:
  // Forks; the parent waits for the word and exits with it. Returns in the child.
  static Result<ReadyPipe> DetachAndReturnInChild() {
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0) return OsError("pipe", errno);
    const pid_t pid = fork();
    if (pid < 0) return OsError("fork", errno);
    if (pid > 0) {
      close(ends[1]);
      unsigned char code = kFailure;
      if (read(ends[0], &code, 1) != 1)
        std::fprintf(stderr, "longhaul-wan: the daemon died before it was up\n");
      _exit(code);
    }
    close(ends[0]);
    setsid();
    return ReadyPipe(FileDescriptor(ends[1]));
  }

  void Tell(int code) {
    std::fflush(nullptr);
    const auto byte = static_cast<unsigned char>(code);
    (void)!write(pipe_.get(), &byte, 1);
    pipe_.Reset();
    const int null = open("/dev/null", O_RDWR | O_CLOEXEC);
    for (int fd = 0; fd < 3; ++fd) dup2(null, fd);
    close(null);
  }

 private:
  explicit ReadyPipe(FileDescriptor pipe) : pipe_(std::move(pipe)) {}
  FileDescriptor pipe_;
};

int Up(const UpArguments& arguments) {
  auto options = ToOptions(arguments);
  if (!options.ok()) return Fail(options.status());
  std::optional<ReadyPipe> ready;
  if (arguments.daemon) {
    auto pipe = ReadyPipe::DetachAndReturnInChild();
    if (!pipe.ok()) return Fail(pipe.status());
    ready = std::move(*pipe);
  }
  // Blocked before any thread exists, so that only the loop below receives them.
  const EndingSignals ending({SIGINT, SIGTERM, SIGHUP});
  auto wan = TunWan::Up(std::move(*options));
  if (!wan.ok()) {
    const int code = Fail(wan.status());
    if (ready) ready->Tell(code);
    return code;
  }
  PrintHeader(**wan);
  Reporter reporter(**wan, arguments.quiet || arguments.daemon, arguments.json_path);
  if (ready) {
    reporter.Tick();
    ready->Tell(kSuccess);
  }
  while (ending.Take(std::chrono::seconds(1)) == 0) reporter.Tick();
  const Status status = (*wan)->Down();
  reporter.Summary();
  return status.ok() ? kSuccess : Fail(status);
}

// ---- down, status, exec
// ------------------------------------------------------------------------------------

struct FindArguments {
  std::string state_directory;
  std::string tag;  // empty: every run

  std::string Directory() const {
    return state_directory.empty() ? DefaultStateDirectory() : state_directory;
  }
  std::vector<RunState> Runs() const {
    std::vector<RunState> runs = ListRunStates(Directory());
    if (!tag.empty()) std::erase_if(runs, [this](const RunState& r) { return r.tag != tag; });
    return runs;
  }
};

bool WaitUntilDead(const RunState& run) {
  constexpr timespec kPause{0, 20'000'000};
  for (int i = 0; i < 250 && run.IsAlive(); ++i) nanosleep(&kPause, nullptr);
  return !run.IsAlive();
}

Status EndRun(const std::string& directory, const RunState& run) {
  const bool was_alive = run.IsAlive();
  if (was_alive) {
    if (kill(run.pid, SIGTERM) != 0) return OsError("ending process " + std::to_string(run.pid), errno);
    if (!WaitUntilDead(run)) {
      return {StatusCode::kDeadlineExceeded,
              "process " + std::to_string(run.pid) + " did not end within 5 s"};
    }
  }
  if (Status s = RemoveRun(directory, run); !s.ok()) return s;
  std::printf("longhaul-wan: %s %s\n", was_alive ? "ended run" : "cleaned up what was left of the dead run",
              run.tag.c_str());
  return Status::Ok();
}

int Down(const FindArguments& arguments) {
  int code = kSuccess;
  const auto runs = arguments.Runs();
  if (runs.empty()) std::printf("longhaul-wan: nothing is up\n");
  for (const RunState& run : runs) {
    if (run.IsAlive() && !run.command_line) {
      std::printf("longhaul-wan: run %s belongs to the living process %d and ends with it\n", run.tag.c_str(),
                  run.pid);
      continue;
    }
    if (Status s = EndRun(arguments.Directory(), run); !s.ok()) code = Fail(s);
  }
  return code;
}

void PrintCounters(const nlohmann::json& stats) {
  std::printf("  %-12s %12s %12s %10s %10s %10s  options\n", "link", "packets in", "delivered", "lost",
              "queue full", "outage");
  for (const auto& link : stats.at("links")) {
    const auto number = [&link](const char* key) {
      return static_cast<unsigned long long>(link.at(key).get<uint64_t>());
    };
    std::printf("  %-12s %12llu %12llu %10llu %10llu %10llu  %s\n",
                (link.at("from").get<std::string>() + "->" + link.at("to").get<std::string>()).c_str(),
                number("packets_in"), number("packets_delivered"), number("dropped_loss"),
                number("dropped_queue"), number("dropped_outage"),
                link.at("options").get<std::string>().c_str());
  }
}

int PrintStatus(const FindArguments& arguments) {
  const auto runs = arguments.Runs();
  if (runs.empty()) std::printf("longhaul-wan: nothing is up\n");
  for (const RunState& run : runs) {
    std::printf("run %s: %s, backend %s, process %d\n", run.tag.c_str(),
                run.IsAlive() ? "up" : "DEAD (longhaul-wan down cleans up)", run.backend.c_str(), run.pid);
    for (const auto& site : run.sites) {
      std::printf("  site %-8s %-12s namespace %s\n", site.name.c_str(), site.address.c_str(),
                  site.namespace_path.c_str());
    }
    std::ifstream file(CountersPath(arguments.Directory(), run.tag));
    if (!file) continue;
    try {
      PrintCounters(nlohmann::json::parse(file));
    } catch (const nlohmann::json::exception& e) {
      std::fprintf(stderr, "longhaul-wan: the counters of run %s cannot be read: %s\n", run.tag.c_str(),
                   e.what());
    }
  }
  return kSuccess;
}

struct Place {
  RunState run;
  std::string namespace_path;
};

Result<Place> FindSite(const FindArguments& arguments, const std::string& name) {
  std::vector<Place> places;
  for (RunState& run : arguments.Runs()) {
    for (const auto& site : run.sites) {
      if (site.name == name && run.IsAlive()) places.push_back({run, site.namespace_path});
    }
  }
  if (places.empty()) return Status(StatusCode::kNotFound, "no WAN that is up has a site " + name);
  if (places.size() > 1) {
    return Status(StatusCode::kInvalidArgument,
                  "more than one WAN has a site " + name + "; say which with --tag");
  }
  return std::move(places.front());
}

int Exec(const FindArguments& arguments, const std::string& site, std::vector<std::string> command) {
  const auto place = FindSite(arguments, site);
  if (!place.ok()) return Fail(place.status());
  if (place->run.user_namespace) {
    if (Status s = JoinUserNamespaceOf(place->run.pid); !s.ok()) return Fail(s);
  }
  const auto fd = OpenNamespace(place->namespace_path);
  if (!fd.ok()) return Fail(fd.status());
  if (setns(fd->get(), CLONE_NEWNET) != 0) return Fail(OsError("entering site " + site + " (setns)", errno));
  std::vector<char*> argv;
  for (std::string& word : command) argv.push_back(word.data());
  argv.push_back(nullptr);
  execvp(argv[0], argv.data());
  std::fprintf(stderr, "longhaul-wan: executing %s: %s\n", argv[0], std::strerror(errno));
  return errno == ENOENT ? 127 : 126;
}

// ---- the command line
// --------------------------------------------------------------------------------------

void DescribeLinkOptions(CLI::App& up, UpArguments& a) {
  const auto word = [&](const char* name, const char* text) {
    up.add_option(std::string("--") + name, a.words[name], text)->group("Every directed link");
  };
  word("rate", "Rate of each direction: 200mbit, 1gbit, ... (default: unlimited)");
  word("delay", "One-way delay of each direction: --delay 25ms makes a round trip of 50 ms (default: 0)");
  word("jitter", "The delay varies uniformly by this much up and down; the order is kept");
  up.add_flag("--jitter-reorders", a.jitter_reorders, "Let jitter change the order of packets")
      ->group("Every directed link");
  word("loss", "Independent losses: 2%");
  word("gemodel", "Losses in bursts (Gilbert-Elliott): \"5% burst 10\" = 5 % on average, 10 packets a burst");
  word("queue", "Drop-tail queue before the rate, as time (50ms) or size (256kb) (default: 50ms)");
  word("reorder", "Share of packets that skip the delay: 1%");
  word("duplicate", "Share of packets that arrive twice");
  word("corrupt", "Share of packets with one flipped bit");
  word("mtu", "Larger IP packets vanish silently, a black hole: 1400b");
  up.add_option("--outage", a.outages, "Nothing passes from..to, since the start: 3s..5s (may be repeated)")
      ->group("Every directed link");
  up.add_option("--link", a.links,
                "One direction that differs: FROM-TO:word=value,... such as A-B:rate=10mbit,loss=5% (may be "
                "repeated)")
      ->type_name("FROM-TO:OPTIONS");
}

void DescribeUp(CLI::App& up, UpArguments& a) {
  up.add_option("--sites", a.sites, "Names of the sites, 2 to 64: A,B,C")->delimiter(',')->required();
  DescribeLinkOptions(up, a);
  up.get_option("--loss")->excludes("--gemodel");
  up.add_option("--seed", a.seed, "Seed of all chance")->capture_default_str();
  up.add_option("--backend", a.backend,
                "netem where the kernel has it and can do it, else tun (auto); or exactly one of them")
      ->check(CLI::IsMember({"auto", "tun", "netem"}))
      ->capture_default_str();
  up.add_option("--device-mtu", a.mtu, "MTU of the sites' devices")->capture_default_str();
  up.add_option("--json", a.json_path, "Write all counters to this file every second and at the end");
  up.add_flag("--daemon", a.daemon, "Return when it is up and go on in the background");
  up.add_flag("--quiet", a.quiet, "No table every second");
  up.add_option("--tag", a.tag, "Name of this run (default: the process id)");
  up.add_option("--tun-device", a.tun_device, "The TUN clone device")->capture_default_str();
  up.add_option("--state-dir", a.state_directory,
                "Where runs are recorded (default: /run/longhaul-wan for root)");
}

void DescribeFind(CLI::App& command, FindArguments& a) {
  command.add_option("--tag", a.tag, "Only this run");
  command.add_option("--state-dir", a.state_directory, "Where runs are recorded");
}

int Main(int argc, char** argv) {
  CLI::App app(kDescription, "longhaul-wan");
  app.footer(kFooter);
  app.set_version_flag("--version", "longhaul-wan 0.1.0");
  app.require_subcommand(1);
  UpArguments up_arguments;
  FindArguments find;
  std::string site;
  std::vector<std::string> command;
  auto* up = app.add_subcommand(
      "up", "Make the WAN; runs until Ctrl-C and prints every second what it drops and why");
  DescribeUp(*up, up_arguments);
  up->footer(kFooter);
  auto* down = app.add_subcommand("down", "End runs and clean up what crashed ones left");
  DescribeFind(*down, find);
  auto* status = app.add_subcommand("status", "What is up, with its counters");
  DescribeFind(*status, find);
  auto* exec = app.add_subcommand("exec", "Run a command inside a site: exec SITE -- CMD ARGS...");
  DescribeFind(*exec, find);
  exec->add_option("site", site, "Name of the site")->required();
  exec->add_option("command", command, "The command and its arguments")->required();
  cli::CheckValues(app);
  cli::AddHelpPage(app);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    return app.exit(e) == 0 ? kSuccess : kUsage;
  }
  if (*up) return Up(up_arguments);
  if (*down) return Down(find);
  if (*status) return PrintStatus(find);
  return Exec(find, site, std::move(command));
}

}  // namespace
}  // namespace longhaul::wan

int main(int argc, char** argv) { return longhaul::wan::Main(argc, argv); }
