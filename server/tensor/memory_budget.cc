#include "server/tensor/memory_budget.h"

#include <algorithm>

#include "codec/fec/erasure_coder.h"
#include "codec/policy/loss_policy.h"
#include "transport/core/window/fec_policy.h"

namespace longhaul::server {
namespace {

// The sum's tally 24, orders of finishing 8, the guard's position 8, workers that are waited for 2, bits;
// tables of fixed size.
constexpr uint64_t kPerChunk = 64;
constexpr uint64_t kPerLossyChunk = 64;
// Contributed, superseded, rejected, missed, and three of the open window.
constexpr uint64_t kBitsPerWorkerAndChunk = 8;
// Of a contribution that is held, its values aside: an entry of 16 in server/tensor/held_values.h. The rest
// covers a block of which little is used, in tensors of few chunks.
constexpr uint64_t kPerHeld = 96;
// Of a chunk, and padding of its symbol.
constexpr uint64_t kChunkHeader = 32;
constexpr uint64_t kSmallestBlock = 8;
constexpr uint64_t kMostRepair = codec::ErasureCoder::MaxRepair(kSmallestBlock);

// Of an element in one version: what is sent of it.
uint64_t CodeBytes(const TensorSpec& spec) {
  return spec.result_dtype == DType::kFloat32 ? 0 : DTypeBits(spec.result_dtype) / 8;
}

}  // namespace

MemoryBudget::MemoryBudget(const ServerSettings& settings, uint32_t chunk_elements)
    : workers_(settings.world_size),
      holds_(settings.deterministic || settings.aggregation != Aggregation::kMean),
      fec_depth_(std::max<uint64_t>(settings.fec_depth, transport::kMaxFecDepth)),
      lossy_(settings.downlink == Downlink::kLossy),
      filler_floats_(settings.policy == LossPolicy::kStale || settings.policy == LossPolicy::kShift ? 1 : 0),
      checkpoints_(settings.checkpoint_every > 0),
      chunk_elements_(chunk_elements) {
  guard_bytes_ = settings.norm_guard > 0 ? sizeof(float) : 0;
  if (guard_bytes_ > 0 && codec::Repays(settings.policy)) guard_bytes_ += sizeof(uint32_t);
  const auto model = static_cast<uint64_t>(settings.max_model.value());
  TensorSpec largest;
  largest.count = std::max<uint64_t>(1, model / sizeof(float));
  largest.staleness = settings.staleness;
  largest.result_dtype = DType::kBFloat16;
  total_ = Plan(largest, settings.rules.MostState()) + std::max(kOverhead, model);
  by_machine_ = settings.memory > 0 && settings.memory < total_;
  if (by_machine_) total_ = settings.memory;
}

uint64_t MemoryBudget::PerElement(const TensorSpec& spec, uint64_t state) const {
  // A checkpoint that is being written holds values and state of one round.
  const uint64_t floats = 2 + 1 + filler_floats_ + state + kPinnedModels + (checkpoints_ ? 1 + state : 0);
  return sizeof(float) * (floats + (holds_ ? workers_ : 0)) + CodeBytes(spec) * (2 + (checkpoints_ ? 1 : 0));
}

uint64_t MemoryBudget::Plan(const TensorSpec& spec) const {
  return Plan(spec, codec::StateNames(spec.optimizer).size());
}

uint64_t MemoryBudget::Plan(const TensorSpec& spec, uint64_t state) const {
  // Chunks of gradients and results are at least as long as these (codec::WireFormat).
  const uint64_t chunks = (spec.count + chunk_elements_ - 1) / chunk_elements_;
  const uint64_t per_chunk = kPerChunk + (lossy_ ? kPerLossyChunk : 0) +
                             workers_ * (kBitsPerWorkerAndChunk / 8 + guard_bytes_ + (holds_ ? kPerHeld : 0));
  const codec::ChunkGeometry gradient = codec::GradientGeometry({spec.count, chunk_elements_}, spec.format());
  const uint64_t ahead = spec.staleness != 0 ? sizeof(float) * spec.count + kPerChunk * chunks : 0;
  return spec.count * PerElement(spec, state) + ahead + chunks * per_chunk + workers_ * kPerWorker +
         kPerTensor + sizeof(float) * std::min<uint64_t>(spec.count, gradient.chunk_elements);
}

uint64_t MemoryBudget::PerMember(const TensorSpec& spec) const {
  const uint64_t chunks = (spec.count + chunk_elements_ - 1) / chunk_elements_;
  const uint64_t symbol = sizeof(float) * chunk_elements_ + kChunkHeader;
  const uint64_t repair =
      std::min((chunks + kSmallestBlock - 1) / kSmallestBlock, fec_depth_) * kMostRepair * symbol;
  return (sizeof(float) + CodeBytes(spec)) * spec.count + 2 * chunks * (symbol + kPerArrivingChunk) +
         kLeavingWindows * (chunks * kPerLeavingChunk + repair) + kPerMemberTensor;
}

Status MemoryBudget::Check(const TensorSpec& spec) const {
  const uint64_t bytes = Plan(spec);
  const uint64_t left = total_ - taken_;
  if (bytes > left) {
    return {StatusCode::kResourceExhausted,
            "tensor \"" + spec.name + "\" does not fit: with " + std::to_string(workers_) +
                " workers it may take the server " + std::to_string(bytes) + " bytes, and of " +
                std::to_string(total_) + " that this job may take " + std::to_string(left) + " are left (" +
                (by_machine_
                     ? "the server's --max-memory-bytes, by default 7/8 of what its machine had at the start"
                     : "the server's --max-model-bytes") +
                ")"};
  }
  return {};
}

Status MemoryBudget::Take(const TensorSpec& spec) {
  if (Status check = Check(spec); !check.ok()) return check;
  taken_ += Plan(spec);
  per_member_ += PerMember(spec);
  return {};
}

void MemoryBudget::Return(const TensorSpec& spec) {
  taken_ -= Plan(spec);
  per_member_ -= PerMember(spec);
}

}  // namespace longhaul::server
