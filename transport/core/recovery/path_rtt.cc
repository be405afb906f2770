#include "transport/core/recovery/path_rtt.h"

#include <algorithm>
#include <utility>

#include "base/reached.h"

namespace longhaul::transport {

void PathRtt::CountFlights(const LossDetection::Outcome& outcome, Instant received) {
  for (const auto* packets : {&outcome.acked, &outcome.spurious}) {
    for (const SentPacket& packet : *packets) {
      if (!packet.in_flight || received <= packet.sent_time || packet.sent_time < begin_) continue;
      (packet.sent_time < end_ ? flight_ : next_).Add(received - packet.sent_time);
    }
  }
  if (received < end_ + std::max(mean_, lateness_)) return;
  if (flight_.packets >= kMeanPackets || (mean_ == Duration::zero() && flight_.packets > 0)) {
    mean_ = flight_.sum / flight_.packets;
    flight_ = {};
    begin_ = end_;
  }
  flight_.packets += next_.packets;
  flight_.sum += next_.sum;
  next_ = {};
  end_ = received;
}

bool PathRtt::NoticeLate(const LossDetection::Outcome& outcome, Instant received) {
  const Duration known = minimum_ == Duration::max() ? Duration(0) : minimum_;
  const Duration usual = previous_ + std::max<Duration>(known / kShare, RttEstimator::kGranularity);
  if (previous_ == Duration::zero() || outcome.late <= usual) return false;
  LH_REACHED("packets are overtaken by far");
  const bool first = !reordered(received);
  lateness_ = first ? outcome.late : std::max(lateness_, outcome.late);
  reordered_until_ = received + kMemoryRtts * std::max(mean_, outcome.late);
  pending_ = Duration::max();
  pending_since_ = Instant::Infinite();
  return first;
}

bool PathRtt::Believe(Duration latest, Instant received) {
  const bool known = minimum_ != Duration::max();
  if (known && latest < minimum_ - minimum_ / kShare) {
    if (pending_since_.IsInfinite()) pending_since_ = received;
    pending_ = std::min(pending_, latest);
    if (received - pending_since_ < minimum_) return false;
    LH_REACHED("a shorter round trip is believed");
    minimum_ = pending_;
    pending_ = Duration::max();
    pending_since_ = Instant::Infinite();
  }
  minimum_ = std::min(minimum_, latest);
  return true;
}

PathRtt::Sample PathRtt::OnAck(const LossDetection::Outcome& outcome, const RttEstimator& rtt,
                               Instant received) {
  CountFlights(outcome, received);
  const bool first = NoticeLate(outcome, received);
  if (outcome.rtt_updated) previous_ = rtt.latest_rtt();
  if (reordered(received)) {
    const Duration mean = mean_ > Duration::zero() ? mean_ : rtt.smoothed_rtt();
    minimum_ = first ? mean : std::min(minimum_, mean);
    return {mean, mean, first};
  }
  if (!outcome.rtt_updated) return {};
  const bool over = std::exchange(lateness_, Duration::zero()) > Duration::zero();
  if (over) minimum_ = rtt.latest_rtt();
  if (!Believe(rtt.latest_rtt(), received)) return {};
  return {rtt.latest_rtt(), rtt.adjusted_rtt(), over};
}

}  // namespace longhaul::transport
