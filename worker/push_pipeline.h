// From a gradient to the chunks of a window, and back from the window's close to what has to be repaid.
//
//   gradient (+ residual) -> energy per chunk -> high | low -> order -> encoding -> Submit
//
// One per tensor, one window at a time. Chunk bodies are borrowed by the connection from the gradient, from
// the residual (policy "residual": gradient and residual are added there) or from this object's own storage
// of sparse encodings; all of it stays in place until OnClosed or Abandon. Not thread-safe.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

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
    uint8_t fec_k = 20;  // 0 = no FEC
    uint8_t fec_depth = 4;
    uint16_t symbol_bytes = 0;
    float weight = 1.0f;
    uint64_t seed = 0;  // of the send order's permutation
  };
  static Settings SettingsOf(const JobSettings& job, uint16_t symbol_bytes, float weight);

  PushPipeline(const TensorShape& shape, const Settings& settings);

  // Prepares the window of one round and describes it. `gradient` is borrowed until OnClosed or Abandon.
  // REQUIRES: no window is under way; gradient.size() == shape.count.
  transport::WindowOptions Begin(transport::WindowKey key, uint64_t round, std::span<const float> gradient,
                                 bool wants_result);
  // The same for initial values: everything is of the high class, no residual.
  transport::WindowOptions BeginInitial(transport::WindowKey key, std::span<const float> values);
  // Hands all chunks of the window to the connection, which has opened it. Fails only when the connection
  // does.
  Status Submit(transport::Connection& connection);

  struct Outcome {
    uint32_t lost_chunks = 0;
    ByteCount wire_bytes;  // sent for this window, as chunks: retransmissions and repair included
  };
  // The window is closed: settles what was lost with the residual.
  Outcome OnClosed(bool high_complete, const transport::ChunkBitmap& low_received,
                   const transport::WindowTxStats& stats);
  // The window is given up (or was never opened); with a residual nothing of the gradient is lost.
  void Abandon();

  // What waits to be repaid, by element; empty without residual.
  std::span<const float> residual() const;
  // Chunks in the order in which they are submitted; for tests.
  const std::vector<uint32_t>& high_order() const { return high_order_; }
  const std::vector<uint32_t>& low_order() const { return low_order_; }

 private:
  struct EncodedChunk {
    codec::ChunkHeaderBytes header;
    ByteSpan body;
  };

  transport::WindowOptions Describe(transport::WindowKey key, codec::WindowMetadata metadata);
  void EncodeAll(codec::WindowMetadata* metadata);
  void Release();

  const TensorShape shape_;
  const Settings settings_;
  codec::PriorityClassifier classifier_;
  std::optional<codec::Residual> residual_;
  bool under_way_ = false;
  bool repay_ = false;  // this window's losses go to the residual
  transport::WindowKey key_;
  std::span<const float> values_;  // what is sent
  std::vector<uint32_t> high_order_;
  std::vector<uint32_t> low_order_;
  std::vector<EncodedChunk> chunks_;     // by chunk number
  std::vector<uint8_t> sparse_storage_;  // bodies of sparse chunks; fixed while a window is under way
  ByteCount submitted_bytes_;
};

}  // namespace longhaul::worker
