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

void Tensor::SetWindowLoss(uint32_t rank, double loss, float weight) {
  windows_[rank] = {true, loss, weight};
}

uint32_t Tensor::Finalise(uint32_t chunk) {
  LH_CHECK(parameters_->initial() == Parameters::Initial::kReady);
  codec::ChunkTally tally;
  tally.arrived = aggregator_.weight(chunk);
  uint32_t fills = 0;
  for (uint32_t rank = 0; rank < windows_.size(); ++rank) {
    const LostWindow& window = windows_[rank];
    if (!window.over || aggregator_.Contributed(rank, chunk)) continue;
    const bool fill = window.loss > fill_.bubble_threshold;
    (fill ? tally.filled : tally.tolerated) += static_cast<double>(window.weight);
    fills += fill ? 1 : 0;
  }
  const codec::ChunkGeometry& geometry = parameters_->geometry();
  const std::span<float> mean = std::span(mean_).first(geometry.Length(chunk));
  const std::span<float> previous =
      previous_.empty() ? std::span<float>() : geometry.Elements(std::span(previous_), chunk);
  codec::FillMean(fill_.policy, tally, aggregator_.sum(chunk), previous, mean);
  optimizer_->Step(rounds_.number() + 1, geometry.First(chunk), mean, parameters_->current(chunk),
                   parameters_->mutable_next(chunk));
  if (!previous.empty()) std::copy(mean.begin(), mean.end(), previous.begin());
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
