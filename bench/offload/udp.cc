// What engines of different machines give each other over UDP on 127.0.0.1: longhaul_offload_udp_bench --help
//
// Two nodes of two ranks each (four ranks), each node a daemon's loop in a thread, all-reduce of float32 over
// a ring. Rates are of the UDP payload that both ports receive, and of the ranks' bytes that go in.
// `offload`: UDP_SEGMENT and UDP_GRO; `plain calls`: the same port with sendmmsg and recvmmsg alone. Engines
// reduce and acknowledge besides, on the same two cores.
#include <poll.h>
#include <sys/resource.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "base/quantile.h"
#include "offload/shm/site_daemon.h"
#include "offload/udp/udp_link.h"

namespace longhaul::offload {
namespace {

using Clock = std::chrono::steady_clock;

struct Case {
  const char* name;
  bool sealed;
  bool offload;
};
constexpr Case kCases[] = {{"plain, offload", false, true},
                           {"AES-128-GCM, offload", true, true},
                           {"plain, plain calls", false, false},
                           {"AES-128-GCM, plain calls", true, false}};

struct Settings {
  size_t mebibytes = 16;
  int repeats = 9;
  uint32_t seg_bytes = 1024;
  uint32_t window_segs = 256;
};

double Seconds(Clock::duration d) { return std::chrono::duration<double>(d).count(); }

// Of all threads of this process: on a busy machine the wall clock says little.
double CpuSeconds() {
  rusage used{};
  getrusage(RUSAGE_SELF, &used);
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_usec);
  };
  return seconds(used.ru_utime) + seconds(used.ru_stime);
}

std::shared_ptr<UdpLink> LinkOf(const Case& c, const Settings& s, uint8_t node, uint64_t start) {
  UdpLinkOptions options;
  options.node = node;
  options.bind = Address::V4(127, 0, 0, 1, 0);
  options.packet_bytes = kHeaderBytes + s.seg_bytes;
  options.socket.segmentation_offload = c.offload;
  if (c.sealed) {
    options.seal = SealOptions{.root = crypto::SecretBytes(std::vector<uint8_t>(32, 1)),
                               .node = node,
                               .nodes = 0b11,
                               .start = start};
  }
  return std::move(UdpLink::Open(std::move(options)).value());
}

class Site {
 public:
  Site(const Case& c, const Settings& s) {
    for (const uint8_t node : {uint8_t{0}, uint8_t{1}}) links_.push_back(LinkOf(c, s, node, 1));
    options_ = {.nodes = 2,
                .ranks_per_node = 2,
                .seg_bytes = s.seg_bytes,
                .pool_segs = 4096,
                .window_segs = s.window_segs};
    for (const uint8_t node : {uint8_t{0}, uint8_t{1}}) {
      const auto other = static_cast<uint8_t>(1 - node);
      links_[node]->SetPeer(other, links_[other]->local_address());
      paths_.push_back("/tmp/longhaul-udp-bench-" + std::to_string(getpid()) + "-" + std::to_string(node));
      daemons_.push_back(
          SiteDaemon::Start({.path = paths_[node], .site = options_, .link = links_[node], .log = {}})
              .value());
      threads_.emplace_back([daemon = daemons_.back().get()] { daemon->Run(); });
    }
  }
  ~Site() {
    for (auto& daemon : daemons_) daemon->Stop();
    for (std::thread& thread : threads_) thread.join();
  }
  Device Open(uint8_t node, uint8_t rank) {
    return Device::Open("unix:" + paths_[node], {node, rank, options_}).value();
  }
  // REQUIRES: nothing is on its way.
  uint64_t bytes_received() const {
    return links_[0]->counters().bytes_received + links_[1]->counters().bytes_received;
  }

 private:
  SiteOptions options_;
  std::vector<std::shared_ptr<UdpLink>> links_;
  std::vector<std::string> paths_;
  std::vector<std::unique_ptr<SiteDaemon>> daemons_;
  std::vector<std::thread> threads_;
};

void Finish(Device& device) {
  Completion done;
  while (device.Poll({&done, 1}) == 0) {
    (void)device.RequestNotify();
    pollfd wait{device.fd(), POLLIN, 0};
    poll(&wait, 1, 1000);
  }
  if (done.status != WorkStatus::kSuccess) {
    throw std::runtime_error("a request ended as " + std::string(WorkStatusName(done.status)));
  }
}

nlohmann::json AllReduce(const Case& c, const Settings& s) {
  const size_t bytes = s.mebibytes << 20;
  Site site(c, s);
  std::vector<Device> devices;
  std::vector<Allocation> send, receive;
  for (const uint8_t node : {uint8_t{0}, uint8_t{1}}) {
    for (const uint8_t rank : {uint8_t{0}, uint8_t{1}}) {
      devices.push_back(site.Open(node, rank));
      send.push_back(devices.back().Allocate(bytes).value());
      receive.push_back(devices.back().Allocate(bytes, "result").value());
      std::fill_n(reinterpret_cast<float*>(send.back().memory.data()), bytes / 4, 1.5f);
    }
    (void)devices[node * 2u].Configure(0, {.nodes = 0b11, .policy = StragglerPolicy::kOff}, 1);
    Finish(devices[node * 2u]);
  }
  std::vector<double> rates, wire, per_core;
  uint64_t before = site.bytes_received();
  for (int i = 0; i <= s.repeats; ++i) {
    const auto begin = Clock::now();
    const double cpu = CpuSeconds();
    for (size_t k = 0; k < devices.size(); ++k) {
      WorkRequest request{.mid = static_cast<uint32_t>(i), .length = bytes};
      request.send.key = send[k].key;
      request.receive.key = receive[k].key;
      if (!devices[k].Post({&request, 1}).ok()) throw std::runtime_error("a request is refused");
    }
    for (Device& device : devices) Finish(device);
    const double seconds = Seconds(Clock::now() - begin);
    std::this_thread::sleep_for(std::chrono::milliseconds(20));  // the last acknowledgements
    const uint64_t now = site.bytes_received();
    if (i > 0) rates.push_back(static_cast<double>(4 * bytes) / seconds);
    if (i > 0) wire.push_back(8 * static_cast<double>(now - before) / seconds);
    if (i > 0) per_core.push_back(8 * static_cast<double>(now - before) / (CpuSeconds() - cpu));
    before = now;
  }
  const auto* const sums = reinterpret_cast<const float*>(receive[3].memory.data());
  if (std::any_of(sums, sums + bytes / 4, [](float v) { return v != 6.0f; }))
    throw std::runtime_error("a wrong sum");
  const double rate = Quantile(rates, 0.5) / 1e9, gbit = Quantile(wire, 0.5) / 1e9,
               core = Quantile(per_core, 0.5) / 1e9;
  std::printf(
      "all-reduce, %2zu MiB a rank, %-24s  %6.2f GB/s in   %6.2f Gbit/s of datagrams, %6.2f per second of "
      "CPU\n",
      s.mebibytes, c.name, rate, gbit, core);
  return {{"case", c.name},
          {"mib", s.mebibytes},
          {"gb_per_s_in", rate},
          {"gbit_per_s", gbit},
          {"gbit_per_cpu_second", core}};
}

int Main(int argc, char** argv) {
  CLI::App app("All-reduce of four ranks on two nodes over UDP on 127.0.0.1");
  Settings s;
  std::string json;
  app.add_option("--mib", s.mebibytes, "MiB of a rank's message")->check(CLI::Range(1, 1024));
  app.add_option("--repeats", s.repeats, "Messages per case; the median counts")
      ->check(CLI::Range(1, 10'000));
  app.add_option("--seg-bytes", s.seg_bytes, "Bytes of a seg");
  app.add_option("--window-segs", s.window_segs, "Segs of a message that are on their way");
  app.add_option("--json", json, "Write the figures to this file");
  CLI11_PARSE(app, argc, argv);
  nlohmann::json out;
  double without = 0, without_cpu = 0;
  for (const Case& c : kCases) {
    out["all_reduce"].push_back(AllReduce(c, s));
    if (c.sealed || c.offload) continue;
    without = out["all_reduce"].back()["gbit_per_s"];
    without_cpu = out["all_reduce"].back()["gbit_per_cpu_second"];
  }
  for (auto& row : out["all_reduce"]) {
    row["of_plain_calls"] = row["gbit_per_s"].get<double>() / without;
    row["of_plain_calls_cpu"] = row["gbit_per_cpu_second"].get<double>() / without_cpu;
    std::printf("%-24s  %5.2f times plain calls without encryption, %5.2f times by CPU time\n",
                row["case"].get<std::string>().c_str(), row["of_plain_calls"].get<double>(),
                row["of_plain_calls_cpu"].get<double>());
  }
  if (json.empty()) return 0;
  std::ofstream(json) << out.dump(2) << "\n";
  return 0;
}

}  // namespace
}  // namespace longhaul::offload

int main(int argc, char** argv) { return longhaul::offload::Main(argc, argv); }
