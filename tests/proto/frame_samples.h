// Frames to test with: equality by content (spans compare by what they point at) and a generator of valid
// ones.
#pragma once

#include <algorithm>
#include <string>
#include <type_traits>
#include <vector>

#include "base/random.h"
#include "proto/frames.h"

namespace longhaul::wire {

inline bool SameBytes(ByteSpan a, ByteSpan b) { return std::equal(a.begin(), a.end(), b.begin(), b.end()); }

inline bool Same(const Frame& a, const Frame& b) {
  if (a.index() != b.index()) return false;
  return std::visit(
      [&b](const auto& x) {
        using F = std::decay_t<decltype(x)>;
        const F& y = std::get<F>(b);
        if constexpr (std::is_same_v<F, ControlFrame>) {
          return x.offset == y.offset && SameBytes(x.data, y.data);
        } else if constexpr (std::is_same_v<F, WindowOpenFrame>) {
          return x.window_id == y.window_id && x.generation == y.generation && x.high_count == y.high_count &&
                 x.low_count == y.low_count && x.symbol_bytes == y.symbol_bytes && x.fec_k == y.fec_k &&
                 x.fec_depth == y.fec_depth && SameBytes(x.metadata, y.metadata);
        } else if constexpr (std::is_same_v<F, WindowCloseFrame>) {
          return x.window_id == y.window_id && x.generation == y.generation && x.reason == y.reason &&
                 x.high_complete == y.high_complete && x.bits == y.bits && x.first == y.first &&
                 SameBytes(x.bitmap, y.bitmap);
        } else if constexpr (std::is_same_v<F, WindowNackFrame>) {
          return x.window_id == y.window_id && x.generation == y.generation && x.first == y.first &&
                 SameBytes(x.bitmap, y.bitmap);
        } else if constexpr (std::is_same_v<F, CryptoFrame>) {
          return x.offset == y.offset && x.received == y.received && SameBytes(x.data, y.data);
        } else {
          return x == y;
        }
      },
      a);
}

inline std::vector<uint8_t> Encoded(const Frame& frame) {
  std::vector<uint8_t> bytes(EncodedSize(frame));
  ByteWriter out(bytes);
  if (!Encode(frame, out)) return {};
  return bytes;
}

inline Result<Frame> Decoded(ByteSpan bytes) {
  ByteReader in(bytes);
  return DecodeFrame(in);
}

// A value whose magnitude, not only its bits, is random: every varint length is as likely.
inline uint64_t AnySize(Random& random, uint64_t max = kMaxVarint) {
  return (random.Next() >> random.Below(64)) % (max + 1);
}

inline std::vector<uint8_t> RandomBytes(Random& random, size_t bytes) {
  std::vector<uint8_t> out(bytes);
  for (uint8_t& byte : out) byte = static_cast<uint8_t>(random.Next());
  return out;
}

inline AckFrame RandomAck(Random& random) {
  AckFrame ack{.ranges = {},
               .ack_delay_us = AnySize(random),
               .ecn_ect0 = AnySize(random),
               .ecn_ce = AnySize(random),
               .host_drops = AnySize(random)};
  const size_t ranges = 1 + random.Below(kMaxAckRanges);
  PacketNumber top = AnySize(random, kMaxPacketNumber);
  while (ack.ranges.size() < ranges) {
    const PacketNumber length = AnySize(random, std::min<PacketNumber>(top, 1 + random.Below(1000)));
    ack.ranges.push_back({top - length, top});
    const PacketNumber gap = 2 + random.Below(5);
    if (top - length < gap) break;
    top -= length + gap;
  }
  return ack;
}

// A valid frame of type number `type` (0..14); `storage` holds its bytes.
inline Frame RandomFrame(Random& random, uint64_t type, std::vector<uint8_t>* storage) {
  const auto u32 = [&](uint64_t max = 0xffffffff) { return static_cast<uint32_t>(AnySize(random, max)); };
  const auto u8 = [&](uint64_t max = 255) { return static_cast<uint8_t>(random.Below(max + 1)); };
  switch (type) {
    case 0:
      return PaddingFrame{1 + u32(3000)};
    case 1:
      return PingFrame{};
    case 2:
      return RandomAck(random);
    case 3: {
      *storage = RandomBytes(random, random.Below(1300));
      return ControlFrame{AnySize(random, kMaxVarint - storage->size()), *storage};
    }
    case 4: {
      *storage = RandomBytes(random, random.Below(kMaxWindowMetadataBytes + 1));
      const uint32_t high = u32(kMaxWindowChunks / 2);
      return WindowOpenFrame{.window_id = u32(),
                             .generation = u8(),
                             .high_count = high,
                             .low_count = u32(kMaxWindowChunks / 2),
                             .symbol_bytes = static_cast<uint16_t>(u32(0xffff)),
                             .fec_k = static_cast<uint8_t>(random.Chance(0.5) ? 8 + random.Below(18) : 0),
                             .fec_depth = static_cast<uint8_t>(1 + random.Below(255)),
                             .metadata = *storage};
    }
    case 5:
      return WindowStatusFrame{u32(), u8(), u32(kMaxWindowChunks / 2), u32(kMaxWindowChunks / 2), u8(1) == 1};
    case 6: {
      const uint32_t bits = u32(kMaxWindowChunks);
      const uint32_t bitmap_bytes = (bits + 7) / 8;
      const uint32_t first = bitmap_bytes == 0 ? 0 : static_cast<uint32_t>(random.Below(bitmap_bytes));
      *storage =
          RandomBytes(random, std::min<size_t>(bitmap_bytes - first, random.Below(kMaxCloseBitmapBytes + 1)));
      if (first + storage->size() == bitmap_bytes && bits % 8 != 0 && !storage->empty()) {
        storage->back() = static_cast<uint8_t>(storage->back() & ((1u << bits % 8) - 1));
      }
      return WindowCloseFrame{.window_id = u32(),
                              .generation = u8(),
                              .reason = static_cast<CloseReason>(random.Below(6)),
                              .high_complete = u8(1) == 1,
                              .bits = bits,
                              .first = first * 8,
                              .bitmap = *storage};
    }
    case 7:
      return GrantFrame{AnySize(random), AnySize(random)};
    case 8: {
      storage->assign(random.Below(kMaxCloseReasonBytes + 1), 'x');
      const auto* text = reinterpret_cast<const char*>(storage->data());
      return CloseFrame{static_cast<StatusCode>(random.Below(17)), {text, storage->size()}};
    }
    case 9:
      return PathChallengeFrame{random.Next()};
    case 10:
      return PathResponseFrame{random.Next()};
    case 11: {
      *storage = RandomBytes(random, 1 + random.Below(kMaxNackBitmapBytes));
      if (storage->back() == 0) storage->back() = 0x80;
      const uint32_t last_first = kMaxWindowChunks / 8 - static_cast<uint32_t>(storage->size());
      return WindowNackFrame{u32(), u8(), 8 * u32(last_first), *storage};
    }
    case 12: {
      *storage = RandomBytes(random, random.Below(1300));
      return CryptoFrame{AnySize(random, kMaxHandshakeBytes - storage->size()),
                         AnySize(random, kMaxHandshakeBytes), *storage};
    }
    case 13: {
      NewCidFrame f;
      for (uint8_t& byte : f.reset_token) byte = static_cast<uint8_t>(random.Next());
      return f;
    }
    case 14: {
      KeyUpdateFrame f{1 + AnySize(random) / 2, random.Chance(0.5)};
      for (uint8_t& byte : f.share) byte = static_cast<uint8_t>(random.Next());
      return f;
    }
    default:
      return TransportParametersFrame{
          static_cast<uint32_t>(kSmallestMaxDatagram +
                                random.Below(kLargestMaxDatagram - kSmallestMaxDatagram + 1)),
          AnySize(random), AnySize(random), u32(), AnySize(random)};
  }
}
inline constexpr uint64_t kFrameTypes = std::variant_size_v<Frame>;

}  // namespace longhaul::wire
