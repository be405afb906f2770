#include "worker/client/operations.h"

#include <gtest/gtest.h>

#include <string>

namespace longhaul::worker {
namespace {

using std::chrono::milliseconds;

Instant At(int64_t ms) { return Instant() + milliseconds(ms); }

struct Log {
  std::vector<std::string> ends;
  Operations::Callback Ending(const std::string& name) {
    return [this, name](const Status& outcome, const OperationStats&) {
      ends.push_back(name + " " + std::string(StatusCodeName(outcome.code())));
    };
  }
};

TEST(OperationsTest, EveryOperationEndsExactlyOnce) {
  Log log;
  Operations operations(10);
  const OperationId a = operations.Begin(At(0), log.Ending("a"));
  const OperationId b = operations.Begin(At(0), log.Ending("b"));
  EXPECT_TRUE(operations.Finish(a, Status::Ok(), At(1), Duration(0)));
  EXPECT_FALSE(operations.Finish(a, Status(StatusCode::kAborted, "again"), At(2), Duration(0)));
  operations.FinishAll(Status(StatusCode::kPeerDead, "server died"), At(3), Duration(0));
  EXPECT_FALSE(operations.Finish(b, Status::Ok(), At(4), Duration(0)));
  operations.RunCallbacks();
  operations.RunCallbacks();
  EXPECT_EQ(log.ends, (std::vector<std::string>{"a Ok", "b PeerDead"}));
  EXPECT_EQ(operations.pending(), 0u);
  EXPECT_EQ(operations.started(), 2u);
  EXPECT_EQ(operations.succeeded(), 1u);
  EXPECT_EQ(operations.failed(), 1u);
}

TEST(OperationsTest, RefusesWhatIsBeyondTheBound) {
  Log log;
  Operations operations(2);
  operations.Begin(At(0), log.Ending("a"));
  operations.Begin(At(0), log.Ending("b"));
  EXPECT_FALSE(operations.IsPending(operations.Begin(At(0), log.Ending("c"))));
  operations.RunCallbacks();
  EXPECT_EQ(log.ends, (std::vector<std::string>{"c ResourceExhausted"}));
  EXPECT_EQ(operations.pending(), 2u);
}

TEST(OperationsTest, ACallbackMayBeginAndEndOperations) {
  Operations operations(10);
  Log log;
  const OperationId a = operations.Begin(At(0), [&](const Status&, const OperationStats&) {
    const OperationId b = operations.Begin(At(5), log.Ending("b"));
    operations.Finish(b, Status::Ok(), At(6), Duration(0));
  });
  operations.Finish(a, Status::Ok(), At(5), Duration(0));
  operations.RunCallbacks();
  EXPECT_TRUE(log.ends.empty()) << "what a callback completes waits for the next turn";
  EXPECT_TRUE(operations.HasCompleted());
  operations.RunCallbacks();
  EXPECT_EQ(log.ends, std::vector<std::string>{"b Ok"});
}

TEST(OperationsTest, CountsTheTimeFromBeginToEnd) {
  Operations operations(10);
  OperationStats seen;
  const OperationId a =
      operations.Begin(At(100), [&](const Status&, const OperationStats& stats) { seen = stats; });
  operations.stats(a).lost_chunks = 7;
  operations.Finish(a, Status::Ok(), At(350), milliseconds(50));
  operations.RunCallbacks();
  EXPECT_DOUBLE_EQ(seen.seconds, 0.25);
  EXPECT_EQ(seen.rtt, milliseconds(50));
  EXPECT_EQ(seen.lost_chunks, 7u);
}

}  // namespace
}  // namespace longhaul::worker
