// Tells the other nodes that a message has ended here, and tells them again. An abort is not acknowledged:
// who still sends for the message is answered with another one, but a node whose sums are all acknowledged
// has nothing left to send, and would learn of the end by its own deadline.
#pragma once

#include <array>
#include <bit>
#include <cstdint>

#include "base/instant.h"
#include "offload/engine/deadline_wheel.h"
#include "offload/engine/transfer.h"

namespace longhaul::offload {

class Aborts {
 public:
  static constexpr uint16_t kSlot = UINT16_MAX - 1;  // in the place of a message's slot in timers
  // One for each message that an engine has at a time; with more the oldest is not told again.
  static constexpr uint32_t kMost = 64;

  Aborts(DeadlineWheel* wheel, Transfer* transfer, OffloadStats* stats)
      : wheel_(wheel), transfer_(transfer), stats_(stats) {}

  // header: of kind kAbort. targets: bit per node.
  void Tell(Instant now, uint64_t targets, const Header& header) {
    const uint32_t number = next_++ % kMost;
    Entry& entry = entries_[number];
    wheel_->Cancel(entry.timer);
    entry.targets = targets;
    entry.header = header;
    entry.wait = kFirstWait;
    Send(now, number);
  }

  void OnTimer(Instant now, uint32_t number) {
    Entry& entry = entries_[number];
    entry.timer = DeadlineWheel::kNone;
    entry.wait *= 4;
    Send(now, number);
  }

 private:
  // Sent after 0, 2, 10 and 42 ms: with a twentieth of packets lost, one in 160,000 does not arrive, and what
  // arrives does so within the 100 ms in which a death is to be known.
  static constexpr Duration kFirstWait = std::chrono::milliseconds(2);
  static constexpr Duration kLastWait = std::chrono::milliseconds(32);

  struct Entry {
    uint64_t targets = 0;
    Header header;
    Duration wait{0};
    DeadlineWheel::Timer timer = DeadlineWheel::kNone;
  };

  void Send(Instant now, uint32_t number) {
    Entry& entry = entries_[number];
    for (uint64_t rest = entry.targets; rest != 0; rest &= rest - 1) {
      const auto target = static_cast<uint8_t>(std::countr_zero(rest));
      if (!transfer_->QueueAnswer(target, entry.header)) ++stats_->answers_dropped;
    }
    if (entry.wait <= kLastWait) entry.timer = wheel_->Add(now + entry.wait, uint64_t{kSlot} << 48 | number);
  }

  DeadlineWheel* wheel_;
  Transfer* transfer_;
  OffloadStats* stats_;
  std::array<Entry, kMost> entries_;
  uint32_t next_ = 0;
};

}  // namespace longhaul::offload
