// What the golden vectors say: one named sample of every header and frame, and its text. The bytes are in
// vectors.txt, the text in vectors.jsonl; reference_decoder.py reads the first and must print the second.
#pragma once

#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "codec/chunk/chunk.h"
#include "proto/frames.h"
#include "proto/packet_header.h"

namespace longhaul::wire {

// A whole packet with its integrity tag.
struct GoldenDatagram {
  std::variant<LongHeader, ShortHeader> header;
  std::optional<DataHeader> data{};
  ByteSpan cookie{};  // INIT and RETRY
  std::vector<Frame> frames{};
  std::optional<PartHeader> part{};
  ByteSpan chunk{};
};

// What a packet carries, as the codec writes it. Values that have a code: nothing is rounded.
struct GoldenChunk {
  uint32_t index = 0;
  DType dtype = DType::kFloat32;
  uint8_t log_energy = 0;
  std::vector<float> values{};
  bool operator==(const GoldenChunk&) const = default;
};

using GoldenValue = std::variant<LongHeader, ShortHeader, DataHeader, Frame, GoldenDatagram, GoldenChunk>;

struct GoldenSample {
  std::string name;  // kind/variant; the kind tells a decoder what the bytes are
  GoldenValue value;
};

// Spans in the samples borrow from static storage.
const std::vector<GoldenSample>& GoldenSamples();

std::vector<uint8_t> EncodeGolden(const GoldenValue& value);
// One line of JSON: the name and every field. Byte strings in hex.
std::string GoldenText(const GoldenSample& sample);

std::string ToHex(ByteSpan bytes);
std::vector<uint8_t> FromHex(const std::string& hex);

}  // namespace longhaul::wire
