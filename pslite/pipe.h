// Messages over one connection, both ways: in order, each once, or the connection ends.
//
// A message is a window of class high: its bytes in chunks of one length, and their number (8 bytes) in the
// window's metadata. Windows are numbered from 1; messages
// are handed on in this order, whatever arrives first. A window is closed when its message was dealt with,
// which makes room for the next one at the sender: what a slow receiver holds is bounded by
// kMaxOpenWindows and kMaxOpenBytes (or one message). Not thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>

#include "longhaul/status.h"
#include "pslite/message.h"
#include "transport/core/connection/connection.h"
#include "transport/core/connection/events.h"

namespace longhaul::pslite {

class Pipe {
 public:
  static constexpr uint32_t kMaxOpenWindows = 32;
  static constexpr size_t kMaxOpenBytes = size_t{64} << 20;
  // Handed to the connection at once: what a call of Work takes.
  static constexpr size_t kChunksAtOnce = 512;

  struct Received {
    uint32_t window = 0;
    Bytes bytes;
  };

  // The connection outlives the pipe.
  explicit Pipe(transport::Connection* connection) : connection_(connection) {}

  // --- Sending ---
  // Queues. cost: what OnWindowClosed or unsent() gives back for it. REQUIRES: 1..kMaxMessageBytes bytes.
  void Send(Bytes message, size_t cost = 0) { queue_.push_back({std::move(message), cost}); }
  bool HasWork() const;
  // Opens windows and hands their chunks over. Errors: the connection's.
  Status Work();
  // A window of ours is closed: the cost of its message. Errors: kResourceExhausted (the receiver
  // has refused it).
  Result<size_t> OnWindowClosed(transport::WindowKey key, wire::CloseReason reason);
  // Everything that was to be sent was dealt with.
  bool idle() const { return queue_.empty() && sent_.empty(); }
  // The cost of what is not.
  size_t unsent() const;

  // --- Receiving ---
  // Of strangers, only small messages. Errors: kProtocolViolation.
  Status OnWindowOpened(transport::WindowKey key, const wire::WindowOpenFrame& open, bool stranger);
  Status OnChunk(const transport::event::Chunk& chunk);
  // The next message, if it is here. Stays until Pop.
  std::optional<Received> Next() const;
  void Pop() { ++next_in_; }
  // It was dealt with.
  void Close(uint32_t window);

 private:
  struct Queued {
    Bytes bytes;
    size_t cost = 0;
  };
  struct Outgoing : Queued {
    uint32_t chunks = 0;
    uint32_t submitted = 0;
    uint16_t chunk_bytes = 0;
    size_t size() const { return size_t{chunks} * chunk_bytes; }
  };
  struct Incoming {
    Bytes bytes;
    uint32_t chunks = 0;
    uint32_t received = 0;
    uint16_t chunk_bytes = 0;
    size_t room() const { return size_t{chunks} * chunk_bytes; }
  };

  bool MayOpen() const;
  Status Open();

  transport::Connection* connection_;
  std::deque<Queued> queue_;           // no window yet
  std::map<uint32_t, Outgoing> sent_;  // by window; their bytes are lent to the connection
  size_t sent_bytes_ = 0;
  uint32_t next_out_ = 1;
  std::map<uint32_t, Incoming> incoming_;  // open ones
  size_t incoming_bytes_ = 0;
  uint32_t next_in_ = 1;
};

}  // namespace longhaul::pslite
