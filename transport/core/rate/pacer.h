// Spreads packets over time: a token bucket in user space (SO_TXTIME is ignored without the fq qdisc).
//
// The credit grows with the pacing rate, up to max(2 datagrams, rate * 2 ms). A burst (quantum) is
// clamp(rate * 1 ms, 2 datagrams, 64 KB), or less when the rate controller says so. After idling, credit is
// one quantum, never more.
#pragma once

#include <algorithm>

#include "base/instant.h"
#include "longhaul/units.h"

namespace longhaul::transport {

class Pacer {
 public:
  explicit Pacer(ByteCount max_datagram) : max_datagram_(max_datagram) {}

  void SetRate(Bandwidth rate, Instant now);
  // Bound of the quantum, at least one datagram; ByteCount::Max() = none. The credit is bounded by twice
  // that, or by what a timer can be late.
  void SetMaxQuantum(ByteCount quantum) { max_quantum_ = std::max(quantum, max_datagram_); }
  // The datagrams have grown or shrunk (path MTU).
  void SetMaxDatagram(ByteCount max_datagram) { max_datagram_ = max_datagram; }
  // How many bytes may leave now; zero or less: wait until NextSendTime().
  ByteCount Credit(Instant now) const;
  // The timer that should have let a quantum go came so late that credit was forfeited: what arrives in the
  // next round trip is the sender's pace, not the path's.
  bool Stalled(Instant now) const;
  // The sender stopped for another reason than the pacer (window, nothing to send): what accrues from now on
  // is not a late timer's, so it is at most one quantum. Lasts until the next OnSent.
  void OnBlockedElsewhere(Instant now);
  // The bytes left; may overdraw by at most one datagram.
  void OnSent(ByteCount bytes, Instant now);
  // Earliest time at which a quantum (not just one datagram) may leave, so that timers do not fire per
  // packet.
  Instant NextSendTime(Instant now) const;
  ByteCount Quantum() const;
  Bandwidth rate() const { return rate_; }

 private:
  ByteCount MaxCredit() const;
  ByteCount Accrued(Instant now) const;
  void AccrueUntil(Instant now);

  ByteCount max_datagram_;
  ByteCount max_quantum_ = ByteCount::Max();
  Bandwidth rate_;
  ByteCount credit_;  // as of updated_
  Instant updated_;
  Instant last_used_;  // when something was last sent
  bool started_ = false;
  bool blocked_elsewhere_ = false;
};

}  // namespace longhaul::transport
