// The model: tensors by key and by name, each with its declared shape and its values.
//
// Values exist twice, for the newest finished round and for the round in progress. So a finished chunk may be
// borrowed for sending while the next round already writes its values; it is stable for one whole round more.
// Every round writes every element, so values that are still read are never copied: the round that
// would write over them writes into fresh memory, which is touched chunk by chunk.
//
// Values are float32. Where results travel in 16 bits each version has its codes beside it, which all its
// readers share: a chunk's are made when the first of them sends it. Not thread-safe.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/zeroed_array.h"
#include "codec/chunk/chunk.h"
#include "codec/policy/optimizer.h"
#include "longhaul/status.h"
#include "longhaul/tensor.h"
#include "longhaul/units.h"
#include "transport/core/window/window_types.h"

namespace longhaul::server {

// What every declaration of a tensor must agree on.
struct TensorSpec {
  std::string name;
  uint32_t dtype = 0;
  DType wire_dtype = DType::kFloat32;    // of gradients in chunks
  DType result_dtype = DType::kFloat32;  // of results in chunks
  double topk_share = 0;                 // > 0: gradients travel as so many of their elements
  int32_t priority = 0;                  // results of tensors with a lower one leave first
  int32_t staleness = 0;                 // as JobSpec's
  uint32_t quorum = 0;
  uint64_t count = 0;  // elements, >= 1
  codec::OptimizerSpec optimizer;

  bool operator==(const TensorSpec&) const = default;
  codec::WireFormat format() const { return {wire_dtype, result_dtype, topk_share}; }
  // "float32[1000], sgd:lr=0.1".
  std::string ToString() const;
};

class Parameters {
 public:
  // Of one version, shared by its readers.
  using Values = std::shared_ptr<const ZeroedArray<float>>;
  // The same with what is sent of it.
  struct Version {
    ZeroedArray<float> values;
    ZeroedArray<uint16_t> codes = {};   // empty: results are float32
    transport::ChunkBitmap coded = {};  // results' chunks of which they were made
    size_t bytes() const { return values.bytes() + codes.bytes(); }
  };
  using Held = std::shared_ptr<Version>;

  // Where the values of version 0 come from.
  enum class Initial : uint8_t {
    kNotOffered,  // zeros, unless a worker that declares before the first use has values
    kAwaited,     // one worker was asked to send them
    kReady,       // they are here (or zeros were decided on)
  };

  // Throws std::bad_alloc.
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
  // These are the values of this version, and ready. REQUIRES: of the right length, and of one holder; no
  // round has begun.
  void Restore(const Values& values, uint64_t version);

  // Rounds completed.
  uint64_t version() const { return version_; }
  std::span<const float> current() const { return versions_[version_ % 2]->values.span(); }
  // The values that the round in progress writes; until then, those of the version before current().
  std::span<const float> next() const { return versions_[(version_ + 1) % 2]->values.span(); }
  std::span<float> mutable_next() { return versions_[(version_ + 1) % 2]->values.span(); }
  // To be called before the round in progress writes its first value: what is read by holders of Previous()
  // or of a snapshot is left to them. kResourceExhausted: there is no memory to write elsewhere.
  Status BeginWriting();
  // The values of the version before current(), of which a reader keeps as much as it likes. REQUIRES: the
  // round in progress has written nothing yet.
  Held Previous() const { return versions_[(version_ + 1) % 2]; }
  // The round is finished: every chunk of next() was written.
  void Advance();
  // current(), and so it stays.
  Values Snapshot() const { return ValuesOf(versions_[version_ % 2]); }
  // next(), and so it stays. REQUIRES: the round in progress has written all of it.
  Values NextSnapshot() const { return ValuesOf(versions_[(version_ + 1) % 2]); }
  // current() or next() of a reader that sends it. REQUIRES: one of these versions.
  const Held& OfVersion(uint64_t version) const;
  // A snapshot is held: another one costs no memory.
  bool HasSnapshot() const { return versions_[version_ % 2].use_count() > 1; }
  // The values of a result's chunk as they travel. They stay as long as the version. REQUIRES: they are
  // final.
  ByteSpan Encoded(Version& version, uint32_t chunk) const;

 private:
  static Values ValuesOf(const Held& version) { return {version, &version->values}; }
  Held MakeVersion(ZeroedArray<float> values) const;

  uint32_t key_;
  TensorSpec spec_;
  codec::ChunkGeometry geometry_;
  codec::ChunkGeometry gradient_geometry_;
  codec::ChunkGeometry result_geometry_;
  Initial initial_ = Initial::kNotOffered;
  uint32_t initial_sender_ = 0;
  uint64_t version_ = 0;
  Held versions_[2];
};

class ParameterStore {
 public:
  static constexpr size_t kMaxTensors = 4096;

  // max_model: bound on 4 bytes x elements over all tensors. What the server holds of them is in
  // server/tensor/memory_budget.h.
  ParameterStore(ByteCount max_model, uint32_t chunk_elements)
      : max_model_(max_model), chunk_elements_(chunk_elements) {}

  // Finds the tensor, or makes it with the next key. Errors: kSettingsMismatch (declared differently before;
  // both values are named), kResourceExhausted (model or table too large, with the bound). Throws
  // std::bad_alloc, with nothing changed.
  Result<Parameters*> Declare(const TensorSpec& spec);
  // Ok: Declare(spec) would succeed and make it. kAlreadyExists: it would succeed, it is there. Else
  // Declare's error.
  Status Check(const TensorSpec& spec) const;
  // Forgets the tensor that was declared last. REQUIRES: no member has declared it.
  void Undeclare();
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
