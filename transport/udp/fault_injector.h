// Options of the fault injector, and their text form.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/address.h"
#include "base/bytes.h"
#include "base/instant.h"
#include "longhaul/status.h"
#include "transport/core/datagram_core.h"
#include "wan/link_model.h"
#include "wan/link_options.h"

namespace longhaul::udp {

enum class FaultSide : uint8_t { kBoth, kIncoming, kOutgoing };

struct FaultOptions {
  wan::LinkOptions link;  // of each direction that is concerned
  FaultSide side = FaultSide::kBoth;
  uint64_t seed = 1;

  bool operator==(const FaultOptions&) const = default;
  bool Concerns(FaultSide direction) const { return side == FaultSide::kBoth || side == direction; }
};

// Reads "drop=0.02,delay=25ms,jitter=2ms,dup=0.01,reorder=0.01,corrupt=0.001,rate=200mbit,queue=50ms,seed=7":
// the words of wan::ParseLinkOptions as NAME=VALUE, where a share is 0..1 or a percentage, and
//   side           in, out or both (the default)
//   seed           a number
// Errors: kInvalidArgument naming the word and what would be right.
Result<FaultOptions> ParseFaults(std::string_view spec);

// Seeded misfortune between the socket and the core, in the shipped binaries too; off unless asked for.
//
//   core -> PollTransmit -> [ outgoing link model, queue of copies ] -> socket
//   core <- HandleDatagram <- [ incoming link model, queue of copies ] <- socket
//
// Every decision is the link model's (wan/link_model.h), whose counters say what was done. The same seed and
// the same sequence of datagrams give the same drops, copies and flipped bits.
//
// Not thread-safe; lives on its event loop's thread.

// One direction.
class FaultyDirection {
 public:
  struct Datagram {
    Instant due;
    uint64_t order = 0;
    Address peer;
    transport::ReceiveInfo info;
    std::vector<uint8_t> bytes;
  };

  // Datagrams beyond this much memory in the queue are dropped and counted. 64 MiB is 500 ms at 1 Gbit/s.
  static constexpr size_t kMaxQueuedBytes = size_t{64} << 20;
  // What a datagram counts besides its payload against the rate: IPv4 and UDP headers.
  static constexpr int64_t kHeaderBytes = 28;

  FaultyDirection(const wan::LinkOptions& link, Random random, size_t max_queued_bytes = kMaxQueuedBytes);

  // Event: a datagram enters; it is copied once for each time it will come out.
  void Submit(Instant now, const Address& peer, ByteSpan bytes, const transport::ReceiveInfo& info = {});
  // The next datagram that is due, in order of time; null when none. Belongs to this object until Pop().
  Datagram* Due(Instant now);
  void Pop();

  // --- Questions ---
  Instant NextDue() const { return queue_.empty() ? Instant::Infinite() : queue_.front().due; }
  const wan::LinkCounters& counters() const { return model_.counters(); }
  uint64_t overflows() const { return overflows_; }  // datagrams lost to kMaxQueuedBytes
  size_t queued_bytes() const { return queued_bytes_; }

 private:
  void Enqueue(const wan::Delivery& delivery, const Address& peer, ByteSpan bytes,
               const transport::ReceiveInfo& info);

  wan::LinkModel model_;
  size_t max_queued_bytes_;
  std::vector<Datagram> queue_;              // a min-heap by (due, order)
  std::vector<std::vector<uint8_t>> spare_;  // buffers of datagrams that have left
  size_t queued_bytes_ = 0;
  uint64_t next_order_ = 0;
  uint64_t overflows_ = 0;
};

class FaultInjector {
 public:
  // REQUIRES: options.link.Validate().ok(), which ParseFaults has made sure of.
  explicit FaultInjector(const FaultOptions& options);

  // Null when this direction is left alone.
  FaultyDirection* incoming() { return incoming_ ? &*incoming_ : nullptr; }
  FaultyDirection* outgoing() { return outgoing_ ? &*outgoing_ : nullptr; }
  const FaultOptions& options() const { return options_; }
  // When a datagram of either direction is due.
  Instant NextDue() const;

 private:
  FaultOptions options_;
  std::optional<FaultyDirection> incoming_;
  std::optional<FaultyDirection> outgoing_;
};

}  // namespace longhaul::udp
