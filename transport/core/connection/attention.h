// What connections tell their endpoint, which then asks only those that a datagram or a timer concerns: of a
// thousand, one.
#pragma once

#include <cstdint>
#include <deque>
#include <vector>

#include "base/instant.h"

namespace longhaul::transport {

class ConnectionImpl;

// Each connection is in a list at most once. Outlives them.
struct Attention {
  std::vector<ConnectionImpl*> ready;   // have events, in the order of the first one that waits
  std::deque<ConnectionImpl*> sending;  // may have something to send, in turn
  std::vector<ConnectionImpl*> moved;   // may have another time-out than the endpoint knows of
};

// What the endpoint keeps of a connection (ConnectionSet).
struct Turn {
  uint64_t number = 0;  // in the order in which they were added
  bool in_sending = false;
  bool in_moved = false;
  Instant timeout = Instant::Infinite();  // as the endpoint knows it
  Instant polled;                         // asked for what it has to send
};

}  // namespace longhaul::transport
