// Allowed for 300 s, refused for 30 s, and no question has the answer of another.
#include "operator/api/core/permission_cache.h"

#include <gtest/gtest.h>

#include <list>

#include "base/random.h"
#include "tests/operator/api/answers.h"

namespace longhaul::kube::api {
namespace {

AccessQuestion Use(const std::string& user, const std::string& name = "large") {
  return {user, {"team-a", "system:authenticated"}, "use", "longhaul.dev", "trainingprofiles", "ns", name,
          "u",  {{"scope", {"train", "eval"}}}};
}

TEST(PermissionCache, AnAllowLastsFiveMinutesADenyHalfAMinute) {
  PermissionCache cache;
  EXPECT_EQ(cache.Find(Use("ann"), At(0)), std::nullopt);
  cache.Put(Use("ann"), true, At(0));
  cache.Put(Use("bob"), false, At(0));
  EXPECT_EQ(cache.Find(Use("ann"), At(29.9)), true);
  EXPECT_EQ(cache.Find(Use("bob"), At(29.9)), false);
  EXPECT_EQ(cache.Find(Use("bob"), At(30)), std::nullopt);
  EXPECT_EQ(cache.Find(Use("ann"), At(299.9)), true);
  EXPECT_EQ(cache.Find(Use("ann"), At(300)), std::nullopt);
  EXPECT_EQ(cache.size(), 0u);
  EXPECT_EQ(cache.counters().hits, 3u);
  EXPECT_EQ(cache.counters().misses, 3u);
  EXPECT_EQ(cache.counters().expired, 2u);
}

TEST(PermissionCache, BeingAskedForDoesNotMakeAnAnswerLastLonger) {
  PermissionCache cache;
  cache.Put(Use("ann"), true, At(0));
  for (int i = 1; i < 300; ++i) EXPECT_EQ(cache.Find(Use("ann"), At(i)), true);
  EXPECT_EQ(cache.Find(Use("ann"), At(300)), std::nullopt);
}

TEST(PermissionCache, ANewAnswerTakesTheOldOnesPlace) {
  PermissionCache cache;
  cache.Put(Use("ann"), false, At(0));
  cache.Put(Use("ann"), true, At(10));
  EXPECT_EQ(cache.Find(Use("ann"), At(100)), true);
  cache.Put(Use("ann"), false, At(100));
  EXPECT_EQ(cache.Find(Use("ann"), At(101)), false);
  EXPECT_EQ(cache.size(), 1u);
}

TEST(PermissionCache, EveryPartOfAQuestionCounts) {
  PermissionCache cache;
  cache.Put(Use("ann"), true, At(0));
  std::vector<AccessQuestion> other(10, Use("ann"));
  other[0].user = "bob";
  other[1].groups = {"system:authenticated"};
  other[2].verb = "create";
  other[3].resource = "trainingjobs";
  other[4].name_space = "other";
  other[5].name = "small";
  other[6].uid = "v";
  other[7].extra.clear();
  other[8].extra = {{"scope", {"train"}}};
  other[9].groups = {"scope", "system:authenticated", "team-a"};
  for (const AccessQuestion& question : other) EXPECT_EQ(cache.Find(question, At(1)), std::nullopt);
  AccessQuestion turned = Use("ann");
  turned.groups = {"system:authenticated", "team-a"};
  EXPECT_EQ(cache.Find(turned, At(1)), true) << "groups are a set";
}

TEST(PermissionCache, PartsDoNotRunIntoEachOther) {
  // However parts are separated: text that moves from one into the next is another question.
  for (const std::string& between :
       {std::string(), std::string("\n"), std::string("1:"), std::string(1, '\0'), std::string("/")}) {
    SCOPED_TRACE(between);
    PermissionCache cache;
    AccessQuestion mine = Use("a" + between + "b");
    mine.verb = "c";
    AccessQuestion theirs = mine;
    theirs.user = "a";
    theirs.verb = "b" + between + "c";
    cache.Put(mine, true, At(0));
    EXPECT_EQ(cache.Find(theirs, At(0)), std::nullopt);
    mine.groups = {"x" + between + "y"};
    cache.Put(mine, true, At(0));
    mine.groups = {"x", "y"};
    EXPECT_EQ(cache.Find(mine, At(0)), std::nullopt);
  }
  // Nor lists: a group that has the name of an entry.
  PermissionCache cache;
  AccessQuestion mine = Use("ann");
  mine.groups = {"a"};
  mine.extra = {{"b", {}}};
  cache.Put(mine, true, At(0));
  mine.groups = {"a", "b"};
  mine.extra = {};
  EXPECT_EQ(cache.Find(mine, At(0)), std::nullopt);
  mine.groups = {};
  mine.extra = {{"a", {"b"}}};
  EXPECT_EQ(cache.Find(mine, At(0)), std::nullopt);
}

TEST(PermissionCache, AUserInManyGroupsTakesNoMoreMemory) {
  AccessQuestion question = Use("ann");
  question.groups = std::vector<std::string>(256, std::string(64, 'g'));
  EXPECT_EQ(KeyOf(question).size(), 32u);
}

TEST(PermissionCache, BeyondTheBoundWhatWasAskedForLongestAgoGoes) {
  PermissionCacheOptions options;
  options.max_entries = 3;
  PermissionCache cache(options);
  for (const char* user : {"a", "b", "c"}) cache.Put(Use(user), true, At(0));
  EXPECT_EQ(cache.Find(Use("a"), At(1)), true);
  cache.Put(Use("d"), true, At(2));
  EXPECT_EQ(cache.Find(Use("b"), At(3)), std::nullopt);
  EXPECT_EQ(cache.Find(Use("a"), At(3)), true);
  EXPECT_EQ(cache.Find(Use("c"), At(3)), true);
  EXPECT_EQ(cache.counters().evicted, 1u);
  EXPECT_EQ(cache.size(), 3u);
}

// Against a list that is looked through.
TEST(PermissionCache, RandomOperationsAgreeWithAModel) {
  struct Row {
    int user;
    bool allowed;
    double until;
  };
  for (uint64_t seed = 1; seed <= 100; ++seed) {
    SCOPED_TRACE(seed);
    Random random(seed);
    PermissionCacheOptions options;
    options.max_entries = 4;
    PermissionCache cache(options);
    std::list<Row> model;  // the latest first
    double now = 0;
    for (int i = 0; i < 400; ++i) {
      now += random.Uniform() * 20;
      const int user = static_cast<int>(random.Below(7));
      const auto found =
          std::find_if(model.begin(), model.end(), [user](const Row& row) { return row.user == user; });
      if (random.Chance(0.5)) {
        const bool allowed = random.Chance(0.5);
        cache.Put(Use(std::to_string(user)), allowed, At(now));
        if (found != model.end()) model.erase(found);
        model.push_front({user, allowed, now + (allowed ? 300 : 30)});
        if (model.size() > 4) model.pop_back();
      } else {
        std::optional<bool> wanted;
        if (found != model.end() && now < found->until) {
          wanted = found->allowed;
          model.splice(model.begin(), model, found);
        } else if (found != model.end()) {
          model.erase(found);
        }
        EXPECT_EQ(cache.Find(Use(std::to_string(user)), At(now)), wanted);
      }
      EXPECT_EQ(cache.size(), model.size());
    }
  }
}

}  // namespace
}  // namespace longhaul::kube::api
