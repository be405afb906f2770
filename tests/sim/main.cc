// longhaul-sim: whole-cluster simulation in virtual time (tools/dev sim).
#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdio>
#include <random>
#include <string>
#include <vector>

#include "tests/sim/cluster.h"
#include "tests/sim/coverage.h"
#include "tests/sim/scenarios.h"
#include "tests/sim/shrink.h"
#include "tests/sim/sweep.h"

namespace {

using namespace longhaul;

void Print(const std::string& line) {
  std::printf("%s\n", line.c_str());
  std::fflush(stdout);
}

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

// Of a seed whose run fails.
int ShrinkSeed(uint64_t seed) {
  const auto run = [](const sim::RunPlan& plan) { return sim::RunCluster(plan).violations; };
  const sim::Shrunk shrunk = sim::Shrink(sim::DrawPlan(seed), run);
  if (shrunk.violations.empty()) {
    Print("this seed does not fail");
    return 1;
  }
  std::printf("%s", shrunk.plan.ToString().c_str());
  for (const std::string& violation : shrunk.violations) Print("  violation: " + violation);
  std::printf("smallest of %u plans, replay with: tools/dev sim --seed %llu --edit '%s'\n", shrunk.runs,
              static_cast<unsigned long long>(seed), sim::Join(shrunk.edits).c_str());
  return 0;
}

int Replay(uint64_t seed, const std::string& edits, bool quiet) {
  sim::RunPlan plan = sim::DrawPlan(seed);
  std::string error;
  if (!sim::Apply(sim::Split(edits), &plan, &error)) {
    std::fprintf(stderr, "longhaul-sim: --edit: %s\n", error.c_str());
    return 2;
  }
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

// Seeds that no run before has had, to all likelihood; short enough to be typed.
uint64_t FreshSeed() {
  std::random_device device;
  return 1'000'000 + (uint64_t{device()} << 16 ^ device()) % 1'000'000'000'000;
}

// Whether what should be reached was.
bool JudgeMarks() {
  const sim::Coverage coverage = sim::ReachedMarks();
  std::printf("%s%zu of %zu marks of rare states were reached\n", sim::MarksTable().c_str(), coverage.reached,
              coverage.marks);
  for (const std::string& mark : coverage.beyond) Print("  not reached, as is known: " + mark);
  for (const std::string& mark : coverage.never) Print("  NEVER REACHED: " + mark);
  return coverage.never.empty();
}

int Sweep(sim::SweepOptions options, double hours, bool marks) {
  const auto begin = std::chrono::steady_clock::now();
  const auto passed = [begin] {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  };
  options.say = Print;
  if (hours > 0) options.is_over = [passed, hours] { return passed() > 3600 * hours; };
  Print("seeds from " + std::to_string(options.first));
  std::vector<std::string> wrong;
  if (marks) wrong = sim::RunScenarios();
  for (const std::string& what : wrong) Print("scenario " + what);
  const sim::SweepResult result = sim::Sweep(options);
  std::printf("%s, in %.1f s\n", result.ToString().c_str(), passed());
  const bool reached = !marks || JudgeMarks();
  return result.failed.empty() && wrong.empty() && reached ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app(
      "Whole-cluster simulation in virtual time: servers, workers, a bad network and faults, judged by "
      "independent checkers. The same seed gives the same run.",
      "longhaul-sim");
  uint64_t seed = 0;
  bool quiet = false;
  bool shrink = false;
  std::string edits;
  bool nightly = false;
  bool marks = false;
  double hours = 8;
  std::string scenario;
  sim::SweepOptions sweep;
  auto* one = app.add_option("--seed", seed, "replay one run and tell what happens");
  auto* many = app.add_option("--seeds", sweep.seeds, "sweep over so many seeds; the default, with 100");
  auto* first =
      app.add_option("--first", sweep.first, "first seed of a sweep; without it new ones are drawn");
  auto* night = app.add_flag("--nightly", nightly, "sweep over new seeds for --hours, whatever fails");
  app.add_option("--hours", hours, "how long --nightly takes")->capture_default_str()->needs(night);
  app.add_flag("--marks", marks,
               "also runs all scenarios, and fails when a mark of a rare state was never reached");
  auto* named = app.add_option("--scenario", scenario, "run a named scenario; \"list\" names them");
  app.add_flag("--quiet", quiet, "with --seed: only the plan and the verdict")->needs(one);
  app.add_flag("--shrink", shrink,
               "with --seed, of a run that fails: find the smallest plan that fails alike")
      ->needs(one);
  app.add_option("--edit", edits, "with --seed: leave out what --shrink found to be of no matter")
      ->needs(one);
  one->excludes(many)->excludes(named)->excludes(night)->excludes(first);
  named->excludes(many)->excludes(night)->excludes(first);
  CLI11_PARSE(app, argc, argv);
  if (*one && shrink) return ShrinkSeed(seed);
  if (*one) return Replay(seed, edits, quiet);
  if (*named) return RunScenario(scenario);
  if (!*first) sweep.first = FreshSeed();
  if (nightly) sweep.most_failures = SIZE_MAX;
  if (nightly && !*many) sweep.seeds = UINT64_MAX;
  return Sweep(sweep, nightly ? hours : 0, marks);
}
