#include "bench/faults/scale.h"

#include <malloc.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <map>
#include <new>

#include "base/quantile.h"
#include "base/units_text.h"
#include "bench/faults/job.h"
#include "bench/faults/member.h"
#include "tests/sim/push_pull_rounds.h"

namespace {
thread_local int64_t g_heap = 0;  // bytes that this thread has taken and not given back
}

[[gnu::noinline]] void* operator new(size_t bytes) {
  void* const memory = std::malloc(bytes);
  if (memory == nullptr) throw std::bad_alloc();
  g_heap += static_cast<int64_t>(::malloc_usable_size(memory));
  return memory;
}
[[gnu::noinline]] void operator delete(void* memory) noexcept {
  g_heap -= static_cast<int64_t>(::malloc_usable_size(memory));
  std::free(memory);
}
void operator delete(void* memory, size_t) noexcept { operator delete(memory); }

namespace longhaul::bench::faults {
namespace {

using nlohmann::json;
using sim::Call;

constexpr int kWarm = 3;                                     // rounds
constexpr Duration kRoundLimit = std::chrono::seconds(120);  // for one
constexpr Duration kStartLimit = std::chrono::seconds(120);
constexpr double kFlat = 1.25;  // of the fewest members' bytes

// What one block has measured.
struct Block {
  double up_bytes = 0, down_bytes = 0;  // UDP payload, of all workers in all rounds
  double packets = 0;                   // likewise; both ways
  double cpu = 0;                       // s of the server
  double memory = 0;                    // bytes of the server
  std::vector<double> lengths;          // s, of each round
  std::array<double, static_cast<size_t>(Call::kCount)> cpu_of{};  // simulated
};

Result<std::string> LinkOf(const ScaleOptions& options, uint32_t members) {
  const auto rate = ParseRate(options.rate);
  if (!rate.ok()) return rate.status();
  return "rate " + std::to_string(rate->bits_per_second() * members) + "bit " + options.path;
}

// --- Processes ---

uint64_t ResidentBytes(pid_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/statm");
  uint64_t size = 0, resident = 0;
  file >> size >> resident;
  return resident * static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
}

// What members have said of their rounds.
class Steps {
 public:
  explicit Steps(const Job& job) : job_(job) {}
  // Members that have had as many rounds before, and this one. A busy machine's may be late for a round, and
  // count in the next.
  size_t HaveHad(int round) {
    for (; read_ < job_.lines().size(); ++read_) {
      const Line& line = job_.lines()[read_];
      Step step{.at = line.at};
      unsigned long long number = 0;
      if (std::sscanf(line.text.c_str(), kStepFormat, &number, &step.up, &step.up_packets, &step.down,
                      &step.down_packets) == 5) {
        steps_[had_[line.program]++][line.program] = step;
      }
    }
    return steps_[round].size();
  }
  void Measure(int from, int to, Block* block) {
    for (const auto& [member, end] : steps_[to]) {
      const Step& begin = steps_[from][member];
      block->up_bytes += static_cast<double>(end.up - begin.up);
      block->down_bytes += static_cast<double>(end.down - begin.down);
      block->packets += static_cast<double>(end.up_packets - begin.up_packets) +
                        static_cast<double>(end.down_packets - begin.down_packets);
    }
    for (int round = from + 1; round <= to; ++round)
      block->lengths.push_back(Seconds(End(round) - End(round - 1)));
  }

 private:
  struct Step {
    Clock::time_point at;
    unsigned long long up = 0, up_packets = 0, down = 0, down_packets = 0;
  };
  Clock::time_point End(int round) {
    Clock::time_point end;
    for (const auto& [member, step] : steps_[round]) end = std::max(end, step.at);
    return end;
  }

  const Job& job_;
  size_t read_ = 0;
  std::map<std::string, int> had_;
  std::map<int, std::map<std::string, Step>> steps_;
};

Result<Block> RunProcesses(const ScaleOptions& options, uint32_t workers, uint64_t seed) {
  const auto link = LinkOf(options, 1);
  if (!link.ok()) return link.status();
  const auto started =
      Job::Start({.workers = workers,
                  .link = *link,
                  .member = "pace",
                  .all_members = true,
                  .member_words = {"--elements", std::to_string(options.bytes / sizeof(float))},
                  .seed = seed});
  if (!started.ok()) return started.status();
  Job& job = **started;
  Steps steps(job);
  Block block;
  const int last = kWarm + options.rounds;
  double cpu_before = 0;
  for (int round = 0; round <= last; ++round) {
    const auto limit = Clock::now() + (round == 0 ? kStartLimit : kRoundLimit);
    if (!job.RunUntil(limit, [&] { return steps.HaveHad(round) == workers; }))
      return Status(StatusCode::kInternal, "round " + std::to_string(round) + " does not end");
    if (round == kWarm) cpu_before = CpuSeconds(job.server_pid());
  }
  block.cpu = CpuSeconds(job.server_pid()) - cpu_before;
  block.memory = static_cast<double>(ResidentBytes(job.server_pid()));
  steps.Measure(kWarm, last, &block);
  return block;
}

// --- Simulated ---

Result<Block> RunSimulated(const ScaleOptions& options, uint32_t workers, uint64_t seed) {
  const auto words = LinkOf(options, workers);
  if (!words.ok()) return words.status();
  const auto link = wan::ParseLinkOptions(*words);
  if (!link.ok()) return link.status();
  sim::PushPullOptions run;
  run.workers = workers;
  run.rounds = static_cast<uint32_t>(options.rounds);
  run.warmup = kWarm;
  run.bytes = {options.bytes};
  run.link = *link;
  run.seed = seed;
  run.times_server = true;
  run.heap = [] { return g_heap; };
  const sim::PushPullResult result = sim::RunPushPull(run);
  if (!result.failure.empty()) return Status(StatusCode::kInternal, result.failure);
  Block block;
  block.up_bytes = static_cast<double>(result.traffic.up_bytes);
  block.down_bytes = static_cast<double>(result.traffic.down_bytes);
  block.packets = static_cast<double>(result.traffic.up_arrived + result.traffic.down_packets);
  block.cpu = result.server_times.Seconds();
  block.memory = static_cast<double>(result.server_times.heap_bytes());
  for (const sim::PushPullPhases& round : result.rounds) block.lengths.push_back(ToSeconds(round.ended));
  for (size_t call = 0; call < block.cpu_of.size(); ++call)
    block.cpu_of[call] = result.server_times.Seconds(static_cast<Call>(call));
  return block;
}

// --- Both ---

json Summary(const ScaleOptions& options, uint32_t workers, const std::vector<Block>& blocks) {
  Block all;
  std::vector<double> cpu;
  for (const Block& block : blocks) {
    all.up_bytes += block.up_bytes;
    all.down_bytes += block.down_bytes;
    all.packets += block.packets;
    all.memory = std::max(all.memory, block.memory);
    all.lengths.insert(all.lengths.end(), block.lengths.begin(), block.lengths.end());
    for (size_t call = 0; call < all.cpu_of.size(); ++call) all.cpu_of[call] += block.cpu_of[call];
    cpu.push_back(1e6 * block.cpu / block.packets);
  }
  const double each = static_cast<double>(blocks.size()) * options.rounds * workers;
  json out = {{"workers", workers},
              {"up_bytes", all.up_bytes / each},
              {"down_bytes", all.down_bytes / each},
              {"packets", all.packets / each},
              {"cpu_us_per_packet", Quantile(cpu, 0.5)},
              {"cpu_us_per_packet_blocks", cpu},
              {"memory_bytes", all.memory},
              {"round_p50", Quantile(all.lengths, 0.5)},
              {"round_p99", Quantile(all.lengths, 0.99)}};
  for (size_t call = 0; call < all.cpu_of.size() && options.simulated; ++call)
    out["cpu_us_of"][sim::kCallNames[call]] = 1e6 * all.cpu_of[call] / all.packets;
  return out;
}

}  // namespace

Result<json> RunScale(const ScaleOptions& options) {
  std::map<uint32_t, std::vector<Block>> blocks;
  for (int block = 0; block < options.blocks; ++block) {
    for (const uint32_t workers : options.workers) {
      const uint64_t seed = options.seed + static_cast<uint64_t>(block);
      auto measured =
          options.simulated ? RunSimulated(options, workers, seed) : RunProcesses(options, workers, seed);
      if (!measured.ok()) return measured.status();
      std::fprintf(stderr, "%u workers: %.2f us of the server's CPU a packet\n", workers,
                   1e6 * measured->cpu / measured->packets);
      blocks[workers].push_back(*std::move(measured));
    }
  }
  json out = {{"of", options.simulated ? "simulated" : "processes"},
              {"bytes", options.bytes},
              {"rate", options.rate},
              {"path", options.path},
              {"rounds", options.rounds},
              {"blocks", options.blocks}};
  for (const auto& [workers, measured] : blocks) out["cells"].push_back(Summary(options, workers, measured));
  const json& first = out["cells"].front();
  for (const json& cell : out["cells"]) {
    for (const char* const way : {"up_bytes", "down_bytes"}) {
      if (cell[way].get<double>() <= kFlat * first[way].get<double>()) continue;
      out["miss"].push_back(std::string(way) + " of " + cell["workers"].dump() + " members");
    }
  }
  return out;
}

}  // namespace longhaul::bench::faults
