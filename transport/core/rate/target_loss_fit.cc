#include "transport/core/rate/target_loss_fit.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <vector>

#include "base/check.h"
#include "transport/core/rate/loss_curves.h"
#include "transport/core/rate/path_hinge.h"

namespace longhaul::transport {
namespace {

constexpr double kMinFloorPackets = 20;  // as LossFloor::kMinPackets
constexpr double kMinRttSeconds = 1e-6;  // a divisor
static_assert(TargetLossFit::kHeadroom < TargetLossFit::kFallbackMargin);
static_assert(TargetLossFit::kMinExcitation < 1.25 / 0.9, "what the cycle sends is enough");

double Seconds(Duration d) { return static_cast<double>(d.count()) * 1e-9; }

double PacketsOf(const std::vector<RememberedRound>& rounds) {
  double sum = 0;
  for (const RememberedRound& r : rounds) sum += r.packets;
  return sum;
}

// Share of the packets lost.
double LossOf(const std::vector<RememberedRound>& rounds) {
  double lost = 0;
  for (const RememberedRound& r : rounds) lost += r.packets * r.loss;
  return lost / PacketsOf(rounds);
}

double MeanRate(const std::vector<RememberedRound>& rounds) {
  double sum = 0;
  for (const RememberedRound& r : rounds) sum += r.sent;
  return rounds.empty() ? 0 : sum / static_cast<double>(rounds.size());
}

bool IsUsable(const RateRound& r) {
  return !r.sent.IsZero() && r.sent < Bandwidth::Max() && r.delivered < Bandwidth::Max() && r.packets > 0 &&
         std::isfinite(r.packets) && std::isfinite(r.loss);
}

}  // namespace

std::string_view FitStateName(FitState state) {
  switch (state) {
    case FitState::kFewSamples:
      return "few_samples";
    case FitState::kNoExcitation:
      return "no_excitation";
    case FitState::kIllConditioned:
      return "ill_conditioned";
    case FitState::kPoorFit:
      return "poor_fit";
    case FitState::kGranted:
      return "granted";
    case FitState::kFitted:
      return "fitted";
  }
  return "unknown";
}

std::string_view TargetBasisName(TargetBasis basis) {
  switch (basis) {
    case TargetBasis::kFloor:
      return "floor";
    case TargetBasis::kFlatLoss:
      return "flat_loss";
    case TargetBasis::kIllConditioned:
      return "ill_conditioned";
    case TargetBasis::kBadCurvature:
      return "bad_curvature";
    case TargetBasis::kCurves:
      return "curves";
  }
  return "unknown";
}

struct TargetLossFit::Impl {
  RoundMemory memory;
  std::optional<PathHinge> reliable;  // the model that new rounds are judged by

  const std::vector<RememberedRound>& Of(RatePhase phase) const { return memory.Of(phase); }
  // (A) with its guards; sets hinge whenever there is one to speak of.
  FitState FitPath(PathHinge* hinge) const;
  TargetBasis FitTarget(const PathHinge& hinge, double budget, Duration min_rtt, TargetLoss* result) const;
  // Variance of one packet's yield if the path were as `hinge` says.
  double ExpectedNoise(const PathHinge& hinge) const;
  double FallbackFloor() const;
  bool Excited() const;
};

bool TargetLossFit::Impl::Excited() const {
  const auto& down = Of(RatePhase::kDown);
  const auto& up = Of(RatePhase::kUp);
  return down.size() >= kMinPhaseRounds && up.size() >= kMinPhaseRounds &&
         MeanRate(up) >= kMinExcitation * MeanRate(down);
}

double TargetLossFit::Impl::ExpectedNoise(const PathHinge& hinge) const {
  double packets = 0;
  for (const RatePhase phase : {RatePhase::kDown, RatePhase::kCruise, RatePhase::kUp})
    packets += PacketsOf(Of(phase));
  const double timing = RoundMemory::kTimingError;
  return hinge.floor * (1 - hinge.floor) + timing * timing * packets / static_cast<double>(memory.size());
}

FitState TargetLossFit::Impl::FitPath(PathHinge* hinge) const {
  if (memory.size() < kMinSamples) return FitState::kFewSamples;
  if (!Excited()) return FitState::kNoExcitation;
  std::vector<YieldSample> samples;
  samples.reserve(memory.size());
  for (const RatePhase phase : {RatePhase::kDown, RatePhase::kCruise, RatePhase::kUp}) {
    for (const RememberedRound& r : Of(phase)) samples.push_back({r.sent, r.yield, r.packets});
  }
  const HingeResult result = FitHinge(&samples);
  if (!result.usable) return FitState::kNoExcitation;
  *hinge = result.hinge;
  if (hinge->significance < kMinSignificance) {
    // Either nothing was ever above C, or something else moves the yields: then they scatter by more than
    // chance.
    return hinge->noise <= 2 * ExpectedNoise(*hinge) ? FitState::kNoExcitation : FitState::kPoorFit;
  }
  if (hinge->r_squared < kMinRSquared) return FitState::kPoorFit;
  if (hinge->floor_error > kMaxFloorError || hinge->capacity_error > kMaxCapacityError) {
    return FitState::kIllConditioned;
  }
  return FitState::kFitted;
}

TargetBasis TargetLossFit::Impl::FitTarget(const PathHinge& hinge, double budget, Duration min_rtt,
                                           TargetLoss* result) const {
  std::vector<WeightedRound> rounds;
  rounds.reserve(memory.size());
  for (const RatePhase phase : {RatePhase::kDown, RatePhase::kCruise, RatePhase::kUp}) {
    double fade = 1;
    const auto& of_phase = Of(phase);
    for (auto r = of_phase.rbegin(); r != of_phase.rend(); ++r, fade *= kForgetting) {
      rounds.push_back({&*r, fade * r->packets});
    }
  }
  const LossCurves curves = FitLossCurves(hinge, rounds);
  switch (curves.verdict) {
    case LossCurves::Verdict::kFlat:
      return TargetBasis::kFlatLoss;
    case LossCurves::Verdict::kIllConditioned:
      return TargetBasis::kIllConditioned;
    case LossCurves::Verdict::kBadCurvature:
      return TargetBasis::kBadCurvature;
    case LossCurves::Verdict::kUsable:
      break;
  }
  result->delay_saturates = curves.delay_saturates;
  const double low = hinge.floor + kHeadroom;
  const double high = hinge.floor + std::min(budget, kMaxOwnLoss);
  result->target = BestLoss(curves, low, high, kDelayWeight, std::max(Seconds(min_rtt), kMinRttSeconds));
  return TargetBasis::kCurves;
}

double TargetLossFit::Impl::FallbackFloor() const {
  for (const RatePhase phase : {RatePhase::kDown, RatePhase::kCruise}) {
    if (PacketsOf(Of(phase)) >= kMinFloorPackets) return LossOf(Of(phase));
  }
  return 0;
}

TargetLossFit::TargetLossFit() : impl_(std::make_unique<Impl>()) {}
TargetLossFit::~TargetLossFit() = default;

void TargetLossFit::OnRound(const RateRound& round) {
  if (!IsUsable(round)) return;
  RememberedRound r;
  r.sent = static_cast<double>(round.sent.bits_per_second());
  r.yield = std::max(0.0, round.delivered / round.sent);
  r.loss = std::clamp(round.loss, 0.0, 1.0);
  r.packets = round.packets;
  r.queue = std::max(0.0, Seconds(round.queue));
  impl_->memory.Add(round.phase, r, impl_->reliable);
  if (impl_->memory.InDoubt()) return;
  PathHinge hinge;
  impl_->reliable.reset();
  if (impl_->FitPath(&hinge) == FitState::kFitted) impl_->reliable = hinge;
}

void TargetLossFit::Reset() {
  impl_->memory.Clear();
  impl_->reliable.reset();
}

TargetLoss TargetLossFit::Fit(const FitContext& context) const {
  const Impl& impl = *impl_;
  TargetLoss result;
  result.down = static_cast<int>(impl.Of(RatePhase::kDown).size());
  result.cruise = static_cast<int>(impl.Of(RatePhase::kCruise).size());
  result.up = static_cast<int>(impl.Of(RatePhase::kUp).size());
  result.samples = result.down + result.cruise + result.up;
  result.path_changes = impl.memory.changes();
  PathHinge hinge;
  result.state = impl.FitPath(&hinge);
  result.r_squared = hinge.r_squared;
  result.floor = context.floor.value_or(impl.FallbackFloor());
  if (result.state == FitState::kFitted && std::abs(hinge.floor - result.floor) > kMaxFloorError) {
    result.state = context.floor ? FitState::kPoorFit : result.state;
  }
  if (result.state == FitState::kFitted) {
    result.floor = hinge.floor;
    result.capacity = Bandwidth::BitsPerSecond(static_cast<int64_t>(hinge.capacity));
  }
  result.target = result.floor + kFallbackMargin;
  if (result.state == FitState::kFitted) {
    result.basis = impl.FitTarget(hinge, context.budget, context.min_rtt, &result);
  } else if (!context.grant.IsZero() && result.samples >= kMinSamples) {
    result.state = FitState::kGranted;
    result.capacity = context.grant;
  }
  result.target = std::max({result.target, kMinTarget, result.floor + kHeadroom});
  LH_CHECK_OP(result.target, >, result.floor);
  return result;
}

}  // namespace longhaul::transport
