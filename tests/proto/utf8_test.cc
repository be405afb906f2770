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

TEST(Printable, LeavesWritingAlone) {
  for (const std::string_view text :
       {"", "no room: 12 of 12", "caf\u00e9 \u65e5\u672c \U0001f680", "\u00a0\u2027\u202f\u2065"}) {
    EXPECT_EQ(Printable(text, 100), text);
    EXPECT_TRUE(IsPrintable(text)) << text;
  }
}

TEST(Printable, ShowsWhatCommandsATerminalOrForgesALine) {
  EXPECT_EQ(Printable("\x1b[2Jfine\nrefused 10.0.0.1", 100), "\\x1b[2Jfine\\x0arefused 10.0.0.1");
  EXPECT_EQ(Printable(std::string_view("a\0b\x7f", 4), 100), "a\\x00b\\x7f");
  EXPECT_EQ(Printable("\u009b2J", 100), "\\xc2\\x9b2J") << "the one-character escape of C1";
  EXPECT_EQ(Printable("a\u2028b\u202ec\u2066", 100), "a\\xe2\\x80\\xa8b\\xe2\\x80\\xaec\\xe2\\x81\\xa6");
  EXPECT_EQ(Printable("\xff\xe2\x82", 100), "\\xff\\xe2\\x82") << "not UTF-8";
  for (const std::string_view bad :
       {"\n", "a\tb", "\x1b", "\x7f", "\u0085", "\u2028", "\u202e", "\u2069", "\x80", "\xc3"}) {
    EXPECT_FALSE(IsPrintable(bad));
  }
}

TEST(Printable, CutsBetweenCharacters) {
  EXPECT_EQ(Printable("abcdef", 3), "abc");
  EXPECT_EQ(Printable("a\u20acb", 3), "a");
  EXPECT_EQ(Printable("a\nb", 4), "a") << "an escape is whole or not there";
  EXPECT_EQ(Printable("a\nb", 5), "a\\x0a");
}

TEST(Printable, IsTheSameWhenItIsAppliedAgain) {
  const std::string once = Printable("\x1b]0;title\a\\x1b\xff", 100);
  EXPECT_EQ(Printable(once, 100), once);
  EXPECT_TRUE(IsPrintable(once));
}

}  // namespace
}  // namespace longhaul::wire
