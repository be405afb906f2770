// longhaul_round_sim: rounds of PushPull in virtual time beside the full-duplex floor, and where their time
// went.
//
//   longhaul_round_sim --workers 4 --bytes 1000000 --link 'rate 100mbit delay 20ms loss 5%'
//   longhaul_round_sim --targets        the cells that have targets
#include <CLI/CLI.hpp>
#include <algorithm>
#include <atomic>
#include <cstdio>
#include <limits>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "base/flags/job_flags.h"
#include "base/flags/number_checks.h"
#include "base/quantile.h"
#include "base/units_text.h"
#include "codec/policy/optimizer.h"
#include "server/server_core.h"
#include "tests/sim/push_pull_rounds.h"
#include "wan/link_options.h"

namespace longhaul::bench {
namespace {

using nlohmann::json;
using sim::PushPullOptions;
using sim::PushPullPhases;
using sim::PushPullResult;

struct Cell {
  std::string name;
  PushPullOptions options;
  double p50_target = 0;  // times the floor; 0: none
  double p99_target = 0;
  double ms_target = 0;  // of the p50, absolute; 0: none
};

double Ms(Duration d) { return std::chrono::duration<double, std::milli>(d).count(); }

Cell MakeCell(uint32_t workers, uint64_t bytes, const std::string& link, double p50, double p99,
              double ms = 0) {
  Cell cell;
  cell.name = std::to_string(workers) + " x " + std::to_string(bytes / 1000) + " kB, " + link;
  cell.options.workers = workers;
  cell.options.bytes = {bytes};
  cell.options.link = *wan::ParseLinkOptions(link);
  cell.p50_target = p50;
  cell.p99_target = p99;
  cell.ms_target = ms;
  return cell;
}

std::vector<Cell> TargetCells() {
  return {
      MakeCell(4, 1'000'000, "rate 100mbit delay 20ms", 1.15, 1.35),
      MakeCell(4, 1'000'000, "rate 100mbit delay 20ms loss 1%", 1.15, 1.35),
      MakeCell(4, 1'000'000, "rate 100mbit delay 20ms loss 5%", 1.15, 1.35),
      MakeCell(4, 1'000'000, "rate 100mbit delay 20ms loss 20%", 1.5, 2),
      MakeCell(4, 1'000'000, "rate 100mbit delay 20ms loss 5% burst 10", 1.5, 2),
      MakeCell(8, 100'000, "rate 100mbit delay 20ms loss 5%", 1.4, 2.2),
      MakeCell(1, 16'000'000, "rate 500mbit delay 40ms", 0, 0, 380),
      MakeCell(1, 16'000'000, "rate 500mbit delay 40ms loss 0.1%", 0, 0, 390),
      MakeCell(1, 16'000'000, "rate 500mbit delay 40ms loss 1%", 0, 0, 420),
  };
}

struct Outcome {
  std::string failure;
  std::vector<sim::PushPullStep> timeline;
  std::vector<PushPullPhases> rounds;
  uint64_t result_chunks_lost = 0;  // of all rounds, those before the measured ones too
  uint64_t result_chunks_repaid = 0;
  uint64_t hashes_agreed = 0;
  std::vector<double> recoveries;  // s, of each run whose link changes
  sim::PushPullTraffic traffic;
  std::vector<sim::PushPullFit> fits;
};

// Seconds from the link's change to the first round of five that take, on average, no longer than 1.25 x the
// median of the run's last half: back at 0.8 of the steady rate.
double SecondsToRecover(const PushPullResult& result, Duration change) {
  constexpr size_t kRounds = 5;
  std::vector<double> ms;
  size_t first = 0;
  for (const PushPullPhases& round : result.rounds) {
    ms.push_back(Ms(round.ended));
    if (round.begin + round.ended <= change) ++first;
  }
  if (ms.size() < first + 2 * kRounds) return std::numeric_limits<double>::infinity();
  const auto middle = static_cast<int64_t>(first + (ms.size() - first) / 2);
  const double steady = Quantile(std::vector<double>(ms.begin() + middle, ms.end()), 0.5);
  for (size_t i = first; i + kRounds <= ms.size(); ++i) {
    const auto begin = ms.begin() + static_cast<int64_t>(i);
    if (std::accumulate(begin, begin + kRounds, 0.0) > 1.25 * kRounds * steady) continue;
    return std::max(0.0, Ms(result.rounds[i].begin - change) / 1e3);
  }
  return std::numeric_limits<double>::infinity();
}

void Add(const PushPullResult& result, Outcome* outcome) {
  if (!result.failure.empty()) outcome->failure = result.failure;
  outcome->result_chunks_lost += result.server.result_chunks_lost;
  outcome->result_chunks_repaid += result.server.result_chunks_repaid;
  for (const ClientStats& worker : result.workers) outcome->hashes_agreed += worker.state_hashes_agreed;
  outcome->rounds.insert(outcome->rounds.end(), result.rounds.begin(), result.rounds.end());
  if (outcome->timeline.size() < result.timeline.size()) outcome->timeline.resize(result.timeline.size());
  for (size_t i = 0; i < result.timeline.size(); ++i) {
    sim::PushPullStep& step = outcome->timeline[i];
    step.rounds += result.timeline[i].rounds;
    step.up_bytes += result.timeline[i].up_bytes;
    step.down_bytes += result.timeline[i].down_bytes;
    step.up_queue += result.timeline[i].up_queue;
    step.down_queue += result.timeline[i].down_queue;
  }
  outcome->fits.insert(outcome->fits.end(), result.fits.begin(), result.fits.end());
  sim::PushPullTraffic& sum = outcome->traffic;
  const sim::PushPullTraffic& t = result.traffic;
  sum.chunks += t.chunks;
  sum.lost_chunks += t.lost_chunks;
  sum.repaired_chunks += t.repaired_chunks;
  sum.filled_chunks += t.filled_chunks;
  sum.up_packets += t.up_packets;
  sum.up_repair += t.up_repair;
  sum.up_again += t.up_again;
  sum.up_pto += t.up_pto;
  sum.down_packets += t.down_packets;
  sum.down_repair += t.down_repair;
  sum.down_again += t.down_again;
  sum.up_queue_drops += t.up_queue_drops;
  sum.down_queue_drops += t.down_queue_drops;
  sum.longest_up_queue = std::max(sum.longest_up_queue, t.longest_up_queue);
  sum.longest_down_queue = std::max(sum.longest_down_queue, t.longest_down_queue);
}

// Every run is independent of the others: whichever thread is free takes the next.
std::vector<Outcome> RunAll(const std::vector<Cell>& cells, uint64_t seeds, unsigned jobs) {
  std::vector<std::vector<PushPullResult>> results(cells.size(), std::vector<PushPullResult>(seeds));
  std::atomic<size_t> next = 0;
  {
    std::vector<std::jthread> threads;
    for (unsigned i = 0; i < jobs; ++i) {
      threads.emplace_back([&] {
        for (size_t job = next++; job < cells.size() * seeds; job = next++) {
          PushPullOptions options = cells[job / seeds].options;
          options.seed = job % seeds + 1;
          results[job / seeds][job % seeds] = RunPushPull(options);
        }
      });
    }
  }
  std::vector<Outcome> outcomes(cells.size());
  for (size_t cell = 0; cell < cells.size(); ++cell) {
    for (const PushPullResult& result : results[cell]) {
      Add(result, &outcomes[cell]);
      const PushPullOptions& options = cells[cell].options;
      if (options.then.has_value())
        outcomes[cell].recoveries.push_back(SecondsToRecover(result, options.then_at));
    }
  }
  return outcomes;
}

double PhasePercentile(const Outcome& outcome, Duration PushPullPhases::*phase, double share) {
  std::vector<double> values;
  for (const PushPullPhases& round : outcome.rounds) values.push_back(Ms(round.*phase));
  return Quantile(std::move(values), share);
}

double Share(uint64_t part, uint64_t whole) {
  return whole == 0 ? 0 : 100.0 * static_cast<double>(part) / static_cast<double>(whole);
}

void PrintFits(const Outcome& outcome) {
  std::map<std::string, int> states;
  std::map<std::string, int> rate_states;
  std::vector<double> floors, targets, capacities;
  for (const sim::PushPullFit& fit : outcome.fits) {
    ++states[fit.state];
    ++rate_states[fit.rate_state];
    floors.push_back(100 * fit.floor);
    targets.push_back(100 * fit.target);
    if (!fit.capacity.IsZero()) capacities.push_back(fit.capacity.mbps());
  }
  if (floors.empty()) return;
  std::printf("    fit:");
  for (const auto& [state, count] : states) std::printf(" %s %d", state.c_str(), count);
  std::printf(" | l0 %.1f/%.1f/%.1f %%, target %.1f %%", Quantile(floors, 0.05), Quantile(floors, 0.5),
              Quantile(floors, 0.95), Quantile(targets, 0.5));
  if (!capacities.empty()) {
    std::printf(", C %.1f/%.1f/%.1f Mbit/s", Quantile(capacities, 0.05), Quantile(capacities, 0.5),
                Quantile(capacities, 0.95));
  }
  std::printf(" |");
  for (const auto& [state, count] : rate_states) std::printf(" %s %d", state.c_str(), count);
  std::printf("\n");
}

json Report(const Cell& cell, const Outcome& outcome) {
  const double floor = Ms(FullDuplexFloor(cell.options));
  const double p50 = PhasePercentile(outcome, &PushPullPhases::ended, 0.5);
  const double p99 = PhasePercentile(outcome, &PushPullPhases::ended, 0.99);
  const double max = PhasePercentile(outcome, &PushPullPhases::ended, 1);
  const bool misses = (cell.p50_target > 0 && p50 > cell.p50_target * floor) ||
                      (cell.p99_target > 0 && p99 > cell.p99_target * floor) ||
                      (cell.ms_target > 0 && p50 > cell.ms_target);
  std::printf("%-58s floor %5.0f  p50 %5.0f (%.2f)  p99 %5.0f (%.2f)  max %5.0f  n %zu%s\n",
              cell.name.c_str(), floor, p50, p50 / floor, p99, p99 / floor, max, outcome.rounds.size(),
              misses ? "  MISSES ITS TARGET" : "");
  const auto phase = [&](const char* name, Duration PushPullPhases::*which) {
    std::printf("  %s %.0f/%.0f", name, PhasePercentile(outcome, which, 0.5),
                PhasePercentile(outcome, which, 0.99));
  };
  phase("  ms p50/p99: sent", &PushPullPhases::sent);
  phase("final", &PushPullPhases::final);
  phase("first", &PushPullPhases::first_chunk);
  phase("last", &PushPullPhases::last_chunk);
  phase("ended", &PushPullPhases::ended);
  const sim::PushPullTraffic& t = outcome.traffic;
  std::printf(
      "\n    %%: lost %.2f repaired %.2f | up repair %.1f again %.1f drops %.2f | down repair %.1f again "
      "%.1f "
      "drops %.2f | queue ms %.0f/%.0f | up pto %.2f a round\n",
      Share(t.lost_chunks, t.chunks), Share(t.repaired_chunks, t.chunks), Share(t.up_repair, t.up_packets),
      Share(t.up_again, t.up_packets), Share(t.up_queue_drops, t.up_packets),
      Share(t.down_repair, t.down_packets), Share(t.down_again, t.down_packets),
      Share(t.down_queue_drops, t.down_packets), Ms(t.longest_up_queue), Ms(t.longest_down_queue),
      Share(t.up_pto, outcome.rounds.size()) / 100);
  if (cell.options.settings.downlink == Downlink::kLossy) {
    std::printf("    downlink lossy: result chunks lost %llu repaid %llu, hashes agreed %llu\n",
                static_cast<unsigned long long>(outcome.result_chunks_lost),
                static_cast<unsigned long long>(outcome.result_chunks_repaid),
                static_cast<unsigned long long>(outcome.hashes_agreed));
  }
  if (cell.options.bytes.size() > 1 && !outcome.rounds.empty()) {
    std::printf("    tensors, ms p50:");
    for (size_t i = 0; i < cell.options.bytes.size(); ++i) {
      std::vector<double> values;
      for (const PushPullPhases& round : outcome.rounds) values.push_back(Ms(round.by_tensor[i]));
      std::printf(" %.0f", Quantile(values, 0.5));
    }
    std::printf("\n");
  }
  if (!outcome.recoveries.empty()) {
    std::printf("    s until rounds take 1.25 x what they take later: p50 %.1f max %.1f\n",
                Quantile(outcome.recoveries, 0.5), Quantile(outcome.recoveries, 1));
  }
  PrintFits(outcome);
  if (!outcome.failure.empty()) std::printf("    FAILED: %s\n", outcome.failure.c_str());
  return {{"cell", cell.name},
          {"floor_ms", floor},
          {"p50_ms", p50},
          {"p99_ms", p99},
          {"max_ms", max},
          {"rounds", outcome.rounds.size()},
          {"misses_target", misses},
          {"lost_chunks", t.lost_chunks},
          {"repaired_chunks", t.repaired_chunks},
          {"filled_chunks", t.filled_chunks},
          {"result_chunks_lost", outcome.result_chunks_lost},
          {"result_chunks_repaid", outcome.result_chunks_repaid},
          {"recovery_s", outcome.recoveries},
          {"failure", outcome.failure}};
}

void PrintTimeline(const Outcome& outcome) {
  const double step_seconds = std::chrono::duration<double>(sim::PushPullStep::kLength).count();
  for (size_t i = 0; i < outcome.timeline.size(); ++i) {
    const sim::PushPullStep& step = outcome.timeline[i];
    const auto rounds = static_cast<double>(step.rounds);
    std::printf(
        "      from %4.0f ms, %4.0f rounds: up %6.1f Mbit/s, queue %3.0f ms; down %6.1f Mbit/s, queue %3.0f "
        "ms\n",
        1e3 * step_seconds * static_cast<double>(i), rounds,
        static_cast<double>(step.up_bytes) * 8e-6 / step_seconds / rounds, Ms(step.up_queue) / rounds,
        static_cast<double>(step.down_bytes) * 8e-6 / step_seconds / rounds, Ms(step.down_queue) / rounds);
  }
}

// What no range of a single flag can refuse.
Status CheckLink(const std::string& flag, const wan::LinkOptions& link) {
  const auto invalid = [&](const char* what) { return Status(StatusCode::kInvalidArgument, flag + what); };
  if (link.rate.IsZero()) return invalid(" needs a rate, for example rate 100mbit");
  return link.loss >= 1 ? invalid(" loses everything") : Status::Ok();
}

Status CheckOptions(const PushPullOptions& options) {
  const auto invalid = [](const std::string& what) { return Status(StatusCode::kInvalidArgument, what); };
  const auto optimizer = codec::ParseOptimizer(options.optimizer);
  if (!optimizer.ok()) return invalid("--optimizer: " + optimizer.status().message());
  if (options.settings.downlink == Downlink::kLossy && optimizer->aggregates()) {
    return invalid("--downlink lossy needs an --optimizer, for example sgd:lr=0.1");
  }
  server::ServerCoreOptions core;
  core.settings = options.settings;
  return core.Validate();
}

int Main(int argc, char** argv) {
  CLI::App app("Rounds of PushPull in virtual time beside the full-duplex floor, and where their time went.",
               "longhaul_round_sim");
  app.option_defaults()->always_capture_default();
  PushPullOptions options;
  options.energy_spread = 0.5;  // as longhaul bench rounds
  std::string link = "rate 100mbit delay 20ms";
  std::string then;
  std::string then_at = "5s";
  std::string gap = "0ms";
  std::string stagger = "0ms";
  std::string json_file;
  uint64_t seeds = 5;
  bool targets = false;
  bool print_rounds = false;
  bool print_timeline = false;
  unsigned jobs = std::max(1u, std::thread::hardware_concurrency());
  std::string only;
  app.add_option("--workers", options.workers)->check(CLI::Range(1, 200));
  app.add_option("--bytes", options.bytes, "of every tensor; several: all are pushed at once")
      ->check(CLI::Range(uint64_t{4}, uint64_t{1} << 30));
  app.add_option("--rounds", options.rounds, "measured, for each seed")->check(CLI::Range(1, 100'000));
  app.add_option("--warmup", options.warmup, "rounds before that count for nothing")
      ->check(CLI::Range(0, 100'000));
  app.add_option("--link", link, "each way, shared by all workers (words as of longhaul-wan)");
  app.add_option("--then", then, "what the link becomes in mid-run");
  app.add_option("--then-at", then_at, "since the start");
  app.add_option("--gap", gap, "between rounds");
  app.add_option("--stagger", stagger, "workers begin at random within this time");
  app.add_option("--energy-spread", options.energy_spread, "of the logarithm of the chunks' scales")
      ->check(CLI::Range(0.0, 5.0));
  app.add_option("--optimizer", options.optimizer, "at the server");
  cli::AddJobFlags(app, &options.settings);
  app.add_flag("!--no-grants", options.settings.grants.enabled);
  app.add_option("--seeds", seeds)->check(CLI::Range(1, 1000));
  app.add_option("--jobs", jobs, "threads")->check(CLI::Range(1, 256));
  app.add_flag("--targets", targets, "the cells that have targets, with these options otherwise");
  app.add_option("--only", only, "of these, those whose name contains this");
  app.add_flag("--print-rounds", print_rounds, "phases of every round");
  app.add_flag("--timeline", print_timeline, "what the links carried in every 10 ms of a round, mean of all");
  app.add_option("--json", json_file);
  cli::CheckValues(app);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  const auto parsed = wan::ParseLinkOptions(link);
  const auto changed = wan::ParseLinkOptions(then.empty() ? link : then);
  const auto change_time = ParseTime(then_at);
  const auto gap_time = ParseTime(gap);
  const auto stagger_time = ParseTime(stagger);
  for (const Status& status :
       {parsed.status(), changed.status(), change_time.status(), gap_time.status(), stagger_time.status()}) {
    if (status.ok()) continue;
    std::fprintf(stderr, "longhaul_round_sim: %s\n", status.ToString().c_str());
    return 2;
  }
  for (const Status& status :
       {CheckLink("--link", *parsed), CheckLink("--then", *changed), CheckOptions(options)}) {
    if (status.ok()) continue;
    std::fprintf(stderr, "longhaul_round_sim: %s\n", status.message().c_str());
    return 2;
  }
  options.link = *parsed;
  if (!then.empty()) options.then = *changed;
  options.then_at = *change_time;
  options.gap = *gap_time;
  options.stagger = *stagger_time;
  std::vector<Cell> cells;
  if (targets) {
    for (Cell& cell : TargetCells()) {
      if (cell.name.find(only) == std::string::npos) continue;
      PushPullOptions merged = options;
      merged.workers = cell.options.workers;
      merged.bytes = cell.options.bytes;
      merged.link = cell.options.link;
      cell.options = merged;
      cells.push_back(std::move(cell));
    }
  } else {
    cells.push_back({link, options});
  }
  if (cells.empty()) {
    std::fprintf(stderr, "longhaul_round_sim: no cell's name contains \"%s\"\n", only.c_str());
    return 2;
  }
  const std::vector<Outcome> outcomes = RunAll(cells, seeds, jobs);
  json all = json::array();
  bool failed = false;
  for (size_t i = 0; i < cells.size(); ++i) {
    all.push_back(Report(cells[i], outcomes[i]));
    failed |= !outcomes[i].failure.empty();
    if (print_timeline) PrintTimeline(outcomes[i]);
    if (!print_rounds) continue;
    for (const PushPullPhases& r : outcomes[i].rounds) {
      std::printf("      sent %.0f final %.0f first %.0f last %.0f ended %.0f\n", Ms(r.sent), Ms(r.final),
                  Ms(r.first_chunk), Ms(r.last_chunk), Ms(r.ended));
    }
  }
  if (!json_file.empty()) {
    std::FILE* file = std::fopen(json_file.c_str(), "w");
    if (file == nullptr) {
      std::fprintf(stderr, "longhaul_round_sim: %s cannot be written\n", json_file.c_str());
      return 1;
    }
    const bool written = std::fprintf(file, "%s\n", all.dump(2).c_str()) > 0;
    if (std::fclose(file) != 0 || !written) {
      std::fprintf(stderr, "longhaul_round_sim: %s cannot be written\n", json_file.c_str());
      return 1;
    }
  }
  return failed ? 1 : 0;
}

}  // namespace
}  // namespace longhaul::bench

int main(int argc, char** argv) { return longhaul::bench::Main(argc, argv); }
