#include "worker/client/push_pipeline.h"

#include <algorithm>
#include <bit>
#include <cstdio>
#include <numeric>
#include <string>
#include <utility>

#include "base/check.h"
#include "codec/chunk/quantize.h"
#include "codec/chunk/top_k.h"
#include "codec/fec/erasure_coder.h"
#include "codec/policy/summable.h"

namespace longhaul::worker {
namespace {

bool TravelsSparse(uint32_t count, uint32_t nonzero) {
  return codec::SparseChunkBytes(count, nonzero) < codec::DenseChunkBytes(count);
}

ByteSpan AsBytes(std::span<const float> values) {
  return {reinterpret_cast<const uint8_t*>(values.data()), values.size_bytes()};
}

codec::PriorityOptions PriorityOptionsOf(const PushPipeline::Settings& settings) {
  codec::PriorityOptions options;
  options.policy = settings.priority;
  options.high_share = settings.high_share;
  options.high_energy = settings.high_energy;
  options.lost_energy = settings.lost_energy;
  options.high_ranges = settings.high_ranges;
  options.seed = settings.seed;
  return options;
}

std::string Place(const codec::ChunkGeometry& geometry, uint32_t chunk) {
  const uint64_t first = geometry.First(chunk);
  return " in chunk " + std::to_string(chunk) + " (elements " + std::to_string(first) + " to " +
         std::to_string(first + geometry.Length(chunk) - 1) + ")";
}

Status NotFinite(const codec::ChunkGeometry& geometry, uint32_t chunk, const std::string& what) {
  return {StatusCode::kInvalidArgument, what + " has a value that is not finite" + Place(geometry, chunk)};
}

Status TooLarge(const codec::ChunkGeometry& geometry, uint32_t chunk, uint32_t world_size, float weight,
                float largest) {
  char bound[128];
  std::snprintf(bound, sizeof bound, "%g, the most that %u workers of weight %g can sum",
                static_cast<double>(largest), world_size, static_cast<double>(weight));
  return {StatusCode::kInvalidArgument,
          "the gradient has a value" + Place(geometry, chunk) + " whose magnitude is above " + bound};
}

}  // namespace

PushPipeline::PushPipeline(const TensorShape& shape, const Settings& settings)
    : shape_(shape),
      settings_(settings),
      geometry_(shape.gradient()),
      capacity_(
          codec::SparseCapacity(settings.symbol_bytes, geometry_.chunk_elements, shape.format.gradient)),
      classifier_(geometry_, PriorityOptionsOf(settings)),
      memory_(codec::MakeSenderMemory(settings, geometry_,
                                      codec::LargestSent(settings.world_size, settings.weight))),
      scratch_(std::min<uint64_t>(geometry_.chunk_elements, geometry_.count)) {
  LH_CHECK(top_k() == (shape.format.topk_share > 0));
  LH_CHECK(!top_k() || codec::Remembers(settings.policy));
}

void PushPipeline::SetScores(std::vector<float> parts) {
  LH_CHECK(!parts.empty());
  LH_CHECK_OP(parts.size(), <=, std::min<uint64_t>(geometry_.count, wire::kMaxWindowChunks));
  new_parts_ = std::move(parts);
}

// --- The survey ---

void PushPipeline::Begin(uint64_t round, std::span<const float> gradient, bool wants_result, uint32_t epoch,
                         float weight) {
  LH_CHECK(idle());
  LH_CHECK_OP(gradient.size(), ==, geometry_.count);
  if (!new_parts_.empty()) parts_ = std::exchange(new_parts_, {});
  stage_ = top_k() ? Stage::kSampling : Stage::kSurveying;
  initial_ = false;
  wants_result_ = wants_result;
  weight_ = weight > 0 ? weight : settings_.weight;
  round_ = round;
  new_epoch_ = epoch;
  values_ = gradient;
  Clear();
  largest_ = std::bit_cast<uint32_t>(codec::LargestGradient(settings_.world_size, weight_));
  nonzero_.clear();
  nonzero_.reserve(chunks());
  classifier_.Begin(round_);
  rounding_seed_ = codec::RoundingSeed(settings_.seed, settings_.rank, shape_.key, round_);
  if (top_k()) sampler_.emplace(geometry_.count, shape_.format.topk_share, rounding_seed_);
}

void PushPipeline::BeginInitial(std::span<const float> values) {
  LH_CHECK(idle());
  LH_CHECK_OP(values.size(), ==, shape_.geometry.count);
  initial_ = true;
  values_ = values;
  Clear();
  high_order_.resize(chunks());
  std::iota(high_order_.begin(), high_order_.end(), 0u);
  low_order_.clear();
  codec::WindowMetadata metadata;
  metadata.kind = codec::WindowKind::kInitial;
  metadata.dtype = shape_.dtype;
  metadata.chunk_elements = shape_.geometry.chunk_elements;
  Describe(metadata);
}

void PushPipeline::Clear() {
  next_ = 0;
  refusal_ = Status::Ok();
  chunks_.clear();
  chunks_.reserve(chunks());
  bodies_.Clear();
  submitted_ = 0;
  submitted_bytes_ = ByteCount(0);
}

bool PushPipeline::Survey(WorkBudget& budget) {
  while (stage_ != Stage::kReady && !idle()) {
    if (budget.spent()) return false;
    SurveyStep(budget);
  }
  return true;
}

void PushPipeline::SurveyStep(WorkBudget& budget) {
  if (stage_ == Stage::kRanking) {
    const uint64_t most = std::clamp<uint64_t>(budget.left() / WorkBudget::kPerRankedChunk, 1, chunks());
    budget.Spend(most * WorkBudget::kPerRankedChunk);
    if (classifier_.Rank(static_cast<uint32_t>(most))) TakePriorities();
    return;
  }
  if (stage_ == Stage::kSampling) {
    budget.Spend(WorkBudget::kPerChunk);  // for an element that is in no cache
    return Sample();
  }
  LH_CHECK(stage_ == Stage::kSurveying);
  const uint32_t c = next_++;
  budget.Spend(WorkBudget::kPerChunk + geometry_.Length(c));
  SurveyChunk(c);
  if (!idle() && next_ == chunks()) stage_ = Stage::kRanking;
}

// A gradient that is not finite is refused by the survey; until then its threshold may be anything.
void PushPipeline::Sample() {
  const uint64_t element = sampler_->next();
  if (element < geometry_.count)
    return sampler_->Add(memory_->PreviewOne(element, values_[element], begins_epoch()));
  threshold_ = sampler_->Threshold();
  stage_ = Stage::kSurveying;
}

void PushPipeline::SurveyChunk(uint32_t c) {
  const std::span<const float> fresh = geometry_.Elements(values_, c);
  const uint32_t least = top_k() ? codec::LeastMagnitude(threshold_) : 1;
  const codec::Survey survey = memory_->SurveyChunk(c, fresh, begins_epoch(), least);
  if (survey.largest_fresh > largest_) {
    refusal_ = survey.largest_fresh >= codec::kInfinityBits
                   ? NotFinite(geometry_, c, "the gradient")
                   : TooLarge(geometry_, c, settings_.world_size, weight_, std::bit_cast<float>(largest_));
    return Release();
  }
  if (!parts_.empty()) classifier_.SetScore(c, ScoreOf(c));
  classifier_.Score(c, EnergyOf(c, survey));
  nonzero_.push_back(static_cast<uint16_t>(survey.selected));
}

// Of what travels, before it is rounded.
double PushPipeline::EnergyOf(uint32_t c, const codec::Survey& survey) {
  if (survey.selected == 0) return 0;
  const auto count = geometry_.Length(c);
  const uint32_t capacity = top_k() ? Capacity(count) : count;
  if (survey.selected <= capacity && codec::FitsFloat(survey.energy))
    return static_cast<double>(survey.energy);
  const std::span<float> values = std::span(scratch_).first(count);
  memory_->Preview(c, geometry_.Elements(values_, c), begins_epoch(), values);
  if (top_k()) codec::SelectTopK(values, threshold_, capacity, values);
  return codec::ChunkEnergy(values);
}

// The highest score among the parts that have an element of the chunk. Part p of P has the elements from
// count * p / P to before count * (p + 1) / P.
double PushPipeline::ScoreOf(uint32_t c) const {
  const uint64_t parts = parts_.size();
  const uint64_t end = geometry_.First(c) + geometry_.Length(c);
  const auto first_of = [&](uint64_t part) { return geometry_.count * part / parts; };
  uint64_t part = geometry_.First(c) * parts / geometry_.count;  // rounding may have it one too early
  if (first_of(part + 1) <= geometry_.First(c)) ++part;
  float highest = 0;
  for (; part < parts && first_of(part) < end; ++part) highest = std::max(highest, parts_[part]);
  return static_cast<double>(highest);
}

// The ranking is complete.
void PushPipeline::TakePriorities() {
  codec::Priorities priorities = classifier_.Take();
  if (priorities.not_finite) {  // sums of finite values
    refusal_ =
        NotFinite(geometry_, *priorities.not_finite, "the gradient with what is owed from earlier rounds");
    return Release();
  }
  if (begins_epoch()) memory_->BeginEpoch();
  epoch_ = new_epoch_;
  prepared_ = memory_->Begin(values_);
  log_energy_ = std::move(priorities.log_energy);
  high_order_ = std::move(priorities.high);
  low_order_ = std::move(priorities.low);
  codec::WindowMetadata metadata;
  metadata.kind = codec::WindowKind::kGradient;
  metadata.dtype = shape_.format.gradient;
  metadata.chunk_elements = geometry_.chunk_elements;
  metadata.round = round_;
  metadata.weight = weight_;
  metadata.wants_result = wants_result_;
  metadata.total_low_energy = priorities.total_low_energy;
  metadata.shift_epoch = epoch_;
  Describe(metadata);
}

void PushPipeline::Describe(codec::WindowMetadata metadata) {
  metadata.key = shape_.key;
  metadata.count = shape_.geometry.count;
  window_ = {};
  window_.high_count = static_cast<uint32_t>(high_order_.size());
  window_.low_count = static_cast<uint32_t>(low_order_.size());
  window_.symbol_bytes = settings_.symbol_bytes;
  window_.fec_k = codec::BlockSizeFor(settings_.fec_k, window_.high_count);
  window_.fec_depth = settings_.fec_depth;
  window_.priority = settings_.window_priority;
  metadata_ = metadata;
  window_.metadata = codec::EncodeWindowMetadata(metadata);
  stage_ = Stage::kReady;
}

// --- Encoding ---

void PushPipeline::EncodeNext() {
  const uint32_t c = ChunkAt(static_cast<uint32_t>(chunks_.size()));
  initial_ ? EncodeInitialChunk(c) : EncodeGradientChunk(c);
}

void PushPipeline::EncodeInitialChunk(uint32_t c) {
  const std::span<const float> elements = shape_.geometry.Elements(values_, c);
  EncodedChunk& chunk = chunks_.emplace_back();
  chunk.header = codec::EncodeDenseHeader(c, static_cast<uint32_t>(elements.size()));
  chunk.body = AsBytes(elements);
}

void PushPipeline::EncodeGradientChunk(uint32_t c) {
  const DType dtype = shape_.format.gradient;
  const uint32_t count = geometry_.Length(c);
  const uint32_t nonzero = nonzero_[c];
  EncodedChunk& chunk = chunks_.emplace_back();
  if (dtype == DType::kFloat32 && !top_k()) {
    // From the gradient itself: a zero might have another sign in what is prepared.
    const bool untouched = nonzero == count && !memory_->Holds(c);
    chunk.as_it_is = untouched ? geometry_.Elements(values_, c) : Combined(c);
    if (!TravelsSparse(count, nonzero)) {
      chunk.header = codec::EncodeDenseHeader(c, count, nonzero, log_energy_[c]);
      chunk.body = AsBytes(chunk.as_it_is);
      return;
    }
  }
  std::span<const float> values = Combined(c);
  if (top_k()) {
    const std::span<float> selected = std::span(scratch_).first(count);
    codec::SelectTopK(values, threshold_, Capacity(count), selected);
    values = selected;
  }
  const codec::Rounding rounding = codec::RoundingOf(dtype, codec::Remembers(settings_.policy),
                                                     codec::ChunkRoundingSeed(rounding_seed_, c));
  // A block that moved would leave the bodies before this one dangling.
  std::vector<uint8_t>* bodies = bodies_.Room(codec::DenseChunkBytes(count, dtype));
  const size_t first = bodies->size();
  chunk.header = codec::EncodeChunk(c, values, {dtype, rounding, log_energy_[c]}, bodies);
  chunk.body = ByteSpan(*bodies).subspan(first);
}

std::span<const float> PushPipeline::Combined(uint32_t c) {
  memory_->CombineChunk(c);
  return geometry_.Elements(prepared_, c);
}

std::vector<uint8_t>* PushPipeline::BodyStore::Room(size_t bytes) {
  while (block_ < blocks_.size() && blocks_[block_].capacity() - blocks_[block_].size() < bytes) ++block_;
  if (block_ == blocks_.size()) blocks_.emplace_back().reserve(std::max(kBlockBytes, bytes));
  return &blocks_[block_];
}

void PushPipeline::BodyStore::Clear() {
  for (std::vector<uint8_t>& block : blocks_) block.clear();
  block_ = 0;
}

// --- Sending ---

uint32_t PushPipeline::ChunkAt(uint32_t position) const {
  return position < high_order_.size() ? high_order_[position] : low_order_[position - high_order_.size()];
}

Status PushPipeline::Submit(transport::Connection& connection, transport::WindowKey key, WorkBudget& budget) {
  LH_CHECK(stage_ == Stage::kReady);
  while (!submitted() && !budget.spent()) {
    budget.Spend(WorkBudget::kPerChunk);
    if (submitted_ == chunks_.size()) {
      EncodeNext();
      if (!initial_) budget.Spend(geometry_.Length(ChunkAt(submitted_)));
    }
    const EncodedChunk& chunk = chunks_[submitted_];
    const auto reliability =
        submitted_ < high_order_.size() ? wire::ReliabilityClass::kHigh : wire::ReliabilityClass::kLow;
    if (Status s = connection.SubmitChunk(key, reliability, chunk.header, chunk.body); !s.ok()) return s;
    ++submitted_;
    submitted_bytes_ += ByteCount(static_cast<int64_t>(chunk.header.size() + chunk.body.size()));
  }
  return Status::Ok();
}

// --- The end ---

PushPipeline::Outcome PushPipeline::OnClosed(const transport::WindowReceipt& receipt,
                                             const transport::WindowTxStats& stats) {
  LH_CHECK(stage_ == Stage::kReady);
  Outcome outcome;
  outcome.lost_chunks = static_cast<uint32_t>(low_order_.size()) - receipt.low.count();
  if (!receipt.high_complete) {
    outcome.lost_chunks += static_cast<uint32_t>(high_order_.size()) - receipt.high.count();
  }
  // What was sent is taken at the mean length of the chunks.
  const auto sent = static_cast<int64_t>(stats.high_sent) + stats.low_sent;
  const auto again = static_cast<int64_t>(stats.retransmissions) + stats.repairs_sent;
  outcome.wire_bytes = ByteCount(submitted_bytes_.value() * sent / std::max<int64_t>(1, submitted_) +
                                 again * settings_.symbol_bytes);
  stage_ = Stage::kSettling;
  next_ = 0;
  receipt_ = receipt;
  LearnLoss();
  return outcome;
}

// A window that was given up says nothing of what is lost when one is over.
void PushPipeline::LearnLoss() {
  constexpr double kPast = 7.0 / 8;  // about eight windows, by their chunks: one may have few low ones
  const double high_wanted = settings_.close_ratio_high * static_cast<double>(high_order_.size());
  if (initial_ || !(receipt_.high_complete || receipt_.high.count() >= high_wanted)) return;
  const auto low = static_cast<double>(low_order_.size());
  low_sent_ = kPast * low_sent_ + low;
  low_lost_ = kPast * low_lost_ + low - receipt_.low.count();
  if (low_sent_ > 0) classifier_.ExpectLoss(low_lost_ / low_sent_);
}

void PushPipeline::Rewind() {
  LH_CHECK(stage_ == Stage::kReady || (stage_ == Stage::kSettling && next_ == 0));
  stage_ = Stage::kReady;
  submitted_ = 0;
  submitted_bytes_ = ByteCount(0);
  receipt_ = {};
}

void PushPipeline::OnCounted(transport::ChunkBitmap counted) {
  LH_CHECK(stage_ == Stage::kReady);
  counted_ = std::move(counted);
  stage_ = Stage::kSettling;
  next_ = 0;
}

void PushPipeline::SetKey(uint32_t key, int window_priority) {
  settings_.window_priority = window_.priority = window_priority;
  shape_.key = metadata_.key = key;
  if (stage_ == Stage::kReady) window_.metadata = codec::EncodeWindowMetadata(metadata_);
}

bool PushPipeline::Settle(WorkBudget& budget) {
  if (idle()) return true;
  LH_CHECK(stage_ == Stage::kSettling);
  if (initial_ || !codec::Remembers(settings_.policy)) {
    Abandon();
    return true;
  }
  for (; next_ < chunks(); ++next_) {
    if (budget.spent()) return false;
    const auto high = static_cast<uint32_t>(high_order_.size());
    const uint32_t c = ChunkAt(next_);
    if (next_ == chunks_.size()) EncodeNext();  // it was closed early
    const bool acknowledged = next_ < high ? receipt_.HighTaken(next_) : receipt_.LowTaken(next_ - high);
    SettleChunk(c, counted_ ? counted_->Test(c) : acknowledged);
    budget.Spend(WorkBudget::kPerChunk + geometry_.Length(c));
  }
  Abandon();
  return true;
}

void PushPipeline::SettleChunk(uint32_t c, bool taken) {
  if (!taken) return memory_->SettleChunk(c, false, {});
  const EncodedChunk& chunk = chunks_[next_];
  if (!chunk.as_it_is.empty()) return memory_->SettleChunk(c, true, chunk.as_it_is);
  const std::span<float> sent = std::span(scratch_).first(geometry_.Length(c));
  codec::DecodeChunk(*codec::ParseChunk(chunk.header, chunk.body), sent);
  memory_->SettleChunk(c, true, sent);
}

void PushPipeline::Abandon() {
  if (idle()) return;
  if (!initial_ && stage_ >= Stage::kReady) memory_->Finish();
  Release();
}

void PushPipeline::Release() {
  stage_ = Stage::kIdle;
  values_ = prepared_ = {};
  receipt_ = {};
  counted_.reset();
}

}  // namespace longhaul::worker
