// Incast: eight workers with a megabyte each through 200 Mbit/s, RTT 20 ms. What server grants are worth, and
// that they do no harm where nothing is shared.

#include "tests/sim/incast.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace longhaul::sim {
namespace {

using std::chrono::milliseconds;

constexpr uint32_t kRounds = 6;

enum class Grants { kOff, kGiven, kEstimated };

wan::LinkOptions Link(double mbps, Duration delay, double buffer_bdp, double loss = 0) {
  wan::LinkOptions link;
  link.rate = Bandwidth::Mbps(mbps);
  link.delay = delay;
  link.loss = loss;
  link.queue_bytes = link.rate * (delay * 2) * buffer_bdp;
  return link;
}

IncastOptions Options(Grants grants, const wan::LinkOptions& link, uint64_t seed) {
  IncastOptions options;
  options.rounds = kRounds;
  options.link = link;
  options.compute = milliseconds(50);
  options.stagger = milliseconds(1);
  options.grants.enabled = grants != Grants::kOff;
  if (grants == Grants::kGiven) options.grants.capacity = link.rate;
  options.seed = seed;
  return options;
}

IncastResult Simulate(const IncastOptions& options) {
  IncastResult result = RunIncast(options);
  EXPECT_EQ(result.failure, "");
  EXPECT_EQ(result.rounds.size(), options.rounds);
  return result;
}

struct Case {
  double buffer_bdp;
  double loss;
};

class IncastTest : public testing::TestWithParam<Case> {
 protected:
  wan::LinkOptions link() const {
    return Link(200, milliseconds(10), GetParam().buffer_bdp, GetParam().loss);
  }
};

TEST_P(IncastTest, WithAGivenCapacityNothingOverflowsFromTheFirstRoundOn) {
  std::vector<double> spreads;
  for (uint64_t seed = 1; seed <= 5; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    const IncastResult result = Simulate(Options(Grants::kGiven, link(), seed));
    EXPECT_LE(result.OwnLoss(0, kRounds), 0.005);
    spreads.push_back(result.Spread(0, kRounds));
  }
  // Random loss of a worker's tail costs it a probe timeout, which no grant evens out: 2 of 12 seeds have it.
  std::sort(spreads.begin(), spreads.end());
  EXPECT_LE(spreads[3], 1.1);
  EXPECT_LE(spreads[4], GetParam().loss > 0 ? 2 : 1.1);
}

TEST_P(IncastTest, AnEstimatedCapacityIsLearnedInTheFirstRound) {
  std::vector<double> spreads;
  for (uint64_t seed = 1; seed <= 5; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    const IncastResult result = Simulate(Options(Grants::kEstimated, link(), seed));
    EXPECT_LE(result.OwnLoss(1, kRounds), 0.006);
    spreads.push_back(result.Spread(1, kRounds));
    // It runs ahead of the link until a queue shows: workers that send 0.87 of what they may count as bound.
    EXPECT_GT(result.capacity.mbps(), 185);
    EXPECT_LT(result.capacity.mbps(), 200 / 0.87 * 1.1);
    const IncastResult off = Simulate(Options(Grants::kOff, link(), seed));
    EXPECT_LE(result.OwnLoss(0, 1), 0.8 * off.OwnLoss(0, 1));
  }
  // Random loss of a worker's tail costs it a probe timeout, which no grant evens out: one run in five may
  // have several, another one.
  std::sort(spreads.begin(), spreads.end());
  // So does a push whose PushTaken is lost.
  EXPECT_LE(spreads[2], GetParam().loss > 0 ? 1.2 : 1.1);
  EXPECT_LE(spreads[3], GetParam().loss > 0 ? 1.4 : 1.1);
  EXPECT_LE(spreads[4], GetParam().loss > 0 ? 2 : 1.1);
}

TEST_P(IncastTest, WithoutGrantsWorkersLoseToEachOther) {
  for (uint64_t seed = 1; seed <= 3; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    const IncastResult off = Simulate(Options(Grants::kOff, link(), seed));
    const IncastResult on = Simulate(Options(Grants::kGiven, link(), seed));
    EXPECT_GT(off.OwnLoss(0, kRounds), 0.005);
    // It delivers what the other one loses, in about the same time.
    EXPECT_LE(on.Mean(1, kRounds), off.Mean(1, kRounds) * 108 / 100);
  }
}

INSTANTIATE_TEST_SUITE_P(Sim, IncastTest,
                         testing::Values(Case{0.5, 0}, Case{1, 0}, Case{0.5, 0.02}, Case{1, 0.02}),
                         [](const auto& test) {
                           return std::string(test.param.buffer_bdp < 1 ? "HalfBdp" : "OneBdp") +
                                  (test.param.loss > 0 ? "Lossy" : "Clean");
                         });

TEST(IncastHarmTest, OneWorkerIsNotSlowedDown) {
  for (const double loss : {0.0, 0.02}) {
    const wan::LinkOptions link = Link(200, milliseconds(10), 1, loss);
    IncastOptions options = Options(Grants::kEstimated, link, 1);
    options.workers = 1;
    options.bytes = 8'000'000;
    const IncastResult estimated = Simulate(options);
    EXPECT_EQ(estimated.grants, 0u);
    IncastOptions without = options;
    without.grants.enabled = false;
    const Duration off = Simulate(without).Mean(1, kRounds);
    EXPECT_LE(estimated.Mean(1, kRounds), off * 102 / 100);
    options.grants.capacity = link.rate;
    EXPECT_LE(Simulate(options).Mean(1, kRounds), off * 105 / 100);
  }
}

// Once the estimate has left the first rounds behind.
TEST(IncastHarmTest, WorkersOnLinksOfTheirOwnAreNotSlowedDown) {
  const std::vector<std::vector<double>> links = {{25, 50, 75, 100}, {20, 100, 100, 100}};
  for (const std::vector<double>& rates : links) {
    for (const double loss : {0.0, 0.02}) {
      // Two runs probe at different times and lose different packets: compared by the sum of several.
      const uint64_t seeds = 3;
      std::vector<Duration> with(rates.size() + 1, Duration(0));  // by rank, then of the rounds
      std::vector<Duration> without = with;
      for (uint64_t seed = 1; seed <= seeds; ++seed) {
        IncastOptions options = Options(Grants::kEstimated, {}, seed);
        options.workers = static_cast<uint32_t>(rates.size());
        options.rounds = 16;
        for (const double mbps : rates) options.own_links.push_back(Link(mbps, milliseconds(10), 1, loss));
        const IncastResult on = Simulate(options);
        options.grants.enabled = false;
        const IncastResult off = Simulate(options);
        with.back() += on.Mean(4, 16);
        without.back() += off.Mean(4, 16);
        for (size_t rank = 0; rank < rates.size(); ++rank) {
          for (size_t round = 4; round < 16; ++round) {
            with[rank] += on.rounds[round].finished[rank];
            without[rank] += off.rounds[round].finished[rank];
          }
        }
      }
      for (size_t i = 0; i < with.size(); ++i) {
        EXPECT_LE(with[i], without[i] * 106 / 100)
            << (i < rates.size() ? "rank " + std::to_string(i) : "rounds") << " of rates " << rates[0] << ".."
            << rates.back() << " Mbit/s, loss " << loss;
      }
    }
  }
}

TEST(IncastHarmTest, RoundsWithResultsTakeNoLonger) {
  const wan::LinkOptions link = Link(200, milliseconds(10), 0.5);
  IncastOptions options = Options(Grants::kGiven, link, 1);
  options.with_results = true;
  const IncastResult on = Simulate(options);
  EXPECT_LE(on.OwnLoss(0, kRounds), 0.005);
  options.grants.enabled = false;
  // Measured 1.08: without grants pushes and results overflow the link's two queues, and fill them.
  EXPECT_LE(on.Mean(1, kRounds), Simulate(options).Mean(1, kRounds) * 112 / 100);
}

TEST(IncastMoreTest, WorkersThatBeginWhenTheyLikeDoNotOverflowEither) {
  for (const Grants grants : {Grants::kGiven, Grants::kEstimated}) {
    IncastOptions options = Options(grants, Link(200, milliseconds(10), 0.5), 3);
    options.stagger = milliseconds(100);
    const IncastResult result = Simulate(options);
    EXPECT_LE(result.OwnLoss(1, kRounds), 0.005);
  }
}

TEST(IncastMoreTest, IsDeterministic) {
  const IncastOptions options = Options(Grants::kEstimated, Link(200, milliseconds(10), 1, 0.02), 9);
  const IncastResult a = Simulate(options);
  const IncastResult b = Simulate(options);
  for (size_t i = 0; i < kRounds; ++i) {
    EXPECT_EQ(a.rounds[i].finished, b.rounds[i].finished);
    EXPECT_EQ(a.rounds[i].packets, b.rounds[i].packets);
  }
}

}  // namespace
}  // namespace longhaul::sim
