#include "worker/push_pipeline.h"

#include <algorithm>
#include <numeric>
#include <string>
#include <utility>

#include "base/check.h"
#include "codec/erasure_coder.h"
#include "codec/quantize.h"
#include "codec/top_k.h"

namespace longhaul::worker {
namespace {

// The largest block size that the job allows and that the window can fill (8 is the smallest there is).
uint8_t BlockSizeFor(uint8_t fec_k, uint32_t high_count) {
  for (const int k : codec::kBlockSizes) {
    if (k <= fec_k && k <= static_cast<int>(std::max(8u, high_count))) return static_cast<uint8_t>(k);
  }
  return 0;
}

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
  options.high_ranges = settings.high_ranges;
  options.seed = settings.seed;
  return options;
}

Status NotFinite(const codec::ChunkGeometry& geometry, uint32_t chunk, const std::string& what) {
  const uint64_t first = geometry.First(chunk);
  return Status(StatusCode::kInvalidArgument, what + " has a value that is not finite in chunk " +
                                                  std::to_string(chunk) + " (elements " +
                                                  std::to_string(first) + " to " +
                                                  std::to_string(first + geometry.Length(chunk) - 1) + ")");
}

}  // namespace

PushPipeline::Settings PushPipeline::SettingsOf(const JobSettings& job, uint16_t symbol_bytes, float weight) {
  Settings settings;
  settings.policy.policy = *codec::ParseLossPolicy(job.policy);
  settings.policy.shift_alpha = static_cast<float>(job.shift_alpha);
  settings.policy.bubble_threshold = job.bubble_threshold;
  settings.priority = *codec::ParsePriorityPolicy(job.priority);
  if (!codec::Remembers(settings.policy.policy) && settings.priority == codec::PriorityPolicy::kTopK) {
    settings.priority = codec::PriorityPolicy::kEnergy;  // never leave out what nobody remembers
  }
  settings.high_share = job.high_share;
  settings.high_energy = job.high_energy;
  settings.fec_k = static_cast<uint8_t>(job.fec_k);
  settings.fec_depth = static_cast<uint8_t>(job.fec_depth);
  settings.symbol_bytes = symbol_bytes;
  settings.weight = weight;
  settings.seed = job.seed;
  settings.rank = job.rank;
  return settings;
}

PushPipeline::PushPipeline(const TensorShape& shape, const Settings& settings)
    : shape_(shape),
      settings_(settings),
      geometry_(shape.gradient()),
      classifier_(geometry_, PriorityOptionsOf(settings)),
      memory_(codec::MakeSenderMemory(settings.policy, geometry_)),
      scratch_(std::min<uint64_t>(geometry_.chunk_elements, geometry_.count)) {
  LH_CHECK(top_k() == (shape.format.topk_share > 0));
  LH_CHECK(!top_k() || codec::Remembers(settings.policy.policy));
}

Result<transport::WindowOptions> PushPipeline::Begin(uint64_t round, std::span<const float> gradient,
                                                     bool wants_result, uint32_t epoch) {
  LH_CHECK(!under_way_);
  LH_CHECK_OP(gradient.size(), ==, geometry_.count);
  // Before the loss policy sees it: it would remember NaN for ever.
  if (Status status = CheckFinite(gradient); !status.ok()) return status;
  if (epoch != epoch_) memory_->BeginEpoch();
  epoch_ = epoch;
  under_way_ = true;
  initial_ = false;
  prepared_ = memory_->Prepare(gradient);
  codec::Priorities priorities = classifier_.ClassifyEnergies(EncodeGradient(round), round);
  if (priorities.not_finite) {  // sums of finite values
    Abandon();
    return NotFinite(geometry_, *priorities.not_finite, "the gradient with what is owed from earlier rounds");
  }
  high_order_ = std::move(priorities.high);
  low_order_ = std::move(priorities.low);

  codec::WindowMetadata metadata;
  metadata.kind = codec::WindowKind::kGradient;
  metadata.dtype = shape_.format.gradient;
  metadata.chunk_elements = geometry_.chunk_elements;
  metadata.round = round;
  metadata.weight = settings_.weight;
  metadata.wants_result = wants_result;
  metadata.total_low_energy = priorities.total_low_energy;
  metadata.high_sparsity = HighSparsity();
  metadata.shift_epoch = epoch;
  return Describe(metadata);
}

void PushPipeline::SetScores(std::span<const float> parts) {
  LH_CHECK(!parts.empty());
  LH_CHECK_OP(parts.size(), <=, std::min<uint64_t>(geometry_.count, wire::kMaxWindowChunks));
  std::vector<double> scores(geometry_.chunks(), 0.0);
  for (uint64_t part = 0; part < parts.size(); ++part) {
    const uint64_t first = geometry_.count * part / parts.size();
    const uint64_t last = geometry_.count * (part + 1) / parts.size() - 1;
    for (uint64_t c = first / geometry_.chunk_elements; c <= last / geometry_.chunk_elements; ++c) {
      scores[c] = std::max(scores[c], static_cast<double>(parts[part]));
    }
  }
  classifier_.SetScores(scores);
}

Status PushPipeline::CheckFinite(std::span<const float> gradient) const {
  const codec::Kernels& kernels = codec::BestKernels();
  for (uint32_t c = 0; c < geometry_.chunks(); ++c) {
    const std::span<const float> values = geometry_.Elements(gradient, c);
    if (kernels.max_magnitude(values.data(), values.size()) >= codec::kInfinityBits) {
      return NotFinite(geometry_, c, "the gradient");
    }
  }
  return Status::Ok();
}

transport::WindowOptions PushPipeline::BeginInitial(std::span<const float> values) {
  LH_CHECK(!under_way_);
  LH_CHECK_OP(values.size(), ==, shape_.geometry.count);
  under_way_ = true;
  initial_ = true;
  high_order_.resize(shape_.geometry.chunks());
  std::iota(high_order_.begin(), high_order_.end(), 0u);
  low_order_.clear();
  EncodeInitial(values);
  codec::WindowMetadata metadata;
  metadata.kind = codec::WindowKind::kInitial;
  metadata.dtype = shape_.dtype;
  metadata.chunk_elements = shape_.geometry.chunk_elements;
  return Describe(metadata);
}

transport::WindowOptions PushPipeline::Describe(codec::WindowMetadata metadata) const {
  metadata.key = shape_.key;
  metadata.count = shape_.geometry.count;
  transport::WindowOptions options;
  options.high_count = static_cast<uint32_t>(high_order_.size());
  options.low_count = static_cast<uint32_t>(low_order_.size());
  options.symbol_bytes = settings_.symbol_bytes;
  options.fec_k = BlockSizeFor(settings_.fec_k, options.high_count);
  options.fec_depth = settings_.fec_depth;
  options.priority = settings_.window_priority;
  options.metadata = codec::EncodeWindowMetadata(metadata);
  return options;
}

float PushPipeline::HighSparsity() const {
  uint64_t elements = 0;
  uint64_t nonzero = 0;
  for (uint32_t c : high_order_) {
    elements += geometry_.Length(c);
    nonzero += chunks_[c].nonzero;
  }
  if (elements == 0) return 0;
  return 1.0f - static_cast<float>(static_cast<double>(nonzero) / static_cast<double>(elements));
}

void PushPipeline::EncodeInitial(std::span<const float> values) {
  chunks_.assign(shape_.geometry.chunks(), {});
  for (uint32_t c = 0; c < chunks_.size(); ++c) {
    const std::span<const float> elements = shape_.geometry.Elements(values, c);
    chunks_[c].header = codec::EncodeDenseHeader(c, static_cast<uint32_t>(elements.size()));
    chunks_[c].body = AsBytes(elements);
  }
}

std::vector<double> PushPipeline::EncodeGradient(uint64_t round) {
  const uint64_t seed = codec::RoundingSeed(settings_.seed, settings_.rank, shape_.key, round);
  const float threshold = top_k() ? codec::TopKThreshold(prepared_, shape_.format.topk_share, seed) : 0.0f;
  bodies_.clear();
  chunks_.assign(geometry_.chunks(), {});
  std::vector<double> energies(geometry_.chunks());
  for (uint32_t c = 0; c < chunks_.size(); ++c) energies[c] = EncodeGradientChunk(c, seed, threshold);
  // Only now bodies_ has its place.
  for (EncodedChunk& chunk : chunks_) {
    if (chunk.own_bytes > 0) chunk.body = ByteSpan(bodies_).subspan(chunk.own_first, chunk.own_bytes);
  }
  return energies;
}

double PushPipeline::EncodeGradientChunk(uint32_t c, uint64_t rounding_seed, float threshold) {
  const DType dtype = shape_.format.gradient;
  std::span<const float> values = geometry_.Elements(prepared_, c);
  const auto count = static_cast<uint32_t>(values.size());
  if (top_k()) {
    const std::span<float> selected = std::span(scratch_).first(count);
    codec::SelectTopK(values, threshold, codec::SparseCapacity(settings_.symbol_bytes, count, dtype),
                      selected);
    values = selected;
  }
  const double energy = codec::ChunkEnergy(values);
  const uint8_t log_energy = codec::QuantizeEnergy(energy);
  EncodedChunk& chunk = chunks_[c];
  chunk.as_it_is = dtype == DType::kFloat32 && !top_k();
  if (chunk.as_it_is) {
    chunk.nonzero = codec::CountNonzero(values);
    if (!TravelsSparse(count, chunk.nonzero)) {
      chunk.header = codec::EncodeDenseHeader(c, count, chunk.nonzero, log_energy);
      chunk.body = AsBytes(values);
      return energy;
    }
  }
  const codec::Rounding rounding = codec::Rounding::Stochastic(codec::ChunkRoundingSeed(rounding_seed, c));
  chunk.own_first = bodies_.size();
  chunk.header = codec::EncodeChunk(c, values, {dtype, rounding, log_energy}, &bodies_);
  chunk.own_bytes = bodies_.size() - chunk.own_first;
  chunk.nonzero = codec::ParseChunk(chunk.header, ByteSpan(bodies_).subspan(chunk.own_first))->nonzero;
  return energy;
}

Status PushPipeline::Submit(transport::Connection& connection, transport::WindowKey key) {
  LH_CHECK(under_way_);
  const auto submit = [&](wire::ReliabilityClass reliability, const std::vector<uint32_t>& order) {
    for (uint32_t c : order) {
      const EncodedChunk& chunk = chunks_[c];
      if (Status s = connection.SubmitChunk(key, reliability, chunk.header, chunk.body); !s.ok()) return s;
      submitted_bytes_ += ByteCount(static_cast<int64_t>(chunk.header.size() + chunk.body.size()));
    }
    return Status::Ok();
  };
  submitted_bytes_ = ByteCount(0);
  if (Status s = submit(wire::ReliabilityClass::kHigh, high_order_); !s.ok()) return s;
  return submit(wire::ReliabilityClass::kLow, low_order_);
}

PushPipeline::Outcome PushPipeline::OnClosed(const transport::WindowReceipt& receipt,
                                             const transport::WindowTxStats& stats) {
  LH_CHECK(under_way_);
  std::vector<bool> taken(chunks_.size(), false);
  for (uint32_t i = 0; i < high_order_.size(); ++i) taken[high_order_[i]] = receipt.HighTaken(i);
  for (uint32_t i = 0; i < low_order_.size(); ++i) taken[low_order_[i]] = receipt.LowTaken(i);
  if (!initial_) Settle(taken);

  Outcome outcome;
  outcome.lost_chunks = static_cast<uint32_t>(std::count(taken.begin(), taken.end(), false));
  // What was never sent is taken at the mean length of the window's chunks.
  const auto sent = static_cast<int64_t>(stats.high_sent) + stats.low_sent;
  const auto again = static_cast<int64_t>(stats.retransmissions) + stats.repair_sent;
  outcome.wire_bytes = ByteCount(submitted_bytes_.value() * sent / static_cast<int64_t>(taken.size()) +
                                 again * settings_.symbol_bytes);
  Release();
  return outcome;
}

void PushPipeline::Settle(const std::vector<bool>& taken) {
  // Policies that forget ask for nothing.
  for (uint32_t c = 0; codec::Remembers(settings_.policy.policy) && c < chunks_.size(); ++c) {
    if (!taken[c]) {
      memory_->SettleChunk(c, false, {});
    } else if (chunks_[c].as_it_is) {
      memory_->SettleChunk(c, true, geometry_.Elements(prepared_, c));
    } else {
      const std::span<float> sent = std::span(scratch_).first(geometry_.Length(c));
      codec::DecodeChunk(*codec::ParseChunk(chunks_[c].header, chunks_[c].body), sent);
      memory_->SettleChunk(c, true, sent);
    }
  }
  memory_->Finish();
}

void PushPipeline::Abandon() {
  if (!under_way_) return;
  if (!initial_) memory_->Finish();
  Release();
}

void PushPipeline::Release() {
  under_way_ = false;
  prepared_ = {};
  chunks_.clear();
}

}  // namespace longhaul::worker
