// Puts chunks and repair symbols together that came in parts (wire::PartHeader), in bounded memory.
//
// A part that is kept may be acknowledged, and the sender counts on it. So what is here of the high class is
// never thrown away, unless it is of no use any more; beyond the bound new parts are refused, not
// acknowledged, and come again. The sender sends a high chunk again until it is whole here, and a part of one
// that has begun always has room, so the bound stops nothing for good. Repair symbols, which are not sent
// again, have a bound of their own, which they share with low chunks; these may be thrown away: an
// acknowledgement of a low chunk promises nothing.
#pragma once

#include <compare>
#include <cstdint>
#include <functional>
#include <map>
#include <vector>

#include "proto/packet_header.h"
#include "transport/core/window/window_types.h"

namespace longhaul::transport {

class PartAssembly {
 public:
  // What lost parts of one round trip leave half-done: 1 Gbit/s, 100 ms, a tenth of the chunks lack a part
  // for two round trips, and what waits for repair symbols.
  static constexpr size_t kMaxHighBytes = 4u << 20;
  static constexpr size_t kMaxOtherBytes = 1u << 20;
  // What one costs at least, so that tiny ones are few.
  static constexpr size_t kMinCost = 1024;
  // Looked at for one that is of no use any more, per part that finds no room.
  static constexpr int kLooks = 8;

  enum class Verdict : uint8_t {
    kKept,     // or it was here already
    kWhole,    // the last one that was missing: whole() has the chunk, until Release or TakeBack
    kNoRoom,   // the packet must be treated as never received
    kInvalid,  // another total than the parts before: the peer's protocol error
  };
  // Whether a chunk is of no use any more.
  using IsOver = std::function<bool(const wire::DataHeader&)>;

  // REQUIRES: header.part, part.Fits(bytes.size()).
  Verdict Add(const wire::DataHeader& header, const wire::PartHeader& part, ByteSpan bytes,
              const IsOver& is_over);
  struct Whole {
    wire::DataHeader header;
    ByteSpan bytes;
  };
  // REQUIRES, like the next two: the latest Add of this header was kWhole.
  Whole whole(const wire::DataHeader& header);
  // The chunk is taken; its bytes live until EndLoans.
  void Release(const wire::DataHeader& header);
  // The chunk found no room: the part counts as never received.
  void TakeBack(const wire::DataHeader& header);

  // The window is over.
  void Forget(WindowKey key);
  void EndLoans() { released_.clear(); }

  size_t chunks() const { return high_.chunks.size() + other_.chunks.size(); }
  size_t bytes() const { return high_.bytes + other_.bytes; }
  // Low chunks that were thrown away.
  uint64_t dropped() const { return dropped_; }

 private:
  struct Name {
    WindowKey key;
    uint32_t index = 0;
    wire::ReliabilityClass reliability = wire::ReliabilityClass::kHigh;
    bool repair = false;
    auto operator<=>(const Name&) const = default;
  };
  struct Chunk {
    wire::DataHeader header;  // of the part that came first; last_of_window: of any
    std::vector<uint8_t> bytes;
    ChunkBitmap units;  // of wire::kPartUnit bytes
    size_t cost = 0;
  };
  struct Pool {
    std::map<Name, Chunk> chunks;
    size_t bytes = 0;
    size_t limit = 0;
    Name hand;  // where MakeRoom goes on
  };
  static Name NameOf(const wire::DataHeader& header) {
    return {{header.window_id, header.generation}, header.index, header.reliability, header.repair};
  }
  Pool& PoolOf(const wire::DataHeader& header) {
    return header.reliability == wire::ReliabilityClass::kHigh && !header.repair ? high_ : other_;
  }
  Chunk* FindOrBegin(const wire::DataHeader& header, size_t total, const IsOver& is_over);
  bool MakeRoom(Pool& pool, size_t cost, const IsOver& is_over);
  static void Erase(Pool& pool, std::map<Name, Chunk>::iterator chunk);

  Pool high_{{}, 0, kMaxHighBytes, {}};
  Pool other_{{}, 0, kMaxOtherBytes, {}};
  std::vector<uint32_t> new_units_;  // that the latest Add brought
  std::vector<std::vector<uint8_t>> released_;
  uint64_t dropped_ = 0;
};

}  // namespace longhaul::transport
