// The windows that this side is sending, and the scheduler among them: what leaves next.
//
// Strict priority by urgency (WindowTx::Tier, with repair symbols like new high chunks), then by the window's
// priority, then by age. Frames about a
// window (OPEN, STATUS) wait here until the packet builder takes them; OPEN leaves before the window's first
// chunk and is repeated a few packets later, since a receiver can do nothing useful without it.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "base/instant.h"
#include "codec/fec/erasure_coder.h"
#include "transport/core/window/window_tx.h"

namespace longhaul::transport {

class OutgoingWindows {
 public:
  explicit OutgoingWindows(codec::ErasureCoder* coder) : coder_(coder) {}

  // Keys that were used are remembered back to this many ids; older ids are taken for used.
  static constexpr size_t kRememberedIds = 4096;

  // A key is used once: what is in flight of an older window must not be taken for a new one's.
  // Errors: kInvalidArgument, kAlreadyExists (the key was used), kResourceExhausted (more than `limit` open).
  Status Open(const WindowOptions& options, uint32_t limit, ByteCount max_window_bytes);
  WindowTx* Find(WindowKey key);
  void Erase(WindowKey key);
  // Erases the window and hands it out. REQUIRES: Find(key).
  std::unique_ptr<WindowTx> Take(WindowKey key);

  // Longest chunk that any open window may have; 0: none is open.
  size_t LongestChunk() const;
  // Whether a chunk waits in any window.
  bool HasChunk() const;
  // The most urgent chunk of all windows; sets `last_of_window` when the window is finished by it.
  std::optional<WindowTx::Item> NextChunk(const PathView& path);

  // A frame that waits: kWindowOpen or kWindowStatus of a window. Take removes it from the queue.
  struct Pending {
    wire::FrameType type = wire::FrameType::kWindowOpen;
    WindowKey key;
  };
  bool HasPendingFrame() const { return !pending_.empty(); }
  std::optional<Pending> PeekFrame();
  void PopFrame() { pending_.pop_front(); }
  // The frame was lost on its way.
  void Requeue(wire::FrameType type, WindowKey key);

  // The receiver asks for chunks. Honoured once per `interval` and window, since what it asks for leaves with
  // priority; nullopt: too early, ignored. Else the number of chunks that were queued. A window that is
  // unknown (closed) wants none.
  std::optional<uint32_t> OnNack(const wire::WindowNackFrame& frame, Instant now, Duration interval);

  ByteCount backlog() const;
  size_t size() const { return windows_.size(); }
  // A window was opened since the last call: the moment for RateController::OnWindowStart.
  bool TakeStarted();

  template <typename Function>
  void ForEach(Function&& function) {
    for (auto& [key, entry] : windows_) function(*entry.window);
  }

 private:
  struct Entry {
    std::unique_ptr<WindowTx> window;
    uint64_t age = 0;
    uint32_t chunks_sent = 0;
    bool status_queued = false;
    std::optional<Instant> nacked;  // when a WINDOW_NACK was honoured last
  };
  Entry* MostUrgent();
  bool IsUsed(WindowKey key) const;
  void MarkUsed(WindowKey key);

  codec::ErasureCoder* coder_;
  std::map<WindowKey, Entry> windows_;
  std::map<uint32_t, uint8_t> used_;  // id -> newest generation
  uint32_t forgotten_below_ = 0;
  std::deque<Pending> pending_;
  uint64_t next_age_ = 0;
  bool started_ = false;
};

}  // namespace longhaul::transport
