#include "transport/core/recovery/loss_detection.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/inject.h"
#include "base/reached.h"
#include "transport/core/recovery/ack_tracker.h"

namespace longhaul::transport {
namespace {

// Losses remembered for a late ACK: a round trip of 10,000 packets at 20 % loss.
constexpr size_t kMaxRememberedLosses = 2048;
// Packets that carry only ACKs are not in flight and perhaps never acknowledged; more than this of them, with
// nothing else outstanding, are forgotten.
constexpr size_t kMaxUntracked = 1024;
// A packet that is later than this, and than twice the minimum, tells of a host that stood still, not of the
// path.
constexpr Duration kMaxLateness = std::chrono::seconds(1);
// A delay beyond an hour is nonsense; capped before the multiplication can overflow.
constexpr uint64_t kMaxDelayUs = 3'600'000'000;

Duration TimeThreshold(const RttEstimator& rtt) {
  const Duration larger = std::max(rtt.smoothed_rtt(), rtt.latest_rtt());
  return std::max<Duration>(larger + larger / 4, RttEstimator::kGranularity);
}

}  // namespace

void LossDetection::OnPacketSent(SentPacket packet) {
  LH_CHECK(!any_sent_ || packet.number > largest_sent_);
  any_sent_ = true;
  largest_sent_ = packet.number;
  if (packet.in_flight) {
    LH_CHECK(CanSend());
    ++in_flight_count_;
    bytes_in_flight_ += packet.bytes;
    if (packet.ack_eliciting) {
      ++eliciting_in_flight_;
      last_eliciting_sent_ = packet.sent_time;
    }
  } else if (sent_.size() >= 2 * kMaxInFlightPackets) {
    return;  // the peer has been silent for long; nothing depends on this packet
  }
  sent_.PushBack({std::move(packet)});
  while (in_flight_count_ == 0 && sent_.size() > kMaxUntracked) sent_.PopFront();
}

void LossDetection::SkipNumber(wire::PacketNumber number) {
  LH_CHECK(!any_sent_ || number > largest_sent_);
  LH_CHECK(skipped_.empty() || number > skipped_[skipped_.size() - 1]);
  if (skipped_.size() >= kMaxSkipped) skipped_.PopFront();
  skipped_.PushBack(number);
}

size_t LossDetection::SkippedBelow(wire::PacketNumber number) const {
  return skipped_.PartitionPoint([&](wire::PacketNumber skipped) { return skipped < number; });
}

uint64_t LossDetection::Distance(wire::PacketNumber from, wire::PacketNumber to) const {
  return to - from - (SkippedBelow(to) - SkippedBelow(from));
}

Result<LossDetection::Outcome> LossDetection::OnAckReceived(const wire::AckFrame& ack, Instant received) {
  if (Status status = Check(ack); !status.ok()) return status;
  Outcome outcome;
  const wire::PacketNumber largest_before = largest_acked_;
  const bool acked_before = any_acked_;
  // Ranges come newest first; the outcome is ascending.
  for (auto range = ack.ranges.rbegin(); range != ack.ranges.rend(); ++range) {
    TakeSpurious(*range, &outcome);
    TakeAcked(*range, &outcome);
  }
  outcome.overtaken_ack = acked_before && ack.ranges.front().largest < largest_before;
  if (outcome.acked.empty() && outcome.spurious.empty()) return outcome;
  if (acked_before) outcome.late = std::min(Lateness(outcome, largest_before, received), MostLateness());
  any_acked_ = true;
  largest_acked_ = std::max(largest_acked_, ack.ranges.front().largest);
  LH_CHECK_OP(largest_acked_, <=, largest_sent_);
  pto_count_ = 0;
  outcome.rtt_updated = UpdateRtt(ack, outcome, received);
  if (!outcome.rtt_updated && outcome.late > Duration::zero()) {
    rtt_->OnSample(outcome.late, Duration(0), received);
  }
  if (acked_before) AdaptThreshold(largest_before, outcome, received);
  DetectLost(received, &outcome);
  return outcome;
}

Status LossDetection::Check(const wire::AckFrame& ack) const {
  if (!IsWellFormed(ack)) return {StatusCode::kProtocolViolation, "ACK of packets that were never sent"};
  for (const wire::AckRange& range : ack.ranges) {
    if (SkippedBelow(range.smallest) == SkippedBelow(range.largest + 1)) continue;
    return {StatusCode::kProtocolViolation,
            "ACK of a packet number that was left out: what was not received is acknowledged"};
  }
  return Status::Ok();
}

bool LossDetection::IsWellFormed(const wire::AckFrame& ack) const {
  if (!any_sent_ || ack.ranges.empty() || ack.ranges.front().largest > largest_sent_) return false;
  for (size_t i = 0; i < ack.ranges.size(); ++i) {
    if (ack.ranges[i].smallest > ack.ranges[i].largest) return false;
    if (i > 0 && ack.ranges[i].largest >= ack.ranges[i - 1].smallest) return false;
  }
  return true;
}

void LossDetection::TakeAcked(const wire::AckRange& range, Outcome* outcome) {
  if (sent_.empty() || sent_[0].packet.number > range.largest) return;
  size_t i = sent_.PartitionPoint([&](const Tracked& e) { return e.packet.number < range.smallest; });
  for (; i < sent_.size() && sent_[i].packet.number <= range.largest; ++i) {
    if (!sent_[i].outstanding) continue;
    Leave(&sent_[i]);
    outcome->acked.push_back(std::move(sent_[i].packet));
  }
}

void LossDetection::TakeSpurious(const wire::AckRange& range, Outcome* outcome) {
  if (declared_lost_.empty() || declared_lost_[0].packet.number > range.largest) return;
  size_t i =
      declared_lost_.PartitionPoint([&](const Tracked& e) { return e.packet.number < range.smallest; });
  for (; i < declared_lost_.size() && declared_lost_[i].packet.number <= range.largest; ++i) {
    if (!declared_lost_[i].outstanding) continue;
    declared_lost_[i].outstanding = false;
    if (!declared_lost_[i].packet.mtu_probe) ++packets_spurious_;
    LH_REACHED("a packet was given up and arrives");
    outcome->spurious.push_back(std::move(declared_lost_[i].packet));
  }
  while (!declared_lost_.empty() && !declared_lost_[0].outstanding) declared_lost_.PopFront();
}

Duration LossDetection::Lateness(const Outcome& outcome, wire::PacketNumber largest_before,
                                 Instant received) {
  Duration late{0};
  for (const auto* packets : {&outcome.acked, &outcome.spurious}) {
    if (packets->empty() || packets->front().number >= largest_before) continue;
    late = std::max(late, received - packets->front().sent_time);
  }
  return late;
}

bool LossDetection::UpdateRtt(const wire::AckFrame& ack, const Outcome& outcome, Instant received) {
  const wire::PacketNumber largest = ack.ranges.front().largest;
  // A packet wrongly given up is a sample as well: without it, a path that became slower than the loss
  // delay would give no sample ever again.
  const SentPacket* newest = nullptr;
  bool eliciting = false;
  for (const auto* packets : {&outcome.acked, &outcome.spurious}) {
    for (const SentPacket& packet : *packets) {
      if (packet.number == largest) newest = &packet;
      eliciting = eliciting || packet.ack_eliciting;
    }
  }
  if (newest == nullptr || !eliciting || received <= newest->sent_time) return false;
  const auto delay = std::chrono::microseconds(std::min(ack.ack_delay_us, kMaxDelayUs));
  rtt_->OnSample(received - newest->sent_time, delay, received);
  return true;
}

void LossDetection::AdaptThreshold(wire::PacketNumber largest_before, const Outcome& outcome, Instant now) {
  lateness_seen_ = std::max(lateness_seen_, outcome.late);
  // Whatever arrives below the largest acknowledged number was overtaken by that many packets.
  if (!outcome.acked.empty() && outcome.acked.front().number < largest_before) {
    reordering_seen_ = std::max(reordering_seen_, Distance(outcome.acked.front().number, largest_before));
  }
  if (!outcome.spurious.empty() && outcome.spurious.front().number < largest_before) {
    reordering_seen_ = std::max(reordering_seen_, Distance(outcome.spurious.front().number, largest_before));
    LH_REACHED("the packet threshold grows with reordering");
    lateness_ = std::max(lateness_, outcome.late);
    packet_threshold_ = std::max(packet_threshold_, std::min(reordering_seen_ + 1, kMaxPacketThreshold));
  }
  if (now - reordering_since_ < kReorderingMemoryRtts * std::max(rtt_->smoothed_rtt(), LatenessThreshold()))
    return;
  const uint64_t needed = std::min(reordering_seen_ + 1, kMaxPacketThreshold);
  LH_REACHED("the packet threshold is reviewed");
  packet_threshold_ = std::max({kInitialPacketThreshold, needed, packet_threshold_ / 2});
  reordering_seen_ = 0;
  lateness_ = std::min(lateness_, std::max(lateness_seen_, lateness_ / 2));
  lateness_seen_ = Duration::zero();
  reordering_since_ = now;
}

LossDetection::Outcome LossDetection::OnTimeout(Instant now) {
  Outcome outcome;
  if (now < Deadline()) return outcome;
  if (!loss_time_.IsInfinite()) {
    DetectLost(now, &outcome);
    return outcome;
  }
  if (eliciting_in_flight_ == 0) return outcome;
  ++pto_count_;
  last_pto_ = now;
  outcome.send_probes = true;
  return outcome;
}

Instant LossDetection::Deadline() const {
  if (!loss_time_.IsInfinite()) return loss_time_;
  if (eliciting_in_flight_ == 0) return Instant::Infinite();
  const int backoff = std::min(pto_count_, kMaxPtoBackoff);
  const Duration pto = rtt_->PtoBase(AckTracker::kMaxAckDelay) * (int64_t{1} << backoff);
  const Instant deadline = last_eliciting_sent_ + pto;
  return deadline > last_pto_ ? deadline : last_pto_ + pto;
}

std::vector<SentFrame> LossDetection::UnackedFrames(size_t limit) const {
  std::vector<SentFrame> frames;
  for (size_t i = 0; i < sent_.size() && frames.size() < limit; ++i) {
    const Tracked& tracked = sent_[i];
    if (!tracked.outstanding || !tracked.packet.in_flight) continue;
    for (const SentFrame& frame : tracked.packet.frames) {
      // Several packets may carry the same, since this has been asked before.
      const bool known = std::find(frames.begin(), frames.end(), frame) != frames.end();
      const bool must_arrive = !std::holds_alternative<SentAck>(frame);
      if (must_arrive && !known && frames.size() < limit) frames.push_back(frame);
    }
  }
  return frames;
}

std::vector<SentChunk> LossDetection::UnackedChunks(size_t limit) const {
  std::vector<SentChunk> chunks;
  for (size_t i = 0; i < sent_.size() && chunks.size() < limit; ++i) {
    const Tracked& tracked = sent_[i];
    if (!tracked.outstanding || !tracked.packet.in_flight || !tracked.packet.chunk) continue;
    const SentChunk& chunk = *tracked.packet.chunk;
    if (std::find(chunks.begin(), chunks.end(), chunk) == chunks.end()) chunks.push_back(chunk);
  }
  return chunks;
}

// A peer that names packets late on purpose moves the round-trip time by no more than one that is late with
// all.
Duration LossDetection::MostLateness() const {
  if (!rtt_->has_sample()) return kMaxLateness;
  return std::min(rtt_->PtoBase(AckTracker::kMaxAckDelay), std::max(kMaxLateness, 2 * rtt_->min_rtt()));
}

Duration LossDetection::LatenessThreshold() const {
  return std::min(lateness_ + RttEstimator::kGranularity, rtt_->PtoBase(AckTracker::kMaxAckDelay));
}

void LossDetection::DetectLost(Instant now, Outcome* outcome) {
  loss_time_ = Instant::Infinite();
  const Duration delay = std::max(TimeThreshold(*rtt_), LatenessThreshold());
  // Lost packets are a prefix of the outstanding ones (numbers and times ascend), so what is left to look at
  // between two calls is at most packet_threshold_ packets.
  for (size_t i = 0; any_acked_ && i < sent_.size() && sent_[i].packet.number < largest_acked_; ++i) {
    Tracked& tracked = sent_[i];
    if (!tracked.outstanding) continue;
    const wire::PacketNumber number = tracked.packet.number;
    const bool overtaken =
        largest_acked_ - number >= packet_threshold_ && Distance(number, largest_acked_) >= packet_threshold_;
    const Instant due = tracked.packet.sent_time + delay;
    if (!overtaken && due > now && !LH_INJECT("packet-given-up-early")) {
      if (!tracked.packet.in_flight) continue;
      loss_time_ = due;
      break;
    }
    Declare(&tracked, outcome);
  }
  DropSettled();
}

void LossDetection::Declare(Tracked* tracked, Outcome* outcome) {
  const bool counts = tracked->packet.in_flight;
  Leave(tracked);
  if (!counts) return;  // an ACK on its own: it has no content to send again
  if (!tracked->packet.mtu_probe) ++packets_lost_;
  RememberLost(tracked->packet);
  outcome->lost.push_back(std::move(tracked->packet));
}

void LossDetection::RememberLost(const SentPacket& packet) {
  if (declared_lost_.size() >= kMaxRememberedLosses) declared_lost_.PopFront();
  LH_CHECK_OP(declared_lost_.size(), <, kMaxRememberedLosses);
  declared_lost_.PushBack({packet});
}

void LossDetection::Leave(Tracked* tracked) {
  LH_CHECK(tracked->outstanding);
  tracked->outstanding = false;
  if (!tracked->packet.in_flight) return;
  LH_CHECK_OP(in_flight_count_, >, 0u);
  --in_flight_count_;
  bytes_in_flight_ -= tracked->packet.bytes;
  if (tracked->packet.ack_eliciting) --eliciting_in_flight_;
  LH_CHECK_OP(bytes_in_flight_.value(), >=, 0);
  LH_CHECK_OP(eliciting_in_flight_, <=, in_flight_count_);
}

void LossDetection::DropSettled() {
  while (!sent_.empty() && !sent_[0].outstanding) sent_.PopFront();
}

}  // namespace longhaul::transport
