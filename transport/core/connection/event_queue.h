// The events of one connection between the datagram that caused them and the owner that polls them.
//
// Chunks are not in it: one entry says that a window has some, and they are taken from the window when it is
// their turn (transport/core/window/window_rx.h). The state of a window is looked at when it is polled, too.
// So an entry is small, one datagram makes few of them, and once the vectors have grown nothing is allocated.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/instant.h"
#include "longhaul/status.h"
#include "proto/frames.h"
#include "transport/core/connection/events.h"
#include "transport/core/window/window_tx.h"
#include "transport/core/window/window_types.h"

namespace longhaul::transport {

class ConnectionImpl;
class Windows;

class EventQueue {
 public:
  // An honest peer's datagram opens or closes a few windows and carries one chunk; 64 windows open each way,
  // all opened, stated and closed by one jumbo datagram, are 192. A peer beyond this is cut off.
  static constexpr size_t kMaxEntries = 1024;
  // Longer buffers of control data are given back once they were polled: a gap had held so much back.
  static constexpr size_t kKeptControlBytes = 64 * 1024;

  enum class Kind : uint8_t {
    kNothing,  // was taken back
    kAccepted,
    kConnected,
    kControl,
    kControlWritable,
    kWindowOpened,
    kChunks,
    kWindowState,
    kWindowClosed,
    kClosed,
  };
  struct Entry {
    Kind kind = Kind::kNothing;
    WindowKey key;
    size_t control_end = 0;            // kControl: in control()
    wire::WindowOpenFrame open;        // kWindowOpened
    const WindowTx* window = nullptr;  // kWindowClosed
  };

  // While anything waits, `owner` is in *ready: the endpoint need not ask each connection for every datagram.
  explicit EventQueue(ConnectionImpl* owner = nullptr, std::vector<ConnectionImpl*>* ready = nullptr)
      : owner_(owner), ready_(ready) {}

  void Push(Kind kind, WindowKey key = {});
  // Connected, once, and then the control data that has come meanwhile.
  void Announce();
  bool announced() const { return announced_; }
  void PushOpened(const wire::WindowOpenFrame& open);
  // Instead of an earlier one of the window: after its chunks.
  void PushState(WindowKey key);
  void PushClosed(WindowKey key, std::unique_ptr<WindowTx> window);
  // The end of the connection; nothing follows.
  void PushEnd(Status why);
  // Control data that was appended to control() is ready.
  void PushControl();
  // A window of ours was given up: nothing is said of its close.
  void Forget(WindowKey outgoing);

  // The next one; nullopt: nothing waits, and the owner is out of *ready. Chunks and states are taken from
  // `windows`. Error: kProtocolViolation of the peer, whose early chunk is invalid; more may wait.
  Result<std::optional<Event>> Poll(Windows* windows, Duration smoothed_rtt);
  // Null: nothing waits.
  const Entry* Front();
  void Pop() { ++next_; }
  // What waits does not matter any more.
  void Clear();

  // Control data in order; appended to by the stream.
  std::vector<uint8_t>* control() { return &control_; }
  size_t unpolled_control() const { return control_.size() - control_next_; }
  // Nothing that was polled is looked at any more.
  void EndLoans();

  // kProtocolViolation: one datagram of the peer's causes more than kMaxEntries.
  Status Check() const;
  uint64_t dropped() const { return dropped_; }
  // In order; kNothing for what was taken back.
  std::span<const Entry> waiting() const { return std::span(entries_).subspan(next_); }

 private:
  Result<std::optional<Event>> EventOf(const Entry& front, Windows* windows, Duration smoothed_rtt);
  // The next piece of the control data of the kControl entry in front; empty when it is used up.
  ByteSpan NextControl(const Entry& entry);
  Entry* Add(Kind kind);

  ConnectionImpl* owner_;
  std::vector<ConnectionImpl*>* ready_;
  bool is_ready_ = false;   // in *ready_
  bool announced_ = false;  // kConnected was pushed
  std::vector<Entry> entries_;
  size_t next_ = 0;
  std::vector<uint8_t> control_;
  size_t control_next_ = 0;
  std::vector<std::unique_ptr<WindowTx>> closed_;
  Status end_;
  uint64_t dropped_ = 0;
};

}  // namespace longhaul::transport
