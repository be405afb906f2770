// Collectives of one datacenter by work requests and completions: the vocabulary.
#pragma once

#include <cstddef>
#include <cstdint>

namespace longhaul::offload {

// Values are stable: they travel between engines.
enum class ReduceOp : uint8_t {
  kSum = 0,
  kAverage = 1,  // the sum, divided by the number of contributing ranks at the end
  kProduct = 2,
  kXor = 3,  // of int32 and q32
  kMin = 4,
  kMax = 5,
};

enum class DataType : uint8_t {
  kFloat32 = 0,
  kBfloat16 = 1,
  kFloat16 = 2,
  kInt32 = 3,  // wraps around
  kQ32 = 4,    // fixed point in 32 bits; saturates
};

// Bytes of one element; zero for an unknown type.
constexpr size_t SizeOf(DataType type) {
  switch (type) {
    case DataType::kFloat32:
    case DataType::kInt32:
    case DataType::kQ32:
      return 4;
    case DataType::kBfloat16:
    case DataType::kFloat16:
      return 2;
  }
  return 0;
}

}  // namespace longhaul::offload
