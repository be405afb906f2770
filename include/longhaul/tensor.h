// Element types of tensors.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace longhaul {

// Values are stable: they travel on the wire.
enum class DType : uint8_t {
  kFloat32 = 0,
  kBFloat16 = 1,
  kFloat16 = 2,
  kInt8 = 3,
  kInt4 = 4,
  kInt2 = 5,
};

// "float32", "bfloat16", "float16", "int8", "int4", "int2"; "unknown" for anything else.
constexpr std::string_view DTypeName(DType dtype) {
  switch (dtype) {
    case DType::kFloat32:
      return "float32";
    case DType::kBFloat16:
      return "bfloat16";
    case DType::kFloat16:
      return "float16";
    case DType::kInt8:
      return "int8";
    case DType::kInt4:
      return "int4";
    case DType::kInt2:
      return "int2";
  }
  return "unknown";
}

// The other way round; none for any other name.
constexpr std::optional<DType> ParseDType(std::string_view name) {
  for (const DType dtype :
       {DType::kFloat32, DType::kBFloat16, DType::kFloat16, DType::kInt8, DType::kInt4, DType::kInt2}) {
    if (DTypeName(dtype) == name) return dtype;
  }
  return std::nullopt;
}

// Bits of one element; zero for an unknown type.
constexpr size_t DTypeBits(DType dtype) {
  switch (dtype) {
    case DType::kFloat32:
      return 32;
    case DType::kBFloat16:
    case DType::kFloat16:
      return 16;
    case DType::kInt8:
      return 8;
    case DType::kInt4:
      return 4;
    case DType::kInt2:
      return 2;
  }
  return 0;
}

}  // namespace longhaul
