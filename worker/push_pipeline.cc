#include "worker/push_pipeline.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/check.h"
#include "codec/erasure_coder.h"

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
  options.high_share = settings.high_share;
  options.seed = settings.seed;
  return options;
}

}  // namespace

PushPipeline::Settings PushPipeline::SettingsOf(const JobSettings& job, uint16_t symbol_bytes, float weight) {
  Settings settings;
  settings.keep_residual = job.policy == "residual";
  settings.high_share = job.high_share;
  settings.fec_k = static_cast<uint8_t>(job.fec_k);
  settings.fec_depth = static_cast<uint8_t>(job.fec_depth);
  settings.symbol_bytes = symbol_bytes;
  settings.weight = weight;
  settings.seed = job.seed;
  return settings;
}

PushPipeline::PushPipeline(const TensorShape& shape, const Settings& settings)
    : shape_(shape), settings_(settings), classifier_(shape.geometry, PriorityOptionsOf(settings)) {
  if (settings.keep_residual) residual_.emplace(shape.geometry);
}

transport::WindowOptions PushPipeline::Begin(uint64_t round, std::span<const float> gradient,
                                             bool wants_result) {
  LH_CHECK(!under_way_);
  LH_CHECK_OP(gradient.size(), ==, shape_.geometry.count);
  under_way_ = true;
  combined_ = residual_.has_value();
  values_ = combined_ ? residual_->Combine(gradient) : gradient;
  codec::Priorities priorities = classifier_.Classify(values_, round);
  high_order_ = std::move(priorities.high);
  low_order_ = std::move(priorities.low);

  std::vector<uint32_t> nonzero(shape_.geometry.chunks());
  for (uint32_t c = 0; c < nonzero.size(); ++c) {
    nonzero[c] = codec::CountNonzero(shape_.geometry.Elements(values_, c));
  }
  EncodeGradient(priorities.log_energy, nonzero);

  uint64_t high_elements = 0;
  uint64_t high_nonzero = 0;
  for (uint32_t c : high_order_) {
    high_elements += shape_.geometry.Length(c);
    high_nonzero += nonzero[c];
  }
  codec::WindowMetadata metadata;
  metadata.kind = codec::WindowKind::kGradient;
  metadata.round = round;
  metadata.weight = settings_.weight;
  metadata.wants_result = wants_result;
  metadata.total_low_energy = priorities.total_low_energy;
  if (high_elements > 0) {
    metadata.high_sparsity =
        1.0f - static_cast<float>(static_cast<double>(high_nonzero) / static_cast<double>(high_elements));
  }
  return Describe(metadata);
}

transport::WindowOptions PushPipeline::BeginInitial(std::span<const float> values) {
  LH_CHECK(!under_way_);
  LH_CHECK_OP(values.size(), ==, shape_.geometry.count);
  under_way_ = true;
  combined_ = false;
  values_ = values;
  high_order_.resize(shape_.geometry.chunks());
  std::iota(high_order_.begin(), high_order_.end(), 0u);
  low_order_.clear();
  EncodeDense();
  codec::WindowMetadata metadata;
  metadata.kind = codec::WindowKind::kInitial;
  return Describe(metadata);
}

transport::WindowOptions PushPipeline::Describe(codec::WindowMetadata metadata) const {
  metadata.key = shape_.key;
  metadata.dtype = shape_.dtype;
  metadata.count = shape_.geometry.count;
  metadata.chunk_elements = shape_.geometry.chunk_elements;
  transport::WindowOptions options;
  options.high_count = static_cast<uint32_t>(high_order_.size());
  options.low_count = static_cast<uint32_t>(low_order_.size());
  options.symbol_bytes = settings_.symbol_bytes;
  options.fec_k = BlockSizeFor(settings_.fec_k, options.high_count);
  options.fec_depth = settings_.fec_depth;
  options.metadata = codec::EncodeWindowMetadata(metadata);
  return options;
}

void PushPipeline::EncodeDense() {
  chunks_.resize(shape_.geometry.chunks());
  for (uint32_t c = 0; c < chunks_.size(); ++c) {
    const std::span<const float> values = shape_.geometry.Elements(values_, c);
    chunks_[c] = {codec::EncodeDenseHeader(c, static_cast<uint32_t>(values.size())), AsBytes(values)};
  }
}

void PushPipeline::EncodeGradient(const std::vector<uint8_t>& log_energy,
                                  const std::vector<uint32_t>& nonzero) {
  const codec::ChunkGeometry& geometry = shape_.geometry;
  size_t sparse_bytes = 0;
  for (uint32_t c = 0; c < geometry.chunks(); ++c) {
    const uint32_t count = geometry.Length(c);
    if (TravelsSparse(count, nonzero[c])) sparse_bytes += codec::SparseChunkBytes(count, nonzero[c]);
  }
  sparse_bodies_.clear();
  sparse_bodies_.reserve(sparse_bytes);  // bodies are borrowed: no growth below may move them
  chunks_.resize(geometry.chunks());
  for (uint32_t c = 0; c < geometry.chunks(); ++c) {
    const std::span<const float> values = geometry.Elements(values_, c);
    const auto count = static_cast<uint32_t>(values.size());
    if (!TravelsSparse(count, nonzero[c])) {
      chunks_[c] = {codec::EncodeDenseHeader(c, count, nonzero[c], log_energy[c]), AsBytes(values)};
      continue;
    }
    const size_t first = sparse_bodies_.size();
    chunks_[c].header = codec::EncodeSparseChunk(c, values, log_energy[c], &sparse_bodies_);
    chunks_[c].body = ByteSpan(sparse_bodies_).subspan(first);
  }
  LH_CHECK_OP(sparse_bodies_.size(), <=, sparse_bytes);
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
  std::vector<bool> lost(shape_.geometry.chunks(), false);
  for (uint32_t i = 0; i < high_order_.size(); ++i) lost[high_order_[i]] = !receipt.HighTaken(i);
  for (uint32_t i = 0; i < low_order_.size(); ++i) lost[low_order_[i]] = !receipt.LowTaken(i);
  if (combined_) residual_->Settle([&lost](uint32_t chunk) { return lost[chunk]; });
  combined_ = false;

  Outcome outcome;
  outcome.lost_chunks = static_cast<uint32_t>(std::count(lost.begin(), lost.end(), true));
  // What was never sent is taken at the mean length of the window's chunks.
  const auto sent = static_cast<int64_t>(stats.high_sent) + stats.low_sent;
  const auto again = static_cast<int64_t>(stats.retransmissions) + stats.repair_sent;
  outcome.wire_bytes = ByteCount(submitted_bytes_.value() * sent / static_cast<int64_t>(lost.size()) +
                                 again * settings_.symbol_bytes);
  Release();
  return outcome;
}

void PushPipeline::Abandon() {
  if (combined_) residual_->SettleAllLost();
  combined_ = false;
  Release();
}

void PushPipeline::Release() {
  under_way_ = false;
  values_ = {};
  chunks_.clear();
}

std::span<const float> PushPipeline::residual() const {
  return residual_ ? residual_->values() : std::span<const float>();
}

}  // namespace longhaul::worker
