#include "base/allow_list.h"

#include <gmock/gmock.h>

namespace longhaul {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

AllowList List(const std::vector<std::string>& texts) { return AllowList::Parse(texts).value(); }

std::string Problem(const std::vector<std::string>& texts) {
  const auto list = AllowList::Parse(texts);
  if (list.ok()) return "none";
  EXPECT_EQ(list.status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(list.status().message().substr(0, 7), "'allow'");
  return list.status().message();
}

TEST(AllowListTest, EveryPartOfAnEntryIsRead) {
  const AllowList list = List({"fra", " worker/nyc:1-3x8 ", "lon:4+lon-2", "tool/ops\t", "ams+spare"});
  ASSERT_EQ(list.entries().size(), 5u);
  EXPECT_EQ(list.entries()[0], (AllowEntry{.name = "fra"}));
  EXPECT_EQ(list.entries()[1], (AllowEntry{.name = "nyc", .ranks = RankRange{1, 3}, .workers = 8}));
  EXPECT_EQ(list.entries()[2], (AllowEntry{.name = "lon", .ranks = RankRange{4, 4}, .successor = "lon-2"}));
  EXPECT_EQ(list.entries()[3], (AllowEntry{.role = "tool", .name = "ops"}));
  EXPECT_EQ(list.entries()[4], (AllowEntry{.name = "ams", .successor = "spare"}));
  EXPECT_EQ(list.ToString(), "worker/fra, worker/nyc:1-3x8, worker/lon:4+lon-2, tool/ops, worker/ams+spare");
  EXPECT_EQ(List({list.entries()[1].ToString()}).entries()[0], list.entries()[1]) << "and printed again";
}

// The finding: a tool "fra" was let in by the entry that was meant for worker "fra".
TEST(AllowListTest, AnEntryIsForItsRoleAlone) {
  const AllowList list = List({"fra+fra2", "tool/ops"});
  EXPECT_TRUE(list.Allows("worker", "fra"));
  EXPECT_TRUE(list.Allows("worker", "fra2"));
  EXPECT_TRUE(list.Allows("tool", "ops"));
  EXPECT_FALSE(list.Allows("tool", "fra"));
  EXPECT_FALSE(list.Allows("tool", "fra2"));
  EXPECT_FALSE(list.Allows("worker", "ops"));
  EXPECT_TRUE(List({"fra", "tool/fra"}).Allows("tool", "fra")) << "one name may have both";
  EXPECT_TRUE(AllowList().Allows("tool", "anyone")) << "no list: all of the job";
}

TEST(AllowListTest, RanksAreFoundAndMustBeOfTheJob) {
  const AllowList list = List({"fra:0", "nyc:1-3", "ams"});
  EXPECT_EQ(list.FindRank(0)->name, "fra");
  EXPECT_EQ(list.FindRank(3)->name, "nyc");
  EXPECT_EQ(list.FindRank(4), nullptr);
  EXPECT_EQ(list.FindWorker("nyc")->ranks, (RankRange{1, 3}));
  EXPECT_EQ(list.FindWorker("lon"), nullptr);
  EXPECT_TRUE(list.CheckWorldSize(4).ok());
  EXPECT_EQ(list.CheckWorldSize(3).message(),
            "'allow': \"worker/nyc:1-3\" has rank 3, and the job's ranks are 0 to 2");
}

TEST(AllowListTest, MistakesAreNamed) {
  EXPECT_THAT(Problem({"fra:0-2", "nyc:2"}),
              HasSubstr("\"worker/nyc:2\" has rank 2, which is fra's already"));
  EXPECT_THAT(Problem({"fra", "nyc", "fra:1"}), HasSubstr("\"fra\" is there twice"));
  EXPECT_THAT(Problem({"tool/fra", "nyc", "tool/fra"}), HasSubstr("twice as a tool"));
  EXPECT_THAT(Problem({"fra:0+nyc", "nyc:1"}), HasSubstr("successor that is in the list for itself"));
  EXPECT_EQ(Problem({"fra:0+spare", "nyc:1+spare"}), "none") << "one machine stands by for both";
  EXPECT_THAT(Problem({"tool/ops"}), HasSubstr("names no worker"));
  EXPECT_THAT(Problem({"fra", ""}), HasSubstr("empty"));
  EXPECT_THAT(Problem({"fra", " \t"}), HasSubstr("empty"));
  EXPECT_THAT(Problem({"server/fra"}), HasSubstr("neither worker nor tool"));
  EXPECT_THAT(Problem({"tool/ops:1"}), HasSubstr("no ranks"));
  EXPECT_THAT(Problem({"tool/ops+ops2"}), HasSubstr("no successor"));
  for (const char* ranks : {"fra:", "fra:x8", "fra:-1", "fra:3-1", "fra:1-", "fra:1024", "fra:0-1024",
                            "fra: 1", "fra:0x10x2", "fra:4294967296", "fra:1:2", "fra:1,2"}) {
    EXPECT_NE(Problem({ranks}), "none") << ranks;
  }
  for (const char* workers : {"fra:1x0", "fra:1x", "fra:1x1048577", "fra:1x-3"}) {
    EXPECT_THAT(Problem({workers}), HasSubstr("not 1 to 1048576")) << workers;
  }
  for (const char* name :
       {"fra*", "f ra", "longhaul://a/worker/b", "worker/", "+x", "fra+", "fra+a+b", ":1", "\xc3\xa9"}) {
    EXPECT_NE(Problem({name}), "none") << name;
  }
  EXPECT_THAT(Problem({"a\x1b[31mred"}), AllOf(HasSubstr("\"a?[31mred\""), Not(HasSubstr("\x1b"))));
  EXPECT_THAT(Problem({std::string(65, 'x')}), HasSubstr("1 to 64"));
}

TEST(RankRangeTest, PrintsWhatItReads) {
  for (const char* text : {"0", "7", "1-3", "0-1023"}) EXPECT_EQ(RankRange::Parse(text)->ToString(), text);
  EXPECT_EQ(RankRange::Parse("3-3")->ToString(), "3");
  for (const char* text : {"", "-", "1-", "-1", "2-1", "1024", "0-1024", "1 ", "+1", "1-2-3", "0x1"})
    EXPECT_FALSE(RankRange::Parse(text)) << text;
}

}  // namespace
}  // namespace longhaul
