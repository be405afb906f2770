// The sending half of a window: holds the chunks, decides what is the next thing of this window worth
// sending, and follows what became of it.
//
// High chunks: sent in order of submission, retransmitted when lost unless repair symbols still in flight can
// complete their block. When the last source symbol of a block has left, repair symbols follow (fec_policy).
// A retransmission after everything has left is repeated at once, as often as the path's loss makes worth
// while. Low chunks: sent in order of submission, once; never retransmitted. The window is closed by the
// receiver's WINDOW_CLOSE, or by Cancel.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <vector>

#include "base/bytes.h"
#include "codec/fec/erasure_coder.h"
#include "transport/core/recovery/sent_packets.h"
#include "transport/core/window/block_map.h"
#include "transport/core/window/window_types.h"

namespace longhaul::transport {

// What FEC and scheduling need to know about the path, at the moment of asking.
struct PathView {
  double loss = 0;                       // what FEC is planned for: LossEstimator's loss() + margin()
  double packets_per_recovery_time = 1;  // packets sent in 1.25 RTT at the current rate
  double rho = 0;                        // LossEstimator::rho()
  double mean_burst = 1;                 // LossEstimator::mean_burst()
  int extra_repair = 0;                  // RepairHold::extra()
  Instant now = {};
  Duration recovery_time{0};  // 1.25 RTT; zero: unknown
  size_t packet_bytes = 0;    // longest chunk that fits a packet; 0: any does

  // What the path is for chunks that may take several packets: one is lost with any of them.
  PathView For(size_t chunk_bytes) const;
};

class WindowTx {
 public:
  static constexpr size_t kMaxChunkHeaderBytes = 16;

  // Urgency of what Next would give; lower leaves first.
  enum class Tier : uint8_t { kHighRetransmit = 0, kHighNew = 1, kRepair = 2, kLow = 3, kNothing = 4 };

  // One packet's worth, or what is cut into several. The spans are valid until the next call that changes the
  // window.
  struct Item {
    wire::DataHeader header;  // but frames_length and timestamp
    SentChunk chunk;
    ByteSpan first;                 // chunk header (or the whole repair symbol)
    ByteSpan second;                // chunk body
    std::shared_ptr<CutChunk> cut;  // of a part (chunk_cutter.h): then `first` is its header
    size_t size() const { return first.size() + second.size(); }
  };

  // coder may be null when options.fec_k is 0; it must outlive the window.
  WindowTx(WindowOptions options, codec::ErasureCoder* coder);
  ~WindowTx();
  WindowTx(const WindowTx&) = delete;
  WindowTx& operator=(const WindowTx&) = delete;

  // Adds the next chunk of a class. `header` (<= kMaxChunkHeaderBytes) is copied; `body` is borrowed until
  // the window is closed or cancelled. Errors: kInvalidArgument (too long), kFailedPrecondition (class full,
  // closed).
  Status Submit(wire::ReliabilityClass reliability, ByteSpan header, ByteSpan body);

  const WindowOptions& options() const { return options_; }
  // Everything promised in the options has been submitted.
  bool AllSubmitted() const;
  // Nothing is left to send for the first time (repair symbols included) and nothing waits for
  // retransmission.
  bool Idle() const { return NextTier() == Tier::kNothing; }
  // Every chunk left at least once: time for WINDOW_STATUS{finished}.
  bool Finished() const;
  Tier NextTier() const;
  // Takes the most urgent item; nullopt when NextTier() is kNothing. The caller sends it now.
  std::optional<Item> Next(const PathView& of_packets);

  // Fates of what Next gave. OnAcked is also right for a spurious loss.
  void OnAcked(const SentChunk& chunk);
  void OnLost(const SentChunk& chunk, const PathView& of_packets);

  // The receiver asks for high chunks: those that are neither acknowledged nor queued leave again, next.
  // Returns how many.
  uint32_t OnNack(const wire::WindowNackFrame& frame);

  // Nothing has been heard for a probe timeout, and this is still in flight: if it is of the high class, what
  // its block lacks leaves again, next. True when something was queued.
  bool OnProbe(const SentChunk& chunk);

  // Applies one segment of the receiver's close. True when the close is now complete (once).
  bool OnClose(const wire::WindowCloseFrame& frame);
  // The sender gives the window up: nothing more will be sent, borrowed bodies are released.
  void Cancel();
  bool closed() const { return closed_; }
  wire::CloseReason close_reason() const { return close_reason_; }
  // What the receiver has taken. REQUIRES: closed().
  const WindowReceipt& receipt() const { return receipt_; }

  WindowTxStats stats() const;
  // Bytes of chunks submitted and not yet sent.
  ByteCount backlog() const { return backlog_; }
  wire::WindowOpenFrame OpenFrame() const;  // metadata borrows from this object
  wire::WindowStatusFrame StatusFrame() const;

 private:
  struct State;

  Item MakeItem(wire::ReliabilityClass reliability, uint32_t index) const;
  Item NextHigh(bool retransmission, const PathView& path);
  Item NextRepair();
  Item NextLow();
  uint8_t RepairCount(uint32_t block, const PathView& path) const;
  // How often a retransmission that leaves now is repeated at once.
  uint8_t FurtherCopies(const PathView& path) const;
  double PacketsPerRecoveryTime(const PathView& path) const;
  bool RepairLeavesSoon(const PathView& path) const;
  bool Contradicts(const wire::WindowCloseFrame& frame) const;
  void Release();

  WindowOptions options_;
  codec::ErasureCoder* coder_;
  BlockMap map_;
  WindowReceipt receipt_;
  ChunkBitmap close_segments_;  // a bit per byte of the close's bitmap that has come
  wire::CloseReason close_reason_ = wire::CloseReason::kComplete;
  bool closed_ = false;
  WindowTxStats stats_;
  Instant first_high_;  // when the first high chunk left
  ByteCount backlog_;
  std::unique_ptr<State> state_;  // chunks, blocks, queues; null once closed
};

}  // namespace longhaul::transport
