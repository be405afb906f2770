// longhaul_learning_bench: trains under every loss policy and writes what it cost.

#include <sys/resource.h>
#include <time.h>

#include <CLI/CLI.hpp>
#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <mutex>
#include <thread>

#include "base/flags/number_checks.h"
#include "bench/learning/poisoned.h"
#include "bench/learning/report.h"

namespace {

using longhaul::Result;
using longhaul::Status;
using longhaul::bench::Outcome;
using longhaul::bench::Results;
using longhaul::bench::Scenario;
using longhaul::bench::Table;
using longhaul::worker::Dataset;
using longhaul::worker::DatasetPart;

struct Flags {
  bool quick = false;
  bool report_only = false;
  unsigned jobs = 1;
  double minutes = 0;
  std::string data = longhaul::worker::kDefaultDatasetDirectory;
  std::string out;
  std::string scenario;
  bool poisoned = false;
  bool consistency = false;
  bool layouts = false;
  uint32_t seeds = 40;
  std::string json = "build/poisoned.json";
};

double ThreadSeconds() {
  timespec t{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_nsec) * 1e-9;
}

constexpr int kUsage = 2;

int Fail(const Status& status, int code = 1) {
  std::cerr << "longhaul_learning_bench: " << status.ToString() << "\n";
  return code;
}

struct Data {
  Dataset train;
  Dataset test;
};
Result<Data> Load(const std::string& directory) {
  Result<Dataset> train = longhaul::worker::LoadFashionMnist(directory, DatasetPart::kTrain);
  if (!train.ok()) return train.status();
  Result<Dataset> test = longhaul::worker::LoadFashionMnist(directory, DatasetPart::kTest);
  if (!test.ok()) return test.status();
  return Data{*std::move(train), *std::move(test)};
}

// Runs what is missing, several at once; one run is one thread's work.
Status RunMissing(const std::vector<Scenario>& runs, const Data& data, const Flags& flags, Results& results) {
  std::vector<Scenario> missing;
  for (const Scenario& run : runs) {
    if (results.Find(run) == nullptr) missing.push_back(run);
  }
  std::cerr << runs.size() << " runs, " << missing.size() << " to do\n";
  const auto begun = std::chrono::steady_clock::now();
  const auto minutes = [&] {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begun).count() / 60;
  };
  std::atomic<size_t> next = 0;
  std::mutex mutex;
  Status first;
  const auto work = [&] {
    for (size_t i = next++; i < missing.size(); i = next++) {
      if (flags.minutes > 0 && minutes() > flags.minutes) return;
      const double start = ThreadSeconds();
      const Result<Outcome> outcome = longhaul::bench::Train(missing[i], data.train, data.test);
      const double seconds = ThreadSeconds() - start;
      const std::lock_guard lock(mutex);
      Status status = outcome.ok() ? results.Add(missing[i], {*outcome, seconds}) : outcome.status();
      if (!status.ok() && first.ok()) first = status;
      if (!first.ok()) return;
      std::cerr << i + 1 << "/" << missing.size() << " " << missing[i].Key() << " " << outcome->accuracy * 100
                << " (" << seconds << " s)\n";
    }
  };
  std::vector<std::thread> threads;
  for (unsigned j = 1; j < flags.jobs; ++j) threads.emplace_back(work);
  work();
  for (std::thread& thread : threads) thread.join();
  std::cerr << "took " << minutes() << " minutes\n";
  return first;
}

Status WriteFile(const std::filesystem::path& path, const std::string& text) {
  std::ofstream file(path, std::ios::trunc);
  file << text;
  if (!file.flush()) return {longhaul::StatusCode::kUnavailable, "cannot write " + path.string()};
  return Status::Ok();
}

constexpr const char* kTablesText =
    "Final test accuracy minus that of the lossless run of the same seed, in points: mean ± its standard "
    "error over the seeds;\n**bold** is the median. ";
constexpr const char* kLayoutsText =
    "Of the mean of the weights over the last tenth of the rounds, against the lossless run of the same "
    "seed, mean ± half\nof the 95 % interval (paired t), in hundredths: test accuracy; test cross-entropy; "
    "the share of the chunks that is high;\nand the seeds. *fails*: a mean is worse than the target (0.1, "
    "0.2, 0.3 and 0.5 points); **bold**: both are within it, by\ntwo one-sided tests at 5 %. ";

Status WriteReport(const std::vector<Table>& tables, const std::vector<Scenario>& runs,
                   const Results& results, const std::filesystem::path& directory, const std::string& name) {
  double seconds = 0;
  size_t done = 0;
  for (const Scenario& run : runs) {
    const auto* found = results.Find(run);
    if (found == nullptr) continue;
    seconds += found->seconds;
    ++done;
  }
  char cost[160];
  std::snprintf(cost, sizeof cost, "%zu of %zu runs; %.0f minutes of one processor, %.1f seconds a run.\n\n",
                done, runs.size(), seconds / 60, done == 0 ? 0 : seconds / static_cast<double>(done));
  const std::string text = "# Learning under loss: " + name + "\n\nWritten by `tools/dev bench learning" +
                           (name == "layouts" ? " --layouts" : "") +
                           "`; docs/explanation/learning.md says how to read it.\n" +
                           (name == "layouts" ? kLayoutsText : kTablesText) + std::string(cost) +
                           longhaul::bench::ToMarkdown(tables, results);
  if (Status s = WriteFile(directory / (name + ".md"), text); !s.ok()) return s;
  for (const Table& table : tables) {
    if (table.positions.empty()) continue;
    if (Status s = WriteFile(directory / (table.name + ".svg"), longhaul::bench::ToSvg(table, results));
        !s.ok()) {
      return s;
    }
  }
  std::cout << text;
  return Status::Ok();
}

int RunOne(const Flags& flags) {
  const nlohmann::json json = nlohmann::json::parse(flags.scenario, nullptr, /*allow_exceptions=*/false);
  if (json.is_discarded())
    return Fail({longhaul::StatusCode::kInvalidArgument, "--scenario is not JSON"}, kUsage);
  const Result<Scenario> scenario = Scenario::FromJson(json);
  if (!scenario.ok()) return Fail(scenario.status(), kUsage);
  const Result<Data> data = Load(flags.data);
  if (!data.ok()) return Fail(data.status());
  const double start = ThreadSeconds();
  const Result<Outcome> outcome = longhaul::bench::Train(*scenario, data->train, data->test);
  if (!outcome.ok()) return Fail(outcome.status());
  std::cout << nlohmann::json{{"scenario", scenario->ToJson()},
                              {"accuracy", outcome->accuracy},
                              {"averaged_accuracy", outcome->averaged_accuracy},
                              {"averaged_loss", outcome->averaged_loss},
                              {"high_share", outcome->high_share},
                              {"training_loss", outcome->training_loss},
                              {"low_lost", outcome->low_lost},
                              {"filled", outcome->filled},
                              {"seconds", ThreadSeconds() - start}}
            << "\n";
  return 0;
}

int RunTables(const Flags& flags) {
  const std::filesystem::path directory = !flags.out.empty() ? flags.out
                                          : flags.quick      ? "build/learning-quick"
                                                             : "docs/results/learning";
  std::error_code error;
  std::filesystem::create_directories(directory, error);
  const std::string name = flags.layouts ? "layouts" : "tables";
  Result<Results> results =
      Results::Open((directory / (flags.layouts ? "layouts.jsonl" : "results.jsonl")).string());
  if (!results.ok()) return Fail(results.status());
  const std::vector<Table> tables = flags.layouts ? longhaul::bench::LayoutTables(flags.seeds)
                                                  : longhaul::bench::LearningTables(flags.quick);
  const std::vector<Scenario> runs = longhaul::bench::RunsOf(tables);
  if (!flags.report_only) {
    const Result<Data> data = Load(flags.data);
    if (!data.ok()) return Fail(data.status());
    if (Status s = RunMissing(runs, *data, flags, *results); !s.ok()) return Fail(s);
  }
  if (Status s = WriteReport(tables, runs, *results, directory, name); !s.ok()) return Fail(s);
  return 0;
}

// Every run of the matrix, a thread each; one JSON object. Each run has what says which one it is.
int RunMatrix(const Flags& flags, const std::vector<std::pair<Scenario, nlohmann::json>>& runs) {
  const Result<Data> data = Load(flags.data);
  if (!data.ok()) return Fail(data.status());
  std::vector<nlohmann::json> lines(runs.size());
  std::atomic<size_t> next = 0;
  const auto work = [&] {
    for (size_t i = next++; i < runs.size(); i = next++) {
      const Result<Outcome> outcome = longhaul::bench::Train(runs[i].first, data->train, data->test);
      lines[i] = {{"skew", runs[i].first.skew},
                  {"seed", runs[i].first.seed},
                  {"accuracy", outcome.ok() ? nlohmann::json(outcome->accuracy) : nlohmann::json()},
                  {"diverged", outcome.ok() && outcome->diverged}};
      lines[i].update(runs[i].second);
      std::cerr << (lines[i].dump() + "\n");
    }
  };
  std::vector<std::thread> threads;
  for (unsigned j = 1; j < flags.jobs; ++j) threads.emplace_back(work);
  work();
  for (std::thread& thread : threads) thread.join();
  const Status written = WriteFile(flags.json, nlohmann::json{{"runs", lines}}.dump(1) + "\n");
  return written.ok() ? 0 : Fail(written);
}

int RunPoisoned(const Flags& flags) {
  std::vector<std::pair<Scenario, nlohmann::json>> runs;
  for (const longhaul::bench::PoisonedRun& run : longhaul::bench::PoisonedRuns())
    runs.emplace_back(run.scenario, nlohmann::json{{"defence", run.defence}, {"attack", run.attack}});
  return RunMatrix(flags, runs);
}

int RunConsistency(const Flags& flags) {
  std::vector<std::pair<Scenario, nlohmann::json>> runs;
  for (const Scenario& run : longhaul::bench::ConsistencyRuns()) {
    runs.emplace_back(run, nlohmann::json{{"setting", run.shards ? "demo" : "skewed"},
                                          {"policy", run.policy},
                                          {"optimizer", run.optimizer},
                                          {"staleness", run.staleness},
                                          {"slow", run.slow},
                                          {"loss", run.loss}});
  }
  return RunMatrix(flags, runs);
}

}  // namespace

int main(int argc, char** argv) {
  Flags flags;
  flags.jobs = std::max(1u, std::thread::hardware_concurrency());
  CLI::App app("Trains on Fashion-MNIST under every loss policy and compares with the lossless run.",
               "longhaul_learning_bench");
  app.add_flag("--quick", flags.quick, "One seed, 70 rounds, the headline tables only");
  app.add_flag("--report", flags.report_only, "Only write the report about the runs that are there");
  app.add_option("--jobs", flags.jobs, "Runs at a time")->capture_default_str()->check(CLI::Range(1, 256));
  app.add_option("--minutes", flags.minutes, "Begin no run after so many; the next call goes on; 0 = run all")
      ->check(CLI::Range(0.0, 1e6));
  app.add_option("--data", flags.data, "Directory with Fashion-MNIST's IDX files")->capture_default_str();
  app.add_option("--out", flags.out, "Directory of results, tables and plots [docs/results/learning]");
  app.add_option("--scenario", flags.scenario, "Only this run, for example '{\"policy\": \"residual\"}'");
  app.add_flag("--poisoned", flags.poisoned, "Only members that lie, against every defence");
  app.add_flag("--consistency", flags.consistency, "Only synchronous rounds, SSP and ASP beside each other");
  app.add_flag("--layouts", flags.layouts,
               "Only matrices that are stored in either way, under the default policy");
  app.add_option("--seeds", flags.seeds, "Seeds of the default policy's cells in --layouts")
      ->capture_default_str()
      ->check(CLI::Range(1, 1000));
  app.add_option("--json", flags.json, "File for the outcomes of --poisoned and --consistency")
      ->capture_default_str();
  longhaul::cli::CheckValues(app);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : kUsage;
  }
  if (flags.poisoned) return RunPoisoned(flags);  // minutes
  if (flags.consistency) return RunConsistency(flags);
  setpriority(PRIO_PROCESS, 0, 19);  // runs for long: other work goes first
  return flags.scenario.empty() ? RunTables(flags) : RunOne(flags);
}
