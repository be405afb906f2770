// How two values become one, for every type and operation, in vectors of one instruction set. Included once
// for each of them (kernels.cc), so there is no #pragma once.
//
// A fold has First (a source's bits to the state), Next (one more source) and Last (the state to bits).
// Values travel as lanes of 32 bits: two elements of 16 in each, the one with the even index below (little
// endian, as every machine that has these kernels).
#if defined(LONGHAUL_OFFLOAD_REDUCE_FOLDS_H) == defined(HWY_TARGET_TOGGLE)
#ifdef LONGHAUL_OFFLOAD_REDUCE_FOLDS_H
#undef LONGHAUL_OFFLOAD_REDUCE_FOLDS_H
#else
#define LONGHAUL_OFFLOAD_REDUCE_FOLDS_H
#endif

// As in kernels.cc, which says why: alone this file is compiled for the portable vectors.
#ifndef HWY_BROKEN_EMU128
#define HWY_BROKEN_EMU128 0
#endif
#include <hwy/highway.h>
#include <cstdint>
#include <limits>

HWY_BEFORE_NAMESPACE();
namespace longhaul::offload::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

constexpr hn::ScalableTag<uint32_t> kRaw;
constexpr hn::ScalableTag<int32_t> kInts;
constexpr hn::ScalableTag<float> kFloats;
constexpr hn::ScalableTag<uint8_t> kBytes;
using Raw = hn::Vec<decltype(kRaw)>;
using Ints = hn::Vec<decltype(kInts)>;
using Floats = hn::Vec<decltype(kFloats)>;

HWY_INLINE Raw Bits(uint32_t value) { return hn::Set(kRaw, value); }
HWY_INLINE Raw BitsOf(Floats value) { return hn::BitCast(kRaw, value); }
HWY_INLINE Floats FloatsOf(Raw bits) { return hn::BitCast(kFloats, bits); }
// `yes` where a > above, both below 2^31.
HWY_INLINE Raw Choose(Raw a, uint32_t above, Raw yes, Raw no) {
  const auto mask = hn::Gt(hn::BitCast(kInts, a), hn::BitCast(kInts, Bits(above)));
  return hn::IfThenElse(hn::RebindMask(kRaw, mask), yes, no);
}

inline constexpr uint32_t kMagnitude = 0x7fffffff;

// --- formats: lanes to float32 and back, rounded once to nearest even

struct Float32 {
  using Lane = int32_t;
  static constexpr uint32_t kInfinity = 0x7f800000;
  static constexpr uint32_t kQuietNaN = 0x7fc00000;
  struct Values {
    Floats all;
  };
  static HWY_INLINE Values Decode(Raw raw) { return {FloatsOf(raw)}; }
  static HWY_INLINE Raw Encode(Values v) {
    const Raw bits = BitsOf(v.all);
    return Choose(hn::And(bits, Bits(kMagnitude)), kInfinity, Bits(kQuietNaN), bits);
  }
  template <class Op>
  static HWY_INLINE Values Map(Values a, Values b, Op op) {
    return {op(a.all, b.all)};
  }
};

// Two values a lane.
template <class Half>
struct Pairs {
  using Lane = int16_t;
  static constexpr uint32_t kInfinity = Half::kInfinity;
  static constexpr uint32_t kQuietNaN = Half::kQuietNaN;
  struct Values {
    Floats even;
    Floats odd;
  };
  static HWY_INLINE Values Decode(Raw raw) {
    return {Half::Decode(hn::And(raw, Bits(0xffff))), Half::Decode(hn::ShiftRight<16>(raw))};
  }
  static HWY_INLINE Raw Encode(Values v) {
    return hn::Or(Half::Encode(BitsOf(v.even)), hn::ShiftLeft<16>(Half::Encode(BitsOf(v.odd))));
  }
  template <class Op>
  static HWY_INLINE Values Map(Values a, Values b, Op op) {
    return {op(a.even, b.even), op(a.odd, b.odd)};
  }
};

// Half a unit of what is cut off, less where the last bit that stays is even.
template <int kCut>
HWY_INLINE Raw Rounded(Raw bits) {
  const Raw odd = hn::And(hn::ShiftRight<kCut>(bits), Bits(1));
  return hn::ShiftRight<kCut>(hn::Add(hn::Add(bits, Bits((1u << (kCut - 1)) - 1)), odd));
}

struct HalfBfloat16 {
  static constexpr uint32_t kInfinity = 0x7f80;
  static constexpr uint32_t kQuietNaN = 0x7fc0;

  static HWY_INLINE Floats Decode(Raw code) { return FloatsOf(hn::ShiftLeft<16>(code)); }
  static HWY_INLINE Raw Encode(Raw bits) {
    return Choose(hn::And(bits, Bits(kMagnitude)), Float32::kInfinity, Bits(kQuietNaN), Rounded<16>(bits));
  }
};
using Bfloat16 = Pairs<HalfBfloat16>;

struct HalfFloat16 {
  static constexpr uint32_t kInfinity = 0x7c00;
  static constexpr uint32_t kQuietNaN = 0x7e00;
  static constexpr uint32_t kRebias = (127 - 15) << 10;  // between the exponents of float32 and float16
  static constexpr uint32_t kMinNormal = 0x38800000;     // 2^-14, as float32

  static HWY_INLINE Floats Decode(Raw code) {
    const Raw magnitude = hn::And(code, Bits(0x7fff));
    // Subnormal: in units of 2^-24, exactly.
    const Floats units = hn::ConvertTo(kFloats, hn::BitCast(kInts, magnitude));
    const Raw small = BitsOf(hn::Mul(units, hn::Set(kFloats, 0x1p-24f)));
    const Raw normal = hn::ShiftLeft<13>(hn::Add(magnitude, Bits(kRebias)));
    const Raw special = hn::Or(normal, Bits(Float32::kInfinity));
    const Raw bits = Choose(magnitude, 0x3ff, Choose(magnitude, kInfinity - 1, special, normal), small);
    return FloatsOf(hn::Or(bits, hn::ShiftLeft<16>(hn::And(code, Bits(0x8000)))));
  }
  static HWY_INLINE Raw Encode(Raw bits) {
    const Raw magnitude = hn::And(bits, Bits(kMagnitude));
    const Raw sign = hn::And(hn::ShiftRight<16>(bits), Bits(0x8000));
    // Below the normal ones: the last place of 0.5f is 2^-24, the unit of subnormal codes, so adding rounds.
    const Raw half = BitsOf(hn::Set(kFloats, 0.5f));
    const Raw small = hn::Sub(BitsOf(hn::Add(FloatsOf(magnitude), hn::Set(kFloats, 0.5f))), half);
    const Raw normal = hn::Min(hn::Sub(Rounded<13>(magnitude), Bits(kRebias)), Bits(kInfinity));
    const Raw code = hn::Or(Choose(magnitude, kMinNormal - 1, normal, small), sign);
    return Choose(magnitude, Float32::kInfinity, Bits(kQuietNaN), code);
  }
};
using Float16 = Pairs<HalfFloat16>;

// --- sums, products, quotients of floats

template <class Format>
struct SumOf {
  using Values = typename Format::Values;
  HWY_INLINE Values First(Raw raw) const { return Format::Decode(raw); }
  HWY_INLINE Values Next(Values sum, Raw raw) const {
    return Format::Map(sum, Format::Decode(raw), [](Floats a, Floats b) HWY_ATTR { return hn::Add(a, b); });
  }
  HWY_INLINE Raw Last(Values sum) const { return Format::Encode(sum); }
};

template <class Format>
struct ProductOf : SumOf<Format> {
  using Values = typename Format::Values;
  HWY_INLINE Values Next(Values product, Raw raw) const {
    return Format::Map(product, Format::Decode(raw),
                       [](Floats a, Floats b) HWY_ATTR { return hn::Mul(a, b); });
  }
};

template <class Format>
struct DivideFloats {
  float divisor;
  using Values = typename Format::Values;
  HWY_INLINE Values First(Raw raw) const { return Format::Decode(raw); }
  HWY_INLINE Values Next(Values sum, Raw) const { return sum; }
  HWY_INLINE Raw Last(Values sum) const {
    const float by = divisor;
    return Format::Encode(
        Format::Map(sum, sum, [by](Floats a, Floats) HWY_ATTR { return hn::Div(a, hn::Set(kFloats, by)); }));
  }
};

// --- min and max of floats: bits as integers in the order of the values, and whether a NaN was among them

template <class Format, bool kMax>
struct FloatExtreme {
  using Lane = typename Format::Lane;
  static constexpr hn::ScalableTag<Lane> kLanes{};
  static constexpr int kSignShift = 8 * sizeof(Lane) - 1;
  static constexpr Lane kAllButSign = std::numeric_limits<Lane>::max();
  using Lanes = hn::Vec<hn::ScalableTag<Lane>>;
  struct State {
    Lanes key;
    Lanes nan;
  };

  HWY_INLINE State First(Raw raw) const {
    const Lanes bits = hn::BitCast(kLanes, raw);
    return {Key(bits), NaN(bits)};
  }
  HWY_INLINE State Next(State state, Raw raw) const {
    const State next = First(raw);
    return {kMax ? hn::Max(state.key, next.key) : hn::Min(state.key, next.key), hn::Or(state.nan, next.nan)};
  }
  HWY_INLINE Raw Last(State state) const {
    const Lanes quiet = hn::Set(kLanes, static_cast<Lane>(Format::kQuietNaN));
    return hn::BitCast(kRaw, hn::IfThenElse(hn::MaskFromVec(state.nan), quiet, Key(state.key)));
  }

  // Of a negative value all other bits are turned: its own inverse.
  static HWY_INLINE Lanes Key(Lanes bits) {
    return hn::Xor(bits, hn::And(hn::ShiftRight<kSignShift>(bits), hn::Set(kLanes, kAllButSign)));
  }
  static HWY_INLINE Lanes NaN(Lanes bits) {
    const Lanes infinity = hn::Set(kLanes, static_cast<Lane>(Format::kInfinity));
    return hn::VecFromMask(kLanes, hn::Gt(hn::And(bits, hn::Set(kLanes, kAllButSign)), infinity));
  }
};

// --- integers

struct IntegerSum {
  HWY_INLINE Raw First(Raw raw) const { return raw; }
  HWY_INLINE Raw Next(Raw sum, Raw raw) const { return hn::Add(sum, raw); }
  HWY_INLINE Raw Last(Raw sum) const { return sum; }
};

struct IntegerProduct : IntegerSum {
  HWY_INLINE Raw Next(Raw product, Raw raw) const { return hn::Mul(product, raw); }
};

struct BitsXor : IntegerSum {
  HWY_INLINE Raw Next(Raw bits, Raw raw) const { return hn::Xor(bits, raw); }
};

struct IntegerMin : IntegerSum {
  HWY_INLINE Raw Next(Raw least, Raw raw) const {
    return hn::BitCast(kRaw, hn::Min(hn::BitCast(kInts, least), hn::BitCast(kInts, raw)));
  }
};

struct IntegerMax : IntegerSum {
  HWY_INLINE Raw Next(Raw most, Raw raw) const {
    return hn::BitCast(kRaw, hn::Max(hn::BitCast(kInts, most), hn::BitCast(kInts, raw)));
  }
};

// Whether a value of q32 is INT32_MIN or INT32_MAX: with the sign's bits turned both are INT32_MAX.
HWY_INLINE hn::Mask<decltype(kInts)> IsEnd(Ints value) {
  return hn::Eq(hn::Xor(value, hn::ShiftRight<31>(value)), hn::Set(kInts, INT32_MAX));
}

struct StickySum : IntegerSum {
  HWY_INLINE Raw Next(Raw raw_sum, Raw raw) const {
    const Ints a = hn::BitCast(kInts, raw_sum);
    const Ints b = hn::BitCast(kInts, raw);
    const Ints sum = hn::Add(a, b);
    // Beyond the range when both have the sign that the sum has not: the end on their side.
    const Ints out = hn::ShiftRight<31>(hn::And(hn::Xor(a, sum), hn::Xor(b, sum)));
    const Ints end = hn::Xor(hn::ShiftRight<31>(a), hn::Set(kInts, INT32_MAX));
    const Ints within = hn::IfThenElse(hn::MaskFromVec(out), end, sum);
    return hn::BitCast(kRaw, hn::IfThenElse(IsEnd(a), a, hn::IfThenElse(IsEnd(b), b, within)));
  }
};

// In double precision the quotient of an int32 rounds as the exact one would: ties are exact, and what is no
// tie is at least 1 / (2 divisor) away from one, while the quotient's error is below 2^-22 / divisor.
template <bool kSticky>
struct DivideIntegers : IntegerSum {
  double divisor;
  explicit HWY_INLINE DivideIntegers(double by) : divisor(by) {}
  HWY_INLINE Raw Last(Raw raw) const {
    const hn::Half<decltype(kInts)> half;
    const hn::Repartition<double, decltype(kInts)> doubles;
    const Ints value = hn::BitCast(kInts, raw);
    const auto by = hn::Set(doubles, divisor);
    const auto low = hn::Round(hn::Div(hn::PromoteTo(doubles, hn::LowerHalf(half, value)), by));
    const auto high = hn::Round(hn::Div(hn::PromoteTo(doubles, hn::UpperHalf(half, value)), by));
    const Ints quotient = hn::Combine(kInts, hn::DemoteTo(half, high), hn::DemoteTo(half, low));
    return hn::BitCast(kRaw, kSticky ? hn::IfThenElse(IsEnd(value), value, quotient) : quotient);
  }
};

}  // namespace longhaul::offload::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // LONGHAUL_OFFLOAD_REDUCE_FOLDS_H
