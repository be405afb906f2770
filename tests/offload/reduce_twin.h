// The slow twin of offload/reduce: one element at a time, with numbers instead of bits.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "longhaul/offload.h"

namespace longhaul::offload::twin {

// A code of `digits` significant bits and exponents from `lowest` on (of the least subnormal) as the number
// that it is.
struct Half {
  int significand;  // stored bits
  int bias;
  uint32_t infinity;
  uint32_t nan;
};
inline constexpr Half kBfloat16{7, 127, 0x7f80, 0x7fc0};
inline constexpr Half kFloat16{10, 15, 0x7c00, 0x7e00};

inline float FromHalf(const Half& half, uint16_t code) {
  const uint32_t magnitude = code & 0x7fff;
  const float sign = (code & 0x8000) != 0 ? -1.0f : 1.0f;
  if (magnitude > half.infinity) return std::numeric_limits<float>::quiet_NaN();
  if (magnitude == half.infinity) return sign * std::numeric_limits<float>::infinity();
  const int exponent = static_cast<int>(magnitude >> half.significand);
  const auto fraction = static_cast<double>(magnitude & ((1u << half.significand) - 1));
  const double whole = std::ldexp(1.0, half.significand) * (exponent == 0 ? 0 : 1) + fraction;
  return sign * static_cast<float>(std::ldexp(whole, std::max(exponent, 1) - half.bias - half.significand));
}

// To the nearest code, of two equally near ones to the even one.
inline uint16_t ToHalf(const Half& half, float value) {
  if (std::isnan(value)) return static_cast<uint16_t>(half.nan);
  const uint32_t sign = std::signbit(value) ? 0x8000 : 0;
  const double magnitude = std::fabs(static_cast<double>(value));
  if (std::isinf(value)) return static_cast<uint16_t>(sign | half.infinity);
  int exponent = magnitude == 0 ? -1000 : std::ilogb(magnitude);
  exponent = std::max(exponent, 1 - half.bias);
  const double unit = std::ldexp(1.0, exponent - half.significand);
  const double units = std::nearbyint(magnitude / unit);  // the quotient is exact
  // Codes are numbered as their values are ordered, so a carry into the next exponent comes by itself.
  const double code = std::ldexp(exponent + half.bias - 1, half.significand) + units;
  return static_cast<uint16_t>(sign | std::min(static_cast<uint32_t>(code), half.infinity));
}

inline float Extreme(float a, float b, bool max) {
  if (std::isnan(a) || std::isnan(b)) return std::numeric_limits<float>::quiet_NaN();
  if (a == b) return std::signbit(a) != max ? a : b;  // of two zeros min takes the negative one
  return (a < b) != max ? a : b;
}

inline float Float(ReduceOp op, float a, float b) {
  switch (op) {
    case ReduceOp::kProduct:
      return a * b;
    case ReduceOp::kMin:
      return Extreme(a, b, false);
    case ReduceOp::kMax:
      return Extreme(a, b, true);
    default:
      return a + b;
  }
}

inline constexpr int64_t kLow = std::numeric_limits<int32_t>::min();
inline constexpr int64_t kHigh = std::numeric_limits<int32_t>::max();

inline int32_t Sticky(int64_t a, int64_t b) {
  if (a == kLow || a == kHigh) return static_cast<int32_t>(a);
  if (b == kLow || b == kHigh) return static_cast<int32_t>(b);
  return static_cast<int32_t>(std::min(std::max(a + b, kLow), kHigh));
}

inline int32_t Integer(ReduceOp op, DataType type, int32_t a, int32_t b) {
  switch (op) {
    case ReduceOp::kProduct:
      return static_cast<int32_t>(static_cast<uint32_t>(a) * static_cast<uint32_t>(b));
    case ReduceOp::kXor:
      return a ^ b;
    case ReduceOp::kMin:
      return std::min(a, b);
    case ReduceOp::kMax:
      return std::max(a, b);
    default:
      break;
  }
  if (type == DataType::kQ32) return Sticky(a, b);
  return static_cast<int32_t>(static_cast<uint32_t>(a) + static_cast<uint32_t>(b));
}

template <typename T>
T At(const std::byte* from, size_t i) {
  T value;
  std::memcpy(&value, from + i * sizeof(T), sizeof(T));
  return value;
}

inline uint32_t CanonicalBits(float value) {
  return std::isnan(value) ? 0x7fc00000 : std::bit_cast<uint32_t>(value);
}

// The code of element i in all sources, reduced.
inline uint32_t Reduced(ReduceOp op, DataType type, const std::vector<const std::byte*>& sources, size_t i) {
  if (type == DataType::kInt32 || type == DataType::kQ32) {
    auto sum = At<int32_t>(sources[0], i);
    for (size_t k = 1; k < sources.size(); ++k) sum = Integer(op, type, sum, At<int32_t>(sources[k], i));
    return static_cast<uint32_t>(sum);
  }
  const Half& half = type == DataType::kBfloat16 ? kBfloat16 : kFloat16;
  const auto value = [&](size_t k) {
    return type == DataType::kFloat32 ? At<float>(sources[k], i)
                                      : FromHalf(half, At<uint16_t>(sources[k], i));
  };
  float sum = value(0);
  for (size_t k = 1; k < sources.size(); ++k) sum = Float(op, sum, value(k));
  return type == DataType::kFloat32 ? CanonicalBits(sum) : ToHalf(half, sum);
}

// The code of an average's last step.
inline uint32_t Divided(DataType type, const std::byte* from, size_t i, size_t participants) {
  const auto by = static_cast<double>(participants);
  switch (type) {
    case DataType::kFloat32:
      return CanonicalBits(At<float>(from, i) / static_cast<float>(participants));
    case DataType::kBfloat16:
      return ToHalf(kBfloat16, FromHalf(kBfloat16, At<uint16_t>(from, i)) / static_cast<float>(participants));
    case DataType::kFloat16:
      return ToHalf(kFloat16, FromHalf(kFloat16, At<uint16_t>(from, i)) / static_cast<float>(participants));
    default:
      break;
  }
  const auto value = At<int32_t>(from, i);
  if (type == DataType::kQ32 && (value == kLow || value == kHigh)) return static_cast<uint32_t>(value);
  // Nearest even in whole numbers: twice the remainder against the divisor.
  const auto divisor = static_cast<int64_t>(by);
  int64_t quotient = value / divisor;
  const int64_t twice = 2 * std::abs(value % divisor);
  if (twice > divisor || (twice == divisor && quotient % 2 != 0)) quotient += value < 0 ? -1 : 1;
  return static_cast<uint32_t>(static_cast<int32_t>(quotient));
}

}  // namespace longhaul::offload::twin
