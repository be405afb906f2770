// What a checkpoint says of itself (manifest.json): of which job and round it is, which files it has, and
// what must be in them. Written last, so that a checkpoint with a manifest is whole.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "longhaul/status.h"

namespace longhaul::server::store {

struct Manifest {
  static constexpr uint64_t kFormat = 1;
  // 4,096 tensors with names of 256 bytes, written with escapes, take 8 MB.
  static constexpr uint64_t kMaxBytes = uint64_t{32} << 20;
  static constexpr const char* kFileName = "manifest.json";
  static constexpr const char* kParameters = "parameters.safetensors";
  static constexpr const char* kOptimizer = "optimizer.safetensors";

  struct File {
    uint64_t bytes = 0;
    std::string sha256 = {};  // 64 hexadecimal digits
    bool operator==(const File&) const = default;
  };
  struct Tensor {
    std::string name;
    uint64_t count = 0;  // of float32
    std::string optimizer;
    std::vector<std::string> state = {};  // names of the optimizer's arrays, `count` values each
    uint64_t rounds = 0;
    uint32_t shift_epoch = 0;
    bool operator==(const Tensor&) const = default;
  };

  uint64_t generation = 0;  // of the checkpoint: one more each time
  std::string job;
  std::string settings = "{}";  // of the job, one JSON object
  uint64_t rounds = 0;
  std::string written;  // date and time, for people
  File parameters;
  File optimizer;
  std::vector<Tensor> tensors;  // in the order of their values

  bool operator==(const Manifest&) const = default;
};

// JSON that ends with a line feed and contains its own hash. kInvalidArgument: a text is no UTF-8.
Result<std::string> EncodeManifest(const Manifest& manifest);

// Takes nothing but what EncodeManifest writes, byte for byte. kDataLoss says what is wrong;
// kVersionMismatch: of a format that this program does not know.
Result<Manifest> DecodeManifest(std::string_view text);

// The hash that a text would need to be taken, whatever is in it; "" for one that is no JSON object. For
// tests.
std::string ManifestHash(std::string_view text);

// Of all of `text`, in 64 hexadecimal digits.
std::string Sha256Of(std::string_view text);

}  // namespace longhaul::server::store
