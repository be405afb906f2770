// The safetensors format (github.com/huggingface/safetensors), of float32 vectors: 8 bytes little-endian, the
// length of a JSON header; the header; the values, little-endian, in the order and without gaps.
//
//   {"__metadata__": {"k": "v"}, "w": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "longhaul/status.h"

namespace longhaul::server::store {

struct SafetensorsHeader {
  struct Entry {
    std::string name;
    uint64_t count = 0;  // float32 values, one dimension
    bool operator==(const Entry&) const = default;
  };
  std::vector<Entry> tensors;  // in the order of their values
  std::map<std::string, std::string> metadata = {};

  static constexpr uint64_t kLengthBytes = 8;
  // The reference reader's bound is 100 MB. 4,096 tensors with names of 256 bytes take 2 MB.
  static constexpr uint64_t kMaxHeaderBytes = uint64_t{16} << 20;

  uint64_t data_bytes() const;
};

// What comes before the values: length and header, padded with spaces so that values are 8-byte aligned.
// kInvalidArgument: a name is taken twice, is no UTF-8, or is "__metadata__", which the format keeps.
Result<std::string> EncodeHeader(const SafetensorsHeader& header);

// The header's length in bytes. kDataLoss: it is more than kMaxHeaderBytes, or than a file of this size has.
// REQUIRES: kLengthBytes bytes.
Result<uint64_t> DecodeHeaderLength(std::string_view bytes, uint64_t file_bytes);

// `json`: the header without its length. data_bytes: what the file has behind it; the header must name all of
// it, once. kDataLoss says what is wrong.
Result<SafetensorsHeader> DecodeHeader(std::string_view json, uint64_t data_bytes);

}  // namespace longhaul::server::store
