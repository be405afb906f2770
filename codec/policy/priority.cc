#include "codec/policy/priority.h"

#include <Eigen/Core>
#include <algorithm>
#include <bit>
#include <cmath>
#include <span>
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
  const float energy = BestKernels().survey({values.data()}, values.size()).energy;
  if (FitsFloat(energy)) return static_cast<double>(energy);
  // Squares leave float's range long before the values do; then once more, slowly.
  const Eigen::Map<const Eigen::VectorXf> v(values.data(), static_cast<Eigen::Index>(values.size()));
  return v.cast<double>().squaredNorm();
}

PriorityClassifier::PriorityClassifier(const ChunkGeometry& geometry, const PriorityOptions& options)
    : geometry_(geometry),
      options_(options),
      always_high_(geometry.chunks(), false),
      energies_(geometry.chunks()),
      scored_(geometry.chunks()) {
  for (const TensorOptions::Range& range : options.high_ranges) {
    if (range.count == 0) continue;
    LH_CHECK_OP(range.first, <, geometry.count);
    LH_CHECK_OP(range.count, <=, geometry.count - range.first);
    const uint64_t last = (range.first + range.count - 1) / geometry.chunk_elements;
    for (uint64_t c = range.first / geometry.chunk_elements; c <= last; ++c) always_high_[c] = true;
  }
  always_high_count_ = static_cast<uint32_t>(std::count(always_high_.begin(), always_high_.end(), true));
}

void PriorityClassifier::SetScore(uint32_t chunk, double score) {
  LH_CHECK_OP(chunk, <, geometry_.chunks());
  LH_CHECK(score >= 0);
  explicit_scores_.resize(geometry_.chunks(), 0.0);
  explicit_scores_[chunk] = score;
}

// --- Scores ---

void PriorityClassifier::Begin(uint64_t round) {
  ranking_ = {};
  ranking_.round = round;
  ranking_.result.log_energy.reserve(geometry_.chunks());
}

uint8_t PriorityClassifier::Score(uint32_t chunk, double energy) {
  Ranking& r = ranking_;
  LH_CHECK_OP(chunk, ==, r.scored);
  ++r.scored;
  const uint8_t quantized = QuantizeEnergy(energy);
  r.result.log_energy.push_back(quantized);
  if (!std::isfinite(energy)) {
    if (!r.result.not_finite) r.result.not_finite = chunk;
    energy = DequantizeEnergy(255);  // ranks first, and stays comparable
  }
  double& smoothed = scored_[chunk];
  smoothed = smoothed_ ? options_.smoothing * energies_[chunk] + (1 - options_.smoothing) * energy : energy;
  r.energy += smoothed;
  if (always_high_[chunk]) r.always_energy += smoothed;
  return quantized;
}

// The bits of a score that is not negative compare as the score does.
uint64_t PriorityClassifier::Key(uint32_t chunk) const {
  if (!explicit_scores_.empty()) {
    return std::bit_cast<uint64_t>(explicit_scores_[chunk] + 0.0);  // minus zero becomes zero
  }
  if (options_.policy == Priority::kLayer) return geometry_.chunks() - chunk;
  return std::bit_cast<uint64_t>(energies_[chunk]);
}

// --- The choice of the high class ---

double PriorityClassifier::EnergyWanted() const {
  if (loss_ <= options_.lost_energy) return options_.high_energy;
  return std::max(options_.high_energy, 1 - options_.lost_energy / loss_);
}

void PriorityClassifier::BeginSelection() {
  Ranking& r = ranking_;
  std::swap(energies_, scored_);
  smoothed_ = true;
  const uint32_t chunks = geometry_.chunks();
  r.turn = static_cast<uint32_t>(Random(options_.seed ^ r.round * 0x9e3779b97f4a7c15ull).Below(chunks));
  double wanted = 0;
  if (chunks <= options_.all_high_chunks) {
    wanted = static_cast<double>(chunks);
  } else {
    const double share = options_.high_energy > 0 ? 0 : options_.high_share;
    const double energy = EnergyWanted();
    if (share > 0 || energy > 0) wanted = std::max(1.0, std::ceil(share * static_cast<double>(chunks)));
    if (energy > 0) r.cut.energy_wanted = energy * r.energy - r.always_energy;
  }
  wanted = std::min(wanted, static_cast<double>(chunks)) - static_cast<double>(always_high_count_);
  r.cut.count_wanted = static_cast<uint32_t>(std::max(0.0, wanted));
  BeginPass();
}

void PriorityClassifier::BeginPass() {
  Ranking& r = ranking_;
  r.next = 0;
  r.selected = r.cut.Reached(0, 0) || r.cut.shift == 0;
  r.buckets.fill({});
  if (!r.selected) r.cut.shift -= kDigitBits;
}

void PriorityClassifier::Count(uint32_t chunk) {
  if (always_high_[chunk]) return;
  Ranking& r = ranking_;
  const uint64_t digits = Key(chunk) >> r.cut.shift;
  if (digits >> kDigitBits != r.cut.key) return;
  Bucket& bucket = r.buckets[digits & (kDigits - 1)];
  ++bucket.count;
  bucket.energy += energies_[chunk];
}

void PriorityClassifier::ChooseDigit() {
  Ranking& r = ranking_;
  Cut& cut = r.cut;
  if (cut.shift == 64 - kDigitBits && EnergyWanted() >= 1) {
    // All of it: summed as below, so that the last chunk completes it whatever the rounding.
    cut.energy_wanted = 0;
    for (size_t digit = kDigits; digit-- > 0;) cut.energy_wanted += r.buckets[digit].energy;
  }
  const auto first = std::ranges::find_if(r.buckets, [](const Bucket& b) { return b.count > 0; });
  const auto lowest = static_cast<size_t>(first - r.buckets.begin());
  size_t digit = kDigits - 1;
  // The lowest is chosen if, by rounding, none reaches what the digit before promised.
  for (; digit > lowest; --digit) {
    const Bucket& bucket = r.buckets[digit];
    const bool reached = cut.Reached(cut.energy_held + bucket.energy, cut.count_held + bucket.count);
    if (reached && bucket.count > 0) break;
    cut.energy_held += bucket.energy;
    cut.count_held += bucket.count;
  }
  cut.key = cut.key << kDigitBits | digit;
}

// In order of the chunks: of equal scores the first ones are high, so that the outcome is the same
// everywhere.
bool PriorityClassifier::IsHigh(uint32_t chunk) {
  if (always_high_[chunk]) return true;
  Cut& cut = ranking_.cut;
  if (cut.shift > 0) return false;  // no cut: nothing but the ranges
  const uint64_t key = Key(chunk);
  if (key != cut.key) return key > cut.key;
  if (cut.Reached(cut.energy_held, cut.count_held)) return false;
  cut.energy_held += energies_[chunk];
  ++cut.count_held;
  return true;
}

void PriorityClassifier::Place(uint32_t chunk) {
  Ranking& r = ranking_;
  if (IsHigh(chunk)) return r.result.high.push_back(chunk);
  (chunk < r.turn ? r.low_last : r.result.low).push_back(chunk);
  r.low_energy += DequantizeEnergy(r.result.log_energy[chunk]);
}

bool PriorityClassifier::Rank(uint32_t chunks) {
  Ranking& r = ranking_;
  const uint32_t all = geometry_.chunks();
  LH_CHECK_OP(r.scored, ==, all);
  if (r.cut.shift == 64 && !r.selected) BeginSelection();
  const uint32_t end = r.next + std::min(chunks, all - std::min(all, r.next));
  if (!r.selected) {
    for (; r.next < end; ++r.next) Count(r.next);
    if (r.next == all) {
      ChooseDigit();
      BeginPass();
    }
    return false;
  }
  if (r.next == 0) {
    r.result.high.reserve(all);
    r.result.low.reserve(all);
    r.low_last.reserve(r.turn);
  }
  for (; r.next < end; ++r.next) Place(r.next);
  if (r.next < all) return false;
  // Beyond the last chunk, r.next counts what goes behind the others: megabytes of a large tensor.
  const auto rest = std::span(r.low_last).subspan(r.next - all);
  const auto step = rest.first(std::min<size_t>(chunks, rest.size()));
  r.result.low.insert(r.result.low.end(), step.begin(), step.end());
  r.next += static_cast<uint32_t>(step.size());
  if (step.size() < rest.size()) return false;
  r.result.total_low_energy = static_cast<float>(std::min(r.low_energy, 3e38));
  return true;
}

// --- All at once ---

Priorities PriorityClassifier::ClassifyEnergies(std::span<const double> energies, uint64_t round) {
  LH_CHECK_OP(energies.size(), ==, geometry_.chunks());
  Begin(round);
  for (uint32_t chunk = 0; chunk < energies.size(); ++chunk) Score(chunk, energies[chunk]);
  while (!Rank(geometry_.chunks())) {
  }
  return Take();
}

Priorities PriorityClassifier::Classify(std::span<const float> values, uint64_t round) {
  LH_CHECK_OP(values.size(), ==, geometry_.count);
  std::vector<double> energies(geometry_.chunks());
  for (uint32_t chunk = 0; chunk < energies.size(); ++chunk) {
    energies[chunk] = ChunkEnergy(geometry_.Elements(values, chunk));
  }
  return ClassifyEnergies(energies, round);
}

}  // namespace longhaul::codec
