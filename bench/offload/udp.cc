// What engines of different machines give each other over UDP: longhaul_offload_udp_bench --help
//
// Two nodes of two ranks each (four ranks), each node a daemon's loop in a thread, all-reduce of float32 over
// a ring. Rates are of the UDP payload that both ports receive, and of the ranks' bytes that go in.
// `offload`: UDP_SEGMENT and UDP_GRO; `plain calls`: the same port with sendmmsg and recvmmsg alone; `link`:
// datagrams of that size both ways through the offload port's sockets, and nothing else. Engines reduce and
// acknowledge besides, on the same two cores. One message of each case in turn. The nodes are on 127.0.0.1,
// or with --veth in two network namespaces, which end with this process. --rate makes the veth pair a link
// that is slower than the cores: what share of it the engines use says more than one that only cores bound.
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <sys/resource.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <type_traits>
#include <vector>

#include "base/quantile.h"
#include "offload/shm/site_daemon.h"
#include "offload/udp/udp_link.h"
#include "wan/tun/namespaces.h"
#include "wan/tun/process.h"

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

  size_t packet_bytes() const { return kHeaderBytes + seg_bytes; }
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

// Where the two nodes are.
class Places {
 public:
  // rate: of the link between them, each way, as tc takes it; none: whatever the cores can.
  Places(bool veth, const std::string& rate)
      : addresses_{Address::V4(127, 0, 0, 1, 0), Address::V4(127, 0, 0, 1, 0)} {
    if (!veth) return;
    addresses_ = {Address::V4(10, 77, 0, 1, 0), Address::V4(10, 77, 0, 2, 0)};
    for (FileDescriptor& place : namespaces_) {
      std::thread([&] {
        if (unshare(CLONE_NEWNET) == 0)
          place = FileDescriptor(open("/proc/thread-self/ns/net", O_RDONLY | O_CLOEXEC));
      }).join();
      if (!place.valid()) throw std::runtime_error("no network namespace can be made here (root can)");
    }
    const std::string other =
        "/proc/" + std::to_string(getpid()) + "/fd/" + std::to_string(namespaces_[1].get());
    Run(0, {"ip", "link", "add", "v0", "type", "veth", "peer", "name", "v1", "netns", other});
    for (const size_t node : {0u, 1u}) {
      const std::string device = "v" + std::to_string(node);
      Run(node, {"ip", "address", "add", "10.77.0." + std::to_string(node + 1) + "/24", "dev", device});
      Run(node, {"ip", "link", "set", device, "up"});
      if (rate.empty()) continue;
      // 8 MB wait: more than the windows of all that is on its way, so that nothing is lost. 256 kB: some
      // batches of UDP_SEGMENT.
      Run(node, {"tc", "qdisc", "add", "dev", device, "root", "tbf", "rate", rate, "burst", "256kb", "limit",
                 "8mb"});
    }
  }
  const Address& address(size_t node) const { return addresses_[node]; }
  // Runs `open` there.
  template <typename Open>
  auto In(size_t node, Open open) const -> std::remove_cvref_t<decltype(open().value())> {
    if (!namespaces_[node].valid()) return open().value();
    std::optional<decltype(open())> opened;
    const Status ran = wan::RunInNamespace(namespaces_[node].get(), [&] {
      opened.emplace(open());
      return Status::Ok();
    });
    if (!ran.ok()) throw std::runtime_error(ran.message());
    return std::move(*opened).value();
  }

 private:
  void Run(size_t node, const std::vector<std::string>& argv) {
    const auto pid = wan::Spawn(argv, {.network_namespace = namespaces_[node].get()});
    if (!pid.ok() || wan::WaitFor(*pid).value() != 0)
      throw std::runtime_error(argv[0] + " (iproute2) has failed");
  }

  std::array<FileDescriptor, 2> namespaces_;
  std::array<Address, 2> addresses_;
};

std::shared_ptr<UdpLink> LinkOf(const Case& c, const Settings& s, const Places& places, uint8_t node) {
  UdpLinkOptions options;
  options.node = node;
  options.bind = places.address(node);
  options.site.seg_bytes = s.seg_bytes;
  options.socket.segmentation_offload = c.offload;
  if (c.sealed) {
    options.seal = SealOptions{
        .root = crypto::SecretBytes(std::vector<uint8_t>(32, 1)), .node = node, .nodes = 0b11, .start = 1};
  }
  return places.In(node, [&] { return UdpLink::Open(std::move(options)); });
}

// What the sockets give without engines: as many bytes each way, at most a window of them on their way.
class RawLink {
 public:
  RawLink(const Settings& s, const Places& places) : packet_bytes_(s.packet_bytes()) {
    for (const size_t node : {0u, 1u})
      sockets_.push_back(places.In(node, [&] { return udp::UdpSocket::Open(places.address(node)); }));
  }
  void Turn(size_t bytes, bool counts) {
    for (auto& received : received_) received = 0;
    const auto begin = Clock::now();
    std::thread other([&] { Exchange(1, bytes); });
    Exchange(0, bytes);
    other.join();
    if (!counts) return;
    rates_.push_back(8e-9 * static_cast<double>(received_[0] + received_[1]) / Seconds(Clock::now() - begin));
  }
  // Gbit/s that both receive.
  double rate() const { return Quantile(rates_, 0.5); }

 private:
  // A fourth of the receive buffer, whose kernel also counts what it needs itself.
  static constexpr size_t kWindow = 1 << 20;

  void Exchange(size_t node, size_t bytes) {
    const size_t batch = packet_bytes_ * std::min(udp::kMaxSegments, udp::kMaxBatchBytes / packet_bytes_);
    const std::vector<uint8_t> data(batch, 1);
    const Address to = sockets_[1 - node].local_address();
    bytes = (bytes + batch - 1) / batch * batch;
    for (size_t sent = 0; sent < bytes || received_[node] < bytes;) {
      const size_t before = sent + received_[node];
      if (sent < bytes && sent + batch <= received_[1 - node] + kWindow)
        sent += sockets_[node].Send(to, data, packet_bytes_).done_bytes;
      for (const auto& datagram : sockets_[node].Receive()) received_[node] += datagram.bytes.size();
      if (sent + received_[node] == before) sched_yield();
    }
  }

  size_t packet_bytes_;
  std::vector<udp::UdpSocket> sockets_;
  std::array<std::atomic<size_t>, 2> received_{};
  std::vector<double> rates_;
};

class Site {
 public:
  Site(const Case& c, const Settings& s, const Places& places) {
    for (const uint8_t node : {uint8_t{0}, uint8_t{1}}) links_.push_back(LinkOf(c, s, places, node));
    options_ = {.nodes = 2,
                .ranks_per_node = 2,
                .seg_bytes = s.seg_bytes,
                .pool_segs = 4096,
                .window_segs = s.window_segs};
    for (const uint8_t node : {uint8_t{0}, uint8_t{1}}) {
      const auto other = static_cast<uint8_t>(1 - node);
      links_[node]->SetPeer(other, links_[other]->local_address());
      paths_.push_back("/tmp/longhaul-udp-bench-" + std::to_string(getpid()) + "-" + c.name + "-" +
                       std::to_string(node));
      std::replace(paths_.back().begin() + 5, paths_.back().end(), ' ', '-');
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

// The ranks of a case, and what its messages took.
class Running {
 public:
  Running(const Case& c, const Settings& s, const Places& places)
      : case_(c), bytes_(s.mebibytes << 20), site_(c, s, places) {
    for (const uint8_t node : {uint8_t{0}, uint8_t{1}}) {
      for (const uint8_t rank : {uint8_t{0}, uint8_t{1}}) {
        devices_.push_back(site_.Open(node, rank));
        send_.push_back(devices_.back().Allocate(bytes_).value());
        receive_.push_back(devices_.back().Allocate(bytes_, "result").value());
        std::fill_n(reinterpret_cast<float*>(send_.back().memory.data()), bytes_ / 4, 1.5f);
      }
      (void)devices_[node * 2u].Configure(0, {.nodes = 0b11, .policy = StragglerPolicy::kOff}, 1);
      Finish(devices_[node * 2u]);
    }
  }

  void Turn(bool counts) {
    const uint64_t before = site_.bytes_received();
    const auto begin = Clock::now();
    const double cpu = CpuSeconds();
    for (size_t k = 0; k < devices_.size(); ++k) {
      WorkRequest request{.mid = mid_, .length = bytes_};
      request.send.key = send_[k].key;
      request.receive.key = receive_[k].key;
      if (!devices_[k].Post({&request, 1}).ok()) throw std::runtime_error("a request is refused");
    }
    for (Device& device : devices_) Finish(device);
    ++mid_;
    const double seconds = Seconds(Clock::now() - begin);
    std::this_thread::sleep_for(std::chrono::milliseconds(20));  // the last acknowledgements
    if (!counts) return;
    const double bits = 8 * static_cast<double>(site_.bytes_received() - before);
    rates_.push_back(static_cast<double>(4 * bytes_) / seconds);
    wire_.push_back(bits / seconds);
    per_core_.push_back(bits / (CpuSeconds() - cpu));
  }

  nlohmann::json Figures() const {
    for (const Allocation& result : receive_) {
      const auto* const sums = reinterpret_cast<const float*>(result.memory.data());
      if (std::any_of(sums, sums + bytes_ / 4, [](float v) { return v != 6.0f; }))
        throw std::runtime_error("a wrong sum");
    }
    return {{"case", case_.name},
            {"mib", bytes_ >> 20},
            {"gb_per_s_in", Quantile(rates_, 0.5) / 1e9},
            {"gbit_per_s", Quantile(wire_, 0.5) / 1e9},
            {"gbit_per_cpu_second", Quantile(per_core_, 0.5) / 1e9}};
  }

 private:
  const Case& case_;
  size_t bytes_;
  Site site_;
  std::vector<Device> devices_;
  std::vector<Allocation> send_, receive_;
  uint32_t mid_ = 0;
  std::vector<double> rates_, wire_, per_core_;
};

int Main(int argc, char** argv) {
  CLI::App app("All-reduce of four ranks on two nodes over UDP");
  bool veth = false;
  Settings s;
  std::string json, rate;
  app.add_option("--sizes,--mib", s.mebibytes, "MiB of a rank's message")->check(CLI::Range(1, 1024));
  app.add_option("--repeats", s.repeats, "Messages per case, in turns; the median counts")
      ->check(CLI::Range(1, 10'000));
  app.add_option("--seg-bytes", s.seg_bytes, "Bytes of a seg");
  app.add_option("--window-segs", s.window_segs, "Segs of a message that are on their way");
  app.add_flag("--veth", veth, "Nodes in network namespaces with a veth pair between them, not on 127.0.0.1");
  app.add_option("--rate", rate, "With --veth: of the link, each way, e.g. 2gbit")->needs("--veth");
  app.add_option("--json", json, "Write the figures to this file");
  CLI11_PARSE(app, argc, argv);
  const Places places(veth, rate);
  RawLink raw(s, places);
  std::vector<std::unique_ptr<Running>> running;
  for (const Case& c : kCases) running.push_back(std::make_unique<Running>(c, s, places));
  for (int i = 0; i <= s.repeats; ++i) {
    raw.Turn(2 * (s.mebibytes << 20), i > 0);
    for (auto& each : running) each->Turn(i > 0);
  }
  const double link = raw.rate();
  const std::string path = !veth ? "127.0.0.1" : rate.empty() ? "veth" : "veth of " + rate;
  nlohmann::json out = {{"path", path}, {"link_gbit_per_s", link}};
  for (auto& each : running) out["all_reduce"].push_back(each->Figures());
  const auto& without = out["all_reduce"][2];
  std::printf("%s, datagrams of %zu bytes: %.2f Gbit/s without engines\n", path.c_str(), s.packet_bytes(),
              link);
  for (auto& row : out["all_reduce"]) {
    const double gbit = row["gbit_per_s"], core = row["gbit_per_cpu_second"];
    row["of_plain_calls"] = gbit / without["gbit_per_s"].get<double>();
    row["of_plain_calls_cpu"] = core / without["gbit_per_cpu_second"].get<double>();
    row["of_link"] = gbit / link;
    std::printf(
        "%2zu MiB a rank, %-24s  %6.2f GB/s in   %6.2f Gbit/s, %6.2f per second of CPU   %5.2f times plain "
        "calls, %5.2f by CPU time   %.2f of the link\n",
        s.mebibytes, row["case"].get<std::string>().c_str(), row["gb_per_s_in"].get<double>(), gbit, core,
        row["of_plain_calls"].get<double>(), row["of_plain_calls_cpu"].get<double>(), gbit / link);
  }
  if (json.empty()) return 0;
  std::ofstream(json) << out.dump(2) << "\n";
  return 0;
}

}  // namespace
}  // namespace longhaul::offload

int main(int argc, char** argv) { return longhaul::offload::Main(argc, argv); }
