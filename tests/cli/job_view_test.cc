// What `longhaul run` makes of its daemons' lines.
//
//   server ── longhaul-offload of site B ── rank 0, rank 1
//          ── longhaul-offload of site C ── rank 2, rank 3
#include "cli/job_view.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace longhaul::cli {
namespace {

using ::testing::HasSubstr;

constexpr const char* kServerRound =
    R"({"event":"round","round":1,"loss":0.25,"up_mbps":3.0,"rtt_ms":[51.5,70],"repaired_chunks":2})";

TEST(JobView, KnowsWhereEverySiteListens) {
  JobView view(4, 10, 2);
  EXPECT_EQ(view.site_address(0), "");
  view.OnSiteLine(1, R"({"event":"listening","address":"unix:/run/c.sock"})");
  EXPECT_EQ(view.site_address(0), "");
  EXPECT_EQ(view.site_address(1), "unix:/run/c.sock");
  view.OnSiteLine(2, R"({"event":"listening","address":"unix:/run/d.sock"})");
  view.OnSiteLine(0, "no JSON");
  EXPECT_EQ(view.site_address(0), "");
}

// A rank of a site has no connection: what the site's one lost and repeated counts for all of them.
TEST(JobView, OfSitesTheConnectionsAreTheSites) {
  JobView view(4, 10, 2);
  view.OnServerLine(kServerRound);
  view.OnWorkerLine(0, R"({"event":"round","round":1,"seconds":0.2,"observed_loss":0,"rtt_ms":0})");
  EXPECT_THAT(view.ProgressLine(200), HasSubstr("| lost 25.0 %"));
  EXPECT_THAT(view.ProgressLine(200), HasSubstr("| rtt 52 ms"));
  EXPECT_THAT(view.RoundsTable(), HasSubstr("\t0.25\t"));
  view.OnServerLine(R"({"event":"finished","retransmissions":100})");
  view.OnSiteLine(0, R"({"event":"finished","wan":{"retransmissions":20}})");
  view.OnSiteLine(1, R"({"event":"finished","wan":{"retransmissions":3}})");
  view.OnWorkerLine(3, R"({"event":"finished","totals":{"retransmissions":0}})");
  const nlohmann::json summary = view.Summary(std::chrono::seconds(2));
  EXPECT_EQ(summary["retransmissions"], 123);
  EXPECT_EQ(summary["workers"], 4);
  EXPECT_EQ(summary["rtt_ms"], 51.5);
}

TEST(JobView, WithoutSitesRankZeroSeesTheLoss) {
  JobView view(2, 10);
  view.OnServerLine(kServerRound);
  view.OnWorkerLine(0, R"({"event":"round","round":1,"seconds":0.2,"observed_loss":0.02})");
  EXPECT_THAT(view.ProgressLine(200), HasSubstr("| lost 2.0 %"));
  view.OnWorkerLine(1, R"({"event":"finished","totals":{"retransmissions":7}})");
  EXPECT_EQ(view.Summary(std::chrono::seconds(1))["retransmissions"], 7);
}

TEST(JobView, TimesOfRoundsAreThoseOfRankZero) {
  JobView view(2, 10);
  for (const char* seconds : {"0.1", "0.2", "0.9"}) {
    view.OnWorkerLine(0, std::string(R"({"event":"round","round":1,"seconds":)") + seconds + "}");
    view.OnWorkerLine(1, R"({"event":"round","round":1,"seconds":5})");
  }
  const nlohmann::json summary = view.Summary(std::chrono::seconds(2));
  EXPECT_DOUBLE_EQ(summary["seconds_p50"], 0.2);
  EXPECT_DOUBLE_EQ(summary["round_ms_p50"], 200);
}

}  // namespace
}  // namespace longhaul::cli
