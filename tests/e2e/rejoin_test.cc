// Workers that come early, late, twice or not at all.
#include <algorithm>
#include <iostream>

#include "tests/e2e/support/job.h"
#include "tests/e2e/support/udp_peer.h"

namespace longhaul::e2e {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class Rejoin : public JobTest {};

TEST_F(Rejoin, AWorkerStartedBeforeItsServerConnectsWhenItIsUp) {
  const std::string place = UdpPeer().address();  // free again at once
  Program& early = StartWorker(0, {{"--join", place}, {"--connect-timeout", "20"}, {"--rounds", "5"}});
  ASSERT_FALSE(Eventually([&] { return !early.running(); }, seconds(1))) << early.Everything();
  Program& server = StartServer({{"--listen", place}, {"--once", ""}});
  Program& other = StartWorker(1, {{"--rounds", "5"}});
  ExpectEnd(early, 0);
  ExpectEnd(other, 0);
  ExpectEnd(server, 0);
}

TEST_F(Rejoin, AWorkerThatDiesBeforeTheStartLeavesItsRankFree) {
  Program& server = StartServer({{"--once", ""}});
  Program& doomed = StartWorker(0);
  ASSERT_TRUE(doomed.WaitForEvent("joined")) << doomed.Everything();
  doomed.Signal(SIGKILL);
  const auto leave = server.WaitForEvent("leave", kIdle + seconds(2) * kSlowness);
  ASSERT_TRUE(leave) << server.Everything();
  EXPECT_THAT(leave->value("who", ""), AllOf(HasSubstr("rank 0"), HasSubstr("site0")));
  Program& first = StartWorker(0, {{"--rounds", "5"}});
  Program& second = StartWorker(1, {{"--rounds", "5"}});
  ExpectEnd(first, 0);
  ExpectEnd(second, 0);
  ExpectEnd(server, 0);
}

TEST_F(Rejoin, ARestartedWorkerTakesItsRankBackInTheMiddleOfTheJob) {
  Program& server = StartServer({{"--once", ""}});
  const Flags flags = {{"--rounds", "200"}, {"--fault", "delay=10ms"}};
  Program& doomed = StartWorker(0, flags);
  Program& other = StartWorker(1, flags);
  ASSERT_TRUE(doomed.WaitForLine("\"round\":3,")) << doomed.Everything();
  doomed.Signal(SIGKILL);
  Program& successor = StartWorker(0, Merged(flags, {{"--incarnation", "1"}}));
  ExpectEnd(successor, 0);
  ExpectEnd(other, 0);
  ExpectEnd(server, 0);
  EXPECT_EQ(other.FindEvent("finished")->value("rounds", 0), 200);
  const int rest = successor.FindEvent("finished")->value("rounds", 0);
  EXPECT_GT(rest, 0);
  EXPECT_LT(rest, 200) << "it went on where the job was";
}

// As systemd, Kubernetes or a loop of a shell does it: kill -9, the same command line, twelve times.
TEST_F(Rejoin, TheSameCommandLineReplacesAWorkerThatHasCrashedTwelveTimes) {
  Program& server = StartServer();
  const Flags flags = {{"--fault", "delay=10ms"}, {"--lr", "0.01"}};
  Program* doomed = &StartWorker(0, flags);
  Program& other = StartWorker(1, flags);
  ASSERT_TRUE(doomed->WaitForEvent("round")) << doomed->Everything();
  double longest = 0, sum = 0;
  for (int restart = 1; restart <= 12; ++restart) {
    const auto killed = Clock::now();
    doomed->Signal(SIGKILL);
    Program& successor = StartWorker(0, flags);
    ASSERT_TRUE(successor.WaitForEvent("joined")) << successor.Everything();
    const double seconds = SecondsFrom(killed, Clock::now());
    longest = std::max(longest, seconds);
    sum += seconds;
    ASSERT_TRUE(successor.WaitForEvent("round")) << successor.Everything();
    doomed = &successor;
  }
  std::cout << "in its place after " << sum / 12 << " s, " << longest << " s at most\n";
  EXPECT_LT(longest, 8 * kSlowness) << "before its predecessor has been silent for the idle time-out";
  EXPECT_TRUE(other.running());
  EXPECT_FALSE(server.FindEvent("abort")) << server.Everything();
  EXPECT_FALSE(server.FindEvent("refused")) << server.Everything();
  size_t replaced = 0;
  const std::string output = server.Output();
  const std::string word = "\"replaces\":true";
  for (size_t at = output.find(word); at != std::string::npos; at = output.find(word, at + 1)) ++replaced;
  EXPECT_EQ(replaced, 12u);
}

TEST_F(Rejoin, AWorkerThatComesAfterTheJobIsToldAndWaitsNoLongerThanItWasAllowed) {
  Program& server = StartServer();
  Program& first = StartWorker(0, {{"--rounds", "5"}});
  Program& second = StartWorker(1, {{"--rounds", "5"}});
  ExpectEnd(first, 0);
  ExpectEnd(second, 0);
  ASSERT_TRUE(server.WaitForEvent("finished"));
  Program& late = StartWorker(0, {{"--rounds", "5"}, {"--wait-timeout", "2"}});
  ExpectEnd(late, 1);
  EXPECT_THAT(late.Errors(), AllOf(HasSubstr("the last job of this server has finished after 5 rounds"),
                                   HasSubstr("waits for rank 1, which has not joined")));
  EXPECT_TRUE(server.running());
}

}  // namespace
}  // namespace longhaul::e2e
