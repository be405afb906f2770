#include "codec/policy/priority.h"

#include <gtest/gtest.h>

namespace longhaul::codec {
namespace {

TEST(SendOrder, IsByPriorityThenByKey) {
  EXPECT_LT(SendOrder(-1, 7), SendOrder(0, 0));
  EXPECT_LT(SendOrder(0, 0), SendOrder(0, 1));
  EXPECT_LT(SendOrder(0, 200'000), SendOrder(1, 0)) << "keys beyond 16 bits stay below the next priority";
  EXPECT_LT(SendOrder(INT32_MIN, UINT32_MAX), SendOrder(INT32_MAX, 0)) << "priorities are clamped";
}

}  // namespace
}  // namespace longhaul::codec
