#include "tests/sim/rate/rate_flow.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace longhaul::transport::sim {
namespace {

constexpr Duration kTick{1};
// A connection asks for an acknowledgement of every so many of its ACKs.
constexpr uint64_t kAcksPerPing = 32;

// Keeps the queue in order of arrival; later equals come last. Reordering is rare and short.
template <typename Item>
void InsertByArrival(std::deque<Item>* items, Item item) {
  auto at = items->end();
  while (at != items->begin() && std::prev(at)->arrives > item.arrives) --at;
  items->insert(at, std::move(item));
}

}  // namespace

RateFlow::RateFlow(const FlowOptions& options, Bottleneck* path, Random random)
    : options_(options),
      path_(path),
      datagram_(options.rate.max_datagram),
      app_(options),
      rate_(MakeRateController(options.rate, random)),
      sender_timer_(options.start) {}

Instant RateFlow::NextEvent() const {
  Instant next = std::min(SenderTime(sender_timer_), ReceiverTime(receiver_timer_));
  if (!data_.empty()) next = std::min(next, ReceiverTime(data_.front().arrives));
  if (!acks_on_the_way_.empty()) next = std::min(next, SenderTime(acks_on_the_way_.front().arrives));
  return next;
}

void RateFlow::Handle(Instant now) {
  LH_CHECK(now >= now_);
  now_ = now;
  if (!data_.empty() && ReceiverTime(data_.front().arrives) <= now) return Receive();
  if (!acks_on_the_way_.empty() && SenderTime(acks_on_the_way_.front().arrives) <= now) return ReadAck();
  if (ReceiverTime(receiver_timer_) <= now) return Acknowledge();
  if (loss_.Deadline() <= now) Apply(loss_.OnTimeout(now), 0, 0);
  Send();
}

void RateFlow::Receive() {
  const Data packet = data_.front();
  data_.pop_front();
  Take(packet);
  // What waited in the socket is read together, and acknowledged together.
  if (!data_.empty() && data_.front().arrives < now_) return;
  Acknowledge();
}

void RateFlow::Take(const Data& packet) {
  if (path_->HostDrops()) {
    acks_.SetHostDrops(++socket_drops_);
    return;
  }
  if (acks_.IsDuplicate(packet.number)) return;
  stats_.arrived += datagram_;
  acks_.OnPacketReceived(packet.number, true, packet.marked, now_);
}

void RateFlow::Acknowledge() {
  if (acks_.ShouldAck(now_)) {
    Ack ack{path_->AckArrival(now_ + (path_->options().rtt + options_.extra_rtt) / 2), acks_.BuildAck(now_),
            ++acks_built_ % kAcksPerPing == 0};
    if (!path_->LosesAck()) {
      const bool with_last = !acks_on_the_way_.empty() && acks_on_the_way_.back().arrives == ack.arrives;
      if (path_->options().ack_thinning && with_last) acks_on_the_way_.pop_back();
      InsertByArrival(&acks_on_the_way_, std::move(ack));
    }
  }
  const Instant deadline = acks_.Deadline();
  receiver_timer_ = deadline.IsInfinite() ? deadline : std::max(deadline, now_ + kTick);
}

void RateFlow::ReadAck() {
  const Ack ack = std::move(acks_on_the_way_.front());
  acks_on_the_way_.pop_front();
  if (ack.confirmed) acks_.OnAckAcknowledged(ack.frame.ranges.front().largest);
  auto outcome = loss_.OnAckReceived(ack.frame, now_);
  LH_CHECK(outcome.ok());
  const uint64_t ecn_ce = ack.frame.ecn_ce - std::min(ecn_ce_, ack.frame.ecn_ce);
  const uint64_t host_drops = ack.frame.host_drops - std::min(host_drops_, ack.frame.host_drops);
  ecn_ce_ += ecn_ce;
  host_drops_ += host_drops;
  Apply(outcome.value(), ecn_ce, host_drops);
  acks_.SetSmoothedRtt(rtt_.smoothed_rtt());
  // What came together is read together.
  if (!acks_on_the_way_.empty() && SenderTime(acks_on_the_way_.front().arrives) <= now_) return;
  Send();
}

void RateFlow::Apply(const LossDetection::Outcome& outcome, uint64_t ecn_ce, uint64_t host_drops) {
  CongestionEvent e;
  e.now = now_;
  for (const SentPacket& p : outcome.spurious) {
    sampler_.OnPacketAcked(p, now_);
    e.spurious += p.bytes;
  }
  for (const SentPacket& p : outcome.acked) {
    sampler_.OnPacketAcked(p, now_);
    e.acked += p.bytes;
  }
  lost_packets_.clear();
  for (const SentPacket& p : outcome.lost) {
    sampler_.OnPacketLost(p);
    e.lost += p.bytes;
    lost_packets_.push_back(sampler_.Describe(p));
  }
  e.lost_packets = lost_packets_;
  e.timeout = outcome.send_probes;
  stats_.spurious += outcome.spurious.size();
  if (outcome.send_probes) {
    probes_ = 2;
    ++stats_.probe_timeouts;
  }
  if (outcome.acked.empty() && outcome.lost.empty() && outcome.spurious.empty() && ecn_ce == 0 && !e.timeout)
    return;
  e.sample = sampler_.TakeSample(rtt_.has_sample() ? rtt_.min_rtt() : Duration(0), now_);
  e.bytes_in_flight = loss_.bytes_in_flight();
  e.delivered = sampler_.delivered();
  e.latest_rtt = outcome.rtt_updated ? rtt_.latest_rtt() : Duration(0);
  e.adjusted_rtt = outcome.rtt_updated ? rtt_.adjusted_rtt() : Duration(0);
  e.smoothed_rtt = rtt_.smoothed_rtt();
  e.min_rtt = rtt_.has_sample() ? rtt_.min_rtt() : Duration(0);
  e.ecn_ce = ecn_ce;
  e.host_drops = host_drops;
  rate_->OnCongestionEvent(e);
  if (observer_) observer_(e);
  UpdatePacer();
}

void RateFlow::UpdatePacer() {
  pacer_.SetMaxQuantum(rate_->send_quantum());
  pacer_.SetRate(rate_->pacing_rate(), now_);
}

void RateFlow::Send() {
  if (next_number_ == 0) UpdatePacer();
  if (was_stalled_) {
    was_stalled_ = false;
    if (options_.stall_marks == StallMarks::kAlways) sampler_.OnAppLimited(loss_.bytes_in_flight());
  }
  Instant wake = Instant::Infinite();
  bool burst = false;
  while (MaySend(burst, &wake)) burst = true;
  sender_timer_ = std::min(wake, std::max(loss_.Deadline(), now_ + kTick));
}

bool RateFlow::MaySend(bool burst, Instant* wake) {
  const bool idle = loss_.bytes_in_flight().value() == 0;
  const bool data = app_.HasData(now_, idle);
  for (const Duration round : app_.TakeRounds()) stats_.rounds.push_back(round);
  if (app_.TakeStarted()) {
    rate_->OnWindowStart(now_);
    UpdatePacer();
  }
  if (options_.stall_marks == StallMarks::kPacer && data && pacer_.Stalled(now_))
    sampler_.OnAppLimited(loss_.bytes_in_flight());
  if (probes_ > 0) {
    --probes_;
    if (data) app_.OnSent();
    SendPacket();
    return true;
  }
  if (!data) {
    sampler_.OnAppLimited(loss_.bytes_in_flight());
    pacer_.OnBlockedElsewhere(now_);
    *wake = app_.NextData(now_);
    return false;
  }
  if (loss_.bytes_in_flight() >= rate_->cwnd() || !loss_.CanSend()) {
    pacer_.OnBlockedElsewhere(now_);
    return false;
  }
  const Instant whole = pacer_.NextSendTime(now_);
  const bool waits = options_.offload && !burst ? whole > now_ : pacer_.Credit(now_).value() <= 0;
  if (waits) {
    *wake = std::max(whole, now_ + kTick);
    return false;
  }
  app_.OnSent();
  SendPacket();
  return true;
}

void RateFlow::SendPacket() {
  SentPacket p;
  p.number = next_number_++;
  p.sent_time = now_;
  p.bytes = datagram_;
  p.ack_eliciting = p.in_flight = true;
  sampler_.OnPacketSent(&p, loss_.bytes_in_flight(), now_);
  const uint64_t number = p.number;
  loss_.OnPacketSent(std::move(p));
  pacer_.OnSent(datagram_, now_);
  rate_->OnPacketSent(now_, datagram_, loss_.bytes_in_flight(), sampler_.is_app_limited());
  if (rate_->suppresses_samples()) sampler_.OnAppLimited(loss_.bytes_in_flight());
  stats_.sent += datagram_;
  worst_overshoot_ = std::max(worst_overshoot_, loss_.bytes_in_flight() - rate_->cwnd());
  Launch(number);
}

void RateFlow::Launch(uint64_t number) {
  const Bottleneck::Verdict verdict = path_->Offer(now_, datagram_);
  const PacketFate fate = filter_ ? filter_(number, now_) : PacketFate();
  if (verdict.fate == Bottleneck::Fate::kQueueDrop) stats_.queue_drops += datagram_;
  if (verdict.fate == Bottleneck::Fate::kPolicerDrop) stats_.policer_drops += datagram_;
  if (verdict.fate != Bottleneck::Fate::kArrives || fate.lost) return;
  const Instant arrives = verdict.leaves + verdict.delay + options_.extra_rtt / 2 + fate.extra;
  InsertByArrival(&data_, Data{arrives, verdict.leaves, number, verdict.marked});
}

void RateFlow::SetAppRate(Bandwidth rate, Instant now) {
  app_.SetRate(rate, now);
  sender_timer_ = std::min(sender_timer_, now + kTick);
}

void RateFlow::SetPaused(bool paused, Instant now) {
  app_.SetPaused(paused);
  sender_timer_ = std::min(sender_timer_, now + kTick);
}

void RateFlow::Stall(Instant until) {
  stalled_until_ = std::max(stalled_until_, until);
  was_stalled_ = true;
}

void RateFlow::StallReceiver(Instant until) {
  receiver_stalled_until_ = std::max(receiver_stalled_until_, until);
}

void RateFlow::StretchDepartures(Instant now, double factor) {
  for (Data& packet : data_) {
    if (packet.leaves <= now) continue;
    const Instant leaves =
        now + Duration(static_cast<int64_t>(static_cast<double>((packet.leaves - now).count()) * factor));
    packet.arrives += leaves - packet.leaves;
    packet.leaves = leaves;
  }
  std::stable_sort(data_.begin(), data_.end(),
                   [](const Data& a, const Data& b) { return a.arrives < b.arrives; });
}

}  // namespace longhaul::transport::sim
