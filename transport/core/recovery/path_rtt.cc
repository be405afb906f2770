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
    least_mean_.Add(mean_, received);
    flight_ = {};
    begin_ = end_;
  }
  flight_.packets += next_.packets;
  flight_.sum += next_.sum;
  next_ = {};
  end_ = received;
}

void PathRtt::DropPending() {
  pending_ = Duration::max();
  pending_since_ = Instant::Infinite();
}

bool PathRtt::NoticeLate(const LossDetection::Outcome& outcome, Instant received) {
  if (previous_ == Duration::zero()) return false;
  // An ACK that overtakes others makes the round trip as short as a packet that does.
  if (!outcome.overtaken_ack && outcome.late <= previous_ + RttEstimator::kGranularity) return false;
  DropPending();
  const bool before = reordered(received);
  if (before) lateness_ = std::max(lateness_, outcome.late);
  const Duration known = minimum_.known() ? minimum_.least : Duration(0);
  const bool far = outcome.late > previous_ + known / kShare;
  if (!far && !(outcome.overtaken_ack && previous_ < known - known / kShare)) return false;
  LH_REACHED("packets are overtaken by far");
  if (!std::exchange(unblamed_, false)) return false;  // by the same one as the packet before
  const Duration round_trip = std::max({mean_, known, outcome.late});
  if (received - overtakers_since_ > kOvertakerRtts * round_trip) {
    overtakers_ = 0;
    overtakers_since_ = received;
  }
  if (++overtakers_ < (before ? kOvertakers / 2 : kOvertakers)) return false;
  overtakers_ = 0;
  reordered_until_ = received + kMemoryRtts * round_trip;
  if (before) return false;
  LH_REACHED("packets overtake by rule");
  lateness_ = round_trip;
  return true;
}

void PathRtt::Minimum::Add(Duration rtt, Instant now) {
  if (now - since >= kMinimumTime) {
    least = std::exchange(recent, Duration::max());
    since = now;
  }
  least = std::min(least, rtt);
  recent = std::min(recent, rtt);
}

bool PathRtt::Believe(Duration latest, Instant received) {
  if (minimum_.known() && latest < minimum_.least - RttEstimator::kGranularity) {
    if (pending_since_.IsInfinite()) pending_since_ = received;
    pending_ = std::min(pending_, latest);
    if (received - pending_since_ < minimum_.least) return false;
    LH_REACHED("a shorter round trip is believed");
    latest = pending_;
    DropPending();
  }
  minimum_.Add(latest, received);
  return true;
}

PathRtt::Sample PathRtt::OnAck(const LossDetection::Outcome& outcome, const RttEstimator& rtt,
                               Instant received) {
  CountFlights(outcome, received);
  const bool first = NoticeLate(outcome, received);
  if (outcome.rtt_updated) {
    previous_ = rtt.latest_rtt();
    unblamed_ = true;
  }
  const Duration mean = mean_ > Duration::zero() ? mean_ : rtt.smoothed_rtt();
  if (first) {
    const Duration least = least_mean_.known() ? least_mean_.least : mean;
    minimum_ = {least, least, received};
    return {least, least, true};
  }
  if (reordered(received)) {
    minimum_.Add(mean, received);
    return {mean, mean, false};
  }
  if (lateness_ > Duration::zero()) {
    lateness_ = Duration::zero();
    void_ = true;
    minimum_ = {mean, mean, received};
  }
  if (!outcome.rtt_updated || !Believe(rtt.latest_rtt(), received)) return {};
  return {rtt.latest_rtt(), rtt.adjusted_rtt(), std::exchange(void_, false)};
}

}  // namespace longhaul::transport
