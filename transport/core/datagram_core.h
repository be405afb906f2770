// The calls between a sans-I/O core and its driver (sockets, simulator, fuzzer): events go in with the time,
// datagrams and the next deadline come out, and what would take long is done in slices when the driver has
// time.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "base/address.h"
#include "base/bytes.h"
#include "base/instant.h"

namespace longhaul::transport {

// What the socket layer knows about a received datagram besides its bytes.
struct ReceiveInfo {
  bool ecn_ce = false;  // Marked Congestion Experienced on its way.
  uint64_t host_drops =
      0;  // Datagrams that this socket's buffer has dropped since it was opened (SO_RXQ_OVFL).
  bool ecn_ect0 = false;  // Arrived as ECN-capable as it was sent: ECT(0).
  // When this host's network stack took it in, which is earlier than it is handled when the process was busy;
  // Infinite(): not known.
  Instant received = Instant::Infinite();

  // When it arrived: as it is handled, unless it is known to have waited.
  Instant ArrivedBy(Instant now) const { return std::min(now, received); }
};

// What PollTransmit wrote: `size` bytes for one destination, to be sent as datagrams of `segment_bytes`
// each, of which only the last may be shorter (so UDP_SEGMENT can send them in one call).
struct Transmit {
  Address destination;
  size_t size = 0;
  size_t segment_bytes = 0;
  bool ect0 = false;  // mark as ECN-capable: ECT(0)
};

class DatagramCore {
 public:
  virtual ~DatagramCore() = default;

  // Event: a datagram arrived. Opened in place, so `datagram` is garbage afterwards. Anything may be in it.
  virtual void HandleDatagram(Instant now, const Address& from, MutableByteSpan datagram,
                              const ReceiveInfo& info) = 0;
  // Event: NextTimeout() has been reached. Harmless when called early.
  virtual void HandleTimeout(Instant now) = 0;
  // Event: the kernel refuses datagrams of this size towards that address (EMSGSIZE).
  virtual void HandleSendRefused(Instant now, const Address& destination, size_t datagram_bytes) = 0;
  // What to send now, if anything; call until nullopt after every event. `buffer` is at least 65,507 bytes
  // for batches, never less than one datagram. At most 64 segments.
  virtual std::optional<Transmit> PollTransmit(Instant now, MutableByteSpan buffer) = 0;
  // When HandleTimeout wants to be called (pacing included); Infinite() when nothing is armed.
  virtual Instant NextTimeout() const = 0;

  // Work is due that grows with the caller's data, such as encoding a tensor. Ask after every event and
  // request.
  virtual bool HasWork() const { return false; }
  // Does a slice of it, of at most about 0.5 ms; then there may be something to transmit.
  virtual void Work(Instant now) { (void)now; }
  // The driver is to send and receive by another port from now on. Ask after every event; a driver that
  // cannot need not.
  virtual bool WantsPort() const { return false; }
  // Event: it does.
  virtual void HandlePort(Instant now) { (void)now; }
  // Event: so much CPU time took the longest of all calls into this core so far, for its statistics.
  virtual void HandleLongestEvent(Duration cpu) { (void)cpu; }
};

}  // namespace longhaul::transport
