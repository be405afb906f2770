// FEC planned by burst estimates against FEC planned by loss alone, over Gilbert-Elliott paths
// (burst_path.h). The figures of docs/decisions/0008 are the properties that --gtest_output=xml writes.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "tests/transport/burst_path.h"
#include "transport/core/window/fec_policy.h"

namespace longhaul::transport {
namespace {

// As it was: an EWMA pair per packet, independent losses, four blocks interleaved.
class ByLossAlone final : public FecPlanner {
 public:
  uint64_t OnSent() override { return 0; }
  void OnFate(uint64_t, bool lost, Instant) override {
    const double sample = lost ? 1 : 0;
    fast_ += (sample - fast_) / 64;
    slow_ += (sample - slow_) / 1024;
  }
  PathView Path() const override {
    return {.loss = std::max(fast_, slow_), .packets_per_recovery_time = BurstPath::kPacketsPerRecoveryTime};
  }
  uint8_t Depth() const override { return 4; }

 private:
  double fast_ = 0;
  double slow_ = 0;
};

class ByBursts final : public FecPlanner {
 public:
  uint64_t OnSent() override { return advisor.estimator().OnSent(); }
  void OnFate(uint64_t place, bool lost, Instant now) override {
    lost ? advisor.estimator().OnLost(place) : advisor.estimator().OnAcked(place);
    advisor.Update(now, 2 * BurstPath::kOneWay * BurstPath::kTick, BurstPath::kPacketsPerRecoveryTime);
  }
  PathView Path() const override {
    const LossModel& loss = advisor.model();
    return {.loss = loss.p,
            .packets_per_recovery_time = BurstPath::kPacketsPerRecoveryTime,
            .rho = loss.rho,
            .mean_burst = loss.mean_burst,
            .extra_repair = advisor.extra_repair()};
  }
  uint8_t Depth() const override { return static_cast<uint8_t>(advisor.Depth()); }

  FecAdvisor advisor;
};

template <typename Planner>
BurstResult Measure(double loss, double burst, uint32_t high, uint32_t low) {
  BurstResult sum;
  for (uint64_t seed = 1; seed <= 4; ++seed) {
    Planner planner;
    BurstPath path(loss, burst, seed, &planner);
    const BurstResult r = path.Run(high, low, 120, 20);
    sum.blocks += r.blocks;
    sum.failed += r.failed;
    sum.high += r.high;
    sum.repair += r.repair;
    sum.retransmissions += r.retransmissions;
    sum.ticks.insert(sum.ticks.end(), r.ticks.begin(), r.ticks.end());
  }
  return sum;
}

void Record(const char* name, const BurstResult& r) {
  testing::Test::RecordProperty(std::string(name) + ".failure", std::to_string(r.failure_rate()));
  testing::Test::RecordProperty(std::string(name) + ".mean", std::to_string(r.mean_ticks()));
  testing::Test::RecordProperty(std::string(name) + ".p99", r.Percentile(0.99));
  testing::Test::RecordProperty(std::string(name) + ".overhead", std::to_string(r.overhead()));
}

class FecOverBursts : public testing::TestWithParam<double> {};

TEST_P(FecOverBursts, AWindowOfTwoRecoveryTimesEndsSooner) {
  // 400 high chunks: 100 ticks to send, 20 to arrive.
  const BurstResult before = Measure<ByLossAlone>(GetParam(), 10, 400, 0);
  const BurstResult now = Measure<ByBursts>(GetParam(), 10, 400, 0);
  Record("before", before);
  Record("now", now);
  EXPECT_LT(now.failure_rate(), before.failure_rate() / 5);
  EXPECT_LT(now.failure_rate(), 0.005) << "blocks with slack may fail";
  EXPECT_LT(now.mean_ticks(), before.mean_ticks());
  EXPECT_LE(now.Percentile(0.99), 150) << "floor 120; before " << before.Percentile(0.99);
  EXPECT_LT(now.Percentile(0.99), before.Percentile(0.99) - 15);
  EXPECT_LT(now.overhead(), before.overhead() + 0.12);
}

TEST_P(FecOverBursts, AShortWindowCannotBeSpreadFarButFailsLess) {
  // 100 high chunks are five blocks: no deeper interleaving than five.
  const BurstResult before = Measure<ByLossAlone>(GetParam(), 10, 100, 0);
  const BurstResult now = Measure<ByBursts>(GetParam(), 10, 100, 0);
  Record("before", before);
  Record("now", now);
  EXPECT_LT(now.failure_rate(), before.failure_rate() * 0.7);
  EXPECT_LT(now.mean_ticks(), before.mean_ticks());
}

INSTANTIATE_TEST_SUITE_P(Loss, FecOverBursts, testing::Values(0.01, 0.03, 0.05), [](const auto& p) {
  return std::to_string(static_cast<int>(p.param * 100)) + "Percent";
});

TEST(FecOverIndependentLoss, NothingIsLost) {
  for (const double loss : {0.01, 0.03, 0.05}) {
    const BurstResult before = Measure<ByLossAlone>(loss, 0, 400, 0);
    const BurstResult now = Measure<ByBursts>(loss, 0, 400, 0);
    EXPECT_NEAR(now.mean_ticks(), before.mean_ticks(), 0.02 * before.mean_ticks()) << loss;
    EXPECT_LT(now.overhead(), before.overhead() * 1.1 + 0.005) << loss;
  }
}

TEST(FecOverIndependentLoss, BulkWithSlackKeepsAtMostOneSymbolABlock) {
  // 400 low chunks follow: what a block lacks is sent again before the window's end.
  const BurstResult now = Measure<ByBursts>(0.05, 10, 100, 400);
  EXPECT_LE(now.repair, now.blocks);
}

TEST(FecAdvisor, AdvisesByWhatItHasSeen) {
  ByBursts planner;
  EXPECT_EQ(planner.Depth(), kMinFecDepth);
  BurstPath path(0.03, 10, 1, &planner);
  path.Run(400, 0, 120, 0);
  EXPECT_NEAR(planner.advisor.model().mean_burst, 10, 2);
  EXPECT_GT(planner.advisor.model().rho, 0.3);
  EXPECT_GT(planner.advisor.model().p, 0.03) << "with its margin";
  EXPECT_LT(planner.advisor.model().p, 0.09);
  EXPECT_GE(planner.Depth(), 4 * 8);
}

}  // namespace
}  // namespace longhaul::transport
