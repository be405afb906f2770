#include "longhaul/status.h"

#include <gtest/gtest.h>

#include <memory>
#include <set>
#include <string>

#include "base/check.h"

namespace longhaul {
namespace {

TEST(Status, DefaultIsOk) {
  EXPECT_TRUE(Status().ok());
  EXPECT_EQ(Status::Ok().ToString(), "Ok");
  EXPECT_EQ(Status(), Status::Ok());
}

TEST(Status, NamesTheCodeAndSaysTheMessage) {
  const Status status(StatusCode::kPeerDead, "server 127.0.0.1:7700 was silent for 10.0 s");
  EXPECT_FALSE(status.ok());
  EXPECT_EQ(status.ToString(), "PeerDead: server 127.0.0.1:7700 was silent for 10.0 s");
  EXPECT_EQ(Status(StatusCode::kCancelled, "").ToString(), "Cancelled");
}

TEST(Status, EveryCodeHasItsOwnName) {
  std::set<std::string_view> names;
  for (int code = 0; code <= static_cast<int>(StatusCode::kAeadLimitReached); ++code) {
    const std::string_view name = StatusCodeName(static_cast<StatusCode>(code));
    EXPECT_NE(name, "Unknown") << code;
    EXPECT_TRUE(names.insert(name).second) << name;
  }
  EXPECT_EQ(StatusCodeName(static_cast<StatusCode>(200)), "Unknown");
}

TEST(Status, CodesOnTheWireAreStable) {
  EXPECT_EQ(static_cast<int>(StatusCode::kInvalidArgument), 1);
  EXPECT_EQ(static_cast<int>(StatusCode::kAlreadyExists), 3);
  EXPECT_EQ(static_cast<int>(StatusCode::kUnavailable), 6);
  EXPECT_EQ(static_cast<int>(StatusCode::kProtocolViolation), 8);
  EXPECT_EQ(static_cast<int>(StatusCode::kVersionMismatch), 13);
  EXPECT_EQ(static_cast<int>(StatusCode::kPeerDead), 14);
  EXPECT_EQ(static_cast<int>(StatusCode::kSettingsMismatch), 15);
  EXPECT_EQ(static_cast<int>(StatusCode::kInternal), 16);
  EXPECT_EQ(static_cast<int>(StatusCode::kAeadLimitReached), 17);
}

TEST(Result, HoldsAValueOrTheReason) {
  Result<int> good(7);
  ASSERT_TRUE(good.ok());
  EXPECT_EQ(*good, 7);
  EXPECT_TRUE(good.status().ok());
  const Result<int> bad(Status(StatusCode::kNotFound, "no such tensor"));
  EXPECT_FALSE(bad.ok());
  EXPECT_FALSE(static_cast<bool>(bad));
  EXPECT_EQ(bad.status().code(), StatusCode::kNotFound);
}

TEST(Result, MovesValuesThatCannotBeCopied) {
  Result<std::unique_ptr<int>> result(std::make_unique<int>(3));
  const std::unique_ptr<int> value = std::move(result).value();
  EXPECT_EQ(*value, 3);
}

TEST(Result, OkStatusWithoutAValueIsAnError) {
  const Result<int> result{Status::Ok()};
  EXPECT_FALSE(result.ok());
  EXPECT_EQ(result.status().code(), StatusCode::kInternal);
}

TEST(ResultDeathTest, ReadingAFailedResultSaysWhy) {
  const Result<std::string> bad(Status(StatusCode::kNotFound, "no such tensor"));
  EXPECT_DEATH((void)bad->size(), "bug: .*NotFound: no such tensor");
}

TEST(CheckDeathTest, SaysWhereWhatAndWithWhichValues) {
  const int bytes = 5;
  LH_CHECK(bytes > 0);
  LH_CHECK_OP(bytes, <=, 5);
  EXPECT_DEATH(LH_CHECK_OP(bytes, <=, 4),
               "longhaul: bug: .*status_test.cc:[0-9]+: bytes <= 4 \\(5 against 4\\)");
  EXPECT_DEATH(LH_CHECK(bytes > 5), "longhaul: bug: .*bytes > 5");
}

}  // namespace
}  // namespace longhaul
