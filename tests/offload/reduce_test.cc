#include "offload/reduce/reduce.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

#include "base/random.h"
#include "offload/reduce/kernels.h"
#include "tests/offload/reduce_twin.h"

namespace longhaul::offload {
namespace {

constexpr ReduceOp kOps[] = {ReduceOp::kSum, ReduceOp::kAverage, ReduceOp::kProduct,
                             ReduceOp::kXor, ReduceOp::kMin,     ReduceOp::kMax};
constexpr DataType kTypes[] = {DataType::kFloat32, DataType::kBfloat16, DataType::kFloat16, DataType::kInt32,
                               DataType::kQ32};

bool TypeHas(DataType type, ReduceOp op) {
  const bool floats = type != DataType::kInt32 && type != DataType::kQ32;
  return op == ReduceOp::kXor ? !floats : op == ReduceOp::kProduct ? type != DataType::kQ32 : true;
}

// What is hard for each type, and any bits.
uint32_t Code(DataType type, Random& random) {
  static constexpr uint32_t kHard32[] = {0,          0x80000000, 1,          0x80000001, 0x007fffff,
                                         0x00800000, 0x7f7fffff, 0xff7fffff, 0x7f800000, 0xff800000,
                                         0x7fc00000, 0xffc00123, 0x7f800001, 0x3f800000};
  static constexpr uint32_t kHard16[] = {0,      0x8000, 1,      0x8001, 0x3ff,  0x400,  0x7bff, 0xfbff,
                                         0x7c00, 0xfc00, 0x7e00, 0xfe01, 0x7c01, 0x7f,   0x80,   0x7f7f,
                                         0xff7f, 0x7f80, 0xff80, 0x7fc0, 0x7f81, 0x3c00, 0x3f80, 0x0001};
  static constexpr uint32_t kHardInts[] = {0,          1,          0xffffffff, 0x7fffffff,
                                           0x80000000, 0x7ffffffe, 0x80000001, 0x40000000};
  const uint64_t draw = random.Next();
  const auto bits = static_cast<uint32_t>(draw);
  const bool hard = draw >> 62 == 0;
  switch (type) {
    case DataType::kInt32:
    case DataType::kQ32:
      return hard ? kHardInts[bits % std::size(kHardInts)] : draw >> 62 == 1 ? bits % 64 - 32 : bits;
    case DataType::kFloat32:
      if (hard) return kHard32[bits % std::size(kHard32)];
      // Of like size, so that sums round.
      return draw >> 62 == 1 ? bits : (bits & 0x807fffff) | (120 + bits % 16) << 23;
    default:
      if (hard) return kHard16[bits % std::size(kHard16)];
      return draw >> 62 == 1 ? bits & 0xffff : (bits & 0x83ff) | 0x3800;
  }
}

// Sources in memory of their own, each at an odd address when it is to be misaligned, with a guard behind it.
class Sources {
 public:
  Sources(DataType type, size_t count, size_t elements, bool misaligned, Random& random)
      : size_(SizeOf(type)), offset_(misaligned ? 1 : 0) {
    for (size_t k = 0; k < count; ++k) {
      memory_.emplace_back(offset_ + elements * size_ + 1, std::byte{0x5a});
      for (size_t i = 0; i < elements; ++i) {
        const uint32_t code = Code(type, random);
        std::memcpy(&memory_.back()[offset_ + i * size_], &code, size_);
      }
    }
    for (auto& memory : memory_) pointers_.push_back(memory.data() + offset_);
  }
  const std::vector<const std::byte*>& pointers() const { return pointers_; }
  std::byte* at(size_t k) { return memory_[k].data() + offset_; }
  bool GuardsStand() const {
    for (const auto& memory : memory_) {
      if (memory.back() != std::byte{0x5a} || (offset_ == 1 && memory[0] != std::byte{0x5a})) return false;
    }
    return true;
  }

 private:
  size_t size_;
  size_t offset_;
  std::vector<std::vector<std::byte>> memory_;
  std::vector<const std::byte*> pointers_;
};

std::vector<uint32_t> CodesOf(DataType type, const std::byte* from, size_t elements) {
  std::vector<uint32_t> codes(elements);
  for (size_t i = 0; i < elements; ++i) std::memcpy(&codes[i], from + i * SizeOf(type), SizeOf(type));
  return codes;
}

std::string Named(ReduceOp op, DataType type, size_t count, size_t elements) {
  return "op " + std::to_string(static_cast<int>(op)) + " type " + std::to_string(static_cast<int>(type)) +
         ", " + std::to_string(count) + " sources of " + std::to_string(elements);
}

// Restores the best instruction set.
class ReduceTest : public testing::Test {
 protected:
  ~ReduceTest() override { UseReduceTarget(""); }
  // A fresh seed in each run.
  const uint64_t seed_ = std::random_device()();
  Random random_{seed_};
};

// Every operation x type x instruction set, at lengths around every vector's and every tail, aligned and not.
TEST_F(ReduceTest, EqualsThePlainLoopOnEveryTargetAtEveryLength) {
  SCOPED_TRACE("seed " + std::to_string(seed_));
  for (const std::string_view target : ReduceTargets()) {
    ASSERT_TRUE(UseReduceTarget(target));
    SCOPED_TRACE(target);
    for (const DataType type : kTypes) {
      for (const ReduceOp op : kOps) {
        if (!TypeHas(type, op)) continue;
        for (size_t elements = 0; elements < 300; elements += elements < 140 ? 1 : 23) {
          const size_t count = 1 + random_.Below(12);
          Sources sources(type, count, elements, elements % 2 == 1, random_);
          std::vector<std::byte> out(elements * SizeOf(type) + 1, std::byte{0x5a});
          ASSERT_TRUE(Reduce(op, type, sources.pointers(), elements, out.data()).ok());
          std::vector<uint32_t> expected(elements);
          for (size_t i = 0; i < elements; ++i) expected[i] = twin::Reduced(op, type, sources.pointers(), i);
          ASSERT_EQ(CodesOf(type, out.data(), elements), expected) << Named(op, type, count, elements);
          ASSERT_EQ(out.back(), std::byte{0x5a});
          ASSERT_TRUE(sources.GuardsStand());
        }
      }
    }
  }
}

TEST_F(ReduceTest, AnyNumberOfSourcesIsOnePassInTheOrderOfTheList) {
  SCOPED_TRACE("seed " + std::to_string(seed_));
  for (const DataType type : kTypes) {
    for (size_t count = 1; count <= 70; ++count) {
      Sources sources(type, count, 77, false, random_);
      std::vector<std::byte> out(77 * SizeOf(type));
      ASSERT_TRUE(Reduce(ReduceOp::kSum, type, sources.pointers(), 77, out.data()).ok());
      for (size_t i = 0; i < 77; ++i) {
        ASSERT_EQ(CodesOf(type, out.data(), 77)[i],
                  twin::Reduced(ReduceOp::kSum, type, sources.pointers(), i));
      }
    }
  }
  // 2^24 + 1 + 1 is 2^24 from the left, and 2^24 + 2 from the right.
  const float list[] = {0x1p24f, 1, 1};
  const std::vector<const std::byte*> forth = {std::as_bytes(std::span(list)).data(),
                                               std::as_bytes(std::span(list)).data() + 4,
                                               std::as_bytes(std::span(list)).data() + 8};
  const std::vector<const std::byte*> back = {forth[2], forth[1], forth[0]};
  float sum = 0;
  auto* const out = std::as_writable_bytes(std::span(&sum, 1)).data();
  ASSERT_TRUE(Reduce(ReduceOp::kSum, DataType::kFloat32, forth, 1, out).ok());
  EXPECT_EQ(sum, 0x1p24f);
  ASSERT_TRUE(Reduce(ReduceOp::kSum, DataType::kFloat32, back, 1, out).ok());
  EXPECT_EQ(sum, 0x1p24f + 2);
}

TEST_F(ReduceTest, TheResultMayTakeThePlaceOfAnySource) {
  SCOPED_TRACE("seed " + std::to_string(seed_));
  for (const DataType type : kTypes) {
    for (size_t place = 0; place < 9; ++place) {
      Sources sources(type, 9, 201, false, random_);
      std::vector<uint32_t> expected(201);
      for (size_t i = 0; i < 201; ++i)
        expected[i] = twin::Reduced(ReduceOp::kSum, type, sources.pointers(), i);
      ASSERT_TRUE(Reduce(ReduceOp::kSum, type, sources.pointers(), 201, sources.at(place)).ok());
      ASSERT_EQ(CodesOf(type, sources.at(place), 201), expected);
      ASSERT_TRUE(sources.GuardsStand());
    }
  }
}

TEST_F(ReduceTest, AccumulatingIsReducingTwo) {
  SCOPED_TRACE("seed " + std::to_string(seed_));
  for (const DataType type : kTypes) {
    for (const ReduceOp op : kOps) {
      if (!TypeHas(type, op)) continue;
      Sources sources(type, 2, 99, true, random_);
      std::vector<uint32_t> expected(99);
      for (size_t i = 0; i < 99; ++i) expected[i] = twin::Reduced(op, type, sources.pointers(), i);
      ASSERT_TRUE(Accumulate(op, type, sources.at(0), sources.at(1), 99).ok());
      ASSERT_EQ(CodesOf(type, sources.at(0), 99), expected) << Named(op, type, 2, 99);
    }
  }
}

TEST_F(ReduceTest, AnAverageIsDividedAtTheEndOnEveryTarget) {
  SCOPED_TRACE("seed " + std::to_string(seed_));
  for (const std::string_view target : ReduceTargets()) {
    ASSERT_TRUE(UseReduceTarget(target));
    for (const DataType type : kTypes) {
      for (const size_t participants :
           {size_t{1}, size_t{2}, size_t{3}, size_t{4}, size_t{7}, size_t{64}, kMaxParticipants}) {
        Sources sources(type, 1, 333, participants % 2 == 1, random_);
        std::vector<uint32_t> expected(333);
        for (size_t i = 0; i < 333; ++i) expected[i] = twin::Divided(type, sources.at(0), i, participants);
        ASSERT_TRUE(Finish(ReduceOp::kAverage, type, sources.at(0), 333, participants).ok());
        ASSERT_EQ(CodesOf(type, sources.at(0), 333), expected)
            << target << " " << Named(ReduceOp::kAverage, type, participants, 333);
        ASSERT_TRUE(Finish(ReduceOp::kSum, type, sources.at(0), 333, participants).ok());
        ASSERT_EQ(CodesOf(type, sources.at(0), 333), expected) << "a sum is divided";
      }
    }
  }
}

// 1024 + 0.5 + 0.5 + 0.25: rounded after every step float16 stays at 1024.
TEST_F(ReduceTest, SixteenBitSumsAreRoundedOnce) {
  const uint16_t of16[] = {0x6400, 0x3800, 0x3800, 0x3400};
  const uint16_t ofb[] = {0x4380, 0x3f80, 0x3f80, 0x3f00};  // 256 + 1 + 1 + 0.5; the next one is 258
  uint16_t sum[2] = {};
  const auto reduce = [](DataType type, const uint16_t* codes, uint16_t* out) {
    std::vector<const std::byte*> sources;
    for (int k = 0; k < 4; ++k) sources.push_back(reinterpret_cast<const std::byte*>(codes + k));
    ASSERT_TRUE(Reduce(ReduceOp::kSum, type, sources, 1, reinterpret_cast<std::byte*>(out)).ok());
  };
  reduce(DataType::kFloat16, of16, &sum[0]);
  reduce(DataType::kBfloat16, ofb, &sum[1]);
  EXPECT_EQ(sum[0], 0x6401);
  EXPECT_EQ(sum[1], 0x4381);
}

// The promise of q32: whatever the order, a sum between the ends is the exact one.
TEST_F(ReduceTest, ASumOfQ32BetweenTheEndsIsExact) {
  SCOPED_TRACE("seed " + std::to_string(seed_));
  size_t exact = 0;
  size_t ended = 0;
  for (int run = 0; run < 20000; ++run) {
    std::vector<int32_t> values(2 + random_.Below(5));
    int64_t sum = 0;
    for (int32_t& value : values) {
      value = static_cast<int32_t>(random_.Next()) / 2;
      sum += value;
    }
    std::vector<const std::byte*> sources;
    for (const int32_t& value : values) sources.push_back(reinterpret_cast<const std::byte*>(&value));
    int32_t got = 0;
    ASSERT_TRUE(Reduce(ReduceOp::kSum, DataType::kQ32, sources, 1, reinterpret_cast<std::byte*>(&got)).ok());
    if (got == INT32_MIN || got == INT32_MAX) {
      ++ended;
      // And stays, so that what follows cannot hide it.
      const int32_t more = got == INT32_MAX ? -1'000'000 : 1'000'000;
      const int32_t before = got;
      ASSERT_TRUE(Accumulate(ReduceOp::kSum, DataType::kQ32, reinterpret_cast<std::byte*>(&got),
                             reinterpret_cast<const std::byte*>(&more), 1)
                      .ok());
      ASSERT_EQ(got, before);
    } else {
      ++exact;
      ASSERT_EQ(got, sum);
    }
  }
  EXPECT_GT(exact, 1000u);
  EXPECT_GT(ended, 1000u);
}

TEST_F(ReduceTest, WhatATypeDoesNotHaveIsRefusedAndWritesNothing) {
  const float value = 1;
  float out = 7;
  const auto* in = reinterpret_cast<const std::byte*>(&value);
  auto* to = reinterpret_cast<std::byte*>(&out);
  const std::vector<const std::byte*> one = {in};
  const std::vector<const std::byte*> null = {in, nullptr};
  const auto code = [](const Status& status) { return status.code(); };
  for (const DataType type : kTypes) {
    for (const ReduceOp op : kOps) {
      EXPECT_EQ(Reduce(op, type, one, 0, to).ok(), TypeHas(type, op));
      EXPECT_EQ(Finish(op, type, to, 0, 1).ok(), TypeHas(type, op));
    }
  }
  const auto unknown_op = static_cast<ReduceOp>(6);
  const auto unknown_type = static_cast<DataType>(5);
  EXPECT_EQ(code(Reduce(unknown_op, DataType::kFloat32, one, 1, to)), StatusCode::kInvalidArgument);
  EXPECT_EQ(code(Reduce(ReduceOp::kSum, unknown_type, one, 1, to)), StatusCode::kInvalidArgument);
  EXPECT_EQ(code(Reduce(ReduceOp::kSum, DataType::kFloat32, {}, 1, to)), StatusCode::kInvalidArgument);
  EXPECT_EQ(code(Reduce(ReduceOp::kSum, DataType::kFloat32, null, 1, to)), StatusCode::kInvalidArgument);
  EXPECT_EQ(code(Reduce(ReduceOp::kSum, DataType::kFloat32, one, 1, nullptr)), StatusCode::kInvalidArgument);
  EXPECT_EQ(code(Finish(ReduceOp::kAverage, DataType::kFloat32, to, 1, 0)), StatusCode::kInvalidArgument);
  EXPECT_EQ(code(Finish(ReduceOp::kAverage, DataType::kFloat32, to, 1, kMaxParticipants + 1)),
            StatusCode::kInvalidArgument);
  EXPECT_EQ(code(Finish(ReduceOp::kAverage, DataType::kFloat32, nullptr, 1, 1)),
            StatusCode::kInvalidArgument);
  EXPECT_EQ(out, 7);
}

TEST_F(ReduceTest, TargetsAreNamedAndChosen) {
  const auto targets = ReduceTargets();
  ASSERT_FALSE(targets.empty());
#if defined(__x86_64__)
  EXPECT_EQ(targets.back(), "EMU128");  // the portable one
#endif
  EXPECT_FALSE(UseReduceTarget("none such"));
  EXPECT_TRUE(UseReduceTarget(targets.front()));
}

}  // namespace
}  // namespace longhaul::offload
