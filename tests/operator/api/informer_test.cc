// List, watch, relist: the copy is what the server has, no delete is lost, and a copy that is not whole is
// not offered.
#include "operator/api/core/informer.h"

#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "base/random.h"
#include "tests/operator/api/answers.h"

namespace longhaul::kube::api {
namespace {

using Step = Informer::Step;
using Type = WatchEvent::Type;

std::vector<std::string> Told(Informer* informer) {
  std::vector<std::string> told;
  while (const auto change = informer->Next()) {
    const char* what = change->IsResync()          ? "="
                       : change->before == nullptr ? "+"
                       : change->after == nullptr  ? "-"
                                                   : "~";
    told.push_back(what + change->key);
  }
  return told;
}
using Texts = std::vector<std::string>;

// Listed with these, and watching.
void Sync(Informer* informer, const std::vector<Json>& pods, const std::string& version, double at = 0) {
  ASSERT_EQ(informer->Poll(At(at), 0).step, Step::kList);
  informer->OnList(Page(pods, version), At(at), 0);
  const Informer::Want watch = informer->Poll(At(at), 0);
  ASSERT_EQ(watch.step, Step::kWatch);
  ASSERT_EQ(watch.resource_version, version);
}

TEST(Informer, ListsByPagesThenWatchesFromTheListsVersion) {
  Informer informer;
  Informer::Want want = informer.Poll(At(0), 0);
  EXPECT_EQ(want.step, Step::kList);
  EXPECT_EQ(want.page_limit, 500u);
  EXPECT_EQ(want.continue_token, "");
  EXPECT_EQ(informer.Poll(At(0), 0).step, Step::kWait);  // it runs
  informer.OnList(Page({Pod("a", "1")}, "10", "token"), At(0), 0);
  EXPECT_FALSE(informer.synced());
  EXPECT_TRUE(Told(&informer).empty());
  want = informer.Poll(At(0), 0);
  EXPECT_EQ(want.continue_token, "token");
  informer.OnList(Page({Pod("b", "2")}, "10"), At(0), 0);
  EXPECT_TRUE(informer.synced());
  EXPECT_EQ(Told(&informer), (Texts{"+ns/a", "+ns/b"}));
  want = informer.Poll(At(0), 0.5);
  EXPECT_EQ(want.step, Step::kWatch);
  EXPECT_EQ(want.resource_version, "10");
  EXPECT_EQ(want.watch_time, std::chrono::seconds(450));  // 5 to 10 minutes by chance
  EXPECT_EQ(informer.counters().lists, 1u);
  EXPECT_EQ(informer.counters().pages, 2u);
}

TEST(Informer, EventsChangeTheCopyAndAreToldOnce) {
  Informer informer;
  Sync(&informer, {Pod("a", "1")}, "10");
  Told(&informer);
  informer.OnWatchEvent(Event(Type::kAdded, Pod("b", "11")), At(1), 0);
  informer.OnWatchEvent(Event(Type::kModified, Pod("a", "12", "Running")), At(1), 0);
  EXPECT_EQ(Told(&informer), (Texts{"~ns/a", "+ns/b"}));
  informer.OnWatchEvent(Event(Type::kDeleted, Pod("a", "13")), At(2), 0);
  EXPECT_EQ(Told(&informer), Texts{"-ns/a"});
  EXPECT_EQ(informer.Find("ns/a"), nullptr);
  ASSERT_NE(informer.Find("ns/b"), nullptr);
  EXPECT_EQ(informer.resource_version(), "13");
}

TEST(Informer, WhatIsNotFetchedIsMergedByKey) {
  Informer informer;
  Sync(&informer, {Pod("a", "1", "Pending")}, "10");
  Told(&informer);
  informer.OnWatchEvent(Event(Type::kModified, Pod("a", "11", "Running")), At(1), 0);
  informer.OnWatchEvent(Event(Type::kModified, Pod("a", "12", "Failed")), At(1), 0);
  informer.OnWatchEvent(Event(Type::kAdded, Pod("gone", "13")), At(1), 0);
  informer.OnWatchEvent(Event(Type::kDeleted, Pod("gone", "14")), At(1), 0);
  EXPECT_EQ(informer.pending(), 1u);
  const auto change = informer.Next();
  ASSERT_TRUE(change.has_value());
  EXPECT_EQ(TextAt(*change->before, {"status", "phase"}), "Pending");
  EXPECT_EQ(TextAt(*change->after, {"status", "phase"}), "Failed");
}

TEST(Informer, AWatchThatEndsGoesOnWhereItWas) {
  Informer informer;
  Sync(&informer, {}, "10");
  informer.OnWatchEvent(Event(Type::kBookmark, {{"metadata", {{"resourceVersion", "77"}}}}), At(100), 0);
  informer.OnWatchEnd(Ok(), At(300), 0);
  const Informer::Want want = informer.Poll(At(300), 0);
  EXPECT_EQ(want.step, Step::kWatch);
  EXPECT_EQ(want.resource_version, "77");
  EXPECT_EQ(informer.counters().bookmarks, 1u);
  EXPECT_EQ(informer.counters().failures, 0u);
}

TEST(Informer, GoneListsAgainAndTellsTheDeletesThatNoWatchSaw) {
  Informer informer;
  Sync(&informer, {Pod("a", "1"), Pod("b", "2"), Pod("c", "3")}, "10");
  Told(&informer);
  informer.OnWatchEnd(MakeError(ApiCode::kGone, "too old"), At(60), 0);
  EXPECT_TRUE(informer.synced()) << "until the new list is there the old copy is the best";
  Sync(&informer, {Pod("b", "2"), Pod("c", "30", "Running"), Pod("d", "40")}, "50", 60);
  EXPECT_EQ(Told(&informer), (Texts{"-ns/a", "~ns/c", "+ns/d"}));
  EXPECT_EQ(informer.counters().relist_deletes, 1u);
  EXPECT_EQ(informer.counters().gone, 1u);
}

TEST(Informer, GoneWithoutEndIsAskedLessAndLessOften) {
  Informer informer;
  double now = 0;
  double last_gap = 0;
  for (int i = 0; i < 8; ++i) {
    Informer::Want want = informer.Poll(At(now), 1);
    if (want.step == Step::kWait) {
      last_gap = SecondsOf(want.at - At(now));
      now += last_gap;
      want = informer.Poll(At(now), 1);
    }
    ASSERT_EQ(want.step, Step::kList);
    informer.OnList(Page({}, "10"), At(now), 1);
    ASSERT_EQ(informer.Poll(At(now), 1).step, Step::kWatch);
    informer.OnWatchEnd(MakeError(ApiCode::kGone, "too old"), At(now), 1);
  }
  EXPECT_GE(last_gap, 20);
  EXPECT_LE(last_gap, 30.001);
}

TEST(Informer, AnExpiredContinueTokenBeginsTheListAgain) {
  Informer informer;
  informer.Poll(At(0), 0);
  informer.OnList(Page({Pod("old", "1")}, "10", "token"), At(0), 0);
  informer.Poll(At(0), 0);
  informer.OnList(MakeError(ApiCode::kGone, "the continue token is too old"), At(400), 0);
  const Instant at = informer.Poll(At(400), 0).at;
  EXPECT_LE(at, At(401));
  const Informer::Want want = informer.Poll(at, 0);
  EXPECT_EQ(want.step, Step::kList);
  EXPECT_EQ(want.continue_token, "");
  informer.OnList(Page({Pod("new", "2")}, "20"), at, 0);
  EXPECT_EQ(Told(&informer), Texts{"+ns/new"}) << "a page of the older list is in no newer one";
}

TEST(Informer, FailuresBackOffFromLessThanASecondToHalfAMinute) {
  Informer informer;
  double now = 0;
  std::vector<double> gaps;
  for (int i = 0; i < 9; ++i) {
    ASSERT_EQ(informer.Poll(At(now), 1).step, Step::kList);
    informer.OnList(MakeError(ApiCode::kServerError, "etcd has no leader"), At(now), 1);
    EXPECT_NE(informer.trouble().find("etcd has no leader"), std::string::npos);
    const Informer::Want want = informer.Poll(At(now), 1);
    ASSERT_EQ(want.step, Step::kWait);
    gaps.push_back(SecondsOf(want.at - At(now)));
    now = SecondsOf(want.at - At(0));
  }
  EXPECT_NEAR(gaps[0], 0.8, 0.01);
  EXPECT_NEAR(gaps[1], 1.6, 0.01);
  EXPECT_NEAR(gaps[8], 30, 0.01);
  EXPECT_EQ(informer.counters().failures, 9u);
}

TEST(Informer, AWatchThatEndsAtOnceWithoutAWordIsAFailure) {
  Informer informer;
  Sync(&informer, {}, "10");
  informer.OnWatchEnd(Ok(), At(0.1), 1);
  EXPECT_EQ(informer.Poll(At(0.1), 1).step, Step::kWait);
  EXPECT_EQ(informer.counters().failures, 1u);
  EXPECT_EQ(informer.Poll(At(1), 1).step, Step::kWatch);
}

TEST(Informer, AfterALineThatIsNoEventItListsAgain) {
  Informer informer;
  Sync(&informer, {Pod("a", "1")}, "10");
  informer.OnWatchEnd(MakeError(ApiCode::kMalformed, "line 3 of the watch is no JSON"), At(5), 1);
  EXPECT_EQ(informer.Poll(At(5), 1).step, Step::kWait);
  EXPECT_EQ(informer.Poll(At(6), 1).step, Step::kList);
}

TEST(Informer, ACutWatchGoesOnWithoutAList) {
  Informer informer;
  Sync(&informer, {Pod("a", "1")}, "10");
  informer.OnWatchEvent(Event(Type::kAdded, Pod("b", "11")), At(4), 0);
  informer.OnWatchEnd(MakeError(ApiCode::kUnreachable, "the watch was cut inside a line"), At(5), 1);
  const Informer::Want want = informer.Poll(At(6), 1);
  EXPECT_EQ(want.step, Step::kWatch);
  EXPECT_EQ(want.resource_version, "11");
}

TEST(Informer, MoreThanTheBoundIsNoCopyAtAll) {
  InformerOptions options;
  options.max_objects = 2;
  Informer informer(options);
  informer.Poll(At(0), 0);
  informer.OnList(Page({Pod("a", "1"), Pod("b", "2"), Pod("c", "3")}, "10"), At(0), 1);
  EXPECT_FALSE(informer.synced());
  EXPECT_TRUE(informer.overflowed());
  EXPECT_TRUE(Told(&informer).empty());
  EXPECT_NE(informer.trouble().find("more than 2 objects"), std::string::npos);
  Sync(&informer, {Pod("a", "1"), Pod("b", "2")}, "20", 10);
  EXPECT_TRUE(informer.synced());
  EXPECT_FALSE(informer.overflowed());
  informer.OnWatchEvent(Event(Type::kAdded, Pod("c", "21")), At(11), 1);
  EXPECT_FALSE(informer.synced());
  EXPECT_EQ(informer.Poll(At(11), 1).step, Step::kStop);
  EXPECT_EQ(informer.Poll(At(11), 1).step, Step::kWait);
  EXPECT_EQ(informer.Poll(At(13), 1).step, Step::kList);
  EXPECT_EQ(informer.counters().overflows, 2u);
}

TEST(Informer, AWatchOfAFullStoreMayStillChangeWhatIsInIt) {
  InformerOptions options;
  options.max_objects = 1;
  Informer informer(options);
  Sync(&informer, {Pod("a", "1")}, "10");
  informer.OnWatchEvent(Event(Type::kModified, Pod("a", "11")), At(1), 0);
  EXPECT_TRUE(informer.synced());
}

TEST(Informer, APageThatIsTooLargeIsAskedForInQuartersAtOnce) {
  Informer informer;
  for (const uint32_t limit : {500u, 125u, 31u, 7u, 1u}) {
    const Informer::Want want = informer.Poll(At(0), 0);
    EXPECT_EQ(want.step, Step::kList);
    EXPECT_EQ(want.page_limit, limit);
    informer.OnList(MakeError(ApiCode::kTooLarge, "the answer is larger"), At(0), 0);
  }
  EXPECT_EQ(informer.Poll(At(0), 0).step, Step::kWait) << "one object is too large: no hurry";
  EXPECT_EQ(informer.counters().failures, 1u);
  EXPECT_EQ(informer.Poll(At(100), 0).page_limit, 1u);
}

TEST(Informer, AfterALargePageTheListGoesOnFromThereWithMore) {
  Informer informer;
  const auto page = [](const char* name, const char* more) {
    ApiResult answer = Ok();
    answer.body = {{"items", {Pod(name, "1")}}, {"metadata", {{"resourceVersion", "9"}, {"continue", more}}}};
    return answer;
  };
  informer.Poll(At(0), 0);
  informer.OnList(page("a", "then"), At(0), 0);
  EXPECT_EQ(informer.Poll(At(0), 0).continue_token, "then");
  informer.OnList(MakeError(ApiCode::kTooLarge, "the answer is larger"), At(0), 0);
  Informer::Want want = informer.Poll(At(0), 0);
  EXPECT_EQ(want.continue_token, "then");
  EXPECT_EQ(want.page_limit, 125u);
  informer.OnList(page("b", "on"), At(0), 0);
  EXPECT_EQ(informer.Poll(At(0), 0).page_limit, 250u);
  informer.OnList(page("c", ""), At(0), 0);
  EXPECT_TRUE(informer.synced());
  EXPECT_EQ(informer.objects().size(), 3u);
  EXPECT_EQ(informer.counters().lists, 1u);
}

TEST(Informer, AnAnswerThatIsNoListIsAFailureAndChangesNothing) {
  const Json bad[] = {Json::object(),
                      {{"items", Json::array()}},
                      {{"items", 5}, {"metadata", {{"resourceVersion", "1"}}}},
                      {{"items", {Json::object()}}, {"metadata", {{"resourceVersion", "1"}}}},
                      {{"items", {7}}, {"metadata", {{"resourceVersion", "1"}}}}};
  for (const Json& body : bad) {
    SCOPED_TRACE(body.dump());
    Informer informer;
    informer.Poll(At(0), 0);
    ApiResult answer = Ok();
    answer.body = body;
    informer.OnList(answer, At(0), 0);
    EXPECT_FALSE(informer.synced());
    EXPECT_EQ(informer.counters().malformed, 1u);
    EXPECT_EQ(informer.Poll(At(0), 0).step, Step::kWait);
  }
  Informer informer;
  informer.Poll(At(0), 0);
  ApiResult empty = Ok();
  empty.body = {{"items", nullptr}, {"metadata", {{"resourceVersion", "1"}}}};
  informer.OnList(empty, At(0), 0);
  EXPECT_TRUE(informer.synced()) << "Go prints an empty list as null";
}

TEST(Informer, AnObjectWithoutANameEndsTheWatch) {
  Informer informer;
  Sync(&informer, {}, "10");
  informer.OnWatchEvent(Event(Type::kAdded, {{"metadata", {{"resourceVersion", "11"}}}}), At(1), 1);
  EXPECT_EQ(informer.Poll(At(1), 1).step, Step::kStop);
  EXPECT_EQ(informer.Poll(At(3), 1).step, Step::kList);
}

TEST(Informer, ResyncTellsAllOfThemAgain) {
  InformerOptions options;
  options.resync = std::chrono::seconds(60);
  Informer informer(options);
  Sync(&informer, {Pod("a", "1"), Pod("b", "2")}, "10");
  Told(&informer);
  EXPECT_EQ(informer.Poll(At(59), 0).at, At(60));
  EXPECT_TRUE(Told(&informer).empty());
  informer.OnWatchEvent(Event(Type::kDeleted, Pod("b", "11")), At(59.5), 0);
  informer.Poll(At(60), 0);
  EXPECT_EQ(Told(&informer), (Texts{"=ns/a", "-ns/b"})) << "a resync hides no delete";
  EXPECT_EQ(informer.Poll(At(61), 0).at, At(120));
}

TEST(Informer, KeepsNoManagedFieldsNorWhatTheReaderDrops) {
  InformerOptions options;
  options.slim = [](Json* object) { object->erase("status"); };
  Informer informer(options);
  Json pod = Pod("a", "1");
  pod["metadata"]["managedFields"] = Json::array({"long"});
  Sync(&informer, {pod}, "10");
  const auto kept = informer.Find("ns/a");
  ASSERT_NE(kept, nullptr);
  EXPECT_FALSE((*kept)["metadata"].contains("managedFields"));
  EXPECT_FALSE(kept->contains("status"));
}

// A server with a history, and an informer over a connection that breaks in every way; a reader that fetches
// now and then knows in the end exactly what there is.
TEST(Informer, WhateverBreaksTheReaderKnowsWhatThereIs) {
  for (uint64_t seed = 1; seed <= 100; ++seed) {
    SCOPED_TRACE(seed);
    Random random(seed);
    Informer informer;
    std::map<std::string, std::string> server;  // name -> version
    std::map<std::string, std::string> reader;
    std::vector<std::pair<Type, Json>> log;  // index = version - 1
    size_t compacted = 0;                    // versions up to it are gone
    const auto version = [&] { return std::to_string(log.size()); };
    const auto change = [&] {
      const std::string name = "p" + std::to_string(random.Below(6));
      const std::string next = std::to_string(log.size() + 1);
      const bool there = server.contains(name);
      if (there && random.Chance(0.4)) {
        server.erase(name);
        log.emplace_back(Type::kDeleted, Pod(name, next));
      } else {
        log.emplace_back(there ? Type::kModified : Type::kAdded, Pod(name, next));
        server[name] = next;
      }
    };
    const auto read = [&] {
      while (const auto told = informer.Next()) {
        if (told->after == nullptr) {
          EXPECT_TRUE(reader.contains(told->key));
          reader.erase(told->key);
        } else {
          reader[told->key] = TextAt(*told->after, {"metadata", "resourceVersion"});
        }
      }
    };
    change();
    double now = 0;
    std::optional<size_t> watch;
    std::vector<Json> snapshot;
    size_t listed = 0;
    for (int turn = 0; turn < 400; ++turn) {
      const bool calm = turn > 300;  // then no fault any more
      now += random.Uniform() * (calm ? 10 : 1);
      if (!calm && random.Chance(0.5)) change();
      if (random.Chance(0.05)) compacted = log.size();
      const Informer::Want want = informer.Poll(At(now), random.Uniform());
      if (want.step == Step::kStop) watch.reset();
      if (want.step == Step::kList) {
        if (!calm && random.Chance(0.2)) {
          informer.OnList(MakeError(random.Chance(0.5) ? ApiCode::kServerError : ApiCode::kTimedOut, "x"),
                          At(now), random.Uniform());
        } else if (!want.continue_token.empty() && compacted > listed) {
          informer.OnList(MakeError(ApiCode::kGone, "x"), At(now), random.Uniform());
        } else {
          const size_t from = want.continue_token.empty() ? 0 : std::stoul(want.continue_token);
          if (from == 0) {
            snapshot.clear();
            for (const auto& [name, at] : server) snapshot.push_back(Pod(name, at));
            listed = log.size();
          }
          const size_t to = std::min(from + 2, snapshot.size());
          informer.OnList(Page({snapshot.begin() + static_cast<ptrdiff_t>(from),
                                snapshot.begin() + static_cast<ptrdiff_t>(to)},
                               std::to_string(listed), to < snapshot.size() ? std::to_string(to) : ""),
                          At(now), random.Uniform());
        }
      }
      if (want.step == Step::kWatch) {
        watch = std::stoul(want.resource_version);
        if (*watch < compacted) {
          watch.reset();
          informer.OnWatchEnd(MakeError(ApiCode::kGone, "x"), At(now), random.Uniform());
        }
      }
      while (watch && *watch < log.size()) {
        const auto& [type, object] = log[(*watch)++];
        informer.OnWatchEvent(Event(type, object), At(now), random.Uniform());
      }
      if (watch && random.Chance(0.1))
        informer.OnWatchEvent(Event(Type::kBookmark, Pod("", version())), At(now), 0);
      if (watch && !calm && random.Chance(0.2)) {
        watch.reset();
        const ApiCode codes[] = {ApiCode::kUnreachable, ApiCode::kTimedOut, ApiCode::kMalformed,
                                 ApiCode::kGone, ApiCode::kOk};
        ApiResult end = Ok();
        end.code = codes[random.Below(5)];
        informer.OnWatchEnd(end, At(now), random.Uniform());
      }
      if (random.Chance(0.3)) read();
    }
    read();
    ASSERT_TRUE(informer.synced());
    std::map<std::string, std::string> wanted;
    for (const auto& [name, at] : server) wanted["ns/" + name] = at;
    EXPECT_EQ(reader, wanted);
    EXPECT_EQ(informer.objects().size(), wanted.size());
  }
}

}  // namespace
}  // namespace longhaul::kube::api
