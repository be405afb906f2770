// longhaul_rounds_bench: rounds of push and pull by N workers through one emulated link, longhaul beside a
// parameter server over the kernel's TCP, one after the other (bench/rounds/README.md).
//
// Exit codes: 0 fine, 1 a run failed, 2 usage, 3 no emulated link can be made here, 130 interrupted.
#include <signal.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "base/flags/number_checks.h"
#include "base/quantile.h"
#include "base/units_text.h"
#include "bench/rounds/tcp_rounds.h"
#include "bench/wan/programs.h"
#include "longhaul/job.h"
#include "wan/link_options.h"

namespace longhaul::bench {
namespace {

using nlohmann::json;

constexpr int kFailed = 1, kUsage = 2, kNoLink = 3;
// IP packet over the gradient bytes in it, as longhaul sends them.
constexpr double kHeaders = 1.04;
// Parts in which tcp-...-parts pushes, as ps-lite's users cut a tensor.
constexpr uint32_t kParts = 16;

std::atomic<bool> g_interrupted{false};

struct Flags {
  uint32_t workers = 4;
  std::string bytes = "1mb";
  uint32_t rounds = 100;
  uint32_t warmup = 5;
  std::string gap = "0ms";
  std::string rate = "100mbit", rtt = "40ms", queue = "50ms";
  std::vector<std::string> loss = {"0%", "1%", "5%", "20%"};
  double burst = 0;
  std::vector<std::string> runners = {"tcp-cubic", "tcp-bbr", "tcp-bbr-parts", "longhaul"};
  double limit = 90;
  uint64_t seed = 1;
  std::vector<std::string> server_flags, rounds_flags;
  bool targets = false, insecure = false, loopback = false;
  std::string json_file;
};

struct Cell {
  RoundsPlan plan;
  wan::LinkOptions link;
  std::string name;
  bool loopback = false;  // no emulated link: everything on this machine
};

struct Runner {
  std::string name;
  bool longhaul = false;
  std::string control;    // longhaul: --rate-controller
  bool insecure = false;  // longhaul: no encryption
  TcpRunner tcp;
};

Result<Runner> ParseRunner(const std::string& name) {
  Runner runner;
  runner.name = name;
  std::string rest = name;
  const auto ends_with = [&rest](const std::string& word) {
    if (!rest.ends_with(word)) return false;
    rest.resize(rest.size() - word.size());
    return true;
  };
  if (rest.starts_with("longhaul") && ends_with("-insecure")) runner.insecure = true;
  runner.control = rest.starts_with("longhaul-") ? rest.substr(9) : rest;
  runner.longhaul = rest.starts_with("longhaul") && FromName<RateControl>(runner.control).has_value();
  if (runner.longhaul) return runner;
  runner.tcp.tuned = !ends_with("-stock");
  if (ends_with("-parts")) runner.tcp.parts = kParts;
  if (rest != "tcp-cubic" && rest != "tcp-bbr") {
    return Status(StatusCode::kInvalidArgument,
                  "--runners: '" + name +
                      "' is none of tcp-cubic, tcp-bbr (each also with -parts, -stock, "
                      "-parts-stock), longhaul, longhaul-bbr, longhaul-cubic (each also with -insecure)");
  }
  runner.tcp.control = rest.substr(4);
  return runner;
}

Result<Cell> MakeCell(const Flags& f, uint32_t workers, const std::string& bytes, const std::string& rate,
                      const std::string& rtt, const std::string& loss, double burst) {
  Cell cell;
  const auto size = ParseBytes(bytes);
  const auto gap = ParseTime(f.gap);
  const auto speed = ParseRate(rate);
  const auto round_trip = ParseTime(rtt);
  const auto queue = ParseTime(f.queue);
  const auto lost = ParsePercent(loss);
  for (const Status& s :
       {size.status(), gap.status(), speed.status(), round_trip.status(), queue.status(), lost.status()}) {
    if (!s.ok()) return s;
  }
  cell.plan.workers = workers;
  cell.plan.bytes = static_cast<uint64_t>(size->value());
  if (cell.plan.bytes < 4) return Status(StatusCode::kInvalidArgument, "--bytes: 4 at least");
  cell.plan.rounds = f.rounds;
  cell.plan.warmup = f.warmup;
  cell.plan.gap = *gap;
  cell.plan.limit = FromSeconds(f.limit);
  cell.link.rate = *speed;
  cell.link.delay = *round_trip / 2;
  cell.link.queue_time = *queue;
  cell.link.loss = *lost;
  if (*lost > 0) cell.link.loss_burst = burst;
  cell.name = std::to_string(workers) + " x " + bytes + ", " + rate + ", RTT " + rtt + ", " + loss;
  if (cell.link.loss_burst > 0) cell.name += " in bursts of " + std::to_string(std::lround(burst));
  if (Status s = cell.link.Validate(); !s.ok()) return s;
  return cell;
}

Result<std::vector<Cell>> MakeCells(const Flags& f) {
  std::vector<Result<Cell>> made;
  if (f.targets) {
    for (const char* loss : {"0%", "1%", "5%", "20%"})
      made.push_back(MakeCell(f, 4, "1mb", "100mbit", "40ms", loss, 0));
    made.push_back(MakeCell(f, 4, "1mb", "100mbit", "40ms", "5%", 10));
    made.push_back(MakeCell(f, 8, "100kb", "100mbit", "40ms", "5%", 0));
    for (const char* loss : {"0%", "0.1%", "1%"})
      made.push_back(MakeCell(f, 1, "16mb", "500mbit", "80ms", loss, 0));
  } else if (f.loopback) {
    made.push_back(MakeCell(f, f.workers, f.bytes, f.rate, f.rtt, "0%", 0));
    if (made.back().ok()) {
      made.back()->loopback = true;
      made.back()->name = std::to_string(f.workers) + " x " + f.bytes + ", loopback";
    }
  } else {
    for (const std::string& loss : f.loss) {
      made.push_back(MakeCell(f, f.workers, f.bytes, f.rate, f.rtt, loss, f.burst));
    }
  }
  std::vector<Cell> cells;
  for (Result<Cell>& cell : made) {
    if (!cell.ok()) return cell.status();
    cells.push_back(std::move(*cell));
  }
  return cells;
}

// Gradients one after the other at the link's rate while results return behind them; headers and loss
// included. None without a link.
double FullDuplexFloor(const Cell& cell) {
  if (cell.loopback) return 0;
  const double wire = kHeaders * static_cast<double>(cell.plan.bytes) * cell.plan.workers;
  const double round_trip = std::chrono::duration<double>(cell.link.delay * 2).count();
  return (wire / cell.link.rate.bytes_per_second() + round_trip) / (1 - cell.link.loss);
}

RoundsOutcome RunLonghaul(wan::TunWan* wan, const Cell& cell, const Runner& runner, const Flags& f,
                          json* details) {
  RoundsOutcome outcome;
  const Scratch scratch;
  const std::string workers = std::to_string(cell.plan.workers);
  std::vector<std::string> server_flags = {"--workers", workers};
  server_flags.insert(server_flags.end(), f.server_flags.begin(), f.server_flags.end());
  const auto protection = Protection::Make(runner.insecure);
  if (!protection.ok()) {
    outcome.error = protection.status().message();
    return outcome;
  }
  (*details)["protection"] = ProtectionName(runner.insecure);
  auto server = StartServer(wan, scratch, *protection, server_flags);
  if (!server.ok()) {
    outcome.error = server.status().message();
    return outcome;
  }
  std::vector<std::string> argv = {ProgramPath("longhaul"),
                                   "bench",
                                   "rounds",
                                   "--join",
                                   wan == nullptr ? kLoopbackAddress : kServerAddress,
                                   "--quiet",
                                   "--workers",
                                   workers,
                                   "--bytes",
                                   std::to_string(cell.plan.bytes) + "b",
                                   "--rounds",
                                   std::to_string(cell.plan.rounds),
                                   "--warmup",
                                   std::to_string(cell.plan.warmup),
                                   "--gap",
                                   f.gap,
                                   "--json",
                                   scratch.File("rounds.json"),
                                   "--rate-controller",
                                   runner.control};
  for (const auto& more : {protection->ClientFlags(), f.rounds_flags}) {
    argv.insert(argv.end(), more.begin(), more.end());
  }
  auto rounds = StartIn(wan, "B", "rounds", argv, scratch.File("rounds.log"));
  if (!rounds.ok()) {
    outcome.error = rounds.status().message();
    return outcome;
  }
  const auto give_up = std::chrono::steady_clock::now() + cell.plan.limit;
  bool told = false;
  while (!rounds->WaitFor(std::chrono::milliseconds(200))) {
    server->ReadLines([](const std::string&) {});
    if (told || (std::chrono::steady_clock::now() < give_up && !g_interrupted)) continue;
    rounds->Signal(SIGTERM);  // it writes what it has
    told = true;
  }
  server->Signal(SIGTERM);
  const auto result = ReadJson(scratch.File("rounds.json"));
  if (rounds->exit_code() != 0 || !result) {
    outcome.error = told ? "stopped after " + std::to_string(std::lround(f.limit)) + " s"
                         : LastLine(scratch.File("rounds.log"));
    if (outcome.error.empty()) {
      outcome.error = "longhaul bench rounds ended with " + std::to_string(rounds->exit_code());
    }
  }
  if (!result) return outcome;
  outcome.seconds = result->value("seconds", std::vector<double>());
  for (const char* key : {"lost_chunks", "repaired_chunks", "filled_chunks"})
    (*details)[key] = result->value(key, 0);
  return outcome;
}

json Report(const Cell& cell, const Runner& runner, const RoundsOutcome& outcome, json details) {
  const double floor = FullDuplexFloor(cell);
  const double p50 = Quantile(outcome.seconds, 0.5);
  const double p99 = Quantile(outcome.seconds, 0.99);
  if (outcome.seconds.empty()) {
    std::printf("| %s | %s | %.3f | - | - | - | 0 | %s |\n", cell.name.c_str(), runner.name.c_str(), floor,
                outcome.error.c_str());
  } else {
    const auto times = [floor](double seconds) { return floor > 0 ? seconds / floor : 0; };
    std::printf("| %s | %s | %.3f | %.3f (%.2f) | %.3f (%.2f) | %.3f | %zu | %s |\n", cell.name.c_str(),
                runner.name.c_str(), floor, p50, times(p50), p99, times(p99), Quantile(outcome.seconds, 1),
                outcome.seconds.size(), outcome.error.c_str());
  }
  std::fflush(stdout);
  details.update({{"cell", cell.name},
                  {"runner", runner.name},
                  {"workers", cell.plan.workers},
                  {"bytes", cell.plan.bytes},
                  {"link", cell.loopback ? "loopback" : cell.link.ToString()},
                  {"floor_seconds", floor},
                  {"seconds_p50", p50},
                  {"seconds_p99", p99},
                  {"seconds_max", Quantile(outcome.seconds, 1)},
                  {"rounds", outcome.seconds.size()},
                  {"seconds", outcome.seconds},
                  {"error", outcome.error}});
  return details;
}

// False, with words, when it cannot be written. Nothing to do without a name.
bool WriteJson(const std::string& name, const json& all) {
  if (name.empty()) return true;
  std::ofstream file(name);
  file << all.dump(1) << "\n";
  file.close();
  if (!file) std::fprintf(stderr, "longhaul_rounds_bench: %s cannot be written\n", name.c_str());
  return static_cast<bool>(file);
}

int Compare(const Flags& f, const std::vector<Cell>& cells, const std::vector<Runner>& runners) {
  json all = json::array();
  bool failed = false;
  std::printf(
      "| cell | runner | full-duplex floor, s | p50 (x floor) | p99 (x floor) | max | rounds | |\n"
      "|---|---|---|---|---|---|---|---|\n");
  for (const Cell& cell : cells) {
    // One link for all runners, one after the other.
    std::unique_ptr<wan::TunWan> wan;
    if (!cell.loopback) {
      auto up = wan::TunWan::Up({.sites = {"A", "B"},
                                 .link = cell.link,
                                 .seed = f.seed,
                                 .backend = wan::Backend::kTun,
                                 .max_packets_in_flight = 1 << 18});
      if (!up.ok()) {
        std::fprintf(stderr, "longhaul_rounds_bench: %s\n", up.status().ToString().c_str());
        return kNoLink;
      }
      wan = *std::move(up);
    }
    for (const Runner& runner : runners) {
      if (g_interrupted) break;
      json details = json::object();
      const RoundsOutcome outcome = runner.longhaul ? RunLonghaul(wan.get(), cell, runner, f, &details)
                                                    : RunTcpRounds(wan.get(), runner.tcp, cell.plan);
      // That TCP is too slow to end in time is a result.
      failed |= outcome.seconds.empty() || (runner.longhaul && !outcome.error.empty());
      all.push_back(Report(cell, runner, outcome, std::move(details)));
      failed |= !WriteJson(f.json_file, all);  // after each: what a long run has is not lost with it
    }
  }
  return g_interrupted ? 130 : failed ? kFailed : 0;
}

void AddFlags(CLI::App& app, Flags& f) {
  app.option_defaults()->always_capture_default();
  app.add_option("--workers", f.workers)->check(CLI::Range(1, 200));
  app.add_option("--bytes", f.bytes, "of every worker's gradient");
  app.add_option("--rounds", f.rounds, "that are measured")->check(CLI::Range(1, 1'000'000));
  app.add_option("--warmup", f.warmup, "rounds before them, for all alike")->check(CLI::Range(0, 1'000'000));
  app.add_option("--gap", f.gap, "between a round's end and the next one's start");
  app.add_option("--rate", f.rate, "of the link, each way; all workers share it");
  app.add_option("--rtt", f.rtt, "round trip without queue");
  app.add_option("--queue", f.queue, "bound of the link's queue as time");
  app.add_option("--loss", f.loss, "list of losses, each way")->delimiter(',');
  app.add_option("--burst", f.burst, "mean length of loss bursts in packets; 0 = independent")
      ->check(CLI::Range(0.0, 1000.0));
  app.add_option(
         "--runners", f.runners,
         "list of tcp-cubic, tcp-bbr (each also with -parts, -stock, -parts-stock), longhaul, longhaul-bbr, "
         "longhaul-cubic (each also with -insecure: not encrypted)")
      ->delimiter(',');
  app.add_option("--limit", f.limit, "seconds that a run may take; what it has until then counts")
      ->check(CLI::Range(1.0, 86400.0));
  app.add_flag("--targets", f.targets, "the cells that have targets instead of the link and the sizes above");
  app.add_flag("--insecure", f.insecure,
               "longhaul without encryption; default: under a key that is made for the run");
  app.add_flag("--loopback", f.loopback,
               "no emulated link: all on this machine, what the programs themselves cost (--rate, --loss do "
               "not count)")
      ->excludes("--targets");
  app.add_option("--seed", f.seed, "of the link");
  app.add_option("--server-flags", f.server_flags, "more flags for longhaul-server")->delimiter(' ');
  app.add_option("--rounds-flags", f.rounds_flags, "more flags for longhaul bench rounds")->delimiter(' ');
  app.add_option("--json", f.json_file, "write everything to this file");
}

int Run(int argc, char** argv) {
  CLI::App app{
      "Rounds of push and pull through one emulated WAN link: longhaul beside a parameter server over TCP",
      "longhaul_rounds_bench"};
  Flags flags;
  AddFlags(app, flags);
  cli::CheckValues(app);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : kUsage;
  }
  const auto usage = [](const Status& why) {
    std::fprintf(stderr, "longhaul_rounds_bench: %s\n", why.message().c_str());
    return kUsage;
  };
  const auto cells = MakeCells(flags);
  if (!cells.ok()) return usage(cells.status());
  std::vector<Runner> runners;
  for (const std::string& name : flags.runners) {
    const auto runner = ParseRunner(ProtectedRunner(name, flags.insecure));
    if (!runner.ok()) return usage(runner.status());
    runners.push_back(*runner);
  }
  if (!WriteJson(flags.json_file, json::array())) return kUsage;  // found out now, not after an hour
  signal(SIGINT, [](int) { g_interrupted = true; });
  signal(SIGTERM, [](int) { g_interrupted = true; });
  signal(SIGPIPE, SIG_IGN);
  return Compare(flags, *cells, runners);
}

}  // namespace
}  // namespace longhaul::bench

int main(int argc, char** argv) { return longhaul::bench::Run(argc, argv); }
