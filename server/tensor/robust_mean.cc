#include "server/tensor/robust_mean.h"

#include <Eigen/Core>
#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "codec/chunk/top_k.h"

namespace longhaul::server {
namespace {

constexpr int kClippings = 3;
constexpr size_t kBlock = 64;  // elements: 16 contributions of them are 4 KiB, in the cache

using Vector = Eigen::Map<Eigen::ArrayXf>;
using ConstVector = Eigen::Map<const Eigen::ArrayXf>;

ConstVector Of(Contribution values) { return {values.data(), static_cast<Eigen::Index>(values.size())}; }
Vector Of(std::span<float> values) { return {values.data(), static_cast<Eigen::Index>(values.size())}; }

// The elements of both rows, the smaller ones in `low`.
void Exchange(float* low, float* high) {
  using Block = Eigen::Map<Eigen::Array<float, kBlock, 1>>;
  Block a(low), b(high);
  const Eigen::Array<float, kBlock, 1> smaller = a.min(b);
  b = a.max(b);
  a = smaller;
}

// A chunk's contributions and, in the memory that is for it, what the rules keep of them.
class Chunk {
 public:
  static uint64_t Rows(uint64_t contributors, uint64_t liars) {
    return std::max<uint64_t>(contributors, 2 * liars + 1);
  }
  static uint64_t ScratchBytes(uint64_t count, uint32_t contributors, uint32_t liars) {
    const uint64_t rows = Rows(contributors, liars);
    return rows * 2 * sizeof(double) + (rows * kBlock + count) * sizeof(float);
  }

  explicit Chunk(const longhaul_contributions* in)
      : in_(in), liars_(in->liars), rows_count_(Rows(in->contributors, in->liars)) {
    auto* doubles = static_cast<double*>(in->scratch);
    distances_ = {doubles, rows_count_};
    sorted_ = {doubles + rows_count_, rows_count_};
    auto* floats = reinterpret_cast<float*>(doubles + 2 * rows_count_);
    rows_ = {floats, rows_count_ * kBlock};
    step_ = {floats + rows_.size(), in->count};
  }

  void TrimmedMean(std::span<float> out) { Trim(liars_, out); }
  void CentredClipping(std::span<float> out) {
    Trim((rows_count_ - 1) / 2, out);
    Clip(out);
  }

 private:
  size_t size() const { return in_->contributors; }
  Contribution operator[](size_t i) const { return {in_->values[i], in_->count}; }
  void Trim(size_t trimmed, std::span<float> out);
  void Clip(std::span<float> centre);

  const longhaul_contributions* in_;
  size_t liars_;
  size_t rows_count_;
  std::span<double> distances_;  // by row
  std::span<double> sorted_;
  std::span<float> rows_;  // of one block
  std::span<float> step_;
};

// Block by block: the largest values go to the last rows, the smallest to the first ones.
void Chunk::Trim(size_t trimmed, std::span<float> out) {
  const size_t rows = rows_count_;
  const auto row = [this](size_t i) { return rows_.data() + i * kBlock; };
  const auto scale = 1.0f / static_cast<float>(rows - 2 * trimmed);
  for (size_t first = 0; first < out.size(); first += kBlock) {
    const size_t length = std::min(kBlock, out.size() - first);
    std::ranges::fill(rows_, 0.0f);
    for (size_t i = 0; i < size(); ++i) std::ranges::copy((*this)[i].subspan(first, length), row(i));
    for (size_t last = rows; last > rows - trimmed; --last) {
      for (size_t i = 1; i < last; ++i) Exchange(row(i - 1), row(i));
    }
    for (size_t done = 0; done < trimmed; ++done) {
      for (size_t i = rows - trimmed; --i > done;) Exchange(row(i - 1), row(i));
    }
    Vector result = Of(out.subspan(first, length));
    result = Of(std::span(row(trimmed), length));
    for (size_t i = trimmed + 1; i < rows - trimmed; ++i) result += Of(std::span(row(i), length));
    result *= scale;
  }
}

void Chunk::Clip(std::span<float> centre) {
  const size_t zeros = rows_count_ - size();
  const float share = 1.0f / static_cast<float>(rows_count_);
  for (int i = 0; i < kClippings; ++i) {
    for (size_t k = 0; k < size(); ++k)
      distances_[k] = std::sqrt((Of((*this)[k]) - Of(centre)).cast<double>().square().sum());
    const double of_zeros = std::sqrt(Of(centre).cast<double>().square().sum());
    std::fill(distances_.end() - static_cast<std::ptrdiff_t>(zeros), distances_.end(), of_zeros);
    std::ranges::copy(distances_, sorted_.begin());
    const auto middle = sorted_.begin() + static_cast<std::ptrdiff_t>((sorted_.size() - 1) / 2);
    std::ranges::nth_element(sorted_, middle);
    const auto clip = [&](double distance) { return distance > *middle ? *middle / distance : 1; };
    Of(step_) = Of(centre) * static_cast<float>(-clip(of_zeros) * static_cast<double>(zeros));
    for (size_t k = 0; k < size(); ++k)
      Of(step_) += (Of((*this)[k]) - Of(centre)) * static_cast<float>(clip(distances_[k]));
    Of(centre) += share * Of(step_);
  }
}

template <void (Chunk::*kRule)(std::span<float>)>
int32_t Aggregate(const longhaul_contributions* in, float* out) {
  (Chunk(in).*kRule)({out, in->count});
  return 0;
}

constexpr longhaul_aggregation kTrimmedMean = {
    .name = "trimmed_mean", .scratch = Chunk::ScratchBytes, .aggregate = Aggregate<&Chunk::TrimmedMean>};
constexpr longhaul_aggregation kCentredClipping = {.name = "centred_clipping",
                                                   .scratch = Chunk::ScratchBytes,
                                                   .aggregate = Aggregate<&Chunk::CentredClipping>};

}  // namespace

size_t LiarsAmong(size_t workers, double share) {
  if (workers == 0) return 0;
  const auto wanted = static_cast<size_t>(share * static_cast<double>(workers));
  return std::min(std::max<size_t>(1, wanted), (workers - 1) / 2);
}

const longhaul_aggregation* RuleOf(Aggregation how, const longhaul_aggregation* plugin) {
  switch (how) {
    case Aggregation::kMean:
      return nullptr;
    case Aggregation::kTrimmedMean:
      return &kTrimmedMean;
    case Aggregation::kCentredClipping:
      return &kCentredClipping;
    case Aggregation::kPlugin:
      break;
  }
  return plugin;
}

int32_t RobustMean::Compute(const longhaul_contributions& chunk, std::span<float> out) {
  LH_CHECK(chunk.contributors > 0);
  LH_CHECK_OP(chunk.count, ==, out.size());
  longhaul_contributions in = chunk;
  const uint64_t bytes = rule_->scratch == nullptr ? 0 : rule_->scratch(in.count, in.contributors, in.liars);
  if (bytes > kMaxScratchBytes) return kTooMuchScratch;
  scratch_.resize(std::max<size_t>(scratch_.size(), (bytes + sizeof(double) - 1) / sizeof(double)));
  in.scratch = scratch_.data();
  try {
    if (const int32_t code = rule_->aggregate(&in, out.data()); code != 0) return code;
  } catch (...) {  // a plug-in's, in C++
    return kThrew;
  }
  return codec::AllFinite(out) ? 0 : kNotFinite;
}

std::string CodeText(int32_t code) {
  if (code == RobustMean::kThrew) return "threw";
  if (code == RobustMean::kNotFinite) return "gave values that are not finite";
  if (code == RobustMean::kTooMuchScratch) return "asked for more than 16 MiB of memory";
  return "ended with code " + std::to_string(code);
}

}  // namespace longhaul::server
