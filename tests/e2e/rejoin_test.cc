// Workers that come early, late, twice or not at all.
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

}  // namespace
}  // namespace longhaul::e2e
