// What the daemon gives ranks that are processes: longhaul_offload_shm_bench --help
//
// Ranks are processes, the engine is longhaul-offload. `shared`: zero-copy, one memory for the result of all;
// `own`: zero-copy, every rank has its own; `copied in`: Post copies what is sent from memory of Register,
// the result is shared; `copied`: Poll copies the result, too. Copied messages are posted in pieces, so that
// copies and sums run side by side. Rates are of the ranks' bytes that go in, from the moment when all ranks
// are ready until the last has its completion. memcpy: of as many bytes in one process, to as many results.
#include <pthread.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "base/quantile.h"
#include "bench/offload/memcpy_rate.h"
#include "bench/offload/ranks.h"

namespace longhaul::offload {
namespace {

using Clock = std::chrono::steady_clock;

struct Settings {
  int ranks = 4;
  int repeats = 11;
  uint32_t seg_bytes = 1024;
  uint32_t piece_kib = 256;
  bool spin = false;
};

double Seconds(Clock::duration d) { return std::chrono::duration<double>(d).count(); }

// What the rank processes have in common.
struct Common {
  pthread_barrier_t barrier;
  double seconds[100'000];
  bool wrong = false;
};

void RunRank(const Settings& s, const Daemon& daemon, Common* common, int rank, const std::string& how,
             size_t bytes) {
  Device device = Device::Open(daemon.where(), {.rank = static_cast<uint8_t>(rank)}).value();
  const RankMemory m = RankMemory::Of(device, how, bytes);
  const uint32_t piece = how.starts_with("copied") ? s.piece_kib * 1024 / s.seg_bytes : UINT32_MAX;
  for (int i = 0; i <= s.repeats; ++i) {
    pthread_barrier_wait(&common->barrier);
    const auto begin = Clock::now();
    AllReduce(device, m, bytes, static_cast<uint32_t>(i), piece, s.seg_bytes, s.spin);
    pthread_barrier_wait(&common->barrier);
    if (rank == 0) common->seconds[i] = Seconds(Clock::now() - begin);
  }
  for (size_t i = 0; i < bytes / 4; ++i) common->wrong |= m.receive[i] != 1.5f * static_cast<float>(s.ranks);
}

nlohmann::json Throughput(const Settings& s, Common* common, const std::string& how, size_t mebibytes) {
  const size_t bytes = mebibytes << 20;
  const Daemon daemon(s.ranks, s.seg_bytes, 50);
  std::vector<pid_t> pids;
  for (int rank = 0; rank < s.ranks; ++rank) {
    pids.push_back(fork());
    if (pids.back() != 0) continue;
    RunRank(s, daemon, common, rank, how, bytes);
    _exit(0);
  }
  for (const pid_t pid : pids) {
    int status = 0;
    waitpid(pid, &status, 0);
    common->wrong |= status != 0;
  }
  if (common->wrong) throw std::runtime_error("a wrong sum");
  std::vector<double> rates;
  for (int i = 1; i <= s.repeats; ++i)
    rates.push_back(static_cast<double>(s.ranks * bytes) / common->seconds[i]);
  const double rate = Quantile(rates, 0.5), best = Quantile(rates, 1);
  const auto ranks = static_cast<size_t>(s.ranks);
  const bool one_result = how == "shared" || how == "copied in";
  const double copy = MemcpyRate(bytes, ranks, one_result ? 1 : ranks, s.repeats);
  std::printf("%3zu MiB a rank, %-9s  %6.2f GB/s in (best %6.2f)   memcpy %6.2f GB/s   ratio %.2f\n",
              mebibytes, how.c_str(), rate / 1e9, best / 1e9, copy / 1e9, rate / copy);
  return {{"mib", mebibytes},
          {"memory", how},
          {"gb_per_s_in", rate / 1e9},
          {"best_gb_per_s_in", best / 1e9},
          {"memcpy_gb_per_s", copy / 1e9},
          {"of_memcpy", rate / copy}};
}

nlohmann::json Latency(int repeats) {
  const Daemon daemon(1, 1024, 1'000'000);
  Device device = Device::Open(daemon.where(), {}).value();
  const RankMemory m = RankMemory::Of(device, "own", 1024);
  std::vector<double> times;
  for (int i = 0; i < repeats; ++i) {
    const auto begin = Clock::now();
    AllReduce(device, m, 1024, static_cast<uint32_t>(i), 1, 1024, true);
    times.push_back(1e6 * Seconds(Clock::now() - begin));
  }
  Completion completion;
  const auto begin = Clock::now();
  for (int i = 0; i < 1'000'000; ++i) (void)device.Poll({&completion, 1});
  const double poll_ns = 1e3 * Seconds(Clock::now() - begin);
  const double p50 = Quantile(times, 0.5), p99 = Quantile(times, 0.99), least = Quantile(times, 0);
  std::printf(
      "request to completion, 1 KiB, spinning: p50 %.2f us, p99 %.2f us, least %.2f us; a poll %.0f ns\n",
      p50, p99, least, poll_ns);
  return {{"p50_us", p50}, {"p99_us", p99}, {"least_us", least}, {"poll_ns", poll_ns}};
}

nlohmann::json Idle() {
  const Daemon daemon(4, 1024, 20);
  std::vector<Device> devices;
  for (uint8_t rank = 0; rank < 4; ++rank)
    devices.push_back(Device::Open(daemon.where(), {.rank = rank}).value());
  const double before = daemon.CpuSeconds();
  std::this_thread::sleep_for(std::chrono::seconds(5));
  const double share = (daemon.CpuSeconds() - before) / 5;
  std::printf("idle, four ranks connected: %.2f %% of a core\n", 100 * share);
  return {{"core_share", share}};
}

Common* MakeCommon(int ranks) {
  void* const memory =
      mmap(nullptr, sizeof(Common), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  auto* const common = new (memory) Common;
  pthread_barrierattr_t attributes;
  pthread_barrierattr_init(&attributes);
  pthread_barrierattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
  pthread_barrier_init(&common->barrier, &attributes, static_cast<unsigned>(ranks));
  return common;
}

int Main(int argc, char** argv) {
  CLI::App app("Throughput, latency and idle cost of longhaul-offload with ranks that are processes");
  Settings s;
  std::string json;
  std::vector<int> sizes = {4, 64};
  app.add_option("--ranks", s.ranks, "Rank processes")->check(CLI::Range(1, 64));
  app.add_option("--repeats", s.repeats, "Messages per size; the median counts")
      ->check(CLI::Range(1, 99'999));
  app.add_option("--sizes", sizes, "MiB of a rank's message")->delimiter(',');
  app.add_option("--seg-bytes", s.seg_bytes, "Bytes of a seg");
  app.add_option("--piece-kib", s.piece_kib, "KiB that a rank with copied memory posts at a time");
  app.add_flag("--spin", s.spin, "Ranks spin for completions instead of sleeping");
  app.add_option("--json", json, "Write the figures to this file");
  CLI11_PARSE(app, argc, argv);
  nlohmann::json out;
  Common* const common = MakeCommon(s.ranks);
  for (const int mebibytes : sizes) {
    for (const char* how : {"shared", "own", "copied in", "copied"}) {
      out["throughput"].push_back(Throughput(s, common, how, static_cast<size_t>(mebibytes)));
    }
  }
  out["latency"] = Latency(std::min(20'000, 2'000 * s.repeats));
  out["idle"] = Idle();
  if (json.empty()) return 0;
  std::ofstream(json) << out.dump(2) << "\n";
  return 0;
}

}  // namespace
}  // namespace longhaul::offload

int main(int argc, char** argv) { return longhaul::offload::Main(argc, argv); }
