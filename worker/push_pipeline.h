// From a gradient to the chunks of a window, and back from the window's close to what has to be remembered.
//
//   gradient -> what the loss policy sends (+ residual, - shift) -> the largest elements (priority topk)
//            -> wire type, dense | sparse -> score per chunk -> high | low, in order -> Submit
//   close    -> the loss policy learns what the server has, as it arrived there: rounded, and in part
//
// One per tensor, one window at a time. Chunk bodies are borrowed by the connection: float32 that travels
// dense from the gradient or from the loss policy's memory, all else from this object's own storage. All of
// it stays in place until OnClosed or Abandon. Not thread-safe.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "codec/chunk.h"
#include "codec/loss_policy.h"
#include "codec/priority.h"
#include "codec/sender_memory.h"
#include "codec/window_metadata.h"
#include "longhaul/options.h"
#include "transport/core/connection.h"
#include "worker/tensor_shape.h"

namespace longhaul::worker {

class PushPipeline {
 public:
  struct Settings {
    codec::LossPolicySpec policy;
    codec::PriorityPolicy priority = codec::PriorityPolicy::kEnergy;
    double high_share = 0.2;
    double high_energy = 0;
    std::vector<TensorOptions::Range> high_ranges = {};
    uint8_t fec_k = 20;     // largest block that may be used; 0 = no FEC
    uint8_t fec_depth = 0;  // 0: as the connection advises
    uint16_t symbol_bytes = 0;
    float weight = 1.0f;
    int window_priority = 0;  // windows of tensors with a lower one leave first
    uint64_t seed = 0;  // of the rotation of the send order, the sample of top-k and, with rank, of rounding
    uint32_t rank = 0;
  };
  // What the job decides. REQUIRES: its policy and priority are known.
  static Settings SettingsOf(const JobSettings& job, uint16_t symbol_bytes, float weight);

  // REQUIRES: priority kTopK goes with shape.format.topk_share > 0 and a policy that remembers.
  PushPipeline(const TensorShape& shape, const Settings& settings);

  // Prepares the window of one round and describes it (all but its key). `gradient` is borrowed until
  // OnClosed or Abandon. `epoch`: the shift epoch in force; a new one forgets the shift.
  // Errors: kInvalidArgument naming the chunk and its elements when a value is not finite; then nothing is
  // under way, and what was owed before is owed still.
  // REQUIRES: no window is under way; gradient.size() == count.
  Result<transport::WindowOptions> Begin(uint64_t round, std::span<const float> gradient, bool wants_result,
                                         uint32_t epoch = 0);
  // The same for initial values: everything is of the high class, nothing is remembered.
  transport::WindowOptions BeginInitial(std::span<const float> values);
  // Hands all chunks to the window, which the connection has opened. Fails only when the connection does.
  Status Submit(transport::Connection& connection, transport::WindowKey key);

  struct Outcome {
    uint32_t lost_chunks = 0;
    ByteCount wire_bytes;  // sent for this window, as chunks: retransmissions and repair included
  };
  // The window is closed: what the server did not take is the loss policy's.
  Outcome OnClosed(const transport::WindowReceipt& receipt, const transport::WindowTxStats& stats);
  // The window is given up, or was never opened: nothing of it was taken. Harmless without a window.
  void Abandon();

  // From the next Begin on chunks are ranked by these, not by the job's priority: scores of so many equal
  // parts of the tensor; a chunk has the highest of the parts in it. REQUIRES: 1..min(count, 2^20) of them.
  void SetScores(std::span<const float> parts);

  // What waits to be repaid, by element; empty with policies other than residual.
  std::span<const float> residual() const { return memory_->owed(); }
  // Chunks whose debt overflowed and was dropped (codec/residual.h).
  uint64_t debts_dropped() const { return memory_->debts_dropped(); }
  // This worker's shift, by element; empty with policies other than shift.
  std::span<const float> shift() const { return memory_->shift(); }

 private:
  struct EncodedChunk {
    codec::ChunkHeaderBytes header;
    ByteSpan body;
    size_t own_first = 0;  // the body's place in bodies_, if it is there
    size_t own_bytes = 0;
    uint32_t nonzero = 0;
    bool as_it_is = false;  // the values arrive as they were prepared
  };

  bool top_k() const { return settings_.priority == codec::PriorityPolicy::kTopK; }
  Status CheckFinite(std::span<const float> gradient) const;
  transport::WindowOptions Describe(codec::WindowMetadata metadata) const;
  void EncodeInitial(std::span<const float> values);
  // All chunks of prepared_; returns their energies.
  std::vector<double> EncodeGradient(uint64_t round);
  double EncodeGradientChunk(uint32_t c, uint64_t rounding_seed, float threshold);
  float HighSparsity() const;
  // Tells the loss policy about every chunk.
  void Settle(const std::vector<bool>& taken);
  void Release();

  const TensorShape shape_;
  const Settings settings_;
  const codec::ChunkGeometry geometry_;  // of gradients
  codec::PriorityClassifier classifier_;
  std::unique_ptr<codec::SenderMemory> memory_;
  uint32_t epoch_ = 0;
  bool under_way_ = false;
  bool initial_ = false;
  std::span<const float> prepared_;   // what the loss policy sends
  std::vector<uint32_t> high_order_;  // chunk numbers by sequence number of their class
  std::vector<uint32_t> low_order_;
  std::vector<EncodedChunk> chunks_;  // by chunk number
  std::vector<uint8_t> bodies_;       // in place while a window is under way
  std::vector<float> scratch_;        // one chunk
  ByteCount submitted_bytes_;
};

}  // namespace longhaul::worker
