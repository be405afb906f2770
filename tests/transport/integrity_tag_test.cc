// The integrity tag finds damage anywhere in a packet.
#include "transport/core/security/integrity_tag.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <vector>

#include "base/random.h"

namespace longhaul::transport {
namespace {

std::vector<uint8_t> RandomBytes(Random* random, size_t size) {
  std::vector<uint8_t> bytes(size);
  for (uint8_t& b : bytes) b = static_cast<uint8_t>(random->Next());
  return bytes;
}

class IntegrityTagTest : public testing::Test {
 protected:
  void SetUp() override { tag_.Seal(kNumber, kPath, header_, body_, seal_); }
  bool Opens() { return tag_.Open(kNumber, kPath, header_, body_, seal_); }

  static constexpr wire::PacketNumber kNumber = 0x123456789abc;
  static constexpr uint8_t kPath = 2;
  Random random_{5};
  std::vector<uint8_t> header_ = RandomBytes(&random_, wire::kShortHeaderBytes);
  std::vector<uint8_t> body_ = RandomBytes(&random_, 1404);
  std::array<uint8_t, wire::kTagBytes> seal_{};
  IntegrityTag tag_;
};

TEST_F(IntegrityTagTest, AnUntouchedPacketOpensAndItsBodyIsUnchanged) {
  const std::vector<uint8_t> before = body_;
  EXPECT_TRUE(Opens());
  EXPECT_EQ(body_, before);
  EXPECT_FALSE(tag_.IsSecure());
}

TEST_F(IntegrityTagTest, EveryFlippedBitIsFound) {
  for (auto span : {MutableByteSpan(header_), MutableByteSpan(body_), MutableByteSpan(seal_)}) {
    for (size_t bit = 0; bit < span.size() * 8; ++bit) {
      const uint8_t mask = static_cast<uint8_t>(1u << (bit % 8));
      span[bit / 8] ^= mask;
      ASSERT_FALSE(Opens()) << bit;
      span[bit / 8] ^= mask;
    }
  }
  EXPECT_TRUE(Opens());
}

TEST_F(IntegrityTagTest, APacketOfAnotherNumberOrPathDoesNotOpen) {
  EXPECT_FALSE(tag_.Open(kNumber + 1, kPath, header_, body_, seal_));
  EXPECT_FALSE(tag_.Open(kNumber, kPath + 1, header_, body_, seal_));
}

TEST_F(IntegrityTagTest, ATruncatedPacketDoesNotOpen) {
  EXPECT_FALSE(tag_.Open(kNumber, kPath, header_, MutableByteSpan(body_).first(1403), seal_));
  EXPECT_FALSE(tag_.Open(kNumber, kPath, header_, body_, ByteSpan(seal_).first(12)));
  EXPECT_FALSE(tag_.Open(kNumber, kPath, header_, {}, {}));
}

TEST_F(IntegrityTagTest, AByteMovedFromHeaderToBodyIsFound) {
  std::vector<uint8_t> shorter(header_.begin(), header_.end() - 1);
  std::vector<uint8_t> longer(body_.size() + 1);
  longer[0] = header_.back();
  std::copy(body_.begin(), body_.end(), longer.begin() + 1);
  EXPECT_FALSE(tag_.Open(kNumber, kPath, shorter, longer, seal_));
}

TEST_F(IntegrityTagTest, EmptyBodyIsFine) {
  tag_.Seal(7, 0, header_, {}, seal_);
  EXPECT_TRUE(tag_.Open(7, 0, header_, {}, seal_));
}

}  // namespace
}  // namespace longhaul::transport
