#include "transport/core/path/dplpmtud.h"

#include <algorithm>
#include <array>
#include <functional>

#include "base/check.h"

namespace longhaul::transport {
namespace {

// UDP payloads of real paths, largest first: jumbo frames, Ethernet over IPv6, a VPN.
constexpr std::array<int64_t, 3> kLikely = {8952, 1452, 1344};
static_assert(std::ranges::is_sorted(kLikely, std::ranges::greater()) && kLikely.back() > Dplpmtud::kBase);

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
  raise_at_ = Instant::Infinite();
  tries_ = 0;
  candidate_ = PickCandidate();
  if (candidate_ > 0) return;
  state_ = State::kSearchComplete;
  if (plpmtu_ < max_) raise_at_ = now + kRaiseTimer;
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
    if (bytes == kBase && (state_ == State::kBase || state_ == State::kError)) return Search(now);
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
  if (state_ == State::kBase || state_ == State::kError) {
    if (tries_ >= kMaxProbes) state_ = State::kError;
    failed_ = tries_ >= kMaxBaseProbes;
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
  if (bytes <= kBase) {
    failed_ = true;
    return;
  }
  refuted_ = std::min(refuted_, bytes);
  const bool too_large = plpmtu_ >= refuted_;
  if (too_large) {
    OnBlackHole();
    refuted_ = std::min(refuted_, bytes);
  } else if (candidate_ >= refuted_) {
    in_flight_.reset();
    Search(now);
  }
}

void Dplpmtud::OnBlackHole() {
  if (state_ != State::kDisabled && plpmtu_ > kBase) Restart();
}

void Dplpmtud::Restart() {
  state_ = State::kBase;
  plpmtu_ = kBase;
  refuted_ = max_ + 1;
  candidate_ = kBase;
  tries_ = 0;
  in_flight_.reset();
  seen_ = 0;
  raise_at_ = Instant::Infinite();
}

void Dplpmtud::OnTimeout(Instant now) {
  if (now < raise_at_) return;
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
  ++suspicious_;
}

void BlackHoleDetector::Reset(wire::PacketNumber next_number) {
  suspicious_ = 0;
  ignored_below_ = next_number;
}

}  // namespace longhaul::transport
