// longhaul_rate_grid: a rate controller on a grid of simulated paths, in virtual time.
//
//   longhaul_rate_grid --controller bbr --seeds 3 --filter 'One flow, buffer 1 '
//   longhaul_rate_grid --hosts --check
//   longhaul_rate_grid --hosts --cell 'cap=200 rtt=40 queue=5ms snd=1/20m' --trace
#include <CLI/CLI.hpp>
#include <algorithm>
#include <atomic>
#include <cstdint>
#include <fstream>
#include <iostream>
#include <mutex>
#include <regex>
#include <string>
#include <thread>
#include <vector>

#include "bench/rate_grid_cells.h"
#include "bench/rate_grid_report.h"
#include "bench/rate_hosts.h"

namespace longhaul::bench {
namespace {

// Every run is independent: whichever thread is free takes the next. The result does not depend on their
// number.
std::vector<CellResult> RunAll(const std::vector<Cell>& cells, size_t seeds, unsigned jobs) {
  std::vector<CellResult> results;
  for (const Cell& cell : cells) results.push_back({&cell, std::vector<Sample>(seeds)});
  std::atomic<size_t> next = 0;
  std::mutex progress;
  const size_t total = cells.size() * seeds;
  const auto work = [&] {
    for (size_t job = next++; job < total; job = next++) {
      CellResult& result = results[job / seeds];
      result.samples[job % seeds] = result.cell->run(job % seeds + 1);
      const std::lock_guard lock(progress);
      if ((job + 1) % 20 == 0 || job + 1 == total)
        std::cerr << '\r' << job + 1 << " of " << total << " runs" << std::flush;
    }
  };
  {
    std::vector<std::jthread> threads;
    for (unsigned i = 0; i < jobs; ++i) threads.emplace_back(work);
  }
  std::cerr << '\n';
  return results;
}

std::vector<Cell> Cells(const GridOptions& options, const std::string& filter) {
  const std::regex wanted(filter);
  std::vector<Cell> cells;
  for (auto* make : {&SteadyCells, &ChangeCells, &LossStepCells, &FairnessCells}) {
    for (Cell& cell : make(options)) {
      if (std::regex_search(cell.name(), wanted)) cells.push_back(std::move(cell));
    }
  }
  return cells;
}

void AddHostOptions(CLI::App* app, HostGridOptions* hosts) {
  app->add_option("--reference", hosts->reference, "--hosts: the controller to compare with")
      ->transform(CLI::CheckedTransformer(std::vector<std::pair<std::string, RateControl>>{
          {"longhaul", RateControl::kLonghaul}, {"bbr", RateControl::kBbr}, {"cubic", RateControl::kCubic}}))
      ->default_str("bbr");
  app->add_option("--random", hosts->random, "--hosts: so many random cells")->capture_default_str();
  app->add_option("--random-seed", hosts->random_seed, "--hosts: replays those of an earlier run");
  app->add_option("--first-seed", hosts->first_seed, "--hosts: of the runs of a cell")->capture_default_str();
  app->add_option("--cell", hosts->cell, "--hosts: only this cell; what its name leaves out is harmless");
  app->add_flag("--trace", hosts->trace, "--hosts --cell: first a line a round trip, with the first seed");
  app->add_option("--worst", hosts->worst, "--hosts: so many cells per rule")->capture_default_str();
}

int Main(int argc, char** argv) {
  CLI::App app("Judges a rate controller on a grid of simulated paths.");
  std::string controller = "longhaul";
  std::string filter;
  std::string json;
  double mbps = 100;
  size_t seeds = 20;
  unsigned jobs = std::max(1u, std::thread::hardware_concurrency());
  bool check = false;
  bool list = false;
  app.add_option("--controller", controller, "Controller under test")
      ->check(
          CLI::IsMember(std::vector<std::string>(kNamesOf<RateControl>.begin(), kNamesOf<RateControl>.end())))
      ->capture_default_str();
  app.add_option("--seeds", seeds, "Runs per cell")->check(CLI::Range(1, 1000))->capture_default_str();
  app.add_option("--rate", mbps, "Capacity in Mbit/s")
      ->check(CLI::Range(1.0, 100'000.0))
      ->capture_default_str();
  app.add_option("--filter", filter, "Only cells whose name matches this regular expression (see --list)");
  app.add_option("--json", json, "Also write every sample to this file");
  app.add_option("--jobs", jobs, "Threads")->check(CLI::Range(1, 1024))->capture_default_str();
  app.add_flag("--check", check,
               "List the medians that miss their targets, and exit with 1 if there are any");
  app.add_flag("--list", list, "Print the names of the cells only");
  HostGridOptions hosts;
  bool with_hosts = false;
  bool self_check = false;
  app.add_flag("--hosts", with_hosts, "What hosts and shared paths do, against a reference, instead");
  app.add_flag("--self-check", self_check, "Check that the cells of --hosts are a pairwise cover");
  AddHostOptions(&app, &hosts);
  CLI11_PARSE(app, argc, argv);

  if (self_check) return CheckHostCover();
  if (with_hosts) {
    hosts.controller = *FromName<RateControl>(controller);
    if (app.count("--seeds") > 0) hosts.seeds = seeds;
    hosts.filter = filter;
    hosts.json = json;
    hosts.jobs = jobs;
    hosts.check = check;
    hosts.list = list;
    return RunHostGrid(hosts);
  }
  GridOptions options;
  options.controller = *FromName<RateControl>(controller);
  options.rate = Bandwidth::Mbps(mbps);
  std::vector<Cell> cells;
  try {
    cells = Cells(options, filter);
  } catch (const std::regex_error&) {
    std::cerr << "longhaul_rate_grid: --filter is not a regular expression: " << filter << '\n';
    return 2;
  }
  if (cells.empty()) {
    std::cerr << "longhaul_rate_grid: no cell matches --filter " << filter << '\n';
    return 2;
  }
  if (list) {
    for (const Cell& cell : cells) std::cout << cell.name() << '\n';
    return 0;
  }
  const std::vector<CellResult> results = RunAll(cells, seeds, jobs);
  std::cout << "## " << controller << ", " << mbps << " Mbit/s, " << seeds << " seeds\n\n";
  PrintTables(std::cout, results);
  if (!json.empty()) {
    std::ofstream file(json);
    file << ToJson(results);
    if (!file.flush()) {
      std::cerr << "longhaul_rate_grid: cannot write " << json << '\n';
      return 2;
    }
  }
  if (!check) return 0;
  const std::vector<std::string> misses = Misses(results);
  std::cout << misses.size() << " targets missed\n";
  for (const std::string& miss : misses) std::cout << "- " << miss << '\n';
  return misses.empty() ? 0 : 1;
}

}  // namespace
}  // namespace longhaul::bench

int main(int argc, char** argv) { return longhaul::bench::Main(argc, argv); }
