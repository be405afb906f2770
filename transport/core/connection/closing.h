// The end of a connection as the peer sees it: CLOSE, repeated while it is not echoed, and the echo of the
// peer's own.
//
// Not thread-safe; lives inside one connection.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/instant.h"
#include "longhaul/status.h"
#include "proto/frames.h"

namespace longhaul::transport {

class Closing {
 public:
  // Copies of a CLOSE, one PTO apart but within these bounds: a short RTT must not burn all of them in one
  // burst of losses, a long one must not keep the connection for seconds.
  static constexpr int kCopies = 3;
  static constexpr Duration kMinGap = std::chrono::milliseconds(20);
  static constexpr Duration kMaxGap = std::chrono::milliseconds(500);

  // From now on copies of CLOSE are due.
  void Begin(Instant now, Status why);
  // The peer closed, or one final datagram is enough: nothing is due.
  void Note(Status why) { why_ = std::move(why); }
  // REQUIRES: Begin or Note.
  const Status& why() const { return *why_; }
  wire::CloseFrame Frame() const;
  // The peer's, fit for a terminal and a log.
  static std::string ReasonOf(const wire::CloseFrame& close);

  bool CopyDue(Instant now) const { return copies_left_ > 0 && now >= next_; }
  void OnCopySent(Instant now, Duration pto);
  // Every copy has left, and a gap has passed.
  bool Done(Instant now) const { return copies_left_ == 0 && now >= next_; }
  Instant Deadline() const { return next_; }

  // What is sent after the connection is gone; empty: nothing.
  void SetFinalDatagram(std::vector<uint8_t> bytes) { final_datagram_ = std::move(bytes); }
  std::vector<uint8_t> TakeFinalDatagram() { return std::exchange(final_datagram_, {}); }

 private:
  std::optional<Status> why_;
  int copies_left_ = 0;
  Instant next_ = Instant::Infinite();
  std::vector<uint8_t> final_datagram_;
};

}  // namespace longhaul::transport
