// longhaul-sim: whole-cluster simulation in virtual time (tools/dev sim).
#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdio>
#include <string>
#include <vector>

#include "tests/sim/cluster.h"
#include "tests/sim/scenarios.h"

namespace {

using namespace longhaul;

constexpr int kFailuresShown = 3;

void Print(const std::string& line) { std::printf("%s\n", line.c_str()); }

std::string Summary(const sim::RunResult& result) {
  char text[300];
  std::snprintf(
      text, sizeof text,
      "%.3f s of virtual time, %llu datagrams, %llu tensor rounds checked, %llu contributions lost, %llu "
      "repaid, event log %016llx",
      static_cast<double>(result.finished.nanoseconds()) / 1e9,
      static_cast<unsigned long long>(result.datagrams),
      static_cast<unsigned long long>(result.rounds_checked),
      static_cast<unsigned long long>(result.chunks_lost),
      static_cast<unsigned long long>(result.chunks_repaid),
      static_cast<unsigned long long>(result.event_log_hash));
  return text;
}

int Verdict(const std::vector<std::string>& violations, const sim::RunResult& result) {
  Print(Summary(result));
  for (const std::string& violation : violations) Print("  violation: " + violation);
  Print(violations.empty() ? "verdict: ok" : "verdict: FAILED");
  return violations.empty() ? 0 : 1;
}

int Replay(uint64_t seed, bool quiet) {
  const sim::RunPlan plan = sim::DrawPlan(seed);
  std::printf("%s", plan.ToString().c_str());
  const sim::RunResult result = quiet ? sim::RunCluster(plan) : sim::RunCluster(plan, Print);
  return Verdict(result.violations, result);
}

int RunScenario(const std::string& name) {
  if (name == "list") {
    for (const sim::Scenario& scenario : sim::Scenarios()) Print(scenario.name);
    return 0;
  }
  const sim::Scenario* scenario = sim::FindScenario(name);
  if (scenario == nullptr) {
    std::fprintf(stderr, "longhaul-sim: no scenario \"%s\"; --scenario list names them\n", name.c_str());
    return 2;
  }
  std::printf("%s", scenario->plan.ToString().c_str());
  const sim::RunResult result = sim::RunCluster(scenario->plan, Print);
  std::vector<std::string> violations = result.violations;
  if (const std::string missing = scenario->expect(result); !missing.empty()) violations.push_back(missing);
  return Verdict(violations, result);
}

// One run in sixteen twice: the same seed must give the same events.
bool SweepOne(uint64_t seed, sim::RunResult* result) {
  const sim::RunPlan plan = sim::DrawPlan(seed);
  *result = sim::RunCluster(plan);
  if (seed % 16 == 0 && sim::RunCluster(plan).event_log_hash != result->event_log_hash) {
    result->violations.push_back("two runs of this seed differ");
  }
  return result->ok();
}

int Sweep(uint64_t first, uint64_t seeds) {
  const auto begin = std::chrono::steady_clock::now();
  int failures = 0;
  uint64_t done = 0;
  uint64_t rounds = 0;
  uint64_t lost = 0;
  uint64_t repaid = 0;
  uint64_t datagrams = 0;
  uint64_t left_out = 0;
  uint64_t replicas = 0;
  uint64_t behind = 0;
  uint64_t late = 0, unseen = 0;
  uint64_t weather = 0;
  Instant longest;
  uint64_t longest_seed = first;
  for (uint64_t seed = first; seed < first + seeds && failures < kFailuresShown; ++seed, ++done) {
    sim::RunResult result;
    if (!SweepOne(seed, &result)) {
      ++failures;
      std::printf("\nseed %llu FAILED, replay with: tools/dev sim --seed %llu\n",
                  static_cast<unsigned long long>(seed), static_cast<unsigned long long>(seed));
      for (const std::string& violation : result.violations) Print("  violation: " + violation);
    }
    rounds += result.rounds_checked;
    lost += result.chunks_lost;
    repaid += result.chunks_repaid;
    datagrams += result.datagrams;
    left_out += result.left_out;
    replicas += result.replicas_checked;
    behind += result.chunks_behind;
    late += result.late_windows;
    unseen += result.unseen_versions;
    weather += result.weather_deaths;
    if (result.finished > longest) longest_seed = seed;
    longest = std::max(longest, result.finished);
    if (done % 50 == 49) {
      std::printf("%llu of %llu seeds\n", static_cast<unsigned long long>(done + 1),
                  static_cast<unsigned long long>(seeds));
      std::fflush(stdout);
    }
  }
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  const auto number = [](uint64_t n) { return static_cast<unsigned long long>(n); };
  std::printf(
      "%llu seeds from %llu in %.1f s: %llu datagrams, %llu tensor rounds checked, %llu contributions lost, "
      "%llu "
      "repaid, %llu replicas with %llu chunks behind, %llu workers left out of a round, %llu late windows "
      "taken, %llu tensors with a version that nobody saw, %llu jobs ended by loss alone, longest run "
      "%.1f s of virtual time (seed %llu), %d failed\n",
      number(done), number(first), seconds, number(datagrams), number(rounds), number(lost), number(repaid),
      number(replicas), number(behind), number(left_out), number(late), number(unseen), number(weather),
      static_cast<double>(longest.nanoseconds()) / 1e9, number(longest_seed), failures);
  return failures == 0 ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app(
      "Whole-cluster simulation in virtual time: servers, workers, a bad network and faults, judged by "
      "independent checkers. The same seed gives the same run.",
      "longhaul-sim");
  uint64_t seed = 0;
  uint64_t seeds = 0;
  uint64_t first = 1;
  bool quiet = false;
  std::string scenario;
  auto* one = app.add_option("--seed", seed, "replay one run and tell what happens");
  auto* sweep = app.add_option("--seeds", seeds, "sweep over so many seeds");
  app.add_option("--first", first, "first seed of a sweep")->capture_default_str()->needs(sweep);
  auto* named = app.add_option("--scenario", scenario, "run a named scenario; \"list\" names them");
  app.add_flag("--quiet", quiet, "with --seed: only the plan and the verdict")->needs(one);
  one->excludes(sweep)->excludes(named);
  sweep->excludes(named);
  CLI11_PARSE(app, argc, argv);
  if (*one) return Replay(seed, quiet);
  if (*named) return RunScenario(scenario);
  return Sweep(first, *sweep ? seeds : 100);
}
