#include "offload/reduce/kernels.h"

#include <cstdint>
#include <cstring>

// What lies between them and these gains nothing here: the loops wait for memory.
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SSE4 | HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128)
// The portable vectors. Highway leaves them out before g++ 12.3 for a wrong multiplication of 16-bit lanes
// (GCC bug 106322), of which there is none here; the differential test holds on them.
#define HWY_BROKEN_EMU128 0
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "offload/reduce/kernels.cc"
#include <hwy/foreach_target.h>
//
#include <hwy/highway.h>

#include "offload/reduce/folds.h"

HWY_BEFORE_NAMESPACE();
namespace longhaul::offload::HWY_NAMESPACE {

HWY_INLINE Raw Load(const std::byte* from) {
  return hn::BitCast(kRaw, hn::LoadU(kBytes, reinterpret_cast<const uint8_t*>(from)));
}
HWY_INLINE void Store(Raw value, std::byte* to) {
  hn::StoreU(hn::BitCast(kBytes, value), kBytes, reinterpret_cast<uint8_t*>(to));
}

// The last bytes, less than a vector.
template <class Fold>
HWY_INLINE void FoldTail(const Fold& fold, const std::byte* const* sources, size_t count, size_t at,
                         size_t bytes, std::byte* out) {
  std::byte part[hn::MaxLanes(kBytes)] = {};
  std::memcpy(part, sources[0] + at, bytes);
  auto sum = fold.First(Load(part));
  for (size_t k = 1; k < count; ++k) {
    std::memcpy(part, sources[k] + at, bytes);
    sum = fold.Next(sum, Load(part));
  }
  Store(fold.Last(sum), part);
  std::memcpy(out + at, part, bytes);
}

// One pass over all sources. Everything at a place is read before it is written, so that `out` may be a
// source.
template <class Fold>
HWY_NOINLINE void FoldAll(const Fold& fold, const std::byte* const* sources, size_t count, size_t bytes,
                          std::byte* out) {
  const size_t step = hn::Lanes(kBytes);
  size_t at = 0;
  for (; at + 4 * step <= bytes; at += 4 * step) {
    const std::byte* from = sources[0] + at;
    auto a = fold.First(Load(from));
    auto b = fold.First(Load(from + step));
    auto c = fold.First(Load(from + 2 * step));
    auto d = fold.First(Load(from + 3 * step));
    for (size_t k = 1; k < count; ++k) {
      from = sources[k] + at;
      a = fold.Next(a, Load(from));
      b = fold.Next(b, Load(from + step));
      c = fold.Next(c, Load(from + 2 * step));
      d = fold.Next(d, Load(from + 3 * step));
    }
    Store(fold.Last(a), out + at);
    Store(fold.Last(b), out + at + step);
    Store(fold.Last(c), out + at + 2 * step);
    Store(fold.Last(d), out + at + 3 * step);
  }
  for (; at + step <= bytes; at += step) {
    auto sum = fold.First(Load(sources[0] + at));
    for (size_t k = 1; k < count; ++k) sum = fold.Next(sum, Load(sources[k] + at));
    Store(fold.Last(sum), out + at);
  }
  if (at < bytes) FoldTail(fold, sources, count, at, bytes - at, out);
}

struct Job {
  const std::byte* const* sources;
  size_t count;
  size_t bytes;
  std::byte* out;
  template <class Fold>
  void Run(const Fold& fold) const {
    FoldAll(fold, sources, count, bytes, out);
  }
};

template <class Format>
void ReduceFloats(ReduceOp op, const Job& job) {
  switch (op) {
    case ReduceOp::kSum:
    case ReduceOp::kAverage:
      return job.Run(SumOf<Format>());
    case ReduceOp::kProduct:
      return job.Run(ProductOf<Format>());
    case ReduceOp::kMin:
      return job.Run(FloatExtreme<Format, false>());
    case ReduceOp::kMax:
      return job.Run(FloatExtreme<Format, true>());
    case ReduceOp::kXor:
      return;
  }
}

template <class Sum>
void ReduceIntegers(ReduceOp op, const Job& job) {
  switch (op) {
    case ReduceOp::kSum:
    case ReduceOp::kAverage:
      return job.Run(Sum());
    case ReduceOp::kProduct:
      return job.Run(IntegerProduct());
    case ReduceOp::kXor:
      return job.Run(BitsXor());
    case ReduceOp::kMin:
      return job.Run(IntegerMin());
    case ReduceOp::kMax:
      return job.Run(IntegerMax());
  }
}

void ReduceHere(ReduceOp op, DataType type, const std::byte* const* sources, size_t count, size_t bytes,
                std::byte* out) {
  const Job job{sources, count, bytes, out};
  switch (type) {
    case DataType::kFloat32:
      return ReduceFloats<Float32>(op, job);
    case DataType::kBfloat16:
      return ReduceFloats<Bfloat16>(op, job);
    case DataType::kFloat16:
      return ReduceFloats<Float16>(op, job);
    case DataType::kInt32:
      return ReduceIntegers<IntegerSum>(op, job);
    case DataType::kQ32:
      return ReduceIntegers<StickySum>(op, job);
  }
}

void DivideHere(DataType type, std::byte* into, size_t bytes, size_t participants) {
  const std::byte* const source = into;
  const Job job{&source, 1, bytes, into};
  switch (type) {
    case DataType::kFloat32:
      return job.Run(DivideFloats<Float32>{static_cast<float>(participants)});
    case DataType::kBfloat16:
      return job.Run(DivideFloats<Bfloat16>{static_cast<float>(participants)});
    case DataType::kFloat16:
      return job.Run(DivideFloats<Float16>{static_cast<float>(participants)});
    case DataType::kInt32:
      return job.Run(DivideIntegers<false>{static_cast<double>(participants)});
    case DataType::kQ32:
      return job.Run(DivideIntegers<true>{static_cast<double>(participants)});
  }
}

}  // namespace longhaul::offload::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace longhaul::offload {

HWY_EXPORT(ReduceHere);
HWY_EXPORT(DivideHere);

void RunReduce(ReduceOp op, DataType type, const std::byte* const* sources, size_t count, size_t bytes,
               std::byte* out) {
  HWY_DYNAMIC_DISPATCH(ReduceHere)(op, type, sources, count, bytes, out);
}

void RunDivide(DataType type, std::byte* into, size_t bytes, size_t participants) {
  HWY_DYNAMIC_DISPATCH(DivideHere)(type, into, bytes, participants);
}

std::vector<std::string_view> ReduceTargets() {
  std::vector<std::string_view> names;
  hwy::SetSupportedTargetsForTest(0);
  for (const int64_t target : hwy::SupportedAndGeneratedTargets())
    names.emplace_back(hwy::TargetName(target));
  return names;
}

bool UseReduceTarget(std::string_view name) {
  hwy::SetSupportedTargetsForTest(0);
  int64_t wanted = name.empty() ? hwy::SupportedTargets() : 0;
  for (const int64_t target : hwy::SupportedAndGeneratedTargets()) {
    if (name == hwy::TargetName(target)) wanted = target;
  }
  if (wanted == 0) return false;
  hwy::GetChosenTarget().Update(wanted);
  return true;
}

}  // namespace longhaul::offload
#endif  // HWY_ONCE
