// A site in virtual time: an engine per node, and between every two a link that delays, loses, repeats,
// reorders and brings old packets back. The same seed and the same calls give the same run.
//
//   rank 0 ┐                    ┌ rank 0
//   rank 1 ┴ engine 0 --link-- engine 1 ┴ rank 1
#pragma once

#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <queue>
#include <string>
#include <vector>

#include "base/random.h"
#include "offload/engine/engine.h"

namespace longhaul::offload {

struct LinkFaults {
  double loss = 0;
  double duplication = 0;
  double reordering = 0;  // packets that take up to 20 times as long
  double stale = 0;       // packets that come again up to 50 ms later
  Duration delay = std::chrono::microseconds(5);
};

struct VirtualSiteOptions {
  uint8_t nodes = 1;
  uint8_t ranks = 4;  // per node
  bool aggregator = false;
  EngineOptions engine = {};  // node, nodes and ranks are filled in
  LinkFaults faults = {};
  uint64_t seed = 1;
};

// What a rank has registered: the whole message to send and room for the result.
template <typename T>
struct RankData {
  std::vector<T> send;
  std::vector<T> receive;
  uint32_t send_key = 0;
  uint32_t receive_key = 0;
};

class VirtualSite {
 public:
  explicit VirtualSite(const VirtualSiteOptions& options);

  uint8_t nodes() const { return options_.nodes; }
  uint8_t ranks() const { return options_.ranks; }
  uint64_t all_nodes() const { return (uint64_t{1} << engines_.size()) - 1; }
  Engine& engine(uint8_t node) { return *engines_[node]; }
  Instant now() const { return now_; }
  // Every packet that is about to be delivered: false drops it.
  std::function<bool(uint8_t from, uint8_t to, std::vector<uint8_t>& datagram)> filter;
  // How much longer the packet that a node sends now is on its way: a slow node's.
  std::function<Duration(uint8_t from)> slow;
  // Datagrams that an engine has passed on as not its own.
  std::vector<std::vector<uint8_t>> passed_on;
  // A node that is gone takes and sends nothing.
  void Kill(uint8_t node);
  bool IsDead(uint8_t node) const { return dead_[node]; }
  // Another process of that node, which knows nothing. The others learn of it by its hello, some ms later at
  // most; what is of the old process, or for it, is dropped then, as the UDP port does.
  void Restart(uint8_t node);

  template <typename T>
  void Register(uint8_t node, uint8_t rank, RankData<T>& data) {
    data.send_key = Key(node, rank, std::as_writable_bytes(std::span(data.send)));
    data.receive_key = Key(node, rank, std::as_writable_bytes(std::span(data.receive)));
  }
  uint32_t Key(uint8_t node, uint8_t rank, std::span<std::byte> memory);
  // Accepted, or the test fails.
  void Post(uint8_t node, uint8_t rank, const WorkRequest& request);
  // For every node: the job's nodes, route and policy.
  void Configure(const JobConfig& config, uint16_t jid = 0);
  // One datagram out of nowhere.
  void Inject(uint8_t to, const std::vector<uint8_t>& datagram);

  // Until nothing happens any more, or for that long; the completions that were polled.
  void RunFor(Duration time);
  void RunUntilIdle() { RunFor(std::chrono::seconds(1000)); }
  const std::vector<Completion>& completions(uint8_t node, uint8_t rank) {
    return completions_[{node, rank}];
  }
  // The completion of that request; the test fails when there is none, or more than one.
  Completion CompletionOf(uint8_t node, uint8_t rank, uint64_t wr_id);
  size_t CountOf(uint8_t node, uint8_t rank, uint64_t wr_id);
  uint32_t SegsInUse();

 private:
  struct Flight {
    Instant at;
    uint64_t number;
    uint8_t from;
    uint8_t to;
    std::vector<uint8_t> datagram;  // empty: a hello
    uint32_t of_process = 0;
    uint32_t for_process = 0;
    bool operator>(const Flight& other) const {
      return std::pair(at, number) > std::pair(other.at, other.number);
    }
  };
  void Settle();
  void Arrive(const Flight& flight);
  void Send(uint8_t from, uint8_t to, const std::vector<uint8_t>& datagram);
  void Fly(uint8_t from, uint8_t to, const std::vector<uint8_t>& datagram, Duration delay);
  void StartEngine(uint8_t node);

  VirtualSiteOptions options_;
  Random random_;
  Instant now_ = Instant::FromNanoseconds(1'000'000'000);
  std::vector<std::unique_ptr<Engine>> engines_;
  std::vector<bool> dead_;
  std::vector<uint32_t> processes_;           // of each node, counted
  std::vector<std::vector<uint32_t>> known_;  // [node][peer]: the peer's process that the node knows
  std::priority_queue<Flight, std::vector<Flight>, std::greater<>> flights_;
  std::map<std::pair<uint8_t, uint8_t>, std::vector<Completion>> completions_;
  uint64_t number_ = 0;
};

}  // namespace longhaul::offload
