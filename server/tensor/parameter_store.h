// The model: tensors by key and by name, each with its declared shape and its values.
//
// Values exist twice, for the newest finished round and for the round in progress. So a finished chunk may be
// borrowed for sending while the next round already writes its values; it is stable for one whole round more.
// Not thread-safe.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "codec/chunk/chunk.h"
#include "codec/policy/optimizer.h"
#include "longhaul/status.h"
#include "longhaul/tensor.h"
#include "longhaul/units.h"

namespace longhaul::server {

// What every declaration of a tensor must agree on.
struct TensorSpec {
  std::string name;
  uint32_t dtype = 0;
  DType wire_dtype = DType::kFloat32;    // of gradients in chunks
  DType result_dtype = DType::kFloat32;  // of results in chunks
  double topk_share = 0;  // > 0: gradients travel as so many of their elements (the job's setting)
  int32_t priority = 0;   // results of tensors with a lower one leave first
  uint64_t count = 0;     // elements, >= 1
  codec::OptimizerSpec optimizer;

  bool operator==(const TensorSpec&) const = default;
  // "float32[1000], sgd:lr=0.1".
  std::string ToString() const;
};

class Parameters {
 public:
  // Where the values of version 0 come from.
  enum class Initial : uint8_t {
    kNotOffered,  // zeros, unless a worker that declares before the first use has values
    kAwaited,     // one worker was asked to send them
    kReady,       // they are here (or zeros were decided on)
  };

  Parameters(uint32_t key, TensorSpec spec, codec::ChunkGeometry geometry);

  uint32_t key() const { return key_; }
  const TensorSpec& spec() const { return spec_; }
  // Of chunks with float32 values: initial values.
  const codec::ChunkGeometry& geometry() const { return geometry_; }
  // Of the chunks in which gradients arrive and become final; each is a whole number of results' chunks.
  const codec::ChunkGeometry& gradient_geometry() const { return gradient_geometry_; }
  const codec::ChunkGeometry& result_geometry() const { return result_geometry_; }

  Initial initial() const { return initial_; }
  uint32_t initial_sender() const { return initial_sender_; }
  // REQUIRES: initial() is not kReady.
  void AwaitInitial(uint32_t rank);
  // REQUIRES: initial() is kAwaited, the chunk is in range and `values` of its length.
  void SetInitialChunk(uint32_t chunk, std::span<const float> values);
  void SetReady() { initial_ = Initial::kReady; }

  // Rounds completed.
  uint64_t version() const { return version_; }
  std::span<const float> current() const { return *values_[version_ % 2]; }
  // The values that the round in progress writes; until then, those of the version before current().
  std::span<const float> next() const { return *values_[(version_ + 1) % 2]; }
  std::span<float> mutable_next() { return *values_[(version_ + 1) % 2]; }
  // Hands the version before current() over to a reader of it; the round in progress writes elsewhere.
  // REQUIRES: it has written nothing yet.
  std::shared_ptr<const std::vector<float>> GiveAwayPrevious();
  // The round is finished: every chunk of next() was written.
  void Advance();
  // A copy of current() that stays as it is; shared by all callers in the same version.
  std::shared_ptr<const std::vector<float>> Snapshot();
  // Such a copy is still held: another Snapshot() costs nothing.
  bool HasSnapshot() const { return snapshot_version_ == version_ && !snapshot_.expired(); }

 private:
  uint32_t key_;
  TensorSpec spec_;
  codec::ChunkGeometry geometry_;
  codec::ChunkGeometry gradient_geometry_;
  codec::ChunkGeometry result_geometry_;
  Initial initial_ = Initial::kNotOffered;
  uint32_t initial_sender_ = 0;
  uint64_t version_ = 0;
  std::shared_ptr<std::vector<float>> values_[2];
  std::weak_ptr<const std::vector<float>> snapshot_;
  uint64_t snapshot_version_ = 0;
};

class ParameterStore {
 public:
  static constexpr size_t kMaxTensors = 4096;

  // max_model: bound on 4 bytes x elements over all tensors. What the server holds of them is in
  // server/tensor/memory_budget.h.
  ParameterStore(ByteCount max_model, uint32_t chunk_elements)
      : max_model_(max_model), chunk_elements_(chunk_elements) {}

  // Finds the tensor, or makes it with the next key. Errors: kSettingsMismatch (declared differently before;
  // both values are named), kResourceExhausted (model or table too large, with the bound).
  Result<Parameters*> Declare(const TensorSpec& spec);
  // Ok: Declare(spec) would succeed and make it. kAlreadyExists: it would succeed, it is there. Else
  // Declare's error.
  Status Check(const TensorSpec& spec) const;
  // Null when there is none.
  Parameters* Find(uint32_t key);
  size_t size() const { return tensors_.size(); }
  uint64_t elements() const { return elements_; }

 private:
  ByteCount max_model_;
  uint32_t chunk_elements_;
  uint64_t elements_ = 0;
  std::vector<std::unique_ptr<Parameters>> tensors_;  // by key
  std::map<std::string, uint32_t, std::less<>> keys_;
};

}  // namespace longhaul::server
