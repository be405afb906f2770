#include "tests/attack/support/forger.h"

#include <gtest/gtest.h>

#include "base/random.h"
#include "proto/frames.h"
#include "proto/packet_header.h"
#include "proto/version.h"
#include "transport/core/connection/packet_builder.h"
#include "transport/core/security/integrity_tag.h"

namespace longhaul::attack {
namespace {

constexpr size_t kInitBytes = 1200;

}  // namespace

Forger::Forger(const std::string& key_file) {
  auto loaded = keys::LoadSecurity({.key_file = key_file, .role = crypto::Role::kWorker});
  EXPECT_TRUE(loaded.ok()) << loaded.status().ToString();
  security_ = *std::move(loaded);
  hello_ = security_.security()->NewSession(true)->TakeData();
}

Bytes Forger::Init(uint64_t source, ByteSpan cookie, uint64_t number) {
  Bytes bytes(kInitBytes);
  transport::PacketBuilder builder(bytes);
  builder.StartLong(wire::LongType::kInit, wire::kVersion, {}, {source}, number, cookie);
  EXPECT_TRUE(builder.Add(wire::TransportParametersFrame{1452, 10'000, 1 << 20, 16, 1 << 30}));
  EXPECT_TRUE(builder.Add(wire::CryptoFrame{0, 0, hello_}));
  builder.PadTo(bytes.size());
  bytes.resize(builder.Seal(security_.security()->long_protection()));
  return bytes;
}

Bytes Forger::Accept(uint64_t worker, uint64_t source, const std::vector<wire::Frame>& frames) {
  Bytes bytes(kInitBytes);
  transport::PacketBuilder builder(bytes);
  builder.StartLong(wire::LongType::kAccept, wire::kVersion, {worker}, {source}, 0);
  for (const wire::Frame& frame : frames) EXPECT_TRUE(builder.Add(frame));
  builder.PadTo(bytes.size());
  bytes.resize(builder.Seal(security_.security()->long_protection()));
  return bytes;
}

Bytes Forger::Retry(uint64_t worker, ByteSpan cookie) {
  Bytes bytes(kInitBytes);
  transport::PacketBuilder builder(bytes);
  builder.StartLong(wire::LongType::kRetry, wire::kVersion, {worker}, {1}, 0, cookie);
  bytes.resize(builder.Seal(security_.security()->long_protection()));
  return bytes;
}

std::optional<Forger::Crypto> Forger::CryptoOf(ByteSpan long_packet) {
  Bytes copy(long_packet.begin(), long_packet.end());
  ByteReader reader(copy);
  const auto header = wire::DecodeLongHeader(reader);
  if (!header || (wire::HasCookie(header->type) && !wire::DecodeCookie(reader))) return std::nullopt;
  const size_t at = reader.position();
  const MutableByteSpan body = MutableByteSpan(copy).subspan(at, copy.size() - at - wire::kTagBytes);
  if (!security_.security()->long_protection().Open(header->packet_number, 0, ByteSpan(copy).first(at), body,
                                                    ByteSpan(copy).last(wire::kTagBytes))) {
    return std::nullopt;
  }
  ByteReader frames(body);
  while (frames.ok() && !frames.AtEnd()) {
    const Result<wire::Frame> frame = wire::DecodeFrame(frames);
    if (!frame.ok()) break;
    if (const auto* crypto = std::get_if<wire::CryptoFrame>(&*frame)) {
      return Crypto{crypto->offset, Bytes(crypto->data.begin(), crypto->data.end())};
    }
  }
  return std::nullopt;
}

Bytes NoiseInit(uint64_t source, size_t size) {
  Bytes bytes(size);
  Random random(source);
  for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(random.Next());
  ByteWriter writer(bytes);
  wire::Encode(wire::LongHeader{wire::LongType::kInit, wire::kVersion, {}, {source}, 0}, writer);
  writer.U8(0);  // no cookie
  return bytes;
}

Bytes Refuse(uint64_t destination, StatusCode code) {
  Bytes bytes(kInitBytes);
  transport::PacketBuilder builder(bytes);
  builder.StartLong(wire::LongType::kRefuse, wire::kVersion, {destination}, {}, 0);
  EXPECT_TRUE(builder.Add(wire::CloseFrame{code, "go away"}));
  transport::IntegrityTag tag;
  bytes.resize(builder.Seal(tag));
  return bytes;
}

std::optional<Bytes> CookieOf(ByteSpan retry) {
  ByteReader reader(retry);
  const auto header = wire::DecodeLongHeader(reader);
  if (!header || header->type != wire::LongType::kRetry) return std::nullopt;
  const auto cookie = wire::DecodeCookie(reader);
  if (!cookie) return std::nullopt;
  return Bytes(cookie->begin(), cookie->end());
}

std::vector<Bytes> Flipped(ByteSpan packet, size_t all_bits) {
  std::vector<Bytes> copies;
  for (size_t at = 0; at < packet.size(); ++at) {
    const bool every = at < all_bits || at + all_bits >= packet.size();
    for (size_t bit = every ? 0 : at % 8; bit < (every ? 8 : at % 8 + 1); ++bit) {
      copies.emplace_back(packet.begin(), packet.end()).at(at) ^= static_cast<uint8_t>(1u << bit);
    }
  }
  return copies;
}

std::vector<Bytes> Truncated(ByteSpan packet) {
  std::vector<Bytes> copies;
  for (size_t size = 0; size < packet.size(); ++size) {
    copies.emplace_back(packet.begin(), packet.begin() + static_cast<std::ptrdiff_t>(size));
  }
  return copies;
}

}  // namespace longhaul::attack
