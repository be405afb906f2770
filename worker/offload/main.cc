// longhaul-offload: flags, signals, exit codes around SiteDaemon and its UDP port.
//
// Exit codes: docs/reference/exit_codes.md.
#include <spdlog/spdlog.h>
#include <sys/resource.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdio>
#include <exception>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "base/files.h"
#include "base/flags/config_file.h"
#include "base/flags/connect_flags.h"
#include "base/flags/counter_json.h"
#include "base/flags/exit_codes.h"
#include "base/flags/flag_names.h"
#include "base/flags/help_page.h"
#include "base/flags/job_flags.h"
#include "base/flags/number_checks.h"
#include "base/process/output.h"
#include "base/process/signal_watcher.h"
#include "health/metrics_flag.h"
#include "offload/shm/site_daemon.h"
#include "offload/udp/open_link.h"
#include "transport/keys/key_file.h"
#include "transport/keys/load_security.h"
#include "worker/client/client_impl.h"
#include "worker/offload/site_member.h"

namespace longhaul::offload {
namespace {

using cli::kExitFailure;
using cli::kExitUsage;

constexpr int kNoNode = -1;
// A loop answers at once; its turns take 0.1 ms.
constexpr Duration kAnswerWait = std::chrono::seconds(2);
// The relay looks around ten times a second.
constexpr Duration kRelaySilence = std::chrono::seconds(2);

struct Flags : cli::ConnectFlags {
  std::string server;
  DaemonOptions daemon{.path = "/run/longhaul/site.sock", .site = {}, .log = {}, .on_rank = {}};
  int node = kNoNode;
  UdpChoice udp;
  int64_t spin_us = 20;
  uint64_t max_message_bytes = SiteOptions().max_message_bytes;
  uint64_t scratch_bytes = SiteOptions().scratch_bytes;
  uint64_t rank_memory_bytes = DaemonOptions().rank_memory_bytes;
  std::string progress = "text";
  std::string json_file;
  std::string metrics;
  std::string log_level = "info";
  bool no_seccomp = false;
  bool has_server() const { return !server.empty(); }
};

void AddSiteFlags(CLI::App& app, Flags& f) {
  SiteOptions& site = f.daemon.site;
  app.add_option("--nodes", site.nodes, "nodes of the site, each with an engine")
      ->default_str(std::to_string(site.nodes))
      ->check(CLI::Range(1, 16));
  app.add_option("--ranks-per-node", site.ranks_per_node, "ranks of a node; each is one process")
      ->default_str(std::to_string(site.ranks_per_node))
      ->check(CLI::Range(1, 64));
  app.add_flag("--aggregator", site.aggregator, "one more engine, without ranks: the root of a tree");
  app.add_option("--seg-bytes", site.seg_bytes, "bytes of a seg, a multiple of 64")
      ->check(CLI::Range(64, 8192));
  app.add_option("--pool-segs", site.pool_segs, "segs of a node that hold what comes early")
      ->check(CLI::Range(1, 65534));
  app.add_option("--window-segs", site.window_segs, "segs of a message that are on their way between nodes")
      ->check(CLI::Range(1, 512));
  app.add_option("--queue-depth", site.queue_depth, "requests of a rank that are not completed and polled")
      ->check(CLI::Range(1, 65536));
  app.add_option("--max-message-bytes", f.max_message_bytes, "largest message, e.g. 1gb")
      ->transform(cli::AsBytes())
      ->check(CLI::Range(int64_t{4}, int64_t{1} << 36));
  app.add_option("--scratch-bytes", f.scratch_bytes,
                 "memory of a node for sums where no rank has any for the result")
      ->transform(cli::AsBytes())
      ->check(CLI::Range(int64_t{0}, int64_t{1} << 40));
}

void AddUdpFlags(CLI::App& app, Flags& f) {
  auto* const node =
      app.add_option("--node", f.node,
                     "the one node of the site that this machine has; the others have theirs, and "
                     "engines talk over UDP; without it all nodes are here")
          ->default_str("all")
          ->check(CLI::Range(0, 15));
  app.add_option("--peers", f.udp.peers,
                 "where each node's longhaul-offload is reached, an aggregator too: NODE=HOST:PORT,..., e.g. "
                 "0=10.0.0.1:7500,1=10.0.0.2:7500")
      ->needs(node);
  app.add_option("--bind", f.udp.bind, "HOST:PORT of this node's UDP port; none = its own entry in --peers")
      ->needs(node);
  app.add_flag("--insecure-bind", f.udp.insecure_bind,
               "with --node and --insecure: also on addresses that other machines can reach")
      ->needs(node)
      ->needs("--insecure");
}

void AddFlags(CLI::App& app, Flags& f) {
  app.set_version_flag("--version", "longhaul-offload 0.1.0");
  app.option_defaults()->always_capture_default();
  app.add_option("--listen", f.daemon.path, "path of the Unix socket that ranks open as unix:PATH")
      ->type_name("PATH");
  AddSiteFlags(app, f);
  app.add_option("--server", f.server,
                 "address of a parameter server: the ranks are one member of its job, with one connection "
                 "(longhaul-worker --offload)")
      ->type_name("HOST:PORT");
  cli::AddMemberFlags(app, &f);
  app.add_option("--weight", f.connect.weight,
                 "With policy shift of all contributions, else what the server expects at first, 1e-6..1e9")
      ->default_str("--nodes x --ranks-per-node");
  cli::AddConnectionFlags(app, &f);
  AddUdpFlags(app, f);
  app.add_option("--rank-memory-bytes", f.rank_memory_bytes, "memory that one rank may have registered")
      ->transform(cli::AsBytes())
      ->check(CLI::Range(int64_t{4096}, int64_t{1} << 46));
  app.add_option("--spin-us", f.spin_us, "microseconds without work after which the engine sleeps")
      ->check(CLI::Range(0, 1'000'000));
  health::AddMetricsFlag(app, &f.metrics);
  app.add_flag(
      "--no-seccomp", f.no_seccomp,
      "keep the right to make any system call; else those that it does not need are given up once it "
      "listens");
  app.add_option("--progress", f.progress, "what is printed on standard output")
      ->check(CLI::IsMember({"none", "text", "json"}));
  app.add_option("--json", f.json_file, "file that every node's counters are written to at the end");
  app.add_option("--log-level", f.log_level, "what is logged on standard error")
      ->check(CLI::IsMember({"debug", "info", "warn", "error", "off"}));
  app.footer(
      "The socket is its user's alone (mode 0600). A file that a killed daemon has left is replaced; one "
      "that a\n"
      "live daemon listens on is not. A rank that dies is dead for the others at once; its memory is "
      "unmapped.\n"
      "With --server it ends when the last rank has left; signals go to server and ranks.\n"
      "\n"
      "Site of several machines: each runs one with its --node; site options, --nodes and --aggregator are "
      "the\n"
      "same at all. The aggregator is the node after the last; it listens on no socket. --seg-bytes + 144 is "
      "an\n"
      "IPv4 packet (100 if not encrypted), which the network has to carry: 1344 for 1500. A node's\n"
      "clock must not go back between two starts: peers would take the new process for the old one.\n"
      "\n"
      "Exit codes: 0 fine, 1 it failed, with --server also the job, or --json cannot be written, 2 wrong "
      "usage,\n"
      "3 cannot listen (also --metrics), 130 and 143 ended at once by a signal. SIGINT, SIGTERM or SIGHUP "
      "ends it in order, "
      "a\n"
      "second SIGINT or SIGTERM at "
      "once.");
}

spdlog::level::level_enum LogLevelOf(const Flags& flags) {
  return spdlog::level::from_str(flags.log_level == "error" ? "err" : flags.log_level);
}

// Three descriptors a rank, and those that are on their way.
void RaiseDescriptorLimit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= limit.rlim_max) return;
  limit.rlim_cur = std::min<rlim_t>(limit.rlim_max, 65536);
  setrlimit(RLIMIT_NOFILE, &limit);
}

int CannotStart(const Status& why, process::Output* output) {
  output->Complain(cli::WithFlagNames(why.ToString()));
  return cli::ExitCodeOf(why);
}

void PrintListening(const Flags& flags, const UdpLink* link, process::Output* output) {
  nlohmann::json line = {{"event", "listening"}};
  std::string text;
  if (link == nullptr || link->node() < flags.daemon.site.nodes) {
    line["address"] = "unix:" + flags.daemon.path;
    text = "listening on unix:" + flags.daemon.path;
  }
  if (link != nullptr) {
    line["udp"] = link->local_address().ToString();
    text += (text.empty() ? "listening on udp:" : " and udp:") + link->local_address().ToString();
  }
  if (flags.progress == "text") output->Print(text);
  if (flags.progress != "json") return;
  output->Print(line.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
}

// The relay has said it in the log.
void PrintTakeover(const Flags& flags, const site::Takeover& takeover, process::Output* output) {
  if (flags.progress != "json") return;
  const nlohmann::json line = {{"event", "takeover"},
                               {"node", takeover.node},
                               {"from", takeover.from},
                               {"silent_seconds", std::chrono::duration<double>(takeover.silence).count()}};
  output->Print(line.dump());
}

nlohmann::json CountersOf(const Flags& flags, const SiteDaemon& daemon, const UdpLink* link,
                          const SiteMember& member) {
  nlohmann::json out = {{"nodes", nlohmann::json::array()}};
  for (uint8_t node = 0; node <= flags.daemon.site.nodes; ++node) {
    if (!daemon.Has(node)) continue;
    out["nodes"].push_back(CountersJson<OffloadStats>(kOffloadCounters, daemon.stats(node)));
    out["nodes"].back()["node"] = node;
  }
  if (link != nullptr) out["udp"] = CountersJson<UdpCounters>(kUdpCounters, link->counters());
  if (flags.has_server()) out["wan"] = CountersJson<ClientStats>(kClientCounters, member.stats());
  return out;
}

Status WriteCounters(const Flags& flags, const nlohmann::json& out) {
  if (flags.json_file.empty()) return Status::Ok();
  return WriteFileAtomically(flags.json_file,
                             out.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n");
}

// What probes and scrapes ask of the daemon's loop and of the relay beside it.
class Probe {
 public:
  Probe(const Flags& flags, SiteDaemon* daemon, const UdpLink* link, const SiteMember& member,
        health::HealthPort* port)
      : flags_(flags), daemon_(*daemon), link_(link), member_(member), port_(port) {}

  health::HealthSource Source() {
    return {[this] { return Look(); }, [this](health::MetricPage* page) { return Collect(page); }};
  }

 private:
  struct Node {
    uint8_t node = 0;
    OffloadStats stats;
  };
  struct Counters {
    std::vector<Node> nodes;
    UdpCounters udp;
  };

  Status Read(Counters* counters) const {
    return daemon_.Ask(
        [&] {
          for (uint8_t node = 0; node <= flags_.daemon.site.nodes; ++node) {
            if (daemon_.Has(node)) counters->nodes.push_back({node, daemon_.stats(node)});
          }
          if (link_ != nullptr) counters->udp = link_->counters();
        },
        kAnswerWait);
  }

  health::LoopState Look() {
    Counters counters;
    const Status answer = Read(&counters);
    uint64_t done = 0;
    for (const Node& node : counters.nodes) done += node.stats.segs_done;
    if (std::exchange(segs_done_, done) < done) port_->NoteProgress();
    health::LoopState state{.answers = answer.code() != StatusCode::kDeadlineExceeded,
                            .not_ready = answer.message()};
    if (!flags_.has_server() || !answer.ok()) return state;
    const auto relay = member_.relay();
    if (!relay) {
      state.not_ready = "the site's relay has not started, or has ended";
      return state;
    }
    state.answers = relay->silence() < kRelaySilence;
    if (const auto client = relay->client()) {
      state.not_ready = client->status().message();
    } else if (!relay->follows()) {
      state.not_ready = "not connected to the server";
    }
    return state;
  }

  bool Collect(health::MetricPage* page) const {
    Counters counters;
    if (Read(&counters).code() == StatusCode::kDeadlineExceeded) return false;
    std::vector<health::MetricPage::Of<OffloadStats>> nodes;
    for (const Node& node : counters.nodes)
      nodes.push_back({&node.stats, {{"node", std::to_string(node.node)}}});
    page->Add<OffloadStats>("offload", kOffloadCounters, nodes);
    if (link_ != nullptr) page->Add<UdpCounters>("offload_udp", kUdpCounters, {{&counters.udp}});
    const auto relay = member_.relay();
    const auto client = relay ? relay->client() : nullptr;
    if (!client) return true;
    const auto stats = internal::ClientImpl::Of(*client).Ask();
    if (stats) page->Add<ClientStats>("client", kClientCounters, {{&*stats}});
    return stats || !client->status().ok();
  }

  const Flags& flags_;
  SiteDaemon& daemon_;
  const UdpLink* link_;
  const SiteMember& member_;
  health::HealthPort* port_;
  uint64_t segs_done_ = 0;  // at the last look
};

// Errors: those of OpenLink; null: all nodes are here.
Result<std::shared_ptr<UdpLink>> LinkOf(const Flags& flags) {
  if (flags.node == kNoNode) return std::shared_ptr<UdpLink>();
  UdpChoice choice = flags.udp;
  choice.node = static_cast<uint8_t>(flags.node);
  choice.key_file = flags.connect.key_file;
  choice.cipher = flags.connect.cipher;
  choice.insecure = flags.connect.insecure;
  auto link = OpenLink(choice, flags.daemon.site);
  if (!link.ok()) return link.status();
  if (choice.insecure) spdlog::warn("no key: all who reach the UDP port can read and change the sums");
  for (const std::string& warning : (*link)->warnings()) spdlog::warn("{}", warning);
  const std::string window = WindowWarning(flags.daemon.site, !choice.insecure, (*link)->receive_buffer());
  if (!window.empty()) spdlog::warn("{}", window);
  return std::shared_ptr<UdpLink>(*std::move(link));
}

int Serve(Flags* flags, process::SignalWatcher* signals, process::Output* output) {
  const auto opened = health::OpenPort(flags->metrics, "longhaul-offload");
  if (!opened.ok()) return CannotStart(opened.status(), output);
  health::HealthPort* const health = opened->get();
  if (health != nullptr && flags->progress != "none")
    output->Print(PortLine(*health, flags->progress == "json"));
  auto link = LinkOf(*flags);
  if (!link.ok()) return CannotStart(link.status(), output);
  flags->daemon.link = *link;
  SiteMember member;
  if (flags->has_server()) member.Watch(&flags->daemon);
  auto daemon = SiteDaemon::Start(flags->daemon);
  if (!daemon.ok()) return CannotStart(daemon.status(), output);
  if (!flags->no_seccomp) {
    process::ConfineOrWarn(flags->has_server() ? process::Confinement::kSite : process::Confinement::kOffload,
                           health != nullptr);
  }
  spdlog::info("{} node(s) of {} rank(s), segs of {} bytes", flags->daemon.site.nodes,
               flags->daemon.site.ranks_per_node, flags->daemon.site.seg_bytes);
  signals->Guard([&daemon, &member, health](int signal) {
    spdlog::info("signal {}: shutting down", signal);
    if (health != nullptr) health->SetStopping("told to stop by signal " + std::to_string(signal));
    member.End();
    (*daemon)->Stop();
  });
  if (flags->has_server()) {
    site::RelayOptions relay;
    relay.where = "unix:" + flags->daemon.path;
    relay.connect = flags->connect;
    relay.one_node = flags->node != kNoNode;
    relay.on_takeover = [flags, output](const site::Takeover& takeover) {
      PrintTakeover(*flags, takeover, output);
    };
    const Status started = member.Start(std::move(relay), daemon->get());
    if (!started.ok()) return CannotStart(started, output);
  }
  PrintListening(*flags, link->get(), output);
  {
    Probe probe(*flags, daemon->get(), link->get(), member, health);
    const health::HealthWatch watch(health, probe.Source());
    (*daemon)->Run();
  }
  signals->Guard({});
  if (*link && (*link)->counters().host_drops > 0) {
    spdlog::warn("{} datagrams found the UDP port's receive buffer full and were lost",
                 (*link)->counters().host_drops);
  }
  member.End();
  nlohmann::json counters = CountersOf(*flags, **daemon, link->get(), member);
  const Status written = WriteCounters(*flags, counters);
  if (flags->progress == "json") {
    counters["event"] = "finished";
    output->Print(counters.dump());
  }
  if (!member.end().ok()) output->Complain(cli::WithFlagNames(member.end().ToString()));
  if (!written.ok()) output->Complain("--json: " + written.message());
  return written.ok() && member.end().ok() ? 0 : kExitFailure;
}

// kInvalidArgument: what has no meaning, or does not go with --server.
Status TakeServerFlags(const CLI::App& app, Flags* flags) {
  const auto needs = [&app](std::initializer_list<const char*> names, const std::string& what) {
    const std::string given = cli::FirstGiven(app, names);
    return given.empty() ? Status() : Status(StatusCode::kInvalidArgument, given + " needs " + what);
  };
  if (flags->has_server()) {
    SiteOptions& site = flags->daemon.site;
    if (site.aggregator) {
      return {StatusCode::kInvalidArgument,
              "--aggregator has no meaning with --server: sums end at the relay"};
    }
    if (site.ranks_per_node * site.nodes > 62 || site.seg_bytes < 1024 || site.queue_depth < 128) {
      return {StatusCode::kInvalidArgument,
              "--server needs --nodes x --ranks-per-node of at most 62, --seg-bytes of at least 1024 and "
              "--queue-depth "
              "of at least 128"};
    }
    flags->connect.servers = {flags->server};
    if (app.count("--weight") == 0)
      flags->connect.weight = static_cast<float>(site.nodes * site.ranks_per_node);
    flags->connect.log = [](LogLevel level, std::string_view text) {
      spdlog::log(level == LogLevel::kWarning ? spdlog::level::warn : spdlog::level::info, "{}", text);
    };
    ++site.ranks_per_node;  // the relay's, the last one
    if (Status taken = cli::TakeConnectFlags(flags); !taken.ok()) return taken;
    // A wrong key is a wrong command line.
    return keys::LoadSecurity({.key_file = flags->connect.key_file,
                               .insecure = flags->connect.insecure,
                               .job = flags->connect.job,
                               .cipher = flags->connect.cipher,
                               .expected_server = flags->connect.server_name})
        .status();
  }
  if (Status s =
          needs({"--rank", "--world-size", "--job", "--site", "--incarnation", "--weight", "--datagram-size",
                 "--rate-controller", "--rate-cap", "--rate-floor", "--idle-timeout", "--connect-timeout",
                 "--wait-timeout", "--reconnect-timeout", "--server-name", "--fault"},
                "--server");
      !s.ok() || flags->node != kNoNode) {
    return s;
  }
  return needs({"--key", "--cipher", "--insecure", "--allow-core-dump"}, "--server or --node");
}

int Run(int argc, char** argv) {
  CLI::App app{
      "The collective engine of a machine's ranks: adds up what they have, through memory that it shares "
      "with "
      "each.",
      "longhaul-offload"};
  Flags flags;
  AddFlags(app, flags);
  cli::AddConfigFile(app, "ranks-per-node = 4");
  cli::CheckValues(app);
  cli::AddHelpPage(app);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : kExitUsage;
  }
  flags.daemon.spin = std::chrono::microseconds(flags.spin_us);
  flags.daemon.site.max_message_bytes = flags.max_message_bytes;
  flags.daemon.site.scratch_bytes = flags.scratch_bytes;
  flags.daemon.rank_memory_bytes = flags.rank_memory_bytes;
  flags.daemon.log = [](std::string_view line) { spdlog::info("{}", line); };
  if (Status server = TakeServerFlags(app, &flags); !server.ok()) {
    std::fprintf(stderr, "longhaul-offload: %s\n", cli::WithFlagNames(server.ToString()).c_str());
    return kExitUsage;
  }
  if (Status file = PrepareResultFile(flags.json_file); !file.ok()) {
    std::fprintf(stderr, "longhaul-offload: --json: %s\n", file.message().c_str());
    return kExitUsage;
  }
  RaiseDescriptorLimit();
  (void)keys::WipeFreedKeys();
  if (!flags.connect.key_file.empty() && !flags.allow_core_dump) keys::ForbidCoreDumps();
  process::SignalWatcher signals;  // before the first thread
  process::Output output("longhaul-offload", flags.progress == "json", LogLevelOf(flags));
  return Serve(&flags, &signals, &output);
}

}  // namespace
}  // namespace longhaul::offload

int main(int argc, char** argv) try {
  return longhaul::offload::Run(argc, argv);
} catch (const std::exception& error) {  // memory, or threads, that the system does not give
  std::fprintf(stderr, "longhaul-offload: %s\n", error.what());
  return 1;
}
