#include "server/tensor/parameter_store.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace longhaul::server {
namespace {

TensorSpec Spec(const char* name, uint64_t count, const char* optimizer = "sgd:lr=0.1") {
  return {.name = name, .dtype = 0, .count = count, .optimizer = *codec::ParseOptimizer(optimizer)};
}

TEST(ParameterStore, TheSameDeclarationTwiceIsTheSameTensor) {
  ParameterStore store(ByteCount(4000), 4);
  const auto first = store.Declare(Spec("w", 10));
  const auto again = store.Declare(Spec("w", 10, "sgd:lr=1e-1"));
  const auto other = store.Declare(Spec("b", 1));
  ASSERT_TRUE(first.ok() && again.ok() && other.ok());
  EXPECT_EQ(*first, *again);
  EXPECT_EQ((*other)->key(), 1u);
  EXPECT_EQ(store.Find(1), *other);
  EXPECT_EQ(store.Find(2), nullptr);
  EXPECT_EQ((*first)->geometry().chunks(), 3u);
  EXPECT_EQ((*first)->geometry().Length(2), 2u);
}

TEST(ParameterStore, AMismatchingShapeOrOptimizerIsRefusedWithBothValuesPrinted) {
  ParameterStore store(ByteCount(4000), 4);
  ASSERT_TRUE(store.Declare(Spec("w", 10)).ok());
  EXPECT_EQ(
      store.Declare(Spec("w", 12)).status().ToString(),
      "SettingsMismatch: tensor \"w\" is declared as float32[12], sgd:lr=0.1 here, but the server has it as "
      "float32[10], sgd:lr=0.1");
  EXPECT_EQ(store.Declare(Spec("w", 10, "aggregate")).status().code(), StatusCode::kSettingsMismatch);
}

TEST(ParameterStore, AModelBeyondTheBoundIsRefusedWithTheBound) {
  ParameterStore store(ByteCount(400), 4);
  ASSERT_TRUE(store.Declare(Spec("w", 60)).ok());
  const auto status = store.Declare(Spec("v", 41)).status();
  EXPECT_EQ(status.code(), StatusCode::kResourceExhausted);
  EXPECT_NE(status.message().find("100 elements, 60 are taken"), std::string::npos) << status.message();
  EXPECT_TRUE(store.Declare(Spec("v", 40)).ok());
}

TEST(ParameterStore, AFinishedRoundStaysReadableWhileTheNextOneIsWritten) {
  ParameterStore store(ByteCount(4000), 2);
  Parameters& w = **store.Declare(Spec("w", 3));
  w.SetReady();
  std::ranges::fill(w.mutable_next(), 1.0f);
  const std::span<const float> borrowed = w.next();
  w.Advance();
  std::ranges::fill(w.mutable_next(), 2.0f);
  EXPECT_EQ(borrowed.data(), w.current().data());
  EXPECT_EQ(borrowed[0], 1.0f);
}

TEST(ParameterStore, ASnapshotCostsNoCopyAndNeverChanges) {
  ParameterStore store(ByteCount(4000), 2);
  Parameters& w = **store.Declare(Spec("w", 1));
  w.SetReady();
  const auto before = w.Snapshot();
  EXPECT_EQ(before, w.Snapshot());
  EXPECT_EQ(before->data(), w.current().data());
  EXPECT_TRUE(w.HasSnapshot());
  for (float value : {5.0f, 6.0f}) {
    ASSERT_TRUE(w.BeginWriting().ok());
    w.mutable_next()[0] = value;
    w.Advance();
  }
  EXPECT_EQ((*before)[0], 0.0f);
  EXPECT_EQ((*w.Snapshot())[0], 6.0f);
  EXPECT_FALSE(w.HasSnapshot());
}

TEST(ParameterStore, CodesAreOfTheirVersionAndStayWithIt) {
  ParameterStore store(ByteCount(4000), 2);
  TensorSpec spec = Spec("w", 3);
  spec.wire_dtype = spec.result_dtype = DType::kBFloat16;
  Parameters& w = **store.Declare(spec);
  w.SetReady();
  EXPECT_EQ(w.result_geometry().chunks(), 1u) << "four elements of 16 bits for two of 32";
  const auto code = [&w](const Parameters::Held& version) {
    const ByteSpan bytes = w.Encoded(*version, 0);
    EXPECT_EQ(bytes.size(), 6u);
    return bytes[5] << 8 | bytes[4];
  };
  const Parameters::Held zero = w.OfVersion(0);
  EXPECT_EQ(zero->bytes(), 3 * (4 + 2u)) << "what pulls pin";
  for (const auto& [value, bits] :
       {std::pair(1.0f, 0x3f80), std::pair(2.0f, 0x4000), std::pair(4.0f, 0x4080)}) {
    ASSERT_TRUE(w.BeginWriting().ok());
    std::ranges::fill(w.mutable_next(), value);
    EXPECT_EQ(code(w.OfVersion(w.version() + 1)), bits);
    w.Advance();
    EXPECT_EQ(code(w.OfVersion(w.version())), bits);
    EXPECT_EQ(code(zero), 0);
  }
}

TEST(ParameterStore, WithoutReadersARoundWritesWhereTheOneBeforeTheLastDid) {
  ParameterStore store(ByteCount(4000), 2);
  Parameters& w = **store.Declare(Spec("w", 1));
  w.SetReady();
  const float* const first = w.current().data();
  for (int round = 0; round < 2; ++round) {
    ASSERT_TRUE(w.BeginWriting().ok());
    w.Advance();
  }
  EXPECT_EQ(w.current().data(), first);
}

TEST(ParameterStore, ATensorThatWasTakenBackLeavesRoomAndItsKey) {
  ParameterStore store(ByteCount(400), 4);
  ASSERT_TRUE(store.Declare(Spec("w", 100)).ok());
  store.Undeclare();
  EXPECT_EQ(store.elements(), 0u);
  EXPECT_EQ((*store.Declare(Spec("v", 100)))->key(), 0u);
}

}  // namespace
}  // namespace longhaul::server
