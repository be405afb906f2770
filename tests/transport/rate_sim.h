// One bottleneck in virtual time: the sender's recovery and rate parts with the receiver's ACK tracker,
// packets only.
//
//   Flow 0 --+                                  +-- receiver 0
//   Flow 1 --+--[ queue | rate ]-- delay, loss --+-- receiver 1
//      ^                                             |
//      +------------- delay, loss of ACKs -----------+
//
// Deterministic: the same options and seed give the same run.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <queue>
#include <vector>

#include "base/check.h"
#include "base/random.h"
#include "transport/core/rate/delivery_rate.h"
#include "transport/core/rate/pacer.h"
#include "transport/core/rate/rate_controller.h"
#include "transport/core/recovery/ack_tracker.h"
#include "transport/core/recovery/loss_detection.h"

namespace longhaul::transport::sim {

struct LinkOptions {
  Bandwidth rate = Bandwidth::Mbps(100);
  Duration rtt = std::chrono::milliseconds(20);
  double buffer_bdp = 1.0;
  double loss = 0;     // random, of data and of ACKs alike
  Duration jitter{0};  // uniform extra delay per packet: reorders
  uint64_t seed = 1;
};

struct FlowOptions {
  Instant start;
  // 0: always something to send. Else rounds of so many packets; the next starts round_gap after every packet
  // of the last one is acknowledged or lost.
  int round_packets = 0;
  Duration round_gap = std::chrono::milliseconds(100);
  RateOptions rate;
};

inline constexpr ByteCount kDatagram{1452};

struct FlowStats {
  ByteCount sent;
  ByteCount arrived;
  ByteCount queue_drops;  // own loss
  uint64_t spurious = 0;
  std::vector<Duration> rounds;  // first packet sent to last settled
  double OwnLoss() const { return sent.value() == 0 ? 0 : queue_drops / sent; }
};

class Simulation {
 public:
  explicit Simulation(const LinkOptions& link) : link_(link), chance_(link.seed) {}

  size_t AddFlow(const FlowOptions& options) {
    const size_t id = flows_.size();
    flows_.push_back(std::make_unique<Flow>(options, chance_.Fork(100 + id)));
    Schedule(options.start, Event::kSender, id);
    return id;
  }

  void RunUntil(Instant end) {
    while (!events_.empty() && events_.top().time <= end) {
      const Event event = events_.top();
      events_.pop();
      LH_CHECK(event.time >= now_);
      now_ = event.time;
      Handle(event);
    }
    now_ = end;
  }

  const FlowStats& stats(size_t flow) const { return flows_[flow]->stats; }
  const RateController& controller(size_t flow) const { return *flows_[flow]->rate; }
  const LossDetection& loss(size_t flow) const { return flows_[flow]->loss; }
  // Forgets what was counted so far, for example STARTUP.
  void ResetStats() {
    for (auto& flow : flows_) flow->stats = FlowStats();
    queue_delay_sum_ = Duration(0);
    queue_samples_ = 0;
  }
  void SetRate(Bandwidth rate) { link_.rate = rate; }
  void SetLoss(double loss) { link_.loss = loss; }
  // Mean time that a packet waited in the queue.
  Duration MeanQueue() const { return queue_samples_ == 0 ? Duration(0) : queue_delay_sum_ / queue_samples_; }
  // Largest number of bytes in flight beyond cwnd that was ever seen.
  ByteCount worst_overshoot() const { return worst_overshoot_; }

 private:
  struct Event {
    enum Kind { kSender, kReceiver, kData, kAck };
    Instant time;
    uint64_t order;  // of creation: ties are broken the same way in every run
    Kind kind;
    size_t flow;
    uint64_t id;  // packet number, or the ACK's key
    bool operator<(const Event& o) const { return time != o.time ? time > o.time : order > o.order; }
  };

  struct Flow {
    Flow(const FlowOptions& o, Random random)
        : options(o),
          rate(MakeRateController(o.rate, random)),
          pacer(kDatagram),
          left(o.round_packets) {}
    FlowOptions options;
    RttEstimator rtt;
    LossDetection loss{&rtt};
    DeliveryRateSampler sampler;
    std::unique_ptr<RateController> rate;
    Pacer pacer;
    AckTracker acks;
    FlowStats stats;
    uint64_t next_number = 0;
    int left;  // packets of this round not yet sent
    int probes = 0;
    bool in_round = false;
    Instant round_start;
    Instant resume;  // of the next round
    Instant sender_timer = Instant::Infinite();
    Instant receiver_timer = Instant::Infinite();
    std::map<uint64_t, wire::AckFrame> acks_on_the_way;
    uint64_t next_ack = 0;
  };

  void Schedule(Instant time, Event::Kind kind, size_t flow, uint64_t id = 0) {
    events_.push({time, order_++, kind, flow, id});
  }

  void Handle(const Event& event) {
    Flow& flow = *flows_[event.flow];
    switch (event.kind) {
      case Event::kSender:
        if (flow.sender_timer <= now_) flow.sender_timer = Instant::Infinite();
        if (flow.loss.Deadline() <= now_) Apply(&flow, flow.loss.OnTimeout(now_));
        Send(event.flow);
        break;
      case Event::kData:
        if (flow.acks.IsDuplicate(event.id)) break;
        flow.stats.arrived += kDatagram;
        flow.acks.OnPacketReceived(event.id, true, false, now_);
        Acknowledge(event.flow);
        break;
      case Event::kReceiver:
        flow.receiver_timer = Instant::Infinite();
        Acknowledge(event.flow);
        break;
      case Event::kAck: {
        auto it = flow.acks_on_the_way.find(event.id);
        auto outcome = flow.loss.OnAckReceived(it->second, now_);
        LH_CHECK(outcome.ok());
        flow.acks_on_the_way.erase(it);
        Apply(&flow, std::move(outcome).value());
        flow.acks.SetSmoothedRtt(flow.rtt.smoothed_rtt());
        Send(event.flow);
        break;
      }
    }
  }

  void Apply(Flow* flow, const LossDetection::Outcome& outcome) {
    CongestionEvent e;
    e.now = now_;
    for (const SentPacket& p : outcome.acked) {
      flow->sampler.OnPacketAcked(p, now_);
      e.acked += p.bytes;
    }
    std::vector<LostPacket> lost;
    for (const SentPacket& p : outcome.lost) {
      flow->sampler.OnPacketLost(p);
      e.lost += p.bytes;
      lost.push_back(flow->sampler.Describe(p));
    }
    e.lost_packets = lost;
    for (const SentPacket& p : outcome.spurious) {
      flow->sampler.OnPacketAcked(p, now_);
      e.spurious += p.bytes;
    }
    e.timeout = outcome.send_probes;
    flow->stats.spurious += outcome.spurious.size();
    if (outcome.send_probes) flow->probes = 2;
    if (outcome.acked.empty() && outcome.lost.empty() && outcome.spurious.empty() && !e.timeout) return;
    e.sample = flow->sampler.TakeSample(flow->rtt.has_sample() ? flow->rtt.min_rtt() : Duration(0), now_);
    e.bytes_in_flight = flow->loss.bytes_in_flight();
    e.delivered = flow->sampler.delivered();
    e.latest_rtt = outcome.rtt_updated ? flow->rtt.latest_rtt() : Duration(0);
    e.smoothed_rtt = flow->rtt.smoothed_rtt();
    e.min_rtt = flow->rtt.has_sample() ? flow->rtt.min_rtt() : Duration(0);
    flow->rate->OnCongestionEvent(e);
    UpdatePacer(flow);
  }

  void UpdatePacer(Flow* flow) {
    flow->pacer.SetMaxQuantum(flow->rate->send_quantum());
    flow->pacer.SetRate(flow->rate->pacing_rate(), now_);
  }

  bool HasData(Flow* flow) {
    if (flow->options.round_packets == 0) return true;
    if (flow->in_round) {
      if (flow->left > 0) return true;
      if (flow->loss.bytes_in_flight().value() > 0) return false;
      flow->in_round = false;
      flow->stats.rounds.push_back(now_ - flow->round_start);
      flow->resume = now_ + flow->options.round_gap;
    }
    if (now_ < flow->resume || now_ < flow->options.start) return false;
    flow->in_round = true;
    flow->round_start = now_;
    flow->left = flow->options.round_packets;
    flow->rate->OnWindowStart(now_);
    UpdatePacer(flow);
    return true;
  }

  void Send(size_t id) {
    Flow& flow = *flows_[id];
    if (flow.next_number == 0) UpdatePacer(&flow);
    Instant wake = Instant::Infinite();
    while (true) {
      const bool data = HasData(&flow);
      if (flow.probes > 0) {
        --flow.probes;
        if (data && flow.left > 0) --flow.left;
        SendPacket(id);
        continue;
      }
      if (!data) {
        flow.sampler.OnAppLimited(flow.loss.bytes_in_flight());
        if (!flow.in_round) wake = std::max(flow.resume, now_ + Duration(1));
        break;
      }
      if (flow.loss.bytes_in_flight() >= flow.rate->cwnd() || !flow.loss.CanSend()) break;
      if (flow.pacer.Credit(now_).value() <= 0) {
        wake = std::max(flow.pacer.NextSendTime(now_), now_ + Duration(1));
        break;
      }
      if (flow.options.round_packets > 0) --flow.left;
      SendPacket(id);
    }
    wake = std::min(wake, std::max(flow.loss.Deadline(), now_ + Duration(1)));
    if (!wake.IsInfinite() && wake < flow.sender_timer) {
      flow.sender_timer = wake;
      Schedule(wake, Event::kSender, id);
    }
  }

  void SendPacket(size_t id) {
    Flow& flow = *flows_[id];
    SentPacket p;
    p.number = flow.next_number++;
    p.sent_time = now_;
    p.bytes = kDatagram;
    p.ack_eliciting = p.in_flight = true;
    flow.sampler.OnPacketSent(&p, flow.loss.bytes_in_flight(), now_);
    const uint64_t number = p.number;
    flow.loss.OnPacketSent(std::move(p));
    flow.pacer.OnSent(kDatagram, now_);
    flow.rate->OnPacketSent(now_, kDatagram, flow.loss.bytes_in_flight(), flow.sampler.is_app_limited());
    if (flow.rate->suppresses_samples()) flow.sampler.OnAppLimited(flow.loss.bytes_in_flight());
    flow.stats.sent += kDatagram;
    worst_overshoot_ = std::max(worst_overshoot_, flow.loss.bytes_in_flight() - flow.rate->cwnd());
    Enqueue(id, number);
  }

  void Enqueue(size_t id, uint64_t number) {
    const Duration waiting = link_free_ > now_ ? link_free_ - now_ : Duration(0);
    const ByteCount queued = link_.rate * waiting;
    const ByteCount bound = std::max(link_.rate * link_.rtt * link_.buffer_bdp, kDatagram * int64_t{4});
    if (queued + kDatagram > bound) {
      flows_[id]->stats.queue_drops += kDatagram;
      return;
    }
    queue_delay_sum_ += waiting;
    ++queue_samples_;
    link_free_ = std::max(link_free_, now_) + link_.rate.TransferTime(kDatagram);
    if (chance_.Chance(link_.loss)) return;
    Schedule(link_free_ + link_.rtt / 2 + Jitter(), Event::kData, id, number);
  }

  Duration Jitter() {
    return link_.jitter.count() == 0
               ? Duration(0)
               : Duration(static_cast<int64_t>(chance_.Below(static_cast<uint64_t>(link_.jitter.count()))));
  }

  void Acknowledge(size_t id) {
    Flow& flow = *flows_[id];
    if (flow.acks.ShouldAck(now_)) {
      wire::AckFrame ack = flow.acks.BuildAck(now_);
      if (!chance_.Chance(link_.loss)) {
        const uint64_t key = flow.next_ack++;
        flow.acks_on_the_way.emplace(key, std::move(ack));
        Schedule(now_ + link_.rtt / 2, Event::kAck, id, key);
      }
    }
    const Instant deadline = flow.acks.Deadline();
    if (!deadline.IsInfinite() && deadline < flow.receiver_timer) {
      flow.receiver_timer = std::max(deadline, now_ + Duration(1));
      Schedule(flow.receiver_timer, Event::kReceiver, id);
    }
  }

  LinkOptions link_;
  Random chance_;
  std::vector<std::unique_ptr<Flow>> flows_;
  std::priority_queue<Event> events_;
  uint64_t order_ = 0;
  Instant now_;
  Instant link_free_;  // when the last queued packet has left the queue
  Duration queue_delay_sum_{0};
  int64_t queue_samples_ = 0;
  ByteCount worst_overshoot_;
};

}  // namespace longhaul::transport::sim
