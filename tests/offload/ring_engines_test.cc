// Rings of real engines with many late nodes at once, in virtual time: nothing gets stuck, and results are
// bitwise what a plain loop makes of the same data.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <random>

#include "tests/offload/all_reduce.h"

namespace longhaul::offload {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::seconds;

struct Tally {
  uint64_t runs = 0;  // all-reduces with late nodes
  uint64_t skips = 0, passed_on = 0, self_skips = 0, demotions = 0, redirects = 0;
};

// 3 to 10 nodes; up to a third of them late by up to 3 ms in each message, one of them always in every second
// site; up to 30 % of the packets of slow nodes up to 2 ms late; loss, duplication, reordering, old packets.
class LateRing {
 public:
  explicit LateRing(uint64_t seed) : random_(seed) {
    VirtualSiteOptions options;
    options.seed = seed;
    options.nodes = static_cast<uint8_t>(3 + random_.Below(8));
    options.ranks = static_cast<uint8_t>(1 + random_.Below(2));
    options.engine.seg_bytes = 64;
    options.engine.pool_segs = static_cast<uint32_t>(2 * options.nodes + random_.Below(120));
    options.engine.window_segs = static_cast<uint32_t>(2 + random_.Below(40));
    if (random_.Chance(0.5)) options.faults.loss = 0.1 * random_.Uniform();
    if (random_.Chance(0.5)) options.faults.duplication = 0.1 * random_.Uniform();
    if (random_.Chance(0.5)) options.faults.reordering = 0.3 * random_.Uniform();
    if (random_.Chance(0.3)) options.faults.stale = 0.05 * random_.Uniform();
    site_ = std::make_unique<VirtualSite>(options);
    policy_ = static_cast<StragglerPolicy>(random_.Below(5));
    JobConfig job{
        .nodes = site_->all_nodes(), .policy = policy_, .skip_after = microseconds(50 + random_.Below(500))};
    site_->Configure(job);
    slow_ = random_.Next();
    slow_share_ = 0.3 * random_.Uniform();
    always_late_ = random_.Chance(0.5) ? std::optional(static_cast<uint8_t>(random_.Below(options.nodes)))
                                       : std::nullopt;
  }

  void Run(Tally* tally) {
    Reduce(false);
    for (int i = 0; i < 12 && !testing::Test::HasFatalFailure(); ++i) Reduce(false);
    site_->slow = [this](uint8_t from) {
      const bool slow = (slow_ >> from & 1) != 0 && random_.Chance(slow_share_);
      return slow ? Duration(microseconds(random_.Below(2000))) : Duration(0);
    };
    for (int i = 0; i < 5 && !testing::Test::HasFatalFailure(); ++i) {
      Reduce(true);
      ++tally->runs;
    }
    site_->RunFor(seconds(1));
    ASSERT_EQ(site_->SegsInUse(), 0u);
    for (uint8_t node = 0; node < site_->nodes(); ++node) {
      const OffloadStats stats = site_->engine(node).stats();
      ASSERT_EQ(stats.overlaps_refused, 0u);
      tally->skips += stats.skips;
      tally->passed_on += stats.passed_on;
      tally->self_skips += stats.self_skips;
      tally->demotions += stats.demotions;
      tally->redirects += stats.redirects;
    }
  }

  std::string what() const {
    return std::to_string(site_->nodes()) + " nodes, policy " + std::to_string(static_cast<int>(policy_));
  }

 private:
  void Reduce(bool stragglers) {
    const uint64_t salt = random_.Next();
    AllRanks<int32_t> message(
        *site_, 16 + random_.Below(16 * 12), [salt](uint8_t node, uint8_t rank, size_t i) {
          return static_cast<int32_t>(((salt ^ (i * 16 + node)) * 64 + rank) * 0x9e3779b97f4a7c15 >> 33);
        });
    message.request.mid = mid_++;
    message.request.deadline = seconds(20);
    const uint64_t wr_id = message.request.mid;
    std::vector<std::pair<Duration, uint16_t>> posts;  // when, and node and rank
    for (uint8_t node = 0; node < site_->nodes(); ++node) {
      const bool late = stragglers && (random_.Chance(0.33) || always_late_ == node);
      for (uint8_t rank = 0; rank < site_->ranks(); ++rank) {
        const Duration at = late ? Duration(microseconds(random_.Below(3000))) : Duration(0);
        posts.emplace_back(at, static_cast<uint16_t>(node * 64 + rank));
      }
    }
    std::ranges::sort(posts);
    Duration now{0};
    for (const auto& [at, who] : posts) {
      if (at > now) site_->RunFor(at - now);
      now = std::max(now, at);
      message.Post(static_cast<uint8_t>(who / 64), static_cast<uint8_t>(who % 64), wr_id);
    }
    site_->RunFor(seconds(21));
    ASSERT_TRUE(message.AllEnded(WorkStatus::kSuccess, wr_id)) << "stuck";
    ASSERT_TRUE(message.AllReceived(message.Expected())) << "wrong";
    for (uint8_t node = 0; node < site_->nodes(); ++node) {
      for (uint8_t rank = 0; rank < site_->ranks(); ++rank) {
        ASSERT_TRUE(site_->engine(node).Deregister(rank, message.at(node, rank).send_key).ok());
        ASSERT_TRUE(site_->engine(node).Deregister(rank, message.at(node, rank).receive_key).ok());
      }
    }
  }

  Random random_;
  std::unique_ptr<VirtualSite> site_;
  StragglerPolicy policy_ = StragglerPolicy::kOff;
  uint64_t slow_ = 0;  // bit per node
  double slow_share_ = 0;
  std::optional<uint8_t> always_late_;
  uint32_t mid_ = 0;
};

// LONGHAUL_SEED=N replays site N; LONGHAUL_RING_RUNS sets how many all-reduces: 10,000 by hand.
TEST(OffloadRingRandom, NoRunOfRealEnginesIsStuckAndEveryResultIsExact) {
  const char* const replay = std::getenv("LONGHAUL_SEED");
  const char* const runs = std::getenv("LONGHAUL_RING_RUNS");
  const uint64_t first = replay != nullptr ? std::strtoull(replay, nullptr, 10) : std::random_device()();
  const uint64_t count = replay != nullptr ? 1
                         : runs != nullptr ? std::strtoull(runs, nullptr, 10)
                                           : 300 / LONGHAUL_SLOWNESS;
  std::printf("first seed %llu\n", static_cast<unsigned long long>(first));
  Tally tally;
  for (uint64_t seed = first; tally.runs < count && !HasFatalFailure(); ++seed) {
    SCOPED_TRACE("LONGHAUL_SEED=" + std::to_string(seed));
    LateRing ring(seed);
    SCOPED_TRACE(ring.what());
    ring.Run(&tally);
  }
  std::printf(
      "%llu runs: %llu skips, %llu passed on, %llu self-skips, %llu segs past a leaf, %llu redirects\n",
      static_cast<unsigned long long>(tally.runs), static_cast<unsigned long long>(tally.skips),
      static_cast<unsigned long long>(tally.passed_on), static_cast<unsigned long long>(tally.self_skips),
      static_cast<unsigned long long>(tally.demotions), static_cast<unsigned long long>(tally.redirects));
  if (replay != nullptr) return;
  EXPECT_GT(tally.skips, 0u);
  EXPECT_GT(tally.passed_on, 0u);
  EXPECT_GT(tally.self_skips, 0u);
}

}  // namespace
}  // namespace longhaul::offload
