// The two CRC kernels agree with each other and with what is published.
#include "base/crc32c.h"

#include <gtest/gtest.h>

#include <string_view>
#include <vector>

#include "base/random.h"

namespace longhaul {
namespace {

ByteSpan Bytes(std::string_view text) { return {reinterpret_cast<const uint8_t*>(text.data()), text.size()}; }

std::vector<uint8_t> RandomBytes(Random* random, size_t size) {
  std::vector<uint8_t> bytes(size);
  for (uint8_t& b : bytes) b = static_cast<uint8_t>(random->Next());
  return bytes;
}

TEST(Crc32c, PublishedVectors) {  // RFC 3720 §B.4, and the usual check value
  EXPECT_EQ(Crc32c(Bytes("123456789")), 0xe3069283u);
  EXPECT_EQ(Crc32c(std::vector<uint8_t>(32, 0x00)), 0x8a9136aau);
  EXPECT_EQ(Crc32c(std::vector<uint8_t>(32, 0xff)), 0x62a8ab43u);
  EXPECT_EQ(Crc32c({}), 0u);
  EXPECT_EQ(Crc32cPortable(Bytes("123456789")), 0xe3069283u);
}

TEST(Crc32c, FastAndPortableAgreeAtEveryLengthAndOffset) {
  Random random(11);
  const std::vector<uint8_t> data = RandomBytes(&random, 1600);
  for (size_t offset = 0; offset < 9; ++offset) {
    for (size_t size = 0; size < 1500; size = size < 70 ? size + 1 : size * 2 - 3) {
      const ByteSpan part = ByteSpan(data).subspan(offset, size);
      const uint32_t seed = static_cast<uint32_t>(random.Next());
      ASSERT_EQ(Crc32c(part, seed), Crc32cPortable(part, seed)) << offset << " " << size;
    }
  }
}

TEST(Crc32c, ContinuesWhereItStopped) {
  Random random(12);
  const std::vector<uint8_t> data = RandomBytes(&random, 300);
  for (size_t cut = 0; cut <= data.size(); cut += 7) {
    const ByteSpan all(data);
    EXPECT_EQ(Crc32c(all.subspan(cut), Crc32c(all.first(cut))), Crc32c(all));
  }
}

}  // namespace
}  // namespace longhaul
