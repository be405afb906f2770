#include "transport/core/path/path_manager.h"

#include <gtest/gtest.h>

#include <set>

#include "transport/core/security/integrity_tag.h"

namespace longhaul::transport {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr Duration kPto = milliseconds(100);
const Address kA = Address::V4(10, 0, 0, 1, 1000);
const Address kB = Address::V4(10, 0, 0, 1, 1001);

class PathManagerTest : public testing::Test {
 protected:
  NullSecurity security_;
  PathManager paths_{&security_, Random(1)};
  Instant now_ = Instant() + seconds(1);
};

TEST_F(PathManagerTest, WithoutCandidatesThereIsNothingToDo) {
  EXPECT_TRUE(paths_.Deadline().IsInfinite());
  EXPECT_FALSE(paths_.NextChallenge(now_).has_value());
  EXPECT_FALSE(paths_.IsValidated(kA));
}

TEST_F(PathManagerTest, TheRightAnswerFromTheRightAddressValidates) {
  paths_.OnCandidate(now_, kA, 1200, kPto);
  const auto challenge = paths_.NextChallenge(now_);
  ASSERT_TRUE(challenge.has_value());
  EXPECT_EQ(challenge->to, kA);
  EXPECT_EQ(challenge->bytes, PathManager::kChallengeBytes);
  paths_.OnResponse(kB, challenge->data);
  EXPECT_FALSE(paths_.IsValidated(kA));
  paths_.OnResponse(kA, challenge->data + 1);
  EXPECT_FALSE(paths_.IsValidated(kA));
  paths_.OnResponse(kA, challenge->data);
  EXPECT_TRUE(paths_.IsValidated(kA));
  EXPECT_FALSE(paths_.NextChallenge(now_ + seconds(9)).has_value());
  paths_.OnMigrated(kA);
  EXPECT_EQ(paths_.candidates(), 0u);
  EXPECT_TRUE(paths_.Deadline().IsInfinite());
}

TEST_F(PathManagerTest, AChallengeIsRepeatedWithBackOffAndOtherData) {
  paths_.OnCandidate(now_, kA, 5000, kPto);
  std::set<uint64_t> data;
  std::vector<Duration> gaps;
  Instant last = now_;
  while (paths_.candidates() > 0) {
    while (const auto challenge = paths_.NextChallenge(now_)) {
      data.insert(challenge->data);
      gaps.push_back(now_ - last);
      last = now_;
    }
    ASSERT_FALSE(paths_.Deadline().IsInfinite());
    ASSERT_GT(paths_.Deadline(), now_);
    now_ = paths_.Deadline();
    paths_.OnTimeout(now_);
  }
  EXPECT_EQ(gaps, (std::vector<Duration>{Duration(0), kPto, 2 * kPto, 2 * kPto, 2 * kPto, 2 * kPto}));
  EXPECT_EQ(data.size(), 6u);
  EXPECT_EQ(paths_.counters().timed_out, 1u);
  EXPECT_LE(now_, Instant() + seconds(1) + 13 * kPto);
}

TEST_F(PathManagerTest, AnAnswerToAnEarlierChallengeCounts) {
  paths_.OnCandidate(now_, kA, 5000, kPto);
  const auto first = paths_.NextChallenge(now_);
  const auto second = paths_.NextChallenge(now_ + kPto);
  ASSERT_TRUE(first && second);
  paths_.OnResponse(kA, first->data);
  EXPECT_TRUE(paths_.IsValidated(kA));
}

TEST_F(PathManagerTest, NobodyGetsMoreThanThreeTimesWhatHeSent) {
  for (const int64_t size : {33, 100, 500, 1200}) {
    NullSecurity security;
    PathManager paths{&security, Random(2)};
    Instant now = now_;
    int64_t received = 0;
    int64_t sent = 0;
    for (int i = 0; i < 20; ++i) {
      if (i % 4 == 0) {
        paths.OnCandidate(now, kA, size, kPto);
        received += size;
      }
      while (const auto challenge = paths.NextChallenge(now)) sent += challenge->bytes;
      EXPECT_LE(sent, PathManager::kMaxAmplification * received) << size;
      now += kPto / 2;
      paths.OnTimeout(now);
    }
    EXPECT_GT(sent, 0);
  }
}

TEST_F(PathManagerTest, RoomIsForAFewAndComesBack) {
  for (uint16_t port = 1; port <= 10; ++port) {
    paths_.OnCandidate(now_, Address::V4(10, 0, 0, 9, port), 1200, kPto);
  }
  EXPECT_EQ(paths_.candidates(), PathManager::kMaxCandidates);
  EXPECT_EQ(paths_.counters().refused, 10 - PathManager::kMaxCandidates);
  now_ += 20 * kPto;
  paths_.OnTimeout(now_);
  EXPECT_EQ(paths_.candidates(), 0u);
  EXPECT_EQ(paths_.counters().timed_out, PathManager::kMaxCandidates);
  paths_.OnCandidate(now_, kA, 1200, kPto);
  EXPECT_EQ(paths_.candidates(), 1u);
}

TEST_F(PathManagerTest, AValidatedAddressThatNobodyUsesIsForgotten) {
  paths_.OnCandidate(now_, kA, 1200, kPto);
  paths_.OnResponse(kA, paths_.NextChallenge(now_)->data);
  ASSERT_TRUE(paths_.IsValidated(kA));
  now_ = paths_.Deadline();
  paths_.OnTimeout(now_);
  EXPECT_FALSE(paths_.IsValidated(kA));
  EXPECT_EQ(paths_.counters().timed_out, 0u);
}

}  // namespace
}  // namespace longhaul::transport
