// What one core gives through the in-process device, beside memcpy in the same run: longhaul_offload_bench
// --help
//
// Four ranks of one node post an all-reduce of float32; the ranks' bytes that go in, by the time until every
// rank has its completion. `shared`: the ranks share the memory for the result, as ranks of a node with
// shared memory do; `own`: every rank has its own, and the result is written four times.
//
// What a small pool costs: four nodes whose windows are larger than a pool of 512 units, beside the largest
// pool that there is. By CPU time of this thread, which spins: busy neighbours do not count.
#include <CLI/CLI.hpp>

#include <algorithm>
#include <chrono>
#include <cinttypes>
#include <cstdio>
#include <ctime>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/quantile.h"
#include "bench/offload/memcpy_rate.h"
#include "longhaul/offload.h"

namespace longhaul::offload {
namespace {

using Clock = std::chrono::steady_clock;

double Seconds(Clock::duration d) { return std::chrono::duration<double>(d).count(); }

class Ranks {
 public:
  // count: of all nodes.
  Ranks(size_t count, size_t bytes, bool shared, const SiteOptions& site, const std::string& name = "bench")
      : bytes_(bytes) {
    send_.assign(count, std::vector<float>(bytes / 4, 1.5f));
    receive_.assign(shared ? 1 : count, std::vector<float>(bytes / 4));
    for (size_t rank = 0; rank < count; ++rank) {
      devices_.push_back(
          Device::Open("inproc:" + name, {.node = static_cast<uint8_t>(rank / site.ranks_per_node),
                                          .rank = static_cast<uint8_t>(rank % site.ranks_per_node),
                                          .site = site})
              .value());
      Device& device = devices_.back();
      send_keys_.push_back(device.Register(std::as_writable_bytes(std::span(send_[rank]))).value());
      auto& receive = receive_[shared ? 0 : rank];
      receive_keys_.push_back(device.Register(std::as_writable_bytes(std::span(receive))).value());
    }
  }

  uint64_t pool_exhausted() const {
    uint64_t sum = 0;  // a rank a node
    for (const Device& device : devices_) sum += device.stats().pool_exhausted;
    return sum;
  }
  void Configure(const JobConfig& config) {
    for (Device& device : devices_) {
      if (!device.Configure(0, config).ok()) std::abort();
      Finish(device);
    }
  }
  // The time from the first Post until the last completion.
  Clock::duration AllReduce() {
    const auto begin = Clock::now();
    for (size_t rank = 0; rank < devices_.size(); ++rank) {
      WorkRequest request{.mid = mid_, .length = bytes_};
      request.send.key = send_keys_[rank];
      request.receive.key = receive_keys_[rank];
      if (!devices_[rank].Post({&request, 1}).ok()) std::abort();
    }
    for (Device& device : devices_) Finish(device);
    ++mid_;
    return Clock::now() - begin;
  }
  bool Right() const {
    for (const auto& receive : receive_) {
      for (const float v : receive) {
        if (v != 1.5f * static_cast<float>(send_.size())) return false;
      }
    }
    return true;
  }

 private:
  static void Finish(Device& device) {
    Completion completion;
    while (device.Poll({&completion, 1}) == 0) {
    }
    if (completion.status != WorkStatus::kSuccess) std::abort();
  }

  size_t bytes_;
  uint32_t mid_ = 0;
  std::vector<std::vector<float>> send_;
  std::vector<std::vector<float>> receive_;
  std::vector<Device> devices_;
  std::vector<uint32_t> send_keys_;
  std::vector<uint32_t> receive_keys_;
};

nlohmann::json Throughput(size_t mebibytes, bool shared, uint32_t seg_bytes, int repeats) {
  const size_t bytes = mebibytes << 20;
  Ranks ranks(4, bytes, shared, {.ranks_per_node = 4, .seg_bytes = seg_bytes});
  ranks.AllReduce();
  std::vector<double> rates;
  for (int i = 0; i < repeats; ++i)
    rates.push_back(static_cast<double>(4 * bytes) / Seconds(ranks.AllReduce()));
  if (!ranks.Right()) throw std::runtime_error("a wrong sum");
  const double rate = Quantile(rates, 0.5), copy = MemcpyRate(bytes, 4, shared ? 1 : 4, repeats);
  std::printf("%3zu MiB a rank, results %-6s  %6.2f GB/s in   memcpy %6.2f GB/s   ratio %.2f\n", mebibytes,
              shared ? "shared" : "own", rate / 1e9, copy / 1e9, rate / copy);
  return {{"mib", mebibytes},
          {"results", shared ? "shared" : "own"},
          {"gb_per_s_in", rate / 1e9},
          {"memcpy_gb_per_s", copy / 1e9},
          {"of_memcpy", rate / copy}};
}

nlohmann::json SmallPool(int repeats) {
  constexpr size_t kBytes = size_t{64} << 20;
  SiteOptions site{.nodes = 4, .window_segs = 512};
  std::vector<std::unique_ptr<Ranks>> ranks;
  for (const uint32_t units : {512, 65534}) {
    site.pool_segs = units;
    ranks.push_back(std::make_unique<Ranks>(4, kBytes, false, site, "pool of " + std::to_string(units)));
    ranks.back()->Configure({.nodes = 0b1111, .policy = StragglerPolicy::kOff});
  }
  std::vector<double> rates[2];
  for (int i = 0; i <= repeats; ++i) {
    for (const size_t k : {0u, 1u}) {
      const std::clock_t begin = std::clock();
      ranks[k]->AllReduce();
      const double seconds = static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC;
      if (i > 0) rates[k].push_back(static_cast<double>(4 * kBytes) / seconds);
    }
  }
  if (!ranks[0]->Right() || !ranks[1]->Right()) throw std::runtime_error("a wrong sum");
  const double small = Quantile(rates[0], 0.5), large = Quantile(rates[1], 0.5);
  const uint64_t exhausted = ranks[0]->pool_exhausted() / static_cast<uint64_t>(repeats + 1);
  std::printf("64 MiB, four nodes: %.2f GB/s in with a pool of 512 x 1 KiB, %.2f with 65534: %.3f; %" PRIu64
              " of 65536 segs found no unit\n",
              small / 1e9, large / 1e9, small / large, exhausted);
  return {{"gb_per_s_in", small / 1e9},
          {"unlimited_gb_per_s_in", large / 1e9},
          {"ratio", small / large},
          {"exhausted_per_message", exhausted}};
}

nlohmann::json Latency(int repeats) {
  Ranks ranks(1, 1024, true, {.ranks_per_node = 1});
  std::vector<double> times;
  for (int i = 0; i < repeats; ++i) times.push_back(1e6 * Seconds(ranks.AllReduce()));
  const double p50 = Quantile(times, 0.5), p99 = Quantile(times, 0.99);
  std::printf("request to completion, 1 KiB, one rank: p50 %.2f us, p99 %.2f us\n", p50, p99);
  return {{"p50_us", p50}, {"p99_us", p99}};
}

int Main(int argc, char** argv) {
  CLI::App app("Throughput and latency of the in-process offload device on one core");
  int repeats = 21;
  uint32_t seg_bytes = 1024;
  std::string json;
  std::vector<size_t> sizes = {4, 64};
  app.add_option("--repeats", repeats, "Messages per size; the median counts")->check(CLI::Range(1, 100'000));
  app.add_option("--sizes", sizes, "MiB of a rank's message")->delimiter(',');
  app.add_option("--seg-bytes", seg_bytes, "Bytes of a seg");
  app.add_option("--json", json, "Write the figures to this file");
  CLI11_PARSE(app, argc, argv);
  nlohmann::json out;
  for (const size_t mebibytes : sizes) {
    for (const bool shared : {true, false}) {
      out["throughput"].push_back(Throughput(mebibytes, shared, seg_bytes, repeats));
    }
  }
  out["pool"] = SmallPool(repeats);
  out["latency"] = Latency(1000 * repeats);
  if (json.empty()) return 0;
  std::FILE* const file = std::fopen(json.c_str(), "w");
  if (file == nullptr) return 1;
  std::fputs((out.dump(2) + "\n").c_str(), file);
  return std::fclose(file) == 0 ? 0 : 1;
}

}  // namespace
}  // namespace longhaul::offload

int main(int argc, char** argv) { return longhaul::offload::Main(argc, argv); }
