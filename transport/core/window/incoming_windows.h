// The windows that the peer is sending to us: finds the window of a chunk, keeps chunks that came before
// their OPEN (bounded), remembers which windows are over, and queues the CLOSE frames until they arrive.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "base/instant.h"
#include "transport/core/window/window_rx.h"

namespace longhaul::transport {

class IncomingWindows {
 public:
  // Chunks of windows whose OPEN has not arrived yet: what one RTT of bulk data may bring.
  static constexpr size_t kMaxEarlyBytes = 4u << 20;
  // Closed windows whose CLOSE is not yet acknowledged; the oldest is forgotten beyond this.
  static constexpr size_t kMaxClosing = 256;
  // Their bitmaps together; beyond it the oldest is forgotten too.
  static constexpr size_t kMaxClosingBytes = 2u << 20;
  // CLOSE frames that wait to be sent; beyond it those of forgotten windows are thrown out.
  static constexpr size_t kMaxPendingCloses = 8192;
  // Ids further than this below the newest are taken for closed.
  static constexpr uint32_t kRememberedIds = 4096;

  struct Limits {
    uint32_t max_open = 64;
    ByteCount max_window_bytes;
  };

  IncomingWindows(codec::ErasureCoder* coder, Limits limits) : coder_(coder), limits_(limits) {}

  enum class OpenVerdict : uint8_t { kOpened, kRepeated, kClosed };
  // Errors: kProtocolViolation, kResourceExhausted (see WindowRx::ValidateOpen; too many open).
  Result<OpenVerdict> OnOpen(const wire::WindowOpenFrame& open);

  WindowRx* Find(WindowKey key);
  const WindowRx* Find(WindowKey key) const;
  // Whether the window was closed (or is older than anything remembered).
  bool IsClosed(WindowKey key) const;

  struct EarlyChunk {
    wire::DataHeader header;
    std::vector<uint8_t> chunk;
  };
  // Keeps a chunk until its window opens. False: no room; the packet must be treated as never received.
  bool KeepEarly(WindowKey key, const wire::DataHeader& header, ByteSpan chunk);
  // Remembers that the sender is finished: it says so in a frame of its own only once it is acknowledged, and
  // a window whose last chunks are lost closes by nothing else. False: no room.
  bool KeepEarlyFinished(WindowKey key);
  // The window has opened: what came before is replayed from now on, one chunk after the other. True when the
  // sender was finished before.
  bool BeginReplay(WindowKey key);
  bool IsReplaying(WindowKey key) const { return FindReplay(key) != nullptr; }
  // A chunk that came while others of its window wait to be replayed. REQUIRES: IsReplaying(key).
  void AppendToReplay(WindowKey key, const wire::DataHeader& header, ByteSpan chunk);
  // The next chunk, or null when there is none (any more). Its bytes live until EndLoans.
  const EarlyChunk* NextReplayed(WindowKey key);

  // Closes the window and queues its CLOSE frames. False when it is not open.
  bool Close(WindowKey key, wire::CloseReason reason);

  // The bytes of chunks that were replayed, and of rebuilt ones of closed windows, are not looked at any
  // more. What was to be replayed has been.
  void EndLoans() {
    replays_.clear();
    closed_blocks_.clear();
  }

  // The next CLOSE frame that waits; borrowed from this object. Pop after it was written. A frame that leaves
  // for the first time leaves once more kRepeatAfter later: a round waits for it, and finding out that a lone
  // packet was lost takes longer than a round.
  static constexpr Duration kRepeatAfter = std::chrono::milliseconds(3);
  std::optional<wire::WindowCloseFrame> PeekClose();
  void PopClose(Instant now);
  // WINDOW_NACK for an open window whose high class is incomplete; once while one waits. Peek makes it from
  // what is missing at that moment, in `*bitmap` of up to max_bytes (> 0), which it borrows.
  void RequestMissing(WindowKey key);
  std::optional<wire::WindowNackFrame> PeekNack(size_t max_bytes, std::vector<uint8_t>* bitmap);
  void PopNack() { nacks_.pop_front(); }
  bool HasPendingNack() const { return !nacks_.empty(); }
  // Moves repeats that are due behind what waits.
  void PromoteRepeats(Instant now);
  Instant NextRepeat() const { return repeats_.empty() ? Instant::Infinite() : repeats_.front().due; }
  bool HasPendingClose() const { return !pending_.empty(); }
  void OnCloseAcked(WindowKey key, uint32_t first);
  void OnCloseLost(WindowKey key, uint32_t first);

  ByteCount buffered() const;

 private:
  struct Closing {
    std::unique_ptr<WindowRx> window;
    std::vector<uint32_t> unacked;  // `first` of segments not yet acknowledged
    uint64_t age = 0;
    size_t bytes = 0;  // what it costs us
  };
  struct PendingClose {
    WindowKey key;
    uint32_t first = 0;
    bool again = true;  // repeat it once it has left
    Instant due;
  };
  // What overtook the OPEN of its window.
  struct Early {
    std::vector<EarlyChunk> chunks;
    bool finished = false;  // the sender has said that it is through
  };
  struct Replay {
    WindowKey key;
    std::vector<EarlyChunk> chunks;
    size_t next = 0;
  };
  const Replay* FindReplay(WindowKey key) const;
  void MarkClosed(WindowKey key);
  void QueueClose(WindowKey key, std::unique_ptr<WindowRx> window);
  void ForgetClosing(std::map<WindowKey, Closing>::iterator closing);
  void MakeRoomForClosing();

  codec::ErasureCoder* coder_;
  Limits limits_;
  std::map<WindowKey, std::unique_ptr<WindowRx>> open_;
  std::map<WindowKey, Closing> closing_;
  size_t closing_bytes_ = 0;
  std::deque<PendingClose> pending_;
  std::deque<PendingClose> repeats_;    // ascending by `due`
  std::deque<WindowKey> nacks_;         // at most one per open window
  std::map<uint32_t, uint8_t> closed_;  // id -> newest closed generation
  uint32_t forgotten_below_ = 0;
  uint64_t next_age_ = 0;
  std::map<WindowKey, Early> early_;
  size_t early_bytes_ = 0;
  std::deque<Replay> replays_;  // of windows that have just opened
  std::vector<std::unique_ptr<BlockAssembly>> closed_blocks_;
};

}  // namespace longhaul::transport
