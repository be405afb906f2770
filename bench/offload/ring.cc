// What the straggler policies save with real engines, beside the simulator: longhaul_offload_ring_bench
// --help
//
// Every node is a thread with an engine and its UDP port on 127.0.0.1. A sum takes T there: the thread sleeps
// for T between making it and sending it, a slow node for T + dT; its own part alone, given up or passed on,
// takes none, as in the paper's model. An all-reduce of one seg is a chunk: its time runs from the common
// start until the owner has the result. Policies take turns in one run; their deadlines are learned before.
#include <poll.h>
#include <sched.h>
#include <sys/prctl.h>

#include <CLI/CLI.hpp>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "base/quantile.h"
#include "offload/ringsim/figures.h"
#include "offload/udp/udp_link.h"

namespace longhaul::offload {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;

constexpr uint32_t kElements = 256;
constexpr uint32_t kSegBytes = kElements * 4;
constexpr double kAlpha = 1.8;
// Of the loopback, threads that wake up included; for the rule that wants to be told, and for the simulator.
constexpr Duration kTransfer = microseconds(100);

Instant Now() {
  return Instant::FromNanoseconds(std::chrono::steady_clock::now().time_since_epoch().count());
}
void SleepUntil(Instant at) {
  std::this_thread::sleep_until(
      std::chrono::steady_clock::time_point(std::chrono::nanoseconds(at.nanoseconds())));
}
double Ms(Duration d) { return static_cast<double>(d.count()) / 1e6; }

// What one node has to do for a message.
struct Task {
  WorkRequest request;
  Instant start;  // when its host has the part
  Duration sum{0};
  bool begins = false;  // its own part alone takes the time of a sum, too
};

class Node {
 public:
  Node(uint8_t self, uint8_t nodes)
      : engine_({.node = self, .nodes = (uint64_t{1} << nodes) - 1, .seg_bytes = kSegBytes}),
        send_(kElements * kMaxNodes),
        receive_(kElements * kMaxNodes) {
    UdpLinkOptions options;
    options.node = self;
    options.bind = Address::V4(127, 0, 0, 1, 0);
    options.site.seg_bytes = kSegBytes;
    link_ = std::move(UdpLink::Open(std::move(options)).value());
    std::fill(send_.begin(), send_.end(), 1 << self);
    send_key_ = engine_.Register(0, std::as_writable_bytes(std::span(send_))).value();
    receive_key_ = engine_.Register(0, std::as_writable_bytes(std::span(receive_))).value();
  }
  UdpLink& link() { return *link_; }
  void Start() {
    thread_ = std::thread([this] { Run(); });
  }
  void Stop() {
    stop_ = true;
    thread_.join();
  }
  void Give(Task task) {
    const std::lock_guard lock(mutex_);
    task.request.send.key = send_key_;
    task.request.receive.key = receive_key_;
    task_ = task;
    done_ = false;
  }
  bool done() const { return done_; }
  // When the message was completed here. REQUIRES: done().
  Instant finished() const { return finished_; }
  bool Has(int32_t sum, uint32_t segs) const {
    return std::all_of(receive_.begin(), receive_.begin() + segs * kElements,
                       [sum](int32_t v) { return v == sum; });
  }

 private:
  void Run() {
    prctl(PR_SET_TIMERSLACK, 1000UL);
    while (!stop_) {
      Turn();
      Wait();
    }
  }

  void Turn() {
    // Each kind of event by itself: what it has made says what it takes.
    if (link_->Fetch()) {
      const uint64_t before = reduced();
      link_->Deliver(Now(), engine_);
      Work();
      TakeTime(before, 2);
    }
    const uint64_t before_timeouts = reduced();
    engine_.HandleTimeout(Now());
    Work();
    TakeTime(before_timeouts, 2);
    if (TakeTask()) {
      const uint64_t before = reduced();
      if (!engine_.Post(Now(), 0, task_now_.request).ok()) throw std::runtime_error("a request is refused");
      Work();
      TakeTime(before, task_now_.begins ? 1 : 2);
    }
    while (link_->Transmit(Now(), engine_)) {
    }
    Completion completion;
    if (engine_.Poll(0, {&completion, 1}) == 0) return;
    if (completion.status != WorkStatus::kSuccess) {
      std::fprintf(stderr, "a request ended as %s\n", std::string(WorkStatusName(completion.status)).c_str());
      std::abort();
    }
    finished_ = Now();
    done_ = true;
  }

  void Work() {
    while (engine_.Advance(Now(), 1 << 20)) {
    }
  }
  uint64_t reduced() const { return engine_.stats().bytes_reduced; }
  // A sum of `least` parts or more has been made since.
  void TakeTime(uint64_t before, uint64_t least) {
    if (reduced() - before < least * kSegBytes) return;
    if (sum_ > Duration(0)) SleepUntil(Now() + sum_);
  }

  bool TakeTask() {
    const std::lock_guard lock(mutex_);
    if (!task_) return false;
    sum_ = task_->sum;
    if (Now() < task_->start) return false;
    task_now_ = *task_;
    task_.reset();
    return true;
  }

  void Wait() {
    Instant next = engine_.NextTimeout();
    {
      const std::lock_guard lock(mutex_);
      if (task_) next = std::min(next, task_->start);
    }
    // A new task is at least 3 ms in the future.
    const Duration most = std::clamp<Duration>(next - Now(), Duration(0), milliseconds(1));
    const timespec time{0, most.count()};
    pollfd wait{link_->fd(), POLLIN, 0};
    ppoll(&wait, 1, &time, nullptr);
  }

  Engine engine_;
  std::vector<int32_t> send_, receive_;  // of messages of up to as many segs as nodes
  uint32_t send_key_ = 0, receive_key_ = 0;
  std::unique_ptr<UdpLink> link_;
  std::mutex mutex_;
  std::optional<Task> task_;
  Task task_now_;
  Duration sum_{0};
  std::atomic<bool> done_ = false;
  std::atomic<bool> stop_ = false;
  Instant finished_;
  std::thread thread_;
};

// What is slow in one message.
struct Load {
  Duration sum{0};   // dT of the slow node's sum
  Duration host{0};  // its part comes so late
};

class Ring {
 public:
  Ring(uint8_t nodes, Duration reduce_time) : reduce_time_(reduce_time) {
    for (uint8_t node = 0; node < nodes; ++node) nodes_.push_back(std::make_unique<Node>(node, nodes));
    for (uint8_t node = 0; node < nodes; ++node) {
      for (uint8_t other = 0; other < nodes; ++other) {
        if (other != node) nodes_[node]->link().SetPeer(other, nodes_[other]->link().local_address());
      }
    }
    for (auto& node : nodes_) node->Start();
  }
  ~Ring() {
    for (auto& node : nodes_) node->Stop();
  }

  void Configure(StragglerPolicy policy) {
    JobConfig job;
    job.nodes = (uint64_t{1} << nodes_.size()) - 1;
    job.policy = policy;
    job.skip_after =
        Duration(static_cast<int64_t>(kAlpha * static_cast<double>(reduce_time_.count()))) + kTransfer;
    for (size_t node = 0; node < nodes_.size(); ++node) {
      Task task{.request = {.opcode = Opcode::kConfig, .root_node = WorkRequest::kThisNode}, .start = Now()};
      task.request.jid = static_cast<uint16_t>(policy);
      task.request.config = &job;
      nodes_[node]->Give(task);
    }
    Finish();
  }

  // From the common start until the owner has the result. The slow node is the second of the chunk's ring, or
  // `always` one.
  Duration Chunk(StragglerPolicy policy, const Load& load, int always = -1, uint32_t segs = 1) {
    const auto n = static_cast<uint32_t>(nodes_.size());
    const uint32_t mid = mids_[static_cast<size_t>(policy)]++;
    const uint32_t owner = (mid + n - 1) % n;
    const uint32_t slow = always < 0 ? (mid + 1) % n : static_cast<uint32_t>(always);
    const Instant start = Now() + milliseconds(3);
    for (uint32_t node = 0; node < n; ++node) {
      Task task{.request = {.type = DataType::kInt32,
                            .jid = static_cast<uint16_t>(policy),
                            .mid = mid,
                            .length = segs * kSegBytes},
                .start = start,
                .sum = node == owner && segs == 1 ? Duration(0) : reduce_time_,
                .begins = node == mid % n};
      if (node == slow) {
        task.start += load.host;
        if (task.sum > Duration(0)) task.sum += load.sum;
        // A leaf sends its part as it is.
        if (policy == StragglerPolicy::kLeafDemote && segs == 1 && always >= 0) task.begins = false;
      }
      nodes_[node]->Give(task);
    }
    Finish();
    for (auto& node : nodes_) {
      if (!node->Has((1 << n) - 1, segs)) throw std::runtime_error("a wrong sum");
    }
    return nodes_[owner]->finished() - start;
  }

 private:
  void Finish() {
    for (auto& node : nodes_) {
      while (!node->done()) std::this_thread::sleep_for(microseconds(200));
    }
  }

  Duration reduce_time_;
  std::vector<std::unique_ptr<Node>> nodes_;
  std::array<uint32_t, 5> mids_{};
};

struct Case {
  const char* name;
  StragglerPolicy policy;
  uint8_t nodes;
  const char* load;
  double slow = 0;  // dT, in T
  double host = 0;  // of a host that is late, in T
  bool always = false;
};
constexpr Case kCases[] = {
    {"seed_skip", StragglerPolicy::kSeedSkip, 4, "one slow sum, dT = T", 1, 0, false},
    {"cascade", StragglerPolicy::kCascade, 4, "one slow sum, dT = T", 1, 0, false},
    {"cascade", StragglerPolicy::kCascade, 8, "one slow sum, dT = 5 T", 5, 0, false},
    {"self_skip", StragglerPolicy::kSelfSkip, 4, "a late host, by 3 T", 0, 3, false},
    {"self_skip", StragglerPolicy::kSelfSkip, 8, "a late host, by 7 T", 0, 7, false},
    {"leaf_demote", StragglerPolicy::kLeafDemote, 4, "one node slow in every sum, dT = 3 T", 3, 0, true},
};

Duration Times(Duration t, double factor) {
  return Duration(static_cast<int64_t>(factor * static_cast<double>(t.count())));
}

double Simulated(const Case& c, Duration reduce_time) {
  ringsim::RingModel model;
  model.nodes = c.nodes;
  model.reduce_time = reduce_time;
  model.link_delay = kTransfer;
  model.policy = c.policy;
  model.alpha = c.policy == StragglerPolicy::kSeedSkip ? kAlpha : 0;
  const Duration slow = Times(reduce_time, c.slow), host = Times(reduce_time, c.host);
  if (c.always) {
    // Chunk after chunk, as here: the mean over the chunks of a ring. That of its owner is not slow.
    model.all_chunks = true;  // to be late in every message
    double with = 0, off = 0;
    for (uint32_t node = 0; node < c.nodes; ++node) {
      ringsim::RingLoad load =
          ringsim::RingLoad::Slow(c.nodes, node, 0, node + 1 == c.nodes ? Duration(0) : slow);
      ringsim::RingModel waits = model;
      waits.policy = StragglerPolicy::kOff;
      waits.all_chunks = false;
      off += Ms(ringsim::RingSim(waits).Run(load).time);
      ringsim::RingSim sim(model);
      sim.Learn(32, Duration(0), 1);
      for (uint32_t i = 0; i < Demotion::kRounds; ++i)
        sim.Run(ringsim::RingLoad::AlwaysSlow(c.nodes, node, slow));
      with += Ms(sim.Run(load).time);  // the same for all chunks
    }
    return 1 - with / off;
  }
  ringsim::RingLoad load = ringsim::RingLoad::Slow(c.nodes, 1, 0, slow);
  if (c.host > 0) load = ringsim::RingLoad::LateHost(c.nodes, 1, host);
  return ringsim::Saving(model, load);
}

nlohmann::json Measure(const Case& c, Duration reduce_time, int repeats) {
  Ring ring(c.nodes, reduce_time);
  const Load none, load{Times(reduce_time, c.slow), Times(reduce_time, c.host)};
  const int always = c.always ? 1 : -1;
  for (const StragglerPolicy policy : {StragglerPolicy::kOff, c.policy}) {
    ring.Configure(policy);
    // Every node learns every position, 10 times; a persistent straggler is there from then on.
    for (int i = 0; i < 10 * c.nodes; ++i) ring.Chunk(policy, none);
    // As many segs as nodes, so that it is late in every message.
    for (int i = 0; c.always && i < 6; ++i) ring.Chunk(policy, load, always, c.nodes);
  }
  std::vector<double> off, with;
  for (int i = 0; i < repeats; ++i) {
    off.push_back(Ms(ring.Chunk(StragglerPolicy::kOff, load, always)));
    with.push_back(Ms(ring.Chunk(c.policy, load, always)));
    // Slow nodes are rare: else they are what is learned.
    for (int k = 0; !c.always && k < 7; ++k) ring.Chunk(c.policy, none);
  }
  // Over all positions of one that is always slow, else the usual run.
  const auto figure = [&](std::vector<double> times) {
    if (!c.always) return Quantile(times, 0.5);
    double sum = 0;
    for (const double t : times) sum += t;
    return sum / static_cast<double>(times.size());
  };
  const double saved = 1 - figure(with) / figure(off), simulated = Simulated(c, reduce_time);
  std::printf("%-12s n = %d, %-38s off %6.2f ms, %6.2f ms: %5.1f %% saved, %5.1f %% simulated\n", c.name,
              c.nodes, c.load, figure(off), figure(with), 100 * saved, 100 * simulated);
  std::fflush(stdout);
  return {
      {"policy", c.name},      {"nodes", c.nodes},        {"load", c.load}, {"reduce_ms", Ms(reduce_time)},
      {"off_ms", figure(off)}, {"with_ms", figure(with)}, {"saved", saved}, {"simulated", simulated},
      {"runs", repeats}};
}

int Main(int argc, char** argv) {
  CLI::App app("All-reduces of one chunk over a ring of engines on 127.0.0.1, with a slow node");
  int reduce_us = 4000, repeats = 40;
  std::string json, only;
  app.add_option("--reduce-us", reduce_us, "T: what a sum takes, in us")->check(CLI::Range(2000, 100'000));
  app.add_option("--repeats", repeats, "Slow chunks of each case, a multiple of the nodes")
      ->check(CLI::Range(8, 10'000));
  app.add_option("--policy", only, "Of the cases those of this policy");
  app.add_option("--json", json, "Write the figures to this file");
  CLI11_PARSE(app, argc, argv);
  // Threads that wake up when they want to, whatever else the machine does, where that is permitted.
  const sched_param priority{10};
  const bool real_time = sched_setscheduler(0, SCHED_FIFO, &priority) == 0;
  if (!real_time) std::printf("without real-time priority: other load on the machine shows\n");
  nlohmann::json out = {{"real_time", real_time}};
  for (const Case& c : kCases) {
    if (only.empty() || only == c.name) out["ring"].push_back(Measure(c, microseconds(reduce_us), repeats));
  }
  if (json.empty()) return 0;
  std::ofstream(json) << out.dump(2) << "\n";
  return 0;
}

}  // namespace
}  // namespace longhaul::offload

int main(int argc, char** argv) { return longhaul::offload::Main(argc, argv); }
