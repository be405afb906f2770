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
