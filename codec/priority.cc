#include "codec/priority.h"

#include <Eigen/Core>
#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>

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

Result<PriorityPolicy> ParsePriorityPolicy(std::string_view name) {
  if (name == "energy") return PriorityPolicy::kEnergy;
  if (name == "layer") return PriorityPolicy::kLayerOrder;
  if (name == "topk") return PriorityPolicy::kTopK;
  return Status(StatusCode::kInvalidArgument,
                "priority \"" + std::string(name) + "\" is unknown; there are energy, layer and topk");
}

PriorityClassifier::PriorityClassifier(const ChunkGeometry& geometry, const PriorityOptions& options)
    : geometry_(geometry),
      options_(options),
      always_high_(geometry.chunks(), false),
      energies_(geometry.chunks(), 0.0),
      scores_(geometry.chunks(), 0.0) {
  for (const TensorOptions::Range& range : options.high_ranges) {
    if (range.count == 0) continue;
    LH_CHECK_OP(range.first, <, geometry.count);
    LH_CHECK_OP(range.count, <=, geometry.count - range.first);
    const uint64_t last = (range.first + range.count - 1) / geometry.chunk_elements;
    for (uint64_t c = range.first / geometry.chunk_elements; c <= last; ++c) always_high_[c] = true;
  }
  always_high_count_ = static_cast<uint32_t>(std::count(always_high_.begin(), always_high_.end(), true));
}

void PriorityClassifier::SetScores(std::span<const double> scores) {
  LH_CHECK_OP(scores.size(), ==, scores_.size());
  scores_.assign(scores.begin(), scores.end());
  options_.policy = PriorityPolicy::kExplicit;
}

uint32_t PriorityClassifier::CountByEnergy(std::span<const uint32_t> order) const {
  // The total in the same order, so that the last chunk completes it whatever the rounding.
  double total = 0;
  for (const uint32_t chunk : order) total += energies_[chunk];
  double held = 0;
  uint32_t count = 0;
  while (count < order.size() && held < options_.high_energy * total) held += energies_[order[count++]];
  return count;
}

uint32_t PriorityClassifier::HighCount(std::span<const uint32_t> order) const {
  const auto chunks = static_cast<uint32_t>(order.size());
  if (chunks <= options_.all_high_chunks) return chunks;
  double wanted = 0;
  if (options_.high_energy > 0) {
    wanted = std::max(1.0, static_cast<double>(CountByEnergy(order)));
  } else if (options_.high_share > 0) {
    wanted = std::max(1.0, std::ceil(options_.high_share * static_cast<double>(chunks)));
  }
  return std::max(always_high_count_, static_cast<uint32_t>(std::min(wanted, static_cast<double>(chunks))));
}

void PriorityClassifier::UpdateScores(std::span<const double> energies, Priorities* result) {
  const auto chunks = static_cast<uint32_t>(energies.size());
  result->log_energy.resize(chunks);
  for (uint32_t chunk = 0; chunk < chunks; ++chunk) {
    double energy = energies[chunk];
    result->log_energy[chunk] = QuantizeEnergy(energy);
    if (!std::isfinite(energy)) {
      if (!result->not_finite) result->not_finite = chunk;
      energy = DequantizeEnergy(255);  // sorts first, and stays comparable
    }
    energies_[chunk] =
        scored_ ? options_.smoothing * energies_[chunk] + (1 - options_.smoothing) * energy : energy;
    if (options_.policy == PriorityPolicy::kLayerOrder) {
      scores_[chunk] = static_cast<double>(chunks - chunk);
    } else if (options_.policy != PriorityPolicy::kExplicit) {
      scores_[chunk] = energies_[chunk];
    }
  }
  scored_ = true;
}

Priorities PriorityClassifier::Classify(std::span<const float> values, uint64_t round) {
  LH_CHECK_OP(values.size(), ==, geometry_.count);
  std::vector<double> energies(geometry_.chunks());
  for (uint32_t chunk = 0; chunk < energies.size(); ++chunk) {
    energies[chunk] = ChunkEnergy(geometry_.Elements(values, chunk));
  }
  return ClassifyEnergies(energies, round);
}

Priorities PriorityClassifier::ClassifyEnergies(std::span<const double> energies, uint64_t round) {
  LH_CHECK_OP(energies.size(), ==, scores_.size());
  Priorities result;
  UpdateScores(energies, &result);
  std::vector<uint32_t> order(energies.size());
  std::iota(order.begin(), order.end(), 0u);
  // Equal scores keep the tensor's order, so that the outcome is the same everywhere.
  std::stable_sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) {
    if (always_high_[a] != always_high_[b]) return static_cast<bool>(always_high_[a]);
    return scores_[a] > scores_[b];
  });
  const auto high = static_cast<std::ptrdiff_t>(HighCount(order));
  result.high.assign(order.begin(), order.begin() + high);
  result.low.assign(order.begin() + high, order.end());
  std::sort(result.high.begin(), result.high.end());
  std::sort(result.low.begin(), result.low.end());
  const uint64_t turn = Random(options_.seed ^ round * 0x9e3779b97f4a7c15ull).Below(energies.size());
  const auto first = std::lower_bound(result.low.begin(), result.low.end(), static_cast<uint32_t>(turn));
  std::rotate(result.low.begin(), first, result.low.end());
  double low_energy = 0;
  for (const uint32_t chunk : result.low) low_energy += DequantizeEnergy(result.log_energy[chunk]);
  result.total_low_energy = static_cast<float>(std::min(low_energy, 3e38));
  return result;
}

}  // namespace longhaul::codec
