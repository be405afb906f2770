// From a gradient to the chunks of a window, and back from the window's close to what has to be repaid.
//
//   gradient (+ residual) -> score per chunk -> high | low, in order -> dense | sparse -> Submit
//
// One per tensor, one window at a time. Chunk bodies are borrowed by the connection from the gradient, from
// the residual (policy "residual": gradient and residual are added there) or from this object's own storage
// of sparse chunks; all of it stays in place until OnClosed or Abandon. Not thread-safe.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "codec/chunk.h"
#include "codec/priority.h"
#include "codec/residual.h"
#include "codec/window_metadata.h"
#include "longhaul/options.h"
#include "transport/core/connection.h"
#include "worker/tensor_shape.h"

namespace longhaul::worker {

class PushPipeline {
 public:
  struct Settings {
    bool keep_residual = true;  // lost chunks are repaid in a later round
    double high_share = 0.2;
    uint8_t fec_k = 20;  // largest block that may be used; 0 = no FEC
    uint8_t fec_depth = 0;  // 0: as the connection advises
    uint16_t symbol_bytes = 0;
    float weight = 1.0f;
    uint64_t seed = 0;  // of the rotation of the send order
  };
  static Settings SettingsOf(const JobSettings& job, uint16_t symbol_bytes, float weight);

  PushPipeline(const TensorShape& shape, const Settings& settings);

  // Prepares the window of one round and describes it (all but its key). `gradient` is borrowed until
  // OnClosed or Abandon. REQUIRES: no window is under way; gradient.size() == count.
  transport::WindowOptions Begin(uint64_t round, std::span<const float> gradient, bool wants_result);
  // The same for initial values: everything is of the high class, nothing is repaid.
  transport::WindowOptions BeginInitial(std::span<const float> values);
  // Hands all chunks to the window, which the connection has opened. Fails only when the connection does.
  Status Submit(transport::Connection& connection, transport::WindowKey key);

  struct Outcome {
    uint32_t lost_chunks = 0;
    ByteCount wire_bytes;  // sent for this window, as chunks: retransmissions and repair included
  };
  // The window is closed: what the server did not take stays in the residual.
  Outcome OnClosed(const transport::WindowReceipt& receipt, const transport::WindowTxStats& stats);
  // The window is given up, or was never opened; a residual keeps all of the gradient. Harmless without a
  // window.
  void Abandon();

  // What waits to be repaid, by element; empty without residual.
  std::span<const float> residual() const;

 private:
  struct EncodedChunk {
    codec::ChunkHeaderBytes header;
    ByteSpan body;
  };

  transport::WindowOptions Describe(codec::WindowMetadata metadata) const;
  void EncodeGradient(const std::vector<uint8_t>& log_energy, const std::vector<uint32_t>& nonzero);
  void EncodeDense();
  void Release();

  const TensorShape shape_;
  const Settings settings_;
  codec::PriorityClassifier classifier_;
  std::optional<codec::Residual> residual_;
  bool under_way_ = false;
  bool combined_ = false;             // the residual holds this window's values
  std::span<const float> values_;     // what is sent
  std::vector<uint32_t> high_order_;  // chunk numbers by sequence number of their class
  std::vector<uint32_t> low_order_;
  std::vector<EncodedChunk> chunks_;    // by chunk number
  std::vector<uint8_t> sparse_bodies_;  // never grows while a window is under way
  ByteCount submitted_bytes_;
};

}  // namespace longhaul::worker
