// What happened on a connection, for its owner to poll (Endpoint::PollEvent).
//
// Per connection: Accepted (a server's) -> Connected -> anything else -> Closed, in the order in which it
// came in. Spans and pointers live until the next Handle* of the endpoint. What the owner decides about an
// event is a request to the connection: CloseWindow refuses a window, RefuseChunk a chunk, Close an accepted
// connection.
#pragma once

#include <cstdint>
#include <variant>

#include "base/address.h"
#include "base/bytes.h"
#include "longhaul/status.h"
#include "proto/frames.h"
#include "transport/core/window/window_types.h"

namespace longhaul::transport {

namespace event {

// Server: a new connection; with security once the peer is authenticated.
struct Accepted {};

// The handshake is complete and the search for the path's MTU, where one was needed, is over; windows and
// control data may be sent.
struct Connected {};

// The next bytes of the peer's control stream, in order, exactly once.
struct ControlBytes {
  static constexpr size_t kMaxBytes = 16 * 1024;  // at once: what is made of them lives at the same time
  ByteSpan bytes;
};

// All control data given to SendControl so far was acknowledged after SendControl had refused for lack of
// room.
struct ControlWritable {};

// The peer opened a window towards us.
struct WindowOpened {
  WindowKey key;
  wire::WindowOpenFrame open;
};

// A chunk of an open window is here; exactly once per chunk. It counts as taken unless RefuseChunk says
// otherwise before the window is closed. repaired: rebuilt by FEC; then `bytes` has the window's symbol
// length, padded with zeros.
struct Chunk {
  WindowKey key;
  wire::ReliabilityClass reliability = wire::ReliabilityClass::kHigh;
  uint32_t sequence = 0;
  ByteSpan bytes;
  bool repaired = false;
};

// Something about an open incoming window changed (chunks arrived, or the sender is finished): the moment
// for the close rule. Once per datagram and window, after its chunks.
struct WindowState {
  WindowKey key;
  IncomingWindow window;
  Duration smoothed_rtt{0};  // zero: no sample yet
};

// A window of ours is over: the receiver closed it. The borrowed chunk bodies are free again.
struct WindowClosed {
  WindowKey key;
  wire::CloseReason reason = wire::CloseReason::kComplete;
  const WindowReceipt* receipt = nullptr;  // which chunks the receiver has taken; never null
  WindowTxStats stats;
};

// The last event of the connection, which is valid until the next Handle* of the endpoint.
struct Closed {
  Status why;
};

// Server: a handshake that was begun did not get through. Of no connection, and perhaps of another address
// than it says: strangers cause it at will. What does not fit the queue is only counted
// (EndpointStats::handshakes_failed).
struct HandshakeFailed {
  Address peer;
  Status why;
};

}  // namespace event

using Event = std::variant<event::Accepted, event::Connected, event::ControlBytes, event::ControlWritable,
                           event::WindowOpened, event::Chunk, event::WindowState, event::WindowClosed,
                           event::Closed, event::HandshakeFailed>;

}  // namespace longhaul::transport
