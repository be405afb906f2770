#include "server/tensor.h"

#include <algorithm>

#include "base/check.h"

namespace longhaul::server {

Tensor::Tensor(Parameters* parameters, uint32_t ranks, Fill fill)
    : parameters_(parameters),
      fill_(fill),
      aggregator_(parameters->geometry(), ranks),
      rounds_(parameters->geometry().chunks(), ranks),
      optimizer_(MakeOptimizer(parameters->spec().optimizer, parameters->geometry().count)),
      windows_(ranks),
      mean_(std::min<uint64_t>(parameters->geometry().chunk_elements, parameters->geometry().count)) {
  if (fill.policy == codec::FillPolicy::kStale) previous_.resize(parameters->geometry().count, 0.0f);
}

void Tensor::SetWindowLoss(uint32_t rank, double loss, float weight) { windows_[rank] = {true, loss, weight}; }

uint32_t Tensor::Finalise(uint32_t chunk) {
  LH_CHECK(parameters_->initial() == Parameters::Initial::kReady);
  double tolerated = 0;  // weight of losses that stay as they are
  double filled = 0;     // weight of losses that the policy fills
  uint32_t fills = 0;
  for (uint32_t rank = 0; rank < windows_.size(); ++rank) {
    const LostWindow& window = windows_[rank];
    if (!window.over || aggregator_.Contributed(rank, chunk)) continue;
    if (window.loss > fill_.bubble_threshold) {
      filled += static_cast<double>(window.weight);
      ++fills;
    } else {
      tolerated += static_cast<double>(window.weight);
    }
  }
  const std::span<float> mean = std::span(mean_).first(parameters_->geometry().Length(chunk));
  (void)tolerated;
  (void)filled;
  const double weight = std::max(1e-30, aggregator_.weight(chunk) + tolerated + filled);
  const std::span<const float> sum = aggregator_.sum(chunk);
  for (size_t i = 0; i < mean.size(); ++i) mean[i] = static_cast<float>(sum[i] / weight);
  const uint64_t first = parameters_->geometry().First(chunk);
  optimizer_->Step(first, mean, parameters_->current(chunk), parameters_->mutable_next(chunk));
  if (!previous_.empty()) std::copy(mean.begin(), mean.end(), previous_.begin() + static_cast<ptrdiff_t>(first));
  rounds_.MarkFinal(chunk);
  return fills;
}

void Tensor::NextRound() {
  parameters_->Advance();
  aggregator_.Reset();
  rounds_.Next();
  std::fill(windows_.begin(), windows_.end(), LostWindow());
}

}  // namespace longhaul::server
