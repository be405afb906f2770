// One flow: a sender's recovery and rate parts with its receiver's ACK tracker, as a connection puts them
// together, packets only. It owns what of its own is on the way.
#pragma once

#include <deque>
#include <functional>
#include <memory>

#include "proto/frames.h"
#include "tests/sim/rate/application.h"
#include "tests/sim/rate/bottleneck.h"
#include "tests/sim/rate/rate_options.h"
#include "transport/core/rate/delivery_rate.h"
#include "transport/core/rate/pacer.h"
#include "transport/core/rate/rate_controller.h"
#include "transport/core/recovery/ack_tracker.h"
#include "transport/core/recovery/loss_detection.h"

namespace longhaul::transport::sim {

// What a test does to a chosen packet behind the queue.
struct PacketFate {
  bool lost = false;
  Duration extra{0};
};
using PacketFilter = std::function<PacketFate(uint64_t number, Instant now)>;

class RateFlow {
 public:
  RateFlow(const FlowOptions& options, Bottleneck* path, Random random);

  // The next thing that happens; Infinite(): nothing by itself.
  Instant NextEvent() const;
  // REQUIRES: now == NextEvent().
  void Handle(Instant now);

  void SetAppRate(Bandwidth rate, Instant now);
  void SetPaused(bool paused, Instant now);
  // The sender's CPU is busy elsewhere: until then it neither sends nor reads.
  void Stall(Instant until);
  // The receiver's is: until then packets wait in its socket, and no ACK leaves.
  void StallReceiver(Instant until);
  void SetFilter(PacketFilter filter) { filter_ = std::move(filter); }
  // Called after the controller has seen an event, before anything is sent.
  void SetObserver(std::function<void(const CongestionEvent&)> observer) { observer_ = std::move(observer); }
  // The queue's departures after `now` take `factor` times as long.
  void StretchDepartures(Instant now, double factor);

  const RateController& controller() const { return *rate_; }
  RateController& controller() { return *rate_; }
  const LossDetection& loss() const { return loss_; }
  const RttEstimator& rtt() const { return rtt_; }
  const DeliveryRateSampler& sampler() const { return sampler_; }
  const FlowStats& stats() const { return stats_; }
  void ResetStats() { stats_ = FlowStats(); }
  ByteCount worst_overshoot() const { return worst_overshoot_; }

 private:
  struct Data {
    Instant arrives;
    Instant leaves;  // the queue
    uint64_t number;
    bool marked;
  };
  struct Ack {
    Instant arrives;
    wire::AckFrame frame;
    bool confirmed;  // the receiver learns that it arrived
  };

  Instant SenderTime(Instant time) const { return std::max(time, stalled_until_); }
  Instant ReceiverTime(Instant time) const { return std::max(time, receiver_stalled_until_); }
  void Receive();
  void Take(const Data& packet);
  void Acknowledge();
  void ReadAck();
  void Apply(const LossDetection::Outcome& outcome, uint64_t ecn_ce, uint64_t host_drops);
  void UpdatePacer();
  void Send();
  // Whether the application and every bound let a packet leave now; else *wake is when to ask again.
  bool MaySend(bool burst, Instant* wake);
  void SendPacket();
  void Launch(uint64_t number);

  FlowOptions options_;
  Bottleneck* path_;
  ByteCount datagram_;
  Application app_;
  PacketFilter filter_;
  std::function<void(const CongestionEvent&)> observer_;
  // The sender.
  RttEstimator rtt_;
  LossDetection loss_{&rtt_};
  DeliveryRateSampler sampler_;
  std::unique_ptr<RateController> rate_;
  Pacer pacer_{datagram_};
  uint64_t next_number_ = 0;
  int probes_ = 0;
  uint64_t ecn_ce_ = 0;  // as last acknowledged
  uint64_t host_drops_ = 0;
  Instant sender_timer_;
  Instant stalled_until_;
  bool was_stalled_ = false;
  std::vector<LostPacket> lost_packets_;
  // The receiver.
  AckTracker acks_;
  uint64_t socket_drops_ = 0;
  uint64_t acks_built_ = 0;
  Instant receiver_timer_ = Instant::Infinite();
  Instant receiver_stalled_until_;
  // On the way, by arrival.
  std::deque<Data> data_;
  std::deque<Ack> acks_on_the_way_;

  Instant now_;
  FlowStats stats_;
  ByteCount worst_overshoot_;
};

}  // namespace longhaul::transport::sim
