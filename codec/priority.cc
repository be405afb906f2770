#include "codec/priority.h"

#include <Eigen/Core>
#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/check.h"
#include "base/random.h"

namespace longhaul::codec {

uint8_t QuantizeEnergy(double energy) {
  if (std::isnan(energy)) return 255;
  if (energy <= 0) return 0;
  const double q = std::round(2.0 * std::log2(energy)) + 128.0;
  return static_cast<uint8_t>(std::clamp(q, 1.0, 255.0));
}

double DequantizeEnergy(uint8_t quantized) {
  return quantized == 0 ? 0.0 : std::exp2((static_cast<double>(quantized) - 128.0) / 2.0);
}

double ChunkEnergy(std::span<const float> values) {
  const Eigen::Map<const Eigen::VectorXf> v(values.data(), static_cast<Eigen::Index>(values.size()));
  const float energy = v.squaredNorm();
  // Squares leave float's range long before the values do; then once more, slowly.
  if (!(energy > 1e-30f && energy < 1e38f)) return v.cast<double>().squaredNorm();
  return static_cast<double>(energy);
}

PriorityClassifier::PriorityClassifier(const ChunkGeometry& geometry, const PriorityOptions& options)
    : geometry_(geometry), options_(options), scores_(geometry.chunks(), 0.0) {}

void PriorityClassifier::SetScores(std::span<const double> scores) {
  LH_CHECK_OP(scores.size(), ==, scores_.size());
  scores_.assign(scores.begin(), scores.end());
}

uint32_t PriorityClassifier::HighCount() const {
  const uint32_t chunks = geometry_.chunks();
  if (chunks <= options_.all_high_chunks) return chunks;
  if (options_.high_share <= 0) return 0;
  const double wanted = std::ceil(options_.high_share * static_cast<double>(chunks));
  return static_cast<uint32_t>(std::clamp(wanted, 1.0, static_cast<double>(chunks)));
}

Priorities PriorityClassifier::Classify(std::span<const float> values, uint64_t round) {
  LH_CHECK_OP(values.size(), ==, geometry_.count);
  const uint32_t chunks = geometry_.chunks();
  Priorities result;
  result.log_energy.resize(chunks);
  for (uint32_t chunk = 0; chunk < chunks; ++chunk) {
    double energy = ChunkEnergy(geometry_.Elements(values, chunk));
    result.log_energy[chunk] = QuantizeEnergy(energy);
    if (!std::isfinite(energy)) energy = DequantizeEnergy(255);  // sorts first, and stays comparable
    if (options_.policy == PriorityPolicy::kEnergy) {
      scores_[chunk] =
          scored_ ? options_.smoothing * scores_[chunk] + (1 - options_.smoothing) * energy : energy;
    } else if (options_.policy == PriorityPolicy::kLayerOrder) {
      scores_[chunk] = static_cast<double>(chunks - chunk);
    }
  }
  scored_ = true;

  std::vector<uint32_t> order(chunks);
  std::iota(order.begin(), order.end(), 0u);
  // Equal scores keep the tensor's order, so that the outcome is the same everywhere.
  std::stable_sort(order.begin(), order.end(),
                   [&](uint32_t a, uint32_t b) { return scores_[a] > scores_[b]; });
  const auto high = static_cast<std::ptrdiff_t>(HighCount());
  result.high.assign(order.begin(), order.begin() + high);
  result.low.assign(order.begin() + high, order.end());
  std::sort(result.high.begin(), result.high.end());
  std::sort(result.low.begin(), result.low.end());
  const uint64_t turn = Random(options_.seed ^ round * 0x9e3779b97f4a7c15ull).Below(chunks);
  const auto first = std::lower_bound(result.low.begin(), result.low.end(), static_cast<uint32_t>(turn));
  std::rotate(result.low.begin(), first, result.low.end());
  double low_energy = 0;
  for (const uint32_t chunk : result.low) low_energy += DequantizeEnergy(result.log_energy[chunk]);
  result.total_low_energy = static_cast<float>(std::min(low_energy, 3e38));
  return result;
}

}  // namespace longhaul::codec
