#include "server/tensor/robust_mean.h"

#include <Eigen/Core>
#include <algorithm>
#include <cmath>

#include "base/check.h"

namespace longhaul::server {
namespace {

constexpr int kClippings = 3;

using Vector = Eigen::Map<Eigen::ArrayXf>;
using ConstVector = Eigen::Map<const Eigen::ArrayXf>;

ConstVector Of(Contribution values) { return {values.data(), static_cast<Eigen::Index>(values.size())}; }
Vector Of(std::span<float> values) { return {values.data(), static_cast<Eigen::Index>(values.size())}; }

// The elements of both rows, the smaller ones in `low`.
template <size_t kBlock>
void Exchange(float* low, float* high) {
  using Block = Eigen::Map<Eigen::Array<float, kBlock, 1>>;
  Block a(low), b(high);
  const Eigen::Array<float, kBlock, 1> smaller = a.min(b);
  b = a.max(b);
  a = smaller;
}

}  // namespace

size_t LiarsAmong(size_t workers, double share) {
  if (workers == 0) return 0;
  const auto wanted = static_cast<size_t>(share * static_cast<double>(workers));
  return std::min(std::max<size_t>(1, wanted), (workers - 1) / 2);
}

void RobustMean::Compute(Aggregation how, std::span<const Contribution> contributions, size_t liars,
                         std::span<float> out) {
  LH_CHECK(!contributions.empty());
  const size_t rows = std::max(contributions.size(), 2 * liars + 1);
  if (how == Aggregation::kTrimmedMean) return Trim(contributions, rows, liars, out);
  Trim(contributions, rows, (rows - 1) / 2, out);
  Clip(contributions, rows, out);
}

// Block by block: the largest values go to the last rows, the smallest to the first ones.
void RobustMean::Trim(std::span<const Contribution> contributions, size_t rows, size_t trimmed,
                      std::span<float> out) {
  rows_.resize(rows * kBlock);
  const auto row = [this](size_t i) { return rows_.data() + i * kBlock; };
  const auto scale = 1.0f / static_cast<float>(rows - 2 * trimmed);
  for (size_t first = 0; first < out.size(); first += kBlock) {
    const size_t length = std::min(kBlock, out.size() - first);
    std::ranges::fill(rows_, 0.0f);
    for (size_t i = 0; i < contributions.size(); ++i) {
      std::ranges::copy(contributions[i].subspan(first, length), row(i));
    }
    for (size_t last = rows; last > rows - trimmed; --last) {
      for (size_t i = 1; i < last; ++i) Exchange<kBlock>(row(i - 1), row(i));
    }
    for (size_t done = 0; done < trimmed; ++done) {
      for (size_t i = rows - trimmed; --i > done;) Exchange<kBlock>(row(i - 1), row(i));
    }
    Vector result = Of(out.subspan(first, length));
    result = Of(std::span(row(trimmed), length));
    for (size_t i = trimmed + 1; i < rows - trimmed; ++i) result += Of(std::span(row(i), length));
    result *= scale;
  }
}

void RobustMean::Clip(std::span<const Contribution> contributions, size_t rows, std::span<float> centre) {
  step_.resize(centre.size());
  distances_.resize(rows);
  const size_t zeros = rows - contributions.size();
  const float share = 1.0f / static_cast<float>(rows);
  for (int i = 0; i < kClippings; ++i) {
    const auto distance_of = [&](Contribution x) {
      return std::sqrt((Of(x) - Of(centre)).cast<double>().square().sum());
    };
    std::ranges::transform(contributions, distances_.begin(), distance_of);
    const double of_zeros = std::sqrt(Of(centre).cast<double>().square().sum());
    std::fill(distances_.end() - static_cast<std::ptrdiff_t>(zeros), distances_.end(), of_zeros);
    std::vector<double> sorted = distances_;
    const auto middle = sorted.begin() + static_cast<std::ptrdiff_t>((sorted.size() - 1) / 2);
    std::ranges::nth_element(sorted, middle);
    const auto clip = [&](double distance) { return distance > *middle ? *middle / distance : 1; };
    Of(std::span(step_)) = Of(centre) * static_cast<float>(-clip(of_zeros) * static_cast<double>(zeros));
    for (size_t k = 0; k < contributions.size(); ++k) {
      Of(std::span(step_)) += (Of(contributions[k]) - Of(centre)) * static_cast<float>(clip(distances_[k]));
    }
    Of(centre) += share * Of(std::span(step_));
  }
}

}  // namespace longhaul::server
