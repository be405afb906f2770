// The receiving half of a window: which chunks are in, block repair, and the close that ends it.
//
// Every source chunk is delivered exactly once, whether it came itself, came again or was rebuilt by FEC:
//
//   OnData -> PollChunk until nullopt, each followed by Refuse if the owner does not take it -> next OnData
//
// Memory: high symbols are kept only for blocks that are not complete, and only when the window has FEC.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "base/bytes.h"
#include "codec/fec/erasure_coder.h"
#include "transport/core/window/block_assembly.h"
#include "transport/core/window/block_map.h"
#include "transport/core/window/window_types.h"

namespace longhaul::transport {

class WindowRx {
 public:
  // A chunk that OnData made available: the one that came, or one that FEC rebuilt from it.
  struct Chunk {
    wire::ReliabilityClass reliability = wire::ReliabilityClass::kHigh;
    uint32_t sequence = 0;
    // A rebuilt chunk has the window's symbol length (trailing zeros): the chunk's own header has its true
    // length. Lives as long as what was given to OnData; rebuilt: until EndLoans.
    ByteSpan bytes;
    bool repaired = false;
  };

  enum class Verdict : uint8_t {
    kNew,        // there are chunks to poll, or it was a useful repair symbol
    kDuplicate,  // had it, or its block is complete
    kClosed,     // came after the close: counted, never delivered
    kInvalid,    // outside the window's counts or lengths: the peer's protocol error
  };

  // REQUIRES: `open` passed ValidateOpen. coder may be null when it has no FEC.
  WindowRx(const wire::WindowOpenFrame& open, codec::ErasureCoder* coder);
  WindowRx(const WindowRx&) = delete;
  WindowRx& operator=(const WindowRx&) = delete;

  // Errors: kProtocolViolation (counts, lengths or FEC parameters impossible), kResourceExhausted (larger
  // than `max_window_bytes`). To be asked before a WindowRx is made.
  static Status ValidateOpen(const wire::WindowOpenFrame& open, ByteCount max_window_bytes,
                             const codec::ErasureCoder* coder);

  // Whether this source chunk or repair symbol is of no use any more (to be asked before decrypting).
  bool IsDuplicate(const wire::DataHeader& header) const;
  // Whether the header and the length fit the window; OnData of anything else is kInvalid.
  bool IsValid(const wire::DataHeader& header, size_t chunk_bytes) const;
  // What an earlier OnData made available and was not polled is not taken and does not come again.
  Verdict OnData(const wire::DataHeader& header, ByteSpan chunk);
  // The next chunk that the latest OnData made available. It counts as taken; nothing comes after Close.
  std::optional<Chunk> PollChunk();
  // The owner does not take a chunk that it has polled: the chunk is here for everything but the CLOSE. False
  // when it was not taken, or the window is closed.
  bool Refuse(wire::ReliabilityClass reliability, uint32_t sequence);
  // The bytes of rebuilt chunks are not looked at any more.
  void EndLoans();
  void OnStatus(const wire::WindowStatusFrame& status);
  void OnFinished() { sender_finished_ = true; }

  WindowKey key() const { return key_; }
  const std::vector<uint8_t>& metadata() const { return metadata_; }
  uint32_t high_count() const { return high_count_; }
  uint32_t low_count() const { return low_count_; }
  uint32_t high_done() const { return stats_.high_received + stats_.high_repaired; }
  bool HighComplete() const { return high_done() == high_count_; }
  bool Complete() const { return HighComplete() && stats_.low_received == low_count_; }
  double LowRatio() const {
    return low_count_ == 0 ? 1.0 : static_cast<double>(stats_.low_received) / low_count_;
  }
  IncomingWindow View() const;
  // The high chunks that neither came nor could be rebuilt, as WINDOW_NACK names them: as many as a bitmap of
  // max_bytes holds, from the first one on. An empty bitmap: none, or the window is closed.
  struct Missing {
    uint32_t first = 0;
    std::vector<uint8_t> bitmap;
  };
  Missing MissingHigh(size_t max_bytes = wire::kMaxNackBitmapBytes) const;
  // The sender said that nothing new will follow: by WINDOW_STATUS, or by last_of_window on a packet.
  bool sender_finished() const { return sender_finished_; }

  // Ends the window; idempotent (the first reason stays). No chunk is delivered afterwards. Returns what the
  // bytes of rebuilt chunks live in; everything is freed with it.
  std::unique_ptr<BlockAssembly> Close(wire::CloseReason reason);
  bool closed() const { return closed_; }
  wire::CloseReason close_reason() const { return close_reason_; }
  // Bytes of bitmap in a CLOSE frame of ours: such that it fits the smallest datagram (Dplpmtud::kMin).
  static constexpr size_t kCloseSegmentBytes = 512;
  static_assert(kCloseSegmentBytes <= wire::kMaxCloseBitmapBytes);
  // The close, in as many frames as the bitmap needs; bitmaps borrow from this object. REQUIRES: closed().
  std::vector<wire::WindowCloseFrame> CloseFrames() const;
  bool HighTaken(uint32_t sequence) const {
    return sequence < high_count_ && taken_.Test(low_count_ + sequence);
  }
  bool LowTaken(uint32_t sequence) const { return sequence < low_count_ && taken_.Test(sequence); }

  WindowRxStats stats() const { return stats_; }
  // Bytes held for incomplete blocks.
  ByteCount buffered() const;

 private:
  // The chunks of a block that FEC has rebuilt and that are not polled yet.
  struct Rebuilt {
    uint32_t block = 0;
    uint32_t missing = 0;  // bit per source
  };

  void OnSource(const wire::DataHeader& header, ByteSpan chunk);
  void Rebuild(uint32_t block);
  const Chunk& Take(const Chunk& chunk);
  void MakeCloseBitmap();

  WindowKey key_;
  std::vector<uint8_t> metadata_;
  uint32_t high_count_ = 0;
  uint32_t low_count_ = 0;
  uint16_t symbol_bytes_ = 0;
  codec::ErasureCoder* coder_;
  BlockMap map_;
  ChunkBitmap high_received_;
  ChunkBitmap low_received_;
  ChunkBitmap taken_;  // low chunks, then high ones
  uint32_t high_taken_ = 0;
  std::vector<uint8_t> close_bitmap_;
  bool sender_finished_ = false;
  bool closed_ = false;
  wire::CloseReason close_reason_ = wire::CloseReason::kComplete;
  WindowRxStats stats_;
  std::optional<Chunk> arrived_;  // not polled yet
  Rebuilt rebuilt_;
  std::unique_ptr<BlockAssembly> blocks_;  // null without FEC, once closed and once all high is in
};

}  // namespace longhaul::transport
