// The headers of longhaul packets; docs/reference/wire_format.md owns the layout, tests/golden its vectors.
//
// A datagram is one packet:
//
//   long:   flags 8 | reserved 8 | version 16 | destination CID 64 | source CID 64 | packet number 48
//           [cookie length 8 | cookie, in INIT and RETRY] | frames | tag
//   short:  flags 8 | path 8 | destination CID 64 | packet number 48
//           [data header 16 bytes, when flags has kHasData] | frames (data header's frames_length, else the
//           rest) [chunk, or part header 4 bytes and a part of one: the rest, when flags has kHasData] | tag
//
// Headers travel in clear and are authenticated. Decoders fail on anything unknown.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>

#include "base/bytes.h"

namespace longhaul::wire {

// Names one end of a connection, chosen by that end. Upper 16 bits: routing bits for the shard; lower 48:
// random.
struct ConnectionId {
  uint64_t value = 0;
  auto operator<=>(const ConnectionId&) const = default;
};

// Never reused within a connection; 48 bits on the wire, explicit.
using PacketNumber = uint64_t;
inline constexpr PacketNumber kMaxPacketNumber = (PacketNumber{1} << 48) - 1;

inline constexpr size_t kLongHeaderBytes = 26;
inline constexpr size_t kShortHeaderBytes = 16;
inline constexpr size_t kDataHeaderBytes = 16;
inline constexpr size_t kTagBytes = 16;
// What a DATA packet costs besides its chunk (and its frames, if any).
inline constexpr size_t kDataOverheadBytes = kShortHeaderBytes + kDataHeaderBytes + kTagBytes;
inline constexpr size_t kMinPacketBytes = kShortHeaderBytes + kTagBytes;

enum class LongType : uint8_t {
  kInit = 0,    // Worker to server; destination CID is zero until the server's is known.
  kAccept = 1,  // Server to worker: source CID is the server's.
  kRefuse = 2,  // Stateless answer: wrong version or no room. Carries one CLOSE frame.
  kRetry = 3,   // Stateless answer: come again with this cookie. No frames.
};
// What proves a client's address to a server that keeps no state; its content is opaque to the client.
inline constexpr size_t kMaxCookieBytes = 64;
constexpr bool HasCookie(LongType type) { return type == LongType::kInit || type == LongType::kRetry; }

// flags = 1 0 0 0 0 0 type(2)
struct LongHeader {
  LongType type = LongType::kInit;
  uint16_t version = 0;
  ConnectionId destination{};
  ConnectionId source{};
  PacketNumber packet_number = 0;
  bool operator==(const LongHeader&) const = default;
};

// flags = 0 has_data(1) 0 0 0 0 0 key_phase(1)
struct ShortHeader {
  bool has_data = false;
  bool key_phase = false;
  uint8_t path = 0;
  ConnectionId destination{};
  PacketNumber packet_number = 0;
  bool operator==(const ShortHeader&) const = default;
};

// How much the sender cares whether a chunk arrives.
enum class ReliabilityClass : uint8_t { kHigh = 0, kLow = 1 };

// Describes the one chunk (or repair symbol) of a DATA packet, or the one whose part it carries.
// flags = 0 0 0 part(1) retransmission(1) last_of_window(1) repair(1) low(1)
struct DataHeader {
  uint32_t window_id = 0;
  // Source chunk: its sequence number within its class, 0..count-1, in order of submission.
  // Repair symbol (high class only): source block << 16 | repair symbol number.
  uint32_t index = 0;
  ReliabilityClass reliability = ReliabilityClass::kHigh;
  bool repair = false;
  bool last_of_window = false;  // The sender has sent everything of this window at least once.
  bool retransmission = false;
  bool part = false;  // A part header and a part of the chunk are in the chunk's place.
  uint8_t generation = 0;
  uint16_t frames_length = 0;
  uint32_t timestamp_us = 0;  // Sender's clock, wraps; only differences mean something.
  bool operator==(const DataHeader&) const = default;

  uint16_t block() const { return static_cast<uint16_t>(index >> 16); }
  uint16_t symbol() const { return static_cast<uint16_t>(index); }
  static constexpr uint32_t RepairIndex(uint16_t block, uint16_t symbol) {
    return uint32_t{block} << 16 | symbol;
  }
};

// Where the bytes behind it lie in the chunk or repair symbol that was cut.
struct PartHeader {
  uint16_t offset = 0;  // A multiple of kPartUnit.
  uint16_t total = 0;   // Bytes of the whole.
  bool operator==(const PartHeader&) const = default;

  // Whether `bytes` behind it can be a part: not empty, inside the whole but not all of it, and of a multiple
  // of kPartUnit unless it is the end.
  bool Fits(size_t bytes) const;
};
inline constexpr size_t kPartHeaderBytes = 4;
inline constexpr size_t kPartUnit = 8;

// Whether a datagram starts with a long header; false also for an empty one.
bool IsLongHeader(ByteSpan datagram);

// A header that does not fit writes nothing and fails `out`.
// REQUIRES: packet_number <= kMaxPacketNumber; repair only with the high class.
void Encode(const LongHeader& header, ByteWriter& out);
void Encode(const ShortHeader& header, ByteWriter& out);
void Encode(const DataHeader& header, ByteWriter& out);
void Encode(const PartHeader& header, ByteWriter& out);
// What follows the long header of INIT and RETRY. REQUIRES: at most kMaxCookieBytes; fails `out` when there
// is no room.
void EncodeCookie(ByteSpan cookie, ByteWriter& out);

// nullopt when truncated, when a reserved bit or an unknown type is set, when the first bit says the other
// form, or for a repair symbol of the low class. A long header of another version decodes (so that the server
// can refuse it by name) as far as version, CIDs and number.
std::optional<LongHeader> DecodeLongHeader(ByteReader& in);
std::optional<ShortHeader> DecodeShortHeader(ByteReader& in);
std::optional<DataHeader> DecodeDataHeader(ByteReader& in);
// nullopt when truncated, or when what follows in `in`, all of it, does not fit (PartHeader::Fits).
std::optional<PartHeader> DecodePartHeader(ByteReader& in);
// Borrows from `in`; nullopt when truncated or longer than kMaxCookieBytes. Empty: no cookie.
std::optional<ByteSpan> DecodeCookie(ByteReader& in);

}  // namespace longhaul::wire

template <>
struct std::hash<longhaul::wire::ConnectionId> {
  size_t operator()(longhaul::wire::ConnectionId id) const noexcept {
    return std::hash<uint64_t>()(id.value * 0x9e3779b97f4a7c15ull);
  }
};
