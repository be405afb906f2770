#include "proto/utf8.h"

#include <gtest/gtest.h>

namespace longhaul::wire {
namespace {

TEST(ValidUtf8Prefix, TextStaysWhole) {
  for (const std::string_view text : {"", "plain", "\u00e4", "\u20ac", "\U0001f680", "a\u20acb\U0010ffff"}) {
    EXPECT_EQ(ValidUtf8Prefix(text, 100), text);
  }
}

TEST(ValidUtf8Prefix, NeverCutsACharacter) {
  const std::string_view text = "a\u20acb";  // 1 + 3 + 1 bytes
  EXPECT_EQ(ValidUtf8Prefix(text, 0), "");
  EXPECT_EQ(ValidUtf8Prefix(text, 1), "a");
  EXPECT_EQ(ValidUtf8Prefix(text, 3), "a");
  EXPECT_EQ(ValidUtf8Prefix(text, 4), "a\u20ac");
}

TEST(ValidUtf8Prefix, StopsAtWhatIsNotUtf8) {
  for (const std::string_view bad :
       {"\x80", "\xc1\xbf", "\xe0\x9f\xbf", "\xed\xa0\x80", "\xf0\x8f\xbf\xbf", "\xf4\x90\x80\x80",
        "\xf5\x80\x80\x80", "\xff", "\xe2\x82", "\xe2\x28\xa1", "\xf0\x9f\x9a\x28"}) {
    EXPECT_EQ(ValidUtf8Prefix("ok" + std::string(bad), 100), "ok");
  }
}

}  // namespace
}  // namespace longhaul::wire
