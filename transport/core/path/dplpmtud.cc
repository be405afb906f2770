#include "transport/core/path/dplpmtud.h"

#include <algorithm>
#include <array>
#include <functional>

#include "base/check.h"
#include "base/reached.h"

namespace longhaul::transport {
namespace {

// UDP payloads of real paths, largest first: jumbo frames, Ethernet over IPv6, a VPN; and the base.
constexpr std::array<int64_t, 4> kLikely = {8952, 1452, 1344, Dplpmtud::kBase};
static_assert(std::ranges::is_sorted(kLikely, std::ranges::greater()));

}  // namespace

void Dplpmtud::Start(Instant now, int64_t proven, int64_t max) {
  LH_CHECK(kBase <= proven && proven <= max);
  max_ = max;
  plpmtu_ = proven;
  refuted_ = max + 1;
  Search(now);
}

void Dplpmtud::Search(Instant now) {
  state_ = State::kSearching;
  settled_at_ = Instant::Infinite();
  tries_ = 0;
  candidate_ = PickCandidate();
  if (candidate_ > 0) return;
  state_ = State::kSearchComplete;
  if (plpmtu_ < max_) settled_at_ = now;
}

int64_t Dplpmtud::PickCandidate() const {
  const auto open = [&](int64_t bytes) { return bytes > plpmtu_ && bytes < refuted_; };
  if (open(needed_)) return needed_;
  if (open(max_)) return max_;
  if (refuted_ - plpmtu_ <= kResolution) return 0;
  for (const int64_t likely : kLikely) {
    if (open(likely)) return likely;
  }
  // Between two multiples of kResolution that are known, another.
  const int64_t middle = (plpmtu_ + refuted_) / 2 / kResolution * kResolution;
  if (open(middle)) return middle;
  const int64_t above = middle + kResolution;
  return open(above) ? above : 0;
}

void Dplpmtud::OnPeerDatagram(int64_t bytes, Instant now) {
  if (bytes <= seen_) return;
  seen_ = bytes;
  if (!settled() || bytes <= plpmtu_ || bytes > max_) return;
  refuted_ = max_ + 1;
  Search(now);
}

std::optional<int64_t> Dplpmtud::NextProbe() const {
  if (in_flight_ || candidate_ == 0) return std::nullopt;
  return candidate_;
}

void Dplpmtud::OnAcked(wire::PacketNumber number, int64_t bytes, Instant now) {
  if (state_ == State::kDisabled) return;
  if (in_flight_ == number) {
    in_flight_.reset();
    const bool confirms = state_ == State::kBase || state_ == State::kError;
    if (confirms && bytes == plpmtu_) return Search(now);
  }
  if (bytes <= plpmtu_ || bytes > max_) return;
  if (state_ == State::kBase || state_ == State::kError) return;  // sent before the path changed
  plpmtu_ = bytes;
  if (bytes >= refuted_) refuted_ = max_ + 1;  // a probe that came late
  Search(now);
}

bool Dplpmtud::OnProbeLost(wire::PacketNumber number, Instant now) {
  if (in_flight_ != number) return false;
  in_flight_.reset();
  ++tries_;
  Refute(now);
  return true;
}

void Dplpmtud::Refute(Instant now) {
  if (state_ == State::kError) {
    failed_ = tries_ >= kMaxMinProbes;
    return;
  }
  if (state_ == State::kBase) {
    if (tries_ >= kMaxProbes) FallTo(State::kError, kMin);
    return;
  }
  // What is needed may have changed while the probe was under way.
  if (candidate_ < needed_ && needed_ < refuted_) return Search(now);
  if (tries_ < MaxTries()) return;
  refuted_ = std::min(refuted_, candidate_);
  Search(now);
}

void Dplpmtud::OnRefused(int64_t bytes, Instant now) {
  if (state_ == State::kDisabled) return;
  if (bytes <= kMin) {
    failed_ = true;
    return;
  }
  if (plpmtu_ >= bytes) {
    OnBlackHole();
    if (plpmtu_ >= bytes) FallTo(State::kError, kMin);
    refuted_ = bytes;
    return;
  }
  refuted_ = std::min(refuted_, bytes);
  if (candidate_ < refuted_) return;
  in_flight_.reset();
  Search(now);
}

void Dplpmtud::OnBlackHole() {
  if (state_ == State::kDisabled || plpmtu_ <= kMin) return;
  plpmtu_ > kBase ? FallTo(State::kBase, kBase) : FallTo(State::kError, kMin);
}

void Dplpmtud::Restart() { FallTo(State::kBase, kBase); }

void Dplpmtud::FallTo(State state, int64_t bytes) {
  state_ = state;
  plpmtu_ = candidate_ = bytes;
  refuted_ = max_ + 1;
  tries_ = 0;
  in_flight_.reset();
  seen_ = 0;
  settled_at_ = Instant::Infinite();
}

Instant Dplpmtud::Deadline() const {
  return settled_at_ + (needed_ > plpmtu_ ? kNeededRaiseTimer : kRaiseTimer);
}

void Dplpmtud::OnTimeout(Instant now) {
  if (now < Deadline()) return;
  refuted_ = max_ + 1;
  Search(now);
}

void BlackHoleDetector::OnPacketAcked(wire::PacketNumber number, int64_t bytes) {
  if (bytes <= base_) return;
  const size_t step = Step(bytes);
  if (step >= acked_below_.size()) acked_below_.resize(step + 1);
  acked_below_[step] = std::max(acked_below_[step], number + 1);
  if (suspicious_ > 0 && step >= smallest_step_ && number > first_number_) suspicious_ = 0;
}

void BlackHoleDetector::OnPacketLost(wire::PacketNumber number, int64_t bytes, Instant sent) {
  if (bytes <= base_ || number < ignored_below_) return;
  const size_t step = Step(bytes);
  for (size_t i = step; i < acked_below_.size(); ++i) {
    if (acked_below_[i] > number) return;
  }
  smallest_step_ = suspicious_ == 0 ? step : std::min(smallest_step_, step);
  first_number_ = suspicious_ == 0 ? number : std::min(first_number_, number);
  first_sent_ = suspicious_ == 0 ? sent : std::min(first_sent_, sent);
  last_sent_ = suspicious_ == 0 ? sent : std::max(last_sent_, sent);
  LH_REACHED("large packets are lost while small ones arrive");
  ++suspicious_;
}

void BlackHoleDetector::Reset(wire::PacketNumber next_number) {
  suspicious_ = 0;
  ignored_below_ = next_number;
}

}  // namespace longhaul::transport
