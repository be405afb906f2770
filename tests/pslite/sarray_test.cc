#include "ps/sarray.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <sstream>
#include <vector>

namespace ps {
namespace {

using ::testing::ElementsAre;

template <typename V>
std::vector<V> Of(const SArray<V>& array) {
  return {array.begin(), array.end()};
}

TEST(SArray, SharesItsElementsWithCopiesAndSegments) {
  SArray<int> a{1, 2, 3, 4};
  SArray<int> copy = a;
  SArray<int> part = a.segment(1, 3);
  copy[1] = 20;
  part[1] = 30;
  EXPECT_THAT(Of(a), ElementsAre(1, 20, 30, 4));
  EXPECT_THROW((void)a.segment(2, 5), Error);
  EXPECT_THROW((void)a.segment(3, 2), Error);
}

TEST(SArray, CopiesAVectorAndSharesASharedOne) {
  std::vector<int> vector = {1, 2};
  SArray<int> copy(vector);
  vector[0] = 9;
  EXPECT_THAT(Of(copy), ElementsAre(1, 2));
  const auto shared = std::make_shared<std::vector<int>>(2, 5);
  SArray<int> view(shared);
  view[1] = 6;
  EXPECT_THAT(*shared, ElementsAre(5, 6));
}

TEST(SArray, BecomesLongerLikeAVector) {
  SArray<int> a;
  for (int i = 0; i < 100; ++i) a.push_back(i);
  a.push_back(a[0]);
  EXPECT_EQ(a.size(), 101u);
  EXPECT_EQ(a.back(), 0);
  a.resize(3);
  a.resize(5, 7);
  EXPECT_THAT(Of(a), ElementsAre(0, 1, 2, 7, 7));
  a.append(a);
  EXPECT_THAT(Of(a), ElementsAre(0, 1, 2, 7, 7, 0, 1, 2, 7, 7));
  a.pop_back();
  EXPECT_EQ(a.size(), 9u);
  a.clear();
  EXPECT_TRUE(a.empty());
  EXPECT_THROW((void)a.front(), Error);
}

TEST(SArray, IsTheSameBytesInAnotherType) {
  SArray<float> floats{1.0f, 2.0f};
  const SArray<char> bytes(floats);
  EXPECT_EQ(bytes.size(), 8u);
  const SArray<float> again(bytes);
  EXPECT_THAT(Of(again), ElementsAre(1.0f, 2.0f));
  EXPECT_THROW(SArray<double>(bytes.segment(0, 7)), Error);
}

TEST(SArray, FindsARangeOfSortedElements) {
  const SArray<int> a{1, 3, 5, 7, 9};
  const Range found = FindRange(a, 2, 8);
  EXPECT_EQ(found.begin(), 1u);
  EXPECT_EQ(found.end(), 4u);
  EXPECT_EQ(FindRange(a, 8, 2).size(), 0u);
}

TEST(Checks, ThrowWithBothValues) {
  const std::vector<int> three(3);
  CHECK_EQ(three.size(), 3) << "not evaluated";
  try {
    CHECK_LT(three.size(), 2) << "elements";
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), ::testing::HasSubstr("three.size() < 2 (3 and 2) elements"));
  }
  EXPECT_THROW(CHECK(three.empty()), Error);
  EXPECT_THROW(CHECK_NOTNULL(static_cast<int*>(nullptr)), Error);
  EXPECT_THROW(LOG(FATAL) << "x", Error);
}

}  // namespace
}  // namespace ps
