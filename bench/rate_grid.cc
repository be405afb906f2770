// longhaul_rate_grid: a rate controller on a grid of simulated paths, in virtual time.
//
//   longhaul_rate_grid --controller bbr --seeds 3 --filter 'One flow, buffer 1 '
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
  for (auto* make : {&SteadyCells, &ChangeCells, &FairnessCells}) {
    for (Cell& cell : make(options)) {
      if (std::regex_search(cell.name(), wanted)) cells.push_back(std::move(cell));
    }
  }
  return cells;
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
  CLI11_PARSE(app, argc, argv);

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
