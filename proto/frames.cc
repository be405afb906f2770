#include "proto/frames.h"

#include <algorithm>
#include <limits>
#include <string>
#include <type_traits>
#include <utility>

#include "base/check.h"
#include "proto/utf8.h"

namespace longhaul::wire {
namespace {

// --- What a frame may contain: one rule for both directions. The sender breaking it is our bug, the peer
// breaking it is a protocol violation. nullptr when all is well.

const char* Violation(const PaddingFrame& f) { return f.length >= 1 ? nullptr : "empty padding"; }

const char* Violation(const PingFrame&) { return nullptr; }

const char* Violation(const AckFrame& f) {
  if (f.ranges.empty()) return "no ranges";
  if (f.ranges.size() > kMaxAckRanges) return "too many ranges";
  if (f.ranges.front().largest > kMaxPacketNumber) return "packet number too large";
  for (size_t i = 0; i < f.ranges.size(); ++i) {
    if (f.ranges[i].smallest > f.ranges[i].largest) return "range reversed";
    // One missing packet at least lies between two ranges, otherwise they are one.
    if (i > 0 && (f.ranges[i - 1].smallest < 2 || f.ranges[i].largest > f.ranges[i - 1].smallest - 2)) {
      return "ranges overlap or touch";
    }
  }
  return nullptr;
}

const char* Violation(const ControlFrame& f) {
  return f.offset <= kMaxVarint - f.data.size() ? nullptr : "offset beyond the end of the stream";
}

const char* Violation(const WindowOpenFrame& f) {
  if (uint64_t{f.high_count} + f.low_count > kMaxWindowChunks) return "too many chunks";
  if (f.fec_depth == 0) return "interleaving depth zero";
  if (f.fec_k > 0 && (uint64_t{f.high_count} + f.fec_k - 1) / f.fec_k > kMaxWindowBlocks)
    return "too many blocks";
  if (f.metadata.size() > kMaxWindowMetadataBytes) return "metadata too long";
  return nullptr;
}

const char* Violation(const WindowStatusFrame& f) {
  return uint64_t{f.high_sent} + f.low_sent <= kMaxWindowChunks ? nullptr : "too many chunks";
}

const char* Violation(const WindowCloseFrame& f) {
  if (f.reason > CloseReason::kCancelled) return "unknown reason";
  if (f.bits > kMaxWindowChunks) return "too many chunks";
  if (f.bitmap.size() > kMaxCloseBitmapBytes) return "bitmap segment too long";
  if (f.first % 8 != 0) return "segment starts inside a byte";
  const uint64_t end = uint64_t{f.first} + 8 * uint64_t{f.bitmap.size()};
  if (end > (uint64_t{f.bits} + 7) / 8 * 8) return "bitmap longer than its bits";
  if (end > f.bits && !f.bitmap.empty() && f.bitmap.back() >> (8 - (end - f.bits)) != 0) {
    return "bit beyond the last";
  }
  return nullptr;
}

const char* Violation(const WindowNackFrame& f) {
  if (f.bitmap.empty() || f.bitmap.back() == 0) return "asks for nothing";
  if (f.bitmap.size() > kMaxNackBitmapBytes) return "bitmap too long";
  if (f.first % 8 != 0) return "bitmap starts inside a byte";
  return uint64_t{f.first} + 8 * f.bitmap.size() <= kMaxWindowChunks ? nullptr : "too many chunks";
}

const char* Violation(const GrantFrame&) { return nullptr; }

const char* Violation(const CloseFrame& f) {
  return f.code <= StatusCode::kAeadLimitReached ? nullptr : "unknown status code";
}

const char* Violation(const TransportParametersFrame& f) {
  if (f.max_datagram_bytes < kSmallestMaxDatagram || f.max_datagram_bytes > kLargestMaxDatagram) {
    return "max_datagram_bytes out of range";
  }
  return nullptr;
}

const char* Violation(const PathChallengeFrame&) { return nullptr; }
const char* Violation(const PathResponseFrame&) { return nullptr; }

const char* Violation(const CryptoFrame& f) {
  if (f.received > kMaxHandshakeBytes) return "acknowledges more than a handshake may have";
  if (f.offset > kMaxHandshakeBytes || f.data.size() > kMaxHandshakeBytes - f.offset)
    return "handshake too long";
  return nullptr;
}

const char* Violation(const NewCidFrame&) { return nullptr; }
const char* Violation(const KeyUpdateFrame& f) { return f.phase > 0 ? nullptr : "phase 0 needs no update"; }

// --- Sizes, without the type byte.

size_t BlobSize(size_t bytes) { return VarintSize(bytes) + bytes; }

// What of a reason travels: as much as fits and is text. A status may quote a file name or a peer.
std::string_view WireReason(const CloseFrame& f) { return ValidUtf8Prefix(f.reason, kMaxCloseReasonBytes); }

// A bound above the largest varint is no bound: it travels as the largest varint.
uint64_t Saturated(uint64_t bound) { return std::min(bound, kMaxVarint); }

size_t BodySize(const PaddingFrame& f) { return f.length - size_t{1}; }
size_t BodySize(const PingFrame&) { return 0; }

size_t BodySize(const AckFrame& f) {
  size_t size = VarintSize(f.ranges.front().largest) + VarintSize(f.ack_delay_us) +
                VarintSize(f.ranges.size() - 1) + VarintSize(f.ecn_ect0) + VarintSize(f.ecn_ce) +
                VarintSize(f.host_drops);
  for (size_t i = 0; i < f.ranges.size(); ++i) {
    if (i > 0) size += VarintSize(f.ranges[i - 1].smallest - f.ranges[i].largest - 2);
    size += VarintSize(f.ranges[i].largest - f.ranges[i].smallest);
  }
  return size;
}

size_t BodySize(const ControlFrame& f) { return VarintSize(f.offset) + BlobSize(f.data.size()); }

size_t BodySize(const WindowOpenFrame& f) {
  return VarintSize(f.window_id) + 1 + VarintSize(f.high_count) + VarintSize(f.low_count) +
         VarintSize(f.symbol_bytes) + 2 + BlobSize(f.metadata.size());
}

size_t BodySize(const WindowStatusFrame& f) {
  return VarintSize(f.window_id) + 2 + VarintSize(f.high_sent) + VarintSize(f.low_sent);
}

size_t BodySize(const WindowCloseFrame& f) {
  return VarintSize(f.window_id) + 3 + VarintSize(f.bits) + VarintSize(f.first) + BlobSize(f.bitmap.size());
}

size_t BodySize(const WindowNackFrame& f) {
  return VarintSize(f.window_id) + 1 + VarintSize(f.first) + BlobSize(f.bitmap.size());
}

size_t BodySize(const GrantFrame& f) {
  return VarintSize(f.receive_window_bytes) + VarintSize(f.rate_bytes_per_second);
}

size_t BodySize(const CloseFrame& f) { return 1 + BlobSize(WireReason(f).size()); }

size_t BodySize(const TransportParametersFrame& f) {
  return VarintSize(f.max_datagram_bytes) + VarintSize(f.idle_timeout_ms) +
         VarintSize(f.receive_window_bytes) + VarintSize(f.max_open_windows) + VarintSize(f.max_window_bytes);
}

size_t BodySize(const PathChallengeFrame&) { return 8; }
size_t BodySize(const PathResponseFrame&) { return 8; }

size_t BodySize(const CryptoFrame& f) {
  return VarintSize(f.offset) + VarintSize(f.received) + BlobSize(f.data.size());
}

size_t BodySize(const NewCidFrame& f) { return f.reset_token.size(); }

size_t BodySize(const KeyUpdateFrame& f) { return VarintSize(f.phase) + 1 + f.share.size(); }

// --- Writing, after the type byte. The caller has checked the room.

void WriteBlob(ByteSpan bytes, ByteWriter& out) {
  out.Varint(bytes.size());
  out.Bytes(bytes);
}

void WriteBody(const PaddingFrame& f, ByteWriter& out) {
  for (uint32_t i = 1; i < f.length; ++i) out.U8(0);
}

void WriteBody(const PingFrame&, ByteWriter&) {}

void WriteBody(const AckFrame& f, ByteWriter& out) {
  out.Varint(f.ranges.front().largest);
  out.Varint(f.ack_delay_us);
  out.Varint(f.ranges.size() - 1);
  for (size_t i = 0; i < f.ranges.size(); ++i) {
    if (i > 0) out.Varint(f.ranges[i - 1].smallest - f.ranges[i].largest - 2);
    out.Varint(f.ranges[i].largest - f.ranges[i].smallest);
  }
  out.Varint(f.ecn_ect0);
  out.Varint(f.ecn_ce);
  out.Varint(f.host_drops);
}

void WriteBody(const ControlFrame& f, ByteWriter& out) {
  out.Varint(f.offset);
  WriteBlob(f.data, out);
}

void WriteBody(const WindowOpenFrame& f, ByteWriter& out) {
  out.Varint(f.window_id);
  out.U8(f.generation);
  out.Varint(f.high_count);
  out.Varint(f.low_count);
  out.Varint(f.symbol_bytes);
  out.U8(f.fec_k);
  out.U8(f.fec_depth);
  WriteBlob(f.metadata, out);
}

void WriteBody(const WindowStatusFrame& f, ByteWriter& out) {
  out.Varint(f.window_id);
  out.U8(f.generation);
  out.U8(f.finished ? 1 : 0);
  out.Varint(f.high_sent);
  out.Varint(f.low_sent);
}

void WriteBody(const WindowCloseFrame& f, ByteWriter& out) {
  out.Varint(f.window_id);
  out.U8(f.generation);
  out.U8(static_cast<uint8_t>(f.reason));
  out.U8(f.high_complete ? 1 : 0);
  out.Varint(f.bits);
  out.Varint(f.first);
  WriteBlob(f.bitmap, out);
}

void WriteBody(const WindowNackFrame& f, ByteWriter& out) {
  out.Varint(f.window_id);
  out.U8(f.generation);
  out.Varint(f.first);
  WriteBlob(f.bitmap, out);
}

void WriteBody(const GrantFrame& f, ByteWriter& out) {
  out.Varint(Saturated(f.receive_window_bytes));
  out.Varint(Saturated(f.rate_bytes_per_second));
}

void WriteBody(const CloseFrame& f, ByteWriter& out) {
  out.U8(static_cast<uint8_t>(f.code));
  const std::string_view reason = WireReason(f);
  WriteBlob({reinterpret_cast<const uint8_t*>(reason.data()), reason.size()}, out);
}

void WriteBody(const TransportParametersFrame& f, ByteWriter& out) {
  out.Varint(f.max_datagram_bytes);
  out.Varint(Saturated(f.idle_timeout_ms));
  out.Varint(Saturated(f.receive_window_bytes));
  out.Varint(f.max_open_windows);
  out.Varint(Saturated(f.max_window_bytes));
}

void WriteBody(const PathChallengeFrame& f, ByteWriter& out) { out.U64(f.data); }
void WriteBody(const PathResponseFrame& f, ByteWriter& out) { out.U64(f.data); }

void WriteBody(const CryptoFrame& f, ByteWriter& out) {
  out.Varint(f.offset);
  out.Varint(f.received);
  WriteBlob(f.data, out);
}

void WriteBody(const NewCidFrame& f, ByteWriter& out) { out.Bytes(f.reset_token); }

void WriteBody(const KeyUpdateFrame& f, ByteWriter& out) {
  out.Varint(f.phase);
  out.U8(f.answer ? 1 : 0);
  out.Bytes(f.share);
}

// --- Reading, after the type byte. A value that does not fit its field, or is not in its shortest form,
// fails the reader, so that every frame has exactly one encoding.

uint64_t ReadVarint(ByteReader& in) {
  const size_t start = in.position();
  const uint64_t value = in.Varint();
  if (in.position() - start != VarintSize(value)) in.Fail();
  return value;
}

template <typename T>
T ReadNarrow(ByteReader& in) {
  const uint64_t value = ReadVarint(in);
  if (value > std::numeric_limits<T>::max()) in.Fail();
  return static_cast<T>(value);
}

bool ReadBool(ByteReader& in) {
  const uint8_t value = in.U8();
  if (value > 1) in.Fail();
  return value == 1;
}

ByteSpan ReadBlob(ByteReader& in) {
  const uint64_t bytes = ReadVarint(in);
  if (bytes > in.remaining()) in.Fail();
  return in.Bytes(in.ok() ? static_cast<size_t>(bytes) : 0);
}

void ReadBody(ByteReader& in, PaddingFrame* f) {
  ByteReader ahead = in;
  const ByteSpan rest = ahead.Rest();
  const auto end = std::find_if(rest.begin(), rest.end(), [](uint8_t byte) { return byte != 0; });
  const auto zeros = static_cast<size_t>(end - rest.begin());
  f->length += static_cast<uint32_t>(zeros);
  in.Bytes(zeros);
}

void ReadBody(ByteReader&, PingFrame*) {}

void ReadBody(ByteReader& in, AckFrame* f) {
  uint64_t largest = ReadVarint(in);
  f->ack_delay_us = ReadVarint(in);
  const uint64_t more_ranges = ReadVarint(in);
  if (more_ranges >= kMaxAckRanges) in.Fail();
  if (!in.ok()) return;
  f->ranges.reserve(static_cast<size_t>(more_ranges) + 1);
  for (uint64_t i = 0; i <= more_ranges; ++i) {
    if (i > 0) {
      const uint64_t gap = ReadVarint(in);
      const uint64_t above = f->ranges.back().smallest;
      if (!in.ok() || above < 2 || gap > above - 2) return in.Fail();  // below zero
      largest = above - 2 - gap;
    }
    const uint64_t length = ReadVarint(in);
    if (!in.ok() || length > largest) return in.Fail();  // below zero
    f->ranges.push_back({largest - length, largest});
  }
  f->ecn_ect0 = ReadVarint(in);
  f->ecn_ce = ReadVarint(in);
  f->host_drops = ReadVarint(in);
}

void ReadBody(ByteReader& in, ControlFrame* f) {
  f->offset = ReadVarint(in);
  f->data = ReadBlob(in);
}

void ReadBody(ByteReader& in, WindowOpenFrame* f) {
  f->window_id = ReadNarrow<uint32_t>(in);
  f->generation = in.U8();
  f->high_count = ReadNarrow<uint32_t>(in);
  f->low_count = ReadNarrow<uint32_t>(in);
  f->symbol_bytes = ReadNarrow<uint16_t>(in);
  f->fec_k = in.U8();
  f->fec_depth = in.U8();
  f->metadata = ReadBlob(in);
}

void ReadBody(ByteReader& in, WindowStatusFrame* f) {
  f->window_id = ReadNarrow<uint32_t>(in);
  f->generation = in.U8();
  f->finished = ReadBool(in);
  f->high_sent = ReadNarrow<uint32_t>(in);
  f->low_sent = ReadNarrow<uint32_t>(in);
}

void ReadBody(ByteReader& in, WindowCloseFrame* f) {
  f->window_id = ReadNarrow<uint32_t>(in);
  f->generation = in.U8();
  f->reason = static_cast<CloseReason>(in.U8());  // Violation() checks the value
  f->high_complete = ReadBool(in);
  f->bits = ReadNarrow<uint32_t>(in);
  f->first = ReadNarrow<uint32_t>(in);
  f->bitmap = ReadBlob(in);
}

void ReadBody(ByteReader& in, WindowNackFrame* f) {
  f->window_id = ReadNarrow<uint32_t>(in);
  f->generation = in.U8();
  f->first = ReadNarrow<uint32_t>(in);
  f->bitmap = ReadBlob(in);
}

void ReadBody(ByteReader& in, GrantFrame* f) {
  f->receive_window_bytes = ReadVarint(in);
  f->rate_bytes_per_second = ReadVarint(in);
}

void ReadBody(ByteReader& in, CloseFrame* f) {
  f->code = static_cast<StatusCode>(in.U8());  // Violation() checks the value
  const ByteSpan reason = ReadBlob(in);
  f->reason = {reinterpret_cast<const char*>(reason.data()), reason.size()};
  if (WireReason(*f).size() != reason.size()) in.Fail();  // too long, or not UTF-8
}

void ReadBody(ByteReader& in, TransportParametersFrame* f) {
  f->max_datagram_bytes = ReadNarrow<uint32_t>(in);
  f->idle_timeout_ms = ReadVarint(in);
  f->receive_window_bytes = ReadVarint(in);
  f->max_open_windows = ReadNarrow<uint32_t>(in);
  f->max_window_bytes = ReadVarint(in);
}

void ReadBody(ByteReader& in, PathChallengeFrame* f) { f->data = in.U64(); }
void ReadBody(ByteReader& in, PathResponseFrame* f) { f->data = in.U64(); }

void ReadBody(ByteReader& in, CryptoFrame* f) {
  f->offset = ReadVarint(in);
  f->received = ReadVarint(in);
  f->data = ReadBlob(in);
}

void ReadBody(ByteReader& in, NewCidFrame* f) {
  const ByteSpan token = in.Bytes(f->reset_token.size());
  std::copy(token.begin(), token.end(), f->reset_token.begin());
}

void ReadBody(ByteReader& in, KeyUpdateFrame* f) {
  f->phase = ReadVarint(in);
  f->answer = ReadBool(in);
  const ByteSpan share = in.Bytes(f->share.size());
  std::copy(share.begin(), share.end(), f->share.begin());
}

template <typename F>
Result<Frame> Read(ByteReader& in, std::string_view name) {
  F frame;
  ReadBody(in, &frame);
  const char* violation = in.ok() ? Violation(frame) : "truncated or malformed";
  if (violation == nullptr) return Frame(std::move(frame));
  in.Fail();
  return Status(StatusCode::kProtocolViolation, std::string(name) + " frame: " + violation);
}

template <typename F>
constexpr FrameType TypeOf() {
  if constexpr (std::is_same_v<F, PaddingFrame>) return FrameType::kPadding;
  if constexpr (std::is_same_v<F, PingFrame>) return FrameType::kPing;
  if constexpr (std::is_same_v<F, AckFrame>) return FrameType::kAck;
  if constexpr (std::is_same_v<F, ControlFrame>) return FrameType::kControl;
  if constexpr (std::is_same_v<F, WindowOpenFrame>) return FrameType::kWindowOpen;
  if constexpr (std::is_same_v<F, WindowStatusFrame>) return FrameType::kWindowStatus;
  if constexpr (std::is_same_v<F, WindowCloseFrame>) return FrameType::kWindowClose;
  if constexpr (std::is_same_v<F, WindowNackFrame>) return FrameType::kWindowNack;
  if constexpr (std::is_same_v<F, GrantFrame>) return FrameType::kGrant;
  if constexpr (std::is_same_v<F, CloseFrame>) return FrameType::kClose;
  if constexpr (std::is_same_v<F, TransportParametersFrame>) return FrameType::kTransportParameters;
  if constexpr (std::is_same_v<F, PathChallengeFrame>) return FrameType::kPathChallenge;
  if constexpr (std::is_same_v<F, PathResponseFrame>) return FrameType::kPathResponse;
  if constexpr (std::is_same_v<F, CryptoFrame>) return FrameType::kCrypto;
  if constexpr (std::is_same_v<F, NewCidFrame>) return FrameType::kNewCid;
  if constexpr (std::is_same_v<F, KeyUpdateFrame>) return FrameType::kKeyUpdate;
}

std::string_view Name(FrameType type) {
  switch (type) {
    case FrameType::kPadding:
      return "PADDING";
    case FrameType::kPing:
      return "PING";
    case FrameType::kAck:
      return "ACK";
    case FrameType::kControl:
      return "CONTROL";
    case FrameType::kWindowOpen:
      return "WINDOW_OPEN";
    case FrameType::kWindowStatus:
      return "WINDOW_STATUS";
    case FrameType::kWindowClose:
      return "WINDOW_CLOSE";
    case FrameType::kWindowNack:
      return "WINDOW_NACK";
    case FrameType::kGrant:
      return "GRANT";
    case FrameType::kClose:
      return "CLOSE";
    case FrameType::kTransportParameters:
      return "TRANSPORT_PARAMETERS";
    case FrameType::kPathChallenge:
      return "PATH_CHALLENGE";
    case FrameType::kPathResponse:
      return "PATH_RESPONSE";
    case FrameType::kCrypto:
      return "CRYPTO";
    case FrameType::kNewCid:
      return "NEW_CID";
    case FrameType::kKeyUpdate:
      return "KEY_UPDATE";
  }
  return "UNKNOWN";
}

FrameType TypeOf(const Frame& frame) {
  return std::visit([](const auto& f) { return TypeOf<std::decay_t<decltype(f)>>(); }, frame);
}

}  // namespace

bool Encode(const Frame& frame, ByteWriter& out) {
  const size_t size = EncodedSize(frame);
  if (!out.ok() || out.remaining() < size) return false;
  const size_t start = out.size();
  out.U8(static_cast<uint8_t>(TypeOf(frame)));
  std::visit([&out](const auto& f) { WriteBody(f, out); }, frame);
  LH_CHECK(out.ok());
  LH_CHECK_OP(out.size() - start, ==, size);
  return true;
}

size_t EncodedSize(const Frame& frame) {
  return std::visit(
      [](const auto& f) {
        const char* violation = Violation(f);
        LH_CHECK_OP(violation, ==, nullptr);
        return 1 + BodySize(f);
      },
      frame);
}

Result<Frame> DecodeFrame(ByteReader& in) {
  const auto type = static_cast<FrameType>(in.U8());
  if (!in.ok()) return Status(StatusCode::kProtocolViolation, "frame: truncated");
  switch (type) {
    case FrameType::kPadding:
      return Read<PaddingFrame>(in, Name(type));
    case FrameType::kPing:
      return Read<PingFrame>(in, Name(type));
    case FrameType::kAck:
      return Read<AckFrame>(in, Name(type));
    case FrameType::kControl:
      return Read<ControlFrame>(in, Name(type));
    case FrameType::kWindowOpen:
      return Read<WindowOpenFrame>(in, Name(type));
    case FrameType::kWindowStatus:
      return Read<WindowStatusFrame>(in, Name(type));
    case FrameType::kWindowClose:
      return Read<WindowCloseFrame>(in, Name(type));
    case FrameType::kWindowNack:
      return Read<WindowNackFrame>(in, Name(type));
    case FrameType::kGrant:
      return Read<GrantFrame>(in, Name(type));
    case FrameType::kClose:
      return Read<CloseFrame>(in, Name(type));
    case FrameType::kTransportParameters:
      return Read<TransportParametersFrame>(in, Name(type));
    case FrameType::kPathChallenge:
      return Read<PathChallengeFrame>(in, Name(type));
    case FrameType::kPathResponse:
      return Read<PathResponseFrame>(in, Name(type));
    case FrameType::kCrypto:
      return Read<CryptoFrame>(in, Name(type));
    case FrameType::kNewCid:
      return Read<NewCidFrame>(in, Name(type));
    case FrameType::kKeyUpdate:
      return Read<KeyUpdateFrame>(in, Name(type));
  }
  in.Fail();
  return Status(StatusCode::kProtocolViolation,
                "frame: unknown type " + std::to_string(static_cast<unsigned>(type)));
}

bool IsAckEliciting(const Frame& frame) {
  return !std::holds_alternative<PaddingFrame>(frame) && !std::holds_alternative<AckFrame>(frame) &&
         !std::holds_alternative<CloseFrame>(frame);
}

std::string_view FrameName(const Frame& frame) { return Name(TypeOf(frame)); }

}  // namespace longhaul::wire
