#include "server/tensor/tensor.h"

#include <algorithm>
#include <new>
#include <utility>

#include "base/check.h"
#include "base/reached.h"
#include "codec/chunk/top_k.h"

namespace longhaul::server {

Tensor::Tensor(Parameters* parameters, uint32_t ranks, const JobSpec& spec, Aggregator::Order order,
               const longhaul_aggregation* plugin)
    : parameters_(parameters),
      spec_(spec),
      filler_(codec::MakeFiller(spec, parameters->gradient_geometry(), ranks)),
      aggregator_(parameters->gradient_geometry(), ranks, order, spec.aggregation, plugin),
      rounds_(parameters->gradient_geometry().chunks(), ranks,
              {.quorum = parameters->spec().quorum, .asynchronous = parameters->spec().staleness != 0}),
      optimizer_(codec::MakeOptimizer(parameters->spec().optimizer, parameters->geometry().count)),
      windows_(ranks),
      mean_(parameters->gradient_geometry().Length(0)) {
  if (!asynchronous()) return;
  ahead_.emplace(geometry(), ranks);
  pushed_.resize(ranks);
  steps_ = ZeroedArray<double>(chunks());
}

bool Tensor::Add(uint32_t rank, bool high, uint32_t chunk, std::span<const float> values, float weight) {
  const float scale = filler_->ArrivalScale(rank, high);
  if (!asynchronous()) return aggregator_.Add(rank, chunk, values, weight, scale);
  if (pushed_[rank].Test(chunk)) return false;
  const bool later = rounds_.IsFinal(chunk) || aggregator_.Contributed(rank, chunk);
  if (later) LH_REACHED("a chunk comes when its step is made, and is of the next one");
  if (!(later ? *ahead_ : aggregator_).Add(rank, chunk, values, weight, scale)) return false;
  return pushed_[rank].Set(chunk);
}

uint64_t Tensor::StepOfPush(uint32_t rank) const {
  const uint64_t now = rounds_.number();
  if (ahead_->contributed(rank).count() > 0) return now + 1;
  return aggregator_.contributed(rank).count() > 0 || now == 0 ? now : now - 1;
}

transport::ChunkBitmap Tensor::CountedOfPush(uint32_t rank) const {
  std::vector<uint8_t> bytes = pushed_[rank].bytes();
  const std::vector<uint8_t>& later = ahead_->contributed(rank).bytes();
  for (size_t i = 0; i < std::min(bytes.size(), later.size()); ++i)
    bytes[i] = static_cast<uint8_t>(bytes[i] & ~later[i]);
  return {pushed_[rank].size(), std::move(bytes)};
}

void Tensor::OnWindowOver(uint32_t rank, const WindowOutcome& outcome) {
  LH_CHECK_OP(outcome.low_received, <=, outcome.low_count);
  const double lost = outcome.low_count - outcome.low_received;
  const double loss = outcome.low_count == 0 ? 0.0 : lost / outcome.low_count;
  const double high_count = chunks() - outcome.low_count;
  const bool short_of_high =
      outcome.high_missing > 0 && (high_count - outcome.high_missing) / high_count < spec_.close_ratio_high;
  const bool above = short_of_high || loss > spec_.bubble_threshold;
  windows_[rank] = {true, above, outcome.weight};
  filler_->OnWindowOver(rank, outcome.low_count, outcome.low_received);
}

Status Tensor::BeginWriting() {
  if (Status begun = parameters_->BeginWriting(); !begun.ok()) return begun;
  try {
    optimizer_->BeginRound();
  } catch (const std::bad_alloc&) {
    return {StatusCode::kResourceExhausted, "no memory for the optimizer's next state of tensor \"" +
                                                parameters_->spec().name +
                                                "\": a checkpoint still holds the last one"};
  }
  return {};
}

TensorImage Tensor::Image() const {
  return {.name = parameters_->spec().name,
          .count = parameters_->spec().count,
          .optimizer = parameters_->spec().optimizer.ToString(),
          .rounds = rounds_before_ + parameters_->version(),
          .round = parameters_->version(),
          .shift_epoch = shift_epoch(),
          .values = parameters_->Snapshot(),
          .state = optimizer_->Snapshot()};
}

TensorImage Tensor::NextImage() const {
  LH_CHECK(rounds_.AllFinal());
  TensorImage image = Image();
  ++image.rounds;
  ++image.round;
  image.values = parameters_->NextSnapshot();
  return image;
}

void Tensor::Restore(TensorImage image) {
  LH_CHECK_OP(image.round, <=, image.rounds);
  rounds_before_ = image.rounds - image.round;
  rounds_.StartAt(image.round);
  epochs_ = image.shift_epoch + 2;  // the one after it has begun
  parameters_->Restore(image.values, image.round);
  optimizer_->Restore(std::move(image.state));
  // About as many whole steps as their number says: exact shares are not kept, and by the time of a restart
  // what they correct is small.
  if (!asynchronous()) return;
  const double steps = static_cast<double>(image.rounds) / static_cast<double>(windows_.size());
  std::ranges::fill(steps_.span(), steps);
}

uint32_t Tensor::Finalise(uint32_t chunk) {
  LH_CHECK(parameters_->initial() == Parameters::Initial::kReady);
  codec::ChunkTally tally;
  tally.arrived = aggregator_.weight(chunk);
  uint32_t filled = 0;
  for (uint32_t rank = 0; rank < windows_.size(); ++rank) {
    const LostWindow& window = windows_[rank];
    if (!window.over || pushed(rank).Test(chunk)) continue;
    (window.above_threshold ? tally.filled : tally.tolerated) += static_cast<double>(window.weight);
    ++(window.above_threshold ? filled : rounds_.tally().tolerated_chunks);
  }
  if (asynchronous()) tally.absent = std::max(0.0, total_weight_ - tally.total());
  RoundTally& round = rounds_.tally();
  round.filled_chunks += filled;
  round.fill_reason = std::max(round.fill_reason, codec::ReasonFor(spec_.policy, tally));

  const codec::ChunkGeometry& geometry = parameters_->gradient_geometry();
  const std::span<float> mean = std::span(mean_).first(geometry.Length(chunk));
  const uint32_t members =
      static_cast<uint32_t>(windows_.size()) - rounds_.Count(Rounds::Participation::kAbsent);
  const uint32_t workers = std::max(members, aggregator_.contributors(chunk));
  filler_->Mean(chunk, tally, aggregator_.sum(chunk, LiarsAmong(workers, spec_.liar_share)), mean);
  double steps = static_cast<double>(rounds_before_ + rounds_.number() + 1);
  double share = 1;
  if (asynchronous()) {
    const double all = tally.total() + tally.absent;
    share = all > 0 ? tally.total() / all : 0;
    steps = steps_[chunk] += share;
  }
  last_chunk_ = chunk;
  step_code_ = optimizer_->PartStep(steps, share, geometry.First(chunk), mean,
                                    geometry.Elements(parameters_->current(), chunk),
                                    geometry.Elements(parameters_->mutable_next(), chunk));
  rounds_.MarkFinal(chunk);
  return filled;
}

Status Tensor::LastStep() const {
  const codec::ChunkGeometry& geometry = parameters_->gradient_geometry();
  if (!aggregator_.failed().empty()) {
    return {StatusCode::kAborted, "tensor \"" + parameters_->spec().name + "\" has no values in round " +
                                      std::to_string(rounds_.number()) + ": the aggregation " +
                                      aggregator_.failed()};
  }
  const bool overflowed = step_code_ == 0 &&
                          !codec::AllFinite(geometry.Elements(parameters_->next(), last_chunk_)) &&
                          codec::AllFinite(geometry.Elements(parameters_->current(), last_chunk_));
  if (step_code_ == 0 && !overflowed) return {};
  std::string how = CodeText(step_code_);
  if (overflowed) how = "overflowed (try a smaller learning rate, or --norm-guard)";
  return {StatusCode::kAborted, "tensor \"" + parameters_->spec().name + "\" " +
                                    (overflowed ? "became infinite" : "has no values") + " in round " +
                                    std::to_string(rounds_.number()) + ": the step of its optimizer " +
                                    parameters_->spec().optimizer.ToString() + " " + how};
}

void Tensor::BeginEpoch(double total_weight) {
  LH_CHECK(!rounds_.begun());
  total_weight_ = total_weight;
  ++epochs_;
  filler_->BeginEpoch(total_weight);
}

void Tensor::NextRound(Instant now) {
  parameters_->Advance();
  aggregator_.Reset();
  if (ahead_) std::swap(aggregator_, *ahead_);
  rounds_.Next(now);
  std::fill(windows_.begin(), windows_.end(), LostWindow());
}

}  // namespace longhaul::server
