#include "bench/rate_hosts.h"

#include <algorithm>
#include <atomic>
#include <ctime>
#include <fstream>
#include <iostream>
#include <mutex>
#include <random>
#include <regex>
#include <thread>
#include <vector>

#include "bench/rate_hosts_cells.h"
#include "bench/rate_hosts_report.h"
#include "bench/rate_hosts_run.h"

namespace longhaul::bench {
namespace {

constexpr size_t kMostCells = 400;  // of the cover and the single troubles together

void Fail(const std::string& message) { std::cerr << "longhaul_rate_grid: " << message << '\n'; }

void Append(std::string_view set, const std::vector<HostCell>& cells, const std::string& filter,
            std::vector<HostResult>* results) {
  const std::regex wanted(filter);
  for (const HostCell& cell : cells) {
    const std::string name = cell.Name();
    const bool twice = std::any_of(results->begin(), results->end(),
                                   [&](const HostResult& result) { return result.cell.Name() == name; });
    if (!twice && std::regex_search(std::string(set) + " " + name, wanted))
      results->push_back({set, cell, {}, {}});
  }
}

// Throws std::regex_error.
std::vector<HostResult> Wanted(const HostGridOptions& options) {
  std::vector<HostResult> results;
  if (!options.cell.empty()) {
    if (const std::optional<HostCell> cell = HostCell::Parse(options.cell))
      results.push_back({"cell", *cell, {}, {}});
    return results;
  }
  Append("cover", CoverCells(), options.filter, &results);
  Append("single", SingleCells(), options.filter, &results);
  if (options.random == 0) return results;
  const uint64_t seed = options.random_seed.value_or(std::random_device()());
  std::cout << "Random cells: --random " << options.random << " --random-seed " << seed << "\n\n";
  Append("random", RandomCells(options.random, seed), options.filter, &results);
  return results;
}

// Every run is independent: whichever thread is free takes the next.
void RunHostCells(const HostGridOptions& options, std::vector<HostResult>* results) {
  for (HostResult& result : *results) {
    result.tested.resize(options.seeds);
    result.reference.resize(options.seeds);
  }
  const size_t total = results->size() * options.seeds;
  std::atomic<size_t> next = 0;
  std::mutex progress;
  const auto work = [&] {
    for (size_t job = next++; job < total; job = next++) {
      HostResult& result = (*results)[job / options.seeds];
      const size_t i = job % options.seeds;
      const uint64_t seed = options.first_seed + i;
      result.tested[i] = RunHostCell(result.cell, {options.controller, seed});
      result.reference[i] = RunHostCell(result.cell, {options.reference, seed});
      if ((job + 1) % 20 != 0 && job + 1 != total) continue;
      const std::lock_guard lock(progress);
      std::cerr << '\r' << job + 1 << " of " << total << " runs" << std::flush;
    }
  };
  {
    std::vector<std::jthread> threads;
    for (unsigned i = 0; i < options.jobs; ++i) threads.emplace_back(work);
  }
  std::cerr << '\n';
}

bool WriteFile(const std::string& path, const std::string& content) {
  std::ofstream file(path);
  file << content;
  return static_cast<bool>(file.flush());
}

double SentPackets(std::span<const HostResult> results) {
  double packets = 0;
  for (const HostResult& result : results) {
    for (const auto* samples : {&result.tested, &result.reference}) {
      for (const HostSample& sample : *samples) packets += sample.packets;
    }
  }
  return packets;
}

void PrintOne(const HostResult& result) {
  const auto row = [](std::string_view name, std::span<const HostSample> samples) {
    for (const HostSample& sample : samples) {
      std::cout << name << ": own loss " << 100 * sample.own_loss << " %, utilisation " << sample.utilisation
                << ", queue " << sample.queue_ms << " ms, Jain " << sample.jain << ", share " << sample.share
                << ", runaway " << sample.runaway << ", fitted " << sample.fitted << '\n';
    }
  };
  row("tested", result.tested);
  row("reference", result.reference);
  std::cout << '\n';
}

// Returns the exit code.
int ReportHostGrid(const HostGridOptions& options, const std::vector<HostResult>& results) {
  std::cout << "## Hosts: " << NameOf(options.controller) << " against " << NameOf(options.reference) << ", "
            << results.size() << " cells, " << options.seeds << " seeds\n\n";
  if (!options.cell.empty()) PrintOne(results.front());
  PrintHostReport(std::cout, results, options.worst);
  if (!options.json.empty() && !WriteFile(options.json, HostJson(results))) {
    Fail("cannot write " + options.json);
    return 2;
  }
  if (!options.check) return 0;
  const size_t misses = CountMisses(results);
  std::cout << misses << " of " << results.size() << " cells miss a rule\n";
  return misses == 0 ? 0 : 1;
}

}  // namespace

int CheckHostCover() {
  const std::vector<HostCell> cells = CoverCells();
  const size_t all = cells.size() + SingleCells().size();
  const std::vector<std::string> missing = MissingPairs(cells);
  std::cout << cells.size() << " cells of the cover, " << all << " with the single troubles; "
            << missing.size() << " pairs missing or not allowed\n";
  for (const std::string& pair : missing) std::cout << "- " << pair << '\n';
  size_t unreadable = 0;
  for (const HostCell& cell : cells) {
    const std::optional<HostCell> again = HostCell::Parse(cell.Name());
    unreadable += !again || again->Name() != cell.Name();
  }
  if (unreadable > 0) Fail(std::to_string(unreadable) + " names do not name their cell");
  return missing.empty() && unreadable == 0 && all <= kMostCells ? 0 : 1;
}

int RunHostGrid(const HostGridOptions& options) {
  std::vector<HostResult> results;
  try {
    results = Wanted(options);
  } catch (const std::regex_error&) {
    Fail("--filter is not a regular expression: " + options.filter);
    return 2;
  }
  if (results.empty()) {
    Fail(options.cell.empty() ? "no cell matches --filter " + options.filter
                              : "no such cell: " + options.cell);
    return 2;
  }
  if (options.list) {
    for (const HostResult& result : results) std::cout << result.set << ' ' << result.cell.Name() << '\n';
    return 0;
  }
  if (options.trace && options.cell.empty()) {
    Fail("--trace goes with --cell");
    return 2;
  }
  if (options.trace) RunHostCell(results.front().cell, {options.controller, options.first_seed, &std::cout});
  const std::clock_t start = std::clock();
  RunHostCells(options, &results);
  std::cerr << SentPackets(results) / 1e6 << " million packets, "
            << static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC << " s of CPU\n";
  return ReportHostGrid(options, results);
}

}  // namespace longhaul::bench
