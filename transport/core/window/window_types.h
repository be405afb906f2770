// Vocabulary of windows: one worker's transmission of one bucket in one round.
#pragma once

#include <algorithm>
#include <bit>
#include <compare>
#include <cstdint>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "longhaul/status.h"
#include "longhaul/units.h"
#include "proto/frames.h"
#include "proto/packet_header.h"

namespace longhaul::transport {

// Names a window within one direction of one connection. A window that is sent again after a close without
// all of its high class gets the same id and the next generation.
struct WindowKey {
  uint32_t id = 0;
  uint8_t generation = 0;
  auto operator<=>(const WindowKey&) const = default;
};

// One bit per chunk of a class: taken or not. LSB first within a byte.
class ChunkBitmap {
 public:
  ChunkBitmap() = default;
  explicit ChunkBitmap(uint32_t bits) : bits_(bits), bytes_((bits + 7) / 8, 0) {}
  // REQUIRES: (bits + 7) / 8 bytes; no bit beyond the last is set.
  ChunkBitmap(uint32_t bits, std::vector<uint8_t> bytes) : bits_(bits), bytes_(std::move(bytes)) {
    for (const uint8_t byte : bytes_) count_ += static_cast<uint32_t>(std::popcount(byte));
  }

  uint32_t size() const { return bits_; }
  uint32_t count() const { return count_; }
  bool Test(uint32_t i) const { return i < bits_ && (bytes_[i / 8] >> (i % 8) & 1) != 0; }
  // True when the bit was clear: the test-and-set that makes adding twice impossible. False out of range.
  bool Set(uint32_t i) {
    if (i >= bits_ || Test(i)) return false;
    bytes_[i / 8] = static_cast<uint8_t>(bytes_[i / 8] | 1u << (i % 8));
    ++count_;
    return true;
  }
  // True when the bit was set.
  bool Clear(uint32_t i) {
    if (!Test(i)) return false;
    bytes_[i / 8] = static_cast<uint8_t>(bytes_[i / 8] & ~(1u << (i % 8)));
    --count_;
    return true;
  }
  // A byte at a time, not a bit.
  void SetAll() {
    std::ranges::fill(bytes_, uint8_t{0xff});
    if (bits_ % 8 != 0) bytes_.back() = static_cast<uint8_t>((1u << bits_ % 8) - 1);
    count_ = bits_;
  }
  const std::vector<uint8_t>& bytes() const { return bytes_; }

 private:
  uint32_t bits_ = 0;
  uint32_t count_ = 0;
  std::vector<uint8_t> bytes_;
};

// What the owner of a window did with a chunk. A refused chunk is acknowledged and never asked for again, but
// the CLOSE says that it was not received, so that it is the sender's again (Connection::RefuseChunk).
enum class ChunkVerdict : uint8_t { kTaken, kRefused };

// What the close of a window says: a chunk counts as received if and only if it was delivered to the
// receiver's owner and taken by it. Everything else is the sender's again.
struct WindowReceipt {
  bool high_complete = false;  // all of the high class was taken
  ChunkBitmap low;             // by sequence number of the class
  ChunkBitmap high;            // empty when high_complete

  bool HighTaken(uint32_t sequence) const { return high_complete || high.Test(sequence); }
  bool LowTaken(uint32_t sequence) const { return low.Test(sequence); }
};

// Longest symbol of any window, a multiple of 16: what the largest UDP datagram carries.
inline constexpr uint16_t kMaxSymbolBytes = 64'992;

// How a sender describes a window it opens.
struct WindowOptions {
  WindowKey key;
  uint32_t high_count = 0;
  uint32_t low_count = 0;
  uint16_t symbol_bytes = 0;      // longest chunk (header and body together); a multiple of 16
  uint8_t fec_k = 20;             // 0 = no FEC
  uint8_t fec_depth = 4;          // blocks interleaved; 0 = as the connection advises when the window opens
  int priority = 0;               // lower leaves first among windows of the same connection
  std::vector<uint8_t> metadata;  // opaque, <= wire::kMaxWindowMetadataBytes
};

// What the sender did for a window; final when the window is closed.
struct WindowTxStats {
  uint32_t high_sent = 0;  // first transmissions
  uint32_t low_sent = 0;
  uint32_t low_dropped = 0;  // never sent: the window closed first
  uint32_t retransmissions = 0;
  uint32_t repairs_sent = 0;
  uint32_t lost = 0;     // declared lost (raw, before FEC), spurious ones undone
  uint32_t settled = 0;  // lost high chunks that were not resent: other symbols completed the block
};

// What arrived; final when the window is closed.
struct WindowRxStats {
  uint32_t high_received = 0;  // distinct source chunks that arrived themselves
  uint32_t high_repaired = 0;  // rebuilt by FEC
  uint32_t low_received = 0;
  uint32_t repairs_received = 0;
  uint32_t repair_unused = 0;  // repair symbols that came when their block was complete
  uint32_t duplicates = 0;
  uint32_t refused = 0;  // delivered, but not taken by the owner
};

// State of an incoming window: what the close rule asks for (close_rule.h).
struct IncomingWindow {
  uint32_t high_count = 0;
  uint32_t low_count = 0;
  bool high_complete = false;  // by arrival: a chunk that was refused is here
  bool complete = false;
  bool sender_finished = false;
  double high_ratio = 0;  // share of the high class that is here, 0..1
  double low_ratio = 0;
  WindowRxStats stats;

  // A window that was just opened, with nothing of it here.
  static IncomingWindow Opened(uint32_t high_count, uint32_t low_count) {
    IncomingWindow window;
    window.high_count = high_count;
    window.low_count = low_count;
    window.high_complete = high_count == 0;
    window.high_ratio = high_count == 0 ? 1 : 0;
    window.low_ratio = low_count == 0 ? 1 : 0;
    return window;
  }
};

}  // namespace longhaul::transport
