#include "codec/policy/filler.h"

#include <Eigen/Core>
#include <algorithm>
#include <vector>

#include "base/check.h"
#include "base/zeroed_array.h"
#include "codec/policy/shift.h"

namespace longhaul::codec {
namespace {

using Vector = Eigen::Map<Eigen::ArrayXf>;
using ConstVector = Eigen::Map<const Eigen::ArrayXf>;

// mean = sum / weight; zeros without weight.
void Divide(std::span<const float> sum, double weight, std::span<float> mean) {
  LH_CHECK_OP(sum.size(), ==, mean.size());
  const auto size = static_cast<Eigen::Index>(mean.size());
  Vector out(mean.data(), size);
  if (weight > 0) {
    out = ConstVector(sum.data(), size) * static_cast<float>(1.0 / weight);
  } else {
    out.setZero();
  }
}

// zero and residual: what is missing counts as zero among all.
class ZeroFiller : public Filler {
 public:
  void Mean(uint32_t, const ChunkTally& tally, std::span<const float> sum, std::span<float> mean) override {
    Divide(sum, tally.total() + tally.absent, mean);
  }
};

// What is filled is left out of the divisor.
class CountFiller final : public Filler {
 public:
  void Mean(uint32_t, const ChunkTally& tally, std::span<const float> sum, std::span<float> mean) override {
    Divide(sum, tally.arrived + tally.tolerated + tally.absent, mean);
  }
};

class StaleFiller final : public Filler {
 public:
  explicit StaleFiller(const ChunkGeometry& geometry) : geometry_(geometry), previous_(geometry.count) {}

  void Mean(uint32_t chunk, const ChunkTally& tally, std::span<const float> sum,
            std::span<float> mean) override {
    const double weight = tally.total() + tally.absent;
    Divide(sum, weight, mean);
    const std::span<float> previous = geometry_.Elements(previous_.span(), chunk);
    const auto size = static_cast<Eigen::Index>(mean.size());
    Vector past(previous.data(), size);
    if (tally.filled > 0) {
      Vector(mean.data(), size) += past * (static_cast<float>(tally.filled / weight) * kStaleDecay);
    }
    // Over those that are in the step: what a missing one is expected to send.
    const double all = tally.total() > 0 ? weight / tally.total() : 0.0;
    past = ConstVector(mean.data(), size) * static_cast<float>(all);
  }

 private:
  ChunkGeometry geometry_;
  ZeroedArray<float> previous_;  // the last round's mean
};

// sum over i of M_i w_i g_i / q_i, by the weight of all: unbiased, however uneven the loss.
class IpwFiller final : public ZeroFiller {
 public:
  IpwFiller(double threshold, uint32_t ranks) : threshold_(threshold), shares_(ranks, kUnknown) {}

  float ArrivalScale(uint32_t rank, bool high) const override {
    LH_CHECK_OP(rank, <, shares_.size());
    const double share = shares_[rank];
    if (high || share == kUnknown || 1 - share <= threshold_) return 1.0f;
    return std::min(kMaxInverseShare, static_cast<float>(1 / share));  // share 0: the bound
  }

  void OnWindowOver(uint32_t rank, uint32_t low_count, uint32_t low_received) override {
    LH_CHECK_OP(rank, <, shares_.size());
    LH_CHECK_OP(low_received, <=, low_count);
    if (low_count == 0) return;
    const double realised = static_cast<double>(low_received) / low_count;
    double& share = shares_[rank];
    share = share == kUnknown ? realised : share + kShareGain * (realised - share);
  }

 private:
  static constexpr double kUnknown = -1;

  double threshold_;
  std::vector<double> shares_;  // by rank: of its low chunks, the share that arrives
};

}  // namespace

std::string_view FillReasonName(FillReason reason) {
  switch (reason) {
    case FillReason::kNoneLost:
      return "none_lost";
    case FillReason::kBelowThreshold:
      return "below_threshold";
    case FillReason::kAboveThreshold:
      return "above_threshold";
    case FillReason::kRepaid:
      return "repaid";
    case FillReason::kShifted:
      return "shifted";
  }
  return "unknown";
}

FillReason ReasonFor(LossPolicy policy, const ChunkTally& tally) {
  if (!(tally.tolerated > 0) && !(tally.filled > 0)) return FillReason::kNoneLost;
  if (policy == LossPolicy::kResidual) return FillReason::kRepaid;
  if (policy == LossPolicy::kShift) return FillReason::kShifted;
  return tally.filled > 0 ? FillReason::kAboveThreshold : FillReason::kBelowThreshold;
}

float Filler::ArrivalScale(uint32_t, bool) const { return 1.0f; }
void Filler::OnWindowOver(uint32_t, uint32_t, uint32_t) {}
void Filler::BeginEpoch(double) {}

std::unique_ptr<Filler> MakeFiller(const JobSpec& spec, const ChunkGeometry& geometry, uint32_t ranks) {
  switch (spec.policy) {
    case LossPolicy::kZero:
    case LossPolicy::kResidual:
      return std::make_unique<ZeroFiller>();
    case LossPolicy::kCount:
      return std::make_unique<CountFiller>();
    case LossPolicy::kStale:
      return std::make_unique<StaleFiller>(geometry);
    case LossPolicy::kIpw:
      return std::make_unique<IpwFiller>(spec.bubble_threshold, ranks);
    case LossPolicy::kShift:
      return std::make_unique<ShiftFiller>(geometry, static_cast<float>(spec.shift_alpha));
  }
  LH_CHECK(false);
  return nullptr;
}

}  // namespace longhaul::codec
