// The bytes of every header and frame never change without a new wire version.
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "tests/golden/samples.h"
#include "tests/proto/frame_samples.h"
#include "transport/core/security/integrity_tag.h"

namespace longhaul::wire {
namespace {

using Line = std::pair<std::string, std::string>;  // name, the rest of the line

// Lines of a file of this folder, without comments and empty ones.
std::vector<Line> ReadLines(const std::string& file) {
  std::ifstream in(std::string(GOLDEN_DIR) + "/" + file);
  EXPECT_TRUE(in.good()) << file;
  std::vector<Line> lines;
  for (std::string line; std::getline(in, line);) {
    if (line.empty() || line[0] == '#') continue;
    const size_t space = line.find(' ');
    lines.emplace_back(line.substr(0, space), space == std::string::npos ? "" : line.substr(space + 1));
  }
  return lines;
}

std::string Kind(const std::string& name) { return name.substr(0, name.find('/')); }

// Takes a whole packet apart; its frames and chunk borrow from `bytes`.
bool DecodeDatagram(ByteSpan bytes, GoldenValue* value) {
  if (bytes.size() < kMinPacketBytes) return false;
  GoldenDatagram d;
  ByteReader in(bytes.first(bytes.size() - kTagBytes));
  PacketNumber number = 0;
  if (IsLongHeader(bytes)) {
    const auto header = DecodeLongHeader(in);
    if (!header) return false;
    d.header = *header;
    number = header->packet_number;
    if (HasCookie(header->type)) {
      const auto cookie = DecodeCookie(in);
      if (!cookie) return false;
      d.cookie = *cookie;
    }
  } else {
    const auto header = DecodeShortHeader(in);
    if (!header) return false;
    d.header = *header;
    number = header->packet_number;
    if (header->has_data) {
      d.data = DecodeDataHeader(in);
      if (!d.data) return false;
    }
  }
  const ByteSpan head = bytes.first(in.position());
  std::vector<uint8_t> body(bytes.begin() + static_cast<std::ptrdiff_t>(head.size()),
                            bytes.end() - kTagBytes);
  if (!transport::IntegrityTag().Open(number, 0, head, body, bytes.last(kTagBytes))) return false;
  ByteReader frames(in.Bytes(d.data ? d.data->frames_length : in.remaining()));
  if (!in.ok()) return false;
  while (!frames.AtEnd()) {
    const Result<Frame> frame = DecodeFrame(frames);
    if (!frame.ok()) return false;
    d.frames.push_back(*frame);
  }
  if (d.data && d.data->part) {
    d.part = DecodePartHeader(in);
    if (!d.part) return false;
  }
  d.chunk = in.Rest();
  *value = d;
  return true;
}

bool DecodeChunk(ByteSpan bytes, GoldenValue* value) {
  const auto chunk = codec::ParseChunk(bytes);
  if (!chunk.ok()) return false;
  GoldenChunk c{chunk->index, chunk->dtype, chunk->log_energy, std::vector<float>(chunk->count)};
  codec::DecodeChunk(*chunk, c.values);
  *value = c;
  const ByteSpan last = chunk->gaps.empty() ? chunk->values : chunk->gaps;
  return last.data() + last.size() == bytes.data() + bytes.size();
}

// Decodes bytes of a kind; false when refused or when something is left over.
bool Decode(const std::string& kind, ByteSpan bytes, GoldenValue* value) {
  ByteReader in(bytes);
  const auto take = [&](auto decoded) {
    if (decoded) *value = *decoded;
    return decoded.has_value() && in.AtEnd();
  };
  if (kind == "long_header") return take(DecodeLongHeader(in));
  if (kind == "short_header") return take(DecodeShortHeader(in));
  if (kind == "data_header") return take(DecodeDataHeader(in));
  if (kind == "datagram") return DecodeDatagram(bytes, value);
  if (kind == "chunk") return DecodeChunk(bytes, value);
  const Result<Frame> frame = DecodeFrame(in);
  if (frame.ok()) *value = *frame;
  return frame.ok() && in.AtEnd();
}

bool SameDatagram(const GoldenDatagram& a, const GoldenDatagram& b) {
  return a.header == b.header && a.data == b.data && a.part == b.part && SameBytes(a.chunk, b.chunk) &&
         SameBytes(a.cookie, b.cookie) &&
         std::equal(a.frames.begin(), a.frames.end(), b.frames.begin(), b.frames.end(), Same);
}

bool SameValue(const GoldenValue& a, const GoldenValue& b) {
  if (a.index() != b.index()) return false;
  return std::visit(
      [&b](const auto& x) {
        using T = std::decay_t<decltype(x)>;
        if constexpr (std::is_same_v<T, GoldenDatagram>)
          return SameDatagram(x, std::get<T>(b));
        else if constexpr (std::is_same_v<T, Frame>)
          return Same(x, std::get<Frame>(b));
        else
          return x == std::get<T>(b);
      },
      a);
}

TEST(Golden, EncodingGivesTheVectors) {
  const auto vectors = ReadLines("vectors.txt");
  ASSERT_EQ(vectors.size(), GoldenSamples().size());
  for (size_t i = 0; i < vectors.size(); ++i) {
    EXPECT_EQ(vectors[i].first, GoldenSamples()[i].name);
    EXPECT_EQ(vectors[i].second, ToHex(EncodeGolden(GoldenSamples()[i].value))) << vectors[i].first;
  }
}

TEST(Golden, DecodingTheVectorsGivesTheSamples) {
  const auto vectors = ReadLines("vectors.txt");
  ASSERT_EQ(vectors.size(), GoldenSamples().size());
  for (size_t i = 0; i < vectors.size(); ++i) {
    const auto& [name, hex] = vectors[i];
    const std::vector<uint8_t> bytes = FromHex(hex);
    GoldenValue value;
    ASSERT_TRUE(Decode(Kind(name), bytes, &value)) << name;
    EXPECT_TRUE(SameValue(value, GoldenSamples()[i].value)) << name;
  }
}

TEST(Golden, TextOfTheSamplesIsWhatTheReferenceDecoderIsHeldTo) {
  std::ifstream in(std::string(GOLDEN_DIR) + "/vectors.jsonl");
  std::string line;
  for (const GoldenSample& sample : GoldenSamples()) {
    ASSERT_TRUE(std::getline(in, line)) << sample.name;
    EXPECT_EQ(line, GoldenText(sample));
  }
  EXPECT_FALSE(std::getline(in, line)) << line;
}

TEST(Golden, WhatMustBeRefusedIsRefused) {
  const auto rejects = ReadLines("rejects.txt");
  EXPECT_GE(rejects.size(), 30u);
  for (const auto& [name, hex] : rejects) {
    const std::vector<uint8_t> bytes = FromHex(hex);
    GoldenValue value;
    EXPECT_FALSE(Decode(Kind(name), bytes, &value)) << name;
  }
}

TEST(Golden, EveryFrameHasAVector) {
  std::vector<bool> seen(kFrameTypes, false);
  for (const GoldenSample& sample : GoldenSamples()) {
    if (const auto* frame = std::get_if<Frame>(&sample.value)) seen[frame->index()] = true;
  }
  for (size_t type = 0; type < kFrameTypes; ++type) EXPECT_TRUE(seen[type]) << "alternative " << type;
}

}  // namespace
}  // namespace longhaul::wire
