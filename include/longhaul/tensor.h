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
};

// "float32", "bfloat16", "float16", "int8"; "unknown" for anything else.
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
  }
  return "unknown";
}

// The other way round; none for any other name.
constexpr std::optional<DType> ParseDType(std::string_view name) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kFloat16, DType::kInt8}) {
    if (DTypeName(dtype) == name) return dtype;
  }
  return std::nullopt;
}

// Bytes of one element; zero for an unknown type.
constexpr size_t DTypeSize(DType dtype) {
  switch (dtype) {
    case DType::kFloat32:
      return 4;
    case DType::kBFloat16:
    case DType::kFloat16:
      return 2;
    case DType::kInt8:
      return 1;
  }
  return 0;
}

}  // namespace longhaul
