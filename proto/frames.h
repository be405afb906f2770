// Frames: the typed elements in a packet besides its chunk. Type 8 bits, then the fields; 8-bit fields and
// booleans are one byte, wider integers are QUIC varints (RFC 9000 §16) in their shortest form, so every
// frame has exactly one encoding. Byte spans borrow from the datagram.
//
// ack-eliciting: every frame but PADDING, ACK and CLOSE.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <variant>
#include <vector>

#include "base/bytes.h"
#include "longhaul/status.h"
#include "proto/packet_header.h"

namespace longhaul::wire {

enum class FrameType : uint8_t {
  kPadding = 0x00,
  kPing = 0x01,
  kAck = 0x02,
  kControl = 0x06,
  kWindowOpen = 0x10,
  kWindowStatus = 0x11,
  kWindowClose = 0x12,
  kWindowNack = 0x13,
  kGrant = 0x14,
  kCrypto = 0x15,
  kPathChallenge = 0x16,
  kPathResponse = 0x17,
  kNewCid = 0x18,
  // Reserved for later versions: kRetireCid 0x19.
  kKeyUpdate = 0x1a,
  kClose = 0x1c,
  kTransportParameters = 0x20,
};

struct PaddingFrame {  // A run of zero bytes; `length` >= 1. Decoding swallows the whole run.
  uint32_t length = 1;
  bool operator==(const PaddingFrame&) const = default;
};

struct PingFrame {
  bool operator==(const PingFrame&) const = default;
};

// Inclusive range of packet numbers.
struct AckRange {
  PacketNumber smallest = 0;
  PacketNumber largest = 0;
  bool operator==(const AckRange&) const = default;
};

// What the receiver has: ranges newest first, disjoint and not adjacent, at most kMaxAckRanges.
// Encoded as largest, delay, count, first length, then (gap, length) pairs as in RFC 9000 §19.3.
struct AckFrame {
  std::vector<AckRange> ranges{};
  uint64_t ack_delay_us = 0;  // Time since the largest number arrived.
  uint64_t ecn_ect0 = 0;      // Packets received with ECT(0), since the start.
  uint64_t ecn_ce = 0;        // Packets received with Congestion Experienced, since the start.
  uint64_t host_drops = 0;    // Datagrams that the receiver's socket buffer dropped, since the start.
  bool operator==(const AckFrame&) const = default;
};
inline constexpr size_t kMaxAckRanges = 64;

// A piece of the reliable, ordered control stream: its bytes start at `offset`.
struct ControlFrame {
  uint64_t offset = 0;
  ByteSpan data{};
};

// Opens a window. Carried reliably and repeated in the window's first packets. Everything the receiver's
// transport must know; `metadata` is opaque to the transport (codec/chunk/window_metadata.h), at most 512
// bytes.
struct WindowOpenFrame {
  uint32_t window_id = 0;
  uint8_t generation = 0;
  uint32_t high_count = 0;    // Chunks of the high class.
  uint32_t low_count = 0;     // Chunks of the low class.
  uint16_t symbol_bytes = 0;  // Longest chunk; FEC symbols are chunks padded with zeros to this.
  uint8_t fec_k = 0;          // Source symbols per block; 0 = no FEC in this window.
  uint8_t fec_depth = 1;      // Blocks interleaved, >= 1.
  ByteSpan metadata{};
};
inline constexpr size_t kMaxWindowMetadataBytes = 512;
// 16-bit block numbers and this bound keep every table that a peer can ask for small.
inline constexpr uint32_t kMaxWindowChunks = 1u << 20;  // high and low together
inline constexpr uint32_t kMaxWindowBlocks = 1u << 16;  // ceil(high_count / fec_k)

// Sender to receiver, reliable: how far the window's sending is.
struct WindowStatusFrame {
  uint32_t window_id = 0;
  uint8_t generation = 0;
  uint32_t high_sent = 0;  // High chunks sent at least once.
  uint32_t low_sent = 0;   // Low chunks sent at least once.
  bool finished = false;   // Nothing new will follow: what has not arrived is lost or dropped by the sender.
  bool operator==(const WindowStatusFrame&) const = default;
};

enum class CloseReason : uint8_t {
  kComplete = 0,   // Everything arrived.
  kRatio = 1,      // High class done and the preset ratio of the low class reached.
  kSoft = 2,       // High class done and the sender is finished, or the soft deadline passed.
  kHard = 3,       // The hard deadline passed.
  kExcluded = 4,   // The round went on without this window.
  kCancelled = 5,  // The sender gave the window up.
};

// Ends a window; in-band, repeated until acknowledged, idempotent. Receiver to sender: which chunks it took.
// Sent in segments when the bitmap is long; a window is closed for the sender when it has all of it.
struct WindowCloseFrame {
  uint32_t window_id = 0;
  uint8_t generation = 0;
  CloseReason reason = CloseReason::kComplete;
  bool high_complete = true;  // All of the high class was taken.
  // Bits in the whole bitmap: one per low chunk, then, without high_complete, one per high chunk.
  uint32_t bits = 0;
  uint32_t first = 0;  // Number of the segment's first bit, a multiple of 8.
  // Bit i (LSB first) of byte j stands for bit first + 8 j + i: the chunk was taken. Empty with bits > 0:
  // everything was taken (kComplete with high_complete), or nothing was (without high_complete).
  ByteSpan bitmap{};
};
inline constexpr size_t kMaxCloseBitmapBytes = 1024;

// Receiver to sender: the high chunks that the receiver is still waiting for, so that the sender need not
// find out by itself what was lost. Not repeated when it is lost.
struct WindowNackFrame {
  uint32_t window_id = 0;
  uint8_t generation = 0;
  uint32_t first = 0;  // Sequence number of the bitmap's first chunk, a multiple of 8.
  ByteSpan bitmap{};   // Bit i (LSB first) of byte j: high chunk first + 8 j + i is missing. The last byte is
                       // not zero.
};
inline constexpr size_t kMaxNackBitmapBytes = 1024;

// Receiver to sender: what the sender may use.
struct GrantFrame {
  uint64_t receive_window_bytes = 0;   // Bound on the sender's bytes in flight.
  uint64_t rate_bytes_per_second = 0;  // Bound on its pacing rate; 0 = none.
  bool operator==(const GrantFrame&) const = default;
};

// Asks the host at an address to send `data` back; no other host can know it.
struct PathChallengeFrame {
  uint64_t data = 0;
  bool operator==(const PathChallengeFrame&) const = default;
};

// To the address that the challenge came from.
struct PathResponseFrame {
  uint64_t data = 0;
  bool operator==(const PathResponseFrame&) const = default;
};

// A piece of the handshake's ordered byte stream, one per direction. Only in long packets, which are not
// acknowledged: `received` takes the place of ACK.
struct CryptoFrame {
  uint64_t offset = 0;
  uint64_t received = 0;  // Bytes of the other direction that are here without a gap.
  ByteSpan data{};
};
// Neither stream of a handshake is longer.
inline constexpr uint64_t kMaxHandshakeBytes = 64 * 1024;

// Server to client, reliable: the end of a datagram that tells the client that the server no longer has this
// connection.
struct NewCidFrame {
  std::array<uint8_t, 16> reset_token{};
  bool operator==(const NewCidFrame&) const = default;
};

// Reliable: one side's share of the exchange from which the keys of the next phase come.
struct KeyUpdateFrame {
  uint64_t phase = 0;   // that it leads to; the first one is 0
  bool answer = false;  // to the peer's offer of the same phase
  std::array<uint8_t, 32> share{};
  bool operator==(const KeyUpdateFrame&) const = default;
};

// The connection is over. `code` is a StatusCode.
struct CloseFrame {
  StatusCode code = StatusCode::kOk;
  std::string_view reason{};  // UTF-8, at most 256 bytes; Encode cuts what is longer or not UTF-8.
  bool operator==(const CloseFrame&) const = default;
};
inline constexpr size_t kMaxCloseReasonBytes = 256;

// Range of max_datagram_bytes: what every path carries, and the largest UDP payload over IPv4.
inline constexpr uint32_t kSmallestMaxDatagram = 1200;
inline constexpr uint32_t kLargestMaxDatagram = 65507;

// In INIT and ACCEPT. Bounds above kMaxVarint travel as kMaxVarint, here and in GRANT.
struct TransportParametersFrame {
  uint32_t max_datagram_bytes = 0;  // Largest datagram that this side accepts and sends; 1200..65507.
  uint64_t idle_timeout_ms = 0;
  uint64_t receive_window_bytes = 0;  // First GRANT.
  uint32_t max_open_windows = 0;      // Windows that the peer may have open towards this side.
  uint64_t max_window_bytes = 0;      // Bound on (high_count + low_count) * symbol_bytes of one window.
  bool operator==(const TransportParametersFrame&) const = default;
};

using Frame =
    std::variant<PaddingFrame, PingFrame, AckFrame, ControlFrame, WindowOpenFrame, WindowStatusFrame,
                 WindowCloseFrame, GrantFrame, CloseFrame, TransportParametersFrame, PathChallengeFrame,
                 PathResponseFrame, WindowNackFrame, CryptoFrame, NewCidFrame, KeyUpdateFrame>;

// Appends one frame. False, with nothing written, when it does not fit.
// REQUIRES: every value lies in its documented range (also for EncodedSize).
bool Encode(const Frame& frame, ByteWriter& out);
// Bytes that Encode would write.
size_t EncodedSize(const Frame& frame);

// Takes the next frame. Errors (kProtocolViolation): truncated, unknown type, a value outside its documented
// range (bitmap longer than its bits, ranges that overlap, more than kMaxAckRanges, metadata too long, ...)
// or not in its shortest form. After an error `in` has failed.
Result<Frame> DecodeFrame(ByteReader& in);

bool IsAckEliciting(const Frame& frame);
std::string_view FrameName(const Frame& frame);

}  // namespace longhaul::wire
