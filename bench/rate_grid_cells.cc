#include "bench/rate_grid_cells.h"

#include <algorithm>
#include <array>
#include <deque>
#include <string_view>
#include <utility>

#include "base/instant.h"
#include "tests/sim/rate/rate_sim.h"

namespace longhaul::bench {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using transport::sim::FlowOptions;
using transport::sim::LinkOptions;
using transport::sim::Simulation;

constexpr double kInfinite = std::numeric_limits<double>::infinity();
// Flows do not start in step.
constexpr Duration kStartGap = milliseconds(137);

std::string Number(double value) {
  std::string text = std::to_string(value);
  text.erase(text.find_last_not_of('0') + 1);
  if (text.back() == '.') text.pop_back();
  return text;
}

std::string Milliseconds(Duration time) { return std::to_string(time.count() / 1'000'000) + " ms"; }

struct Loss {
  double share;
  double mean_burst;
  std::string Name() const {
    return Number(share * 100) + " %" + (mean_burst > 0 ? " bursts of " + Number(mean_burst) : "");
  }
};

constexpr std::array<Loss, 11> kLosses{{{0, 0},
                                        {0.0001, 0},
                                        {0.001, 0},
                                        {0.01, 0},
                                        {0.03, 0},
                                        {0.05, 0},
                                        {0.10, 0},
                                        {0.20, 0},
                                        {0.01, 10},
                                        {0.03, 10},
                                        {0.05, 10}}};

FlowOptions Flow(RateControl control, Duration start = Duration(0)) {
  FlowOptions flow;
  flow.rate.control = control;
  flow.start = Instant() + start;
  return flow;
}

Sample Measure(const Simulation& simulation) {
  Sample sample;
  sample.utilisation = simulation.Utilisation();
  sample.queue = simulation.QueueAboveMinimum();
  sample.standing = simulation.StandingQueue();
  sample.own_loss = simulation.OwnLoss();
  if (simulation.flows() > 1) sample.jain = transport::sim::JainIndex(simulation.Shares());
  return sample;
}

// --- Constant paths ---

Sample RunSteady(const LinkOptions& link, RateControl control, int flows) {
  Simulation simulation(link);
  for (int i = 0; i < flows; ++i) simulation.AddFlow(Flow(control, kStartGap * i));
  // Long enough for several of BBR's cycles of two to three seconds and its look for the minimum RTT.
  const Duration warm = std::max<Duration>(seconds(4), 40 * link.rtt);
  const Duration length = std::max<Duration>(seconds(10), 100 * link.rtt);
  simulation.RunUntil(Instant() + warm);
  simulation.ResetStats();
  simulation.RunUntil(Instant() + warm + length);
  return Measure(simulation);
}

// A burst is counted in packets. Where it outlasts a flight only probe timeouts get past it, two packets
// each, and that is not the controller's doing.
bool BurstOutlastsFlight(const LinkOptions& link) {
  return link.mean_burst * 2 > link.rate * link.rtt / transport::sim::kDatagram;
}

Targets SteadyTargets(const LinkOptions& link, int flows) {
  Targets targets;
  targets.max_queue = 0.25;
  targets.max_own_loss = flows == 1 ? 0.01 : 0.02;
  if (BurstOutlastsFlight(link)) return targets;
  targets.min_utilisation = 0.95;
  if (link.loss >= 0.1) targets.min_utilisation = 0.90;
  if (link.loss >= 0.2 || link.buffer_bdp < 0.25) targets.min_utilisation = 0.85;
  return targets;
}

// --- Paths that change ---

// A path has recovered at the end of the first window with at least 90 % of what the path can deliver and a
// queue of at most half a round trip.
constexpr double kRecoveredUtilisation = 0.9;
constexpr double kRecoveredQueue = 0.5;
constexpr int kWindowRounds = 4;

double Recovery(Simulation* simulation, Duration limit) {
  const Instant from = simulation->now();
  const Duration window =
      std::max<Duration>(kWindowRounds * simulation->path().options().rtt, milliseconds(100));
  const Duration step = window / kWindowRounds;
  std::deque<double> utilisation;
  std::deque<double> queue;
  for (Instant end = from + step; end <= from + limit; end += step) {
    simulation->ResetStats();
    simulation->RunUntil(end);
    utilisation.push_back(simulation->Utilisation());
    queue.push_back(simulation->MeanQueueBdp());
    if (utilisation.size() > kWindowRounds) {
      utilisation.pop_front();
      queue.pop_front();
    }
    if (utilisation.size() < kWindowRounds) continue;
    double delivered = 0;
    double waited = 0;
    for (size_t i = 0; i < kWindowRounds; ++i) {
      delivered += utilisation[i] / kWindowRounds;
      waited += queue[i] / kWindowRounds;
    }
    if (delivered >= kRecoveredUtilisation && waited <= kRecoveredQueue) {
      return static_cast<double>((end - from).count()) / 1e9;
    }
  }
  return kInfinite;
}

struct Change {
  std::string_view name;
  double before = 1;  // of the rate
  double after = 1;
  int rtt_factor = 1;
  Duration outage{0};
};

constexpr std::array<Change, 4> kChanges{{{.name = "rate x 10", .before = 0.1},
                                          {.name = "rate / 10", .after = 0.1},
                                          {.name = "RTT x 3", .rtt_factor = 3},
                                          {.name = "outage of 30 s", .outage = seconds(30)}}};

Sample RunChange(LinkOptions link, RateControl control, const Change& change) {
  const Bandwidth full = link.rate;
  // A router's buffer is of bytes: of one BDP of the faster path, whatever comes.
  link.buffer = full * link.rtt;
  link.rate = full * change.before;
  Simulation simulation(link);
  simulation.AddFlow(Flow(control));
  // Changes come at different moments of a cycle.
  const Duration warm = seconds(8) + milliseconds(173) * static_cast<int64_t>(link.seed);
  simulation.RunUntil(Instant() + warm);
  if (change.outage.count() > 0) {
    simulation.SetDown(true);
    simulation.RunUntil(Instant() + warm + change.outage);
    simulation.SetDown(false);
  }
  simulation.SetRate(full * change.after);
  simulation.SetRtt(link.rtt * change.rtt_factor);
  Sample sample;
  sample.recovery = Recovery(&simulation, seconds(30));
  simulation.ResetStats();
  simulation.RunUntil(simulation.now() + seconds(10));
  const double recovery = std::exchange(sample.recovery, kNone);
  sample = Measure(simulation);
  sample.recovery = recovery;
  return sample;
}

// --- Loss that begins, and ends ---

// The path carries at least so much of what it can when it has recovered, in every second of three: the first
// round trips after a step are still at the rate of before.
constexpr double kRecoveredFromLoss = 0.8;
constexpr int kRecoveredSeconds = 3;
constexpr int kLossSeconds = 20;  // that a loss stays, and that are watched

enum class LossStep { kBegins, kEnds };

Sample RunLossStep(LinkOptions link, RateControl control, LossStep step, int flows) {
  const double loss = std::exchange(link.loss, 0.0);
  Simulation simulation(link);
  for (int i = 0; i < flows; ++i) simulation.AddFlow(Flow(control));
  simulation.RunUntil(Instant() + seconds(8) + milliseconds(173) * static_cast<int64_t>(link.seed));
  simulation.SetLoss(loss);
  if (step == LossStep::kEnds) {
    simulation.RunUntil(simulation.now() + seconds(kLossSeconds));
    simulation.SetLoss(0);
  }
  Sample sample;
  sample.recovery = kInfinite;
  int good = 0;
  for (int second = 1; second <= kLossSeconds && good < kRecoveredSeconds; ++second) {
    simulation.ResetStats();
    simulation.RunUntil(simulation.now() + seconds(1));
    good = simulation.Utilisation() >= kRecoveredFromLoss ? good + 1 : 0;
    if (good == kRecoveredSeconds) sample.recovery = second - kRecoveredSeconds;
  }
  return sample;
}

Sample RunPolicer(LinkOptions link, RateControl control) {
  link.policer_rate = link.rate * 0.2;
  link.policer_burst = link.policer_rate * milliseconds(50);
  Simulation simulation(link);
  simulation.AddFlow(Flow(control));
  simulation.RunUntil(Instant() + seconds(8));
  simulation.ResetStats();
  simulation.RunUntil(Instant() + seconds(28));
  return Measure(simulation);
}

// --- Flows together ---

constexpr Duration kFairnessRtt = milliseconds(50);

Sample RunTogether(const LinkOptions& link, const std::vector<RateControl>& controls) {
  Simulation simulation(link);
  // Who comes first changes with the seed.
  const size_t first = link.seed % controls.size();
  for (size_t i = 0; i < controls.size(); ++i) {
    const auto place = static_cast<int64_t>((i + first) % controls.size());
    simulation.AddFlow(Flow(controls[i], kStartGap * place));
  }
  simulation.RunUntil(Instant() + seconds(10));
  simulation.ResetStats();
  simulation.RunUntil(Instant() + seconds(40));
  Sample sample = Measure(simulation);
  if (controls.front() != controls.back()) sample.share = simulation.Shares().front();
  return sample;
}

// Seconds from the second flow's start to the end of the first second in which it had within 10 % of its
// half.
Sample RunLateJoiner(const LinkOptions& link, RateControl control) {
  constexpr Duration kStep = milliseconds(100);
  constexpr size_t kSteps = 20;
  const Instant joins = Instant() + seconds(10) + milliseconds(173) * static_cast<int64_t>(link.seed);
  Simulation simulation(link);
  simulation.AddFlow(Flow(control));
  simulation.AddFlow(Flow(control, joins - Instant()));
  simulation.RunUntil(joins);
  std::deque<std::pair<ByteCount, ByteCount>> arrived;  // of the joiner, of both
  Sample sample;
  sample.recovery = kInfinite;
  for (Instant end = joins + kStep; end <= joins + seconds(60); end += kStep) {
    simulation.ResetStats();
    simulation.RunUntil(end);
    const ByteCount joiner = simulation.stats(1).arrived;
    arrived.emplace_back(joiner, joiner + simulation.stats(0).arrived);
    if (arrived.size() > kSteps) arrived.pop_front();
    if (arrived.size() < kSteps) continue;
    ByteCount mine;
    ByteCount all;
    for (const auto& [one, both] : arrived) {
      mine += one;
      all += both;
    }
    const double share = all.value() == 0 ? 0 : mine / all;
    if (share < 0.45 || share > 0.55) continue;
    sample.recovery = static_cast<double>((end - joins - kStep * kSteps).count()) / 1e9;
    break;
  }
  return sample;
}

// A copy: runs of one cell go on in several threads at once.
LinkOptions WithSeed(LinkOptions link, uint64_t seed) {
  link.seed = seed;
  return link;
}

}  // namespace

std::vector<Cell> SteadyCells(const GridOptions& options) {
  std::vector<Cell> cells;
  for (const int flows : {1, 4}) {
    for (const double buffer : {0.05, 0.25, 1.0, 4.0}) {
      for (const Loss& loss : kLosses) {
        for (const int rtt : {1, 20, 100, 200}) {
          LinkOptions link;
          link.rate = options.rate;
          link.rtt = milliseconds(rtt);
          link.buffer_bdp = buffer;
          link.loss = loss.share;
          link.mean_burst = loss.mean_burst;
          Cell cell;
          cell.table =
              std::string(flows == 1 ? "One flow" : "Four flows") + ", buffer " + Number(buffer) + " BDP";
          cell.row = loss.Name();
          cell.column = Milliseconds(link.rtt);
          cell.targets = SteadyTargets(link, flows);
          cell.run = [link, flows, control = options.controller](uint64_t seed) {
            return RunSteady(WithSeed(link, seed), control, flows);
          };
          cells.push_back(std::move(cell));
        }
      }
    }
  }
  return cells;
}

std::vector<Cell> ChangeCells(const GridOptions& options) {
  std::vector<Cell> cells;
  for (const double loss : {0.0, 0.01, 0.05}) {
    for (const int rtt : {20, 100}) {
      LinkOptions link;
      link.rate = options.rate;
      link.rtt = milliseconds(rtt);
      link.loss = loss;
      Cell cell;
      cell.table = "Changes, loss " + Number(loss * 100) + " %";
      cell.column = Milliseconds(link.rtt);
      cell.targets.max_recovery = 30;  // the slowest takes 21; a flow that is stuck never ends
      for (const Change& change : kChanges) {
        cell.row = change.name;
        cell.run = [link, change, control = options.controller](uint64_t seed) {
          return RunChange(WithSeed(link, seed), control, change);
        };
        cells.push_back(cell);
      }
      cell.row = "policer at rate / 5";
      cell.targets = Targets();
      cell.targets.min_utilisation = 0.85;
      cell.targets.max_own_loss = 0.05;
      cell.run = [link, control = options.controller](uint64_t seed) {
        return RunPolicer(WithSeed(link, seed), control);
      };
      cells.push_back(cell);
    }
  }
  return cells;
}

std::vector<Cell> LossStepCells(const GridOptions& options) {
  std::vector<Cell> cells;
  for (const double share : {0.5, 1.0}) {
    for (const int rtt : {20, 50, 100}) {
      for (const int flows : {1, 4}) {
        LinkOptions link;
        link.rate = options.rate * share;
        link.rtt = milliseconds(rtt);
        Cell cell;
        cell.table = "Loss steps";
        cell.column = Number(share) + " x rate, " + Milliseconds(link.rtt) + ", " + std::to_string(flows) +
                      (flows == 1 ? " flow" : " flows");
        cell.targets.max_recovery = 2;  // s, longer than ten round trips of all of them
        for (const double loss : {0.1, 0.2, 0.3, 0.4}) {
          link.loss = loss;
          for (const LossStep step : {LossStep::kBegins, LossStep::kEnds}) {
            cell.row = Number(loss * 100) + (step == LossStep::kBegins ? " % begins" : " % ends");
            cell.run = [link, step, flows, control = options.controller](uint64_t seed) {
              return RunLossStep(WithSeed(link, seed), control, step, flows);
            };
            cells.push_back(cell);
          }
        }
      }
    }
  }
  return cells;
}

std::vector<Cell> FairnessCells(const GridOptions& options) {
  const RateControl own = options.controller;
  const std::vector<std::pair<std::string, std::vector<RateControl>>> groups = {
      {"two of its own", {own, own}},
      {"four of its own", {own, own, own, own}},
      {"against one CUBIC", {own, RateControl::kCubic}},
      {"against one BBR", {own, RateControl::kBbr}}};
  std::vector<Cell> cells;
  for (const double loss : {0.0, 0.01}) {
    for (const double buffer : {0.25, 1.0, 4.0}) {
      LinkOptions link;
      link.rate = options.rate;
      link.rtt = kFairnessRtt;
      link.buffer_bdp = buffer;
      link.loss = loss;
      Cell cell;
      cell.table = "Fairness at " + Milliseconds(kFairnessRtt) + ", loss " + Number(loss * 100) + " %";
      cell.column = Number(buffer) + " BDP";
      for (const auto& [name, controls] : groups) {
        const bool mixed = controls.front() != controls.back();
        cell.row = name;
        cell.targets = Targets();
        if (!mixed && name.starts_with("against")) continue;  // it is that controller itself
        if (!mixed) cell.targets.min_jain = 0.9;
        if (mixed && buffer == 1.0) {
          cell.targets.min_share = 0.35;
          cell.targets.max_share = 0.65;
        }
        cell.run = [link, list = controls](uint64_t seed) { return RunTogether(WithSeed(link, seed), list); };
        cells.push_back(cell);
      }
      cell.row = "late joiner";
      cell.targets = Targets();
      cell.targets.max_recovery = 5;
      cell.run = [link, own](uint64_t seed) { return RunLateJoiner(WithSeed(link, seed), own); };
      cells.push_back(std::move(cell));
    }
  }
  return cells;
}

}  // namespace longhaul::bench
