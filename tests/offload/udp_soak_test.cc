// Many segs between real longhaul-offload processes, whose ranks are processes, over UDP with a relay between
// them that loses, repeats, reorders and delays. Ranks and daemons are killed (SIGKILL) and started again.
//
//   rank 0 ┐                                           ┌ rank 0
//   rank 1 ┴ longhaul-offload -- relay -- longhaul-offload ┴ rank 1     (three nodes)
//
// Whatever completes is bitwise the sum of those who are not named as missing, every request ends in a named
// status, no unit of a pool is left, and when the kills end all succeed.
// A seed gives the same plan; processes have their own pace.
#include <csignal>
#include <iostream>
#include <nlohmann/json.hpp>

#include "tests/offload/commanded_rank.h"
#include "tests/offload/lossy_relay.h"
#include "tests/offload/plain_sum.h"
#include "tests/offload/soak_figures.h"
#include "tests/offload/udp_support.h"

namespace longhaul::offload {
namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

constexpr uint8_t kNodes = 3;
constexpr uint8_t kRanks = 2;
constexpr uint32_t kSegBytes = 64, kSegElements = kSegBytes / 4;
constexpr uint16_t kRing = 0, kTree = 1;  // jobs
constexpr Duration kJobDeadline = milliseconds(300);

using Outcome = CommandedRank::Outcome;
using Report = CommandedRank::Report;

class UdpSoak {
 public:
  UdpSoak(uint64_t seed, bool sealed)
      : random_(seed),
        relay_(kNodes, {.loss = 0.05, .duplication = 0.05, .reordering = 0.05, .late = 0.005}, seed,
               UdpProcesses::NodeAddress, RelayAddress),
        site_({.site = {.nodes = kNodes, .ranks_per_node = kRanks, .seg_bytes = kSegBytes},
               .sealed = sealed,
               .seen = RelayAddress}) {
    for (uint8_t node = 0; node < kNodes; ++node) {
      for (uint8_t rank = 0; rank < kRanks; ++rank) {
        ranks_.push_back(std::make_unique<CommandedRank>(site_.process(node).where(), node, rank));
      }
    }
    OpenAll();
  }

  const SoakFigures& figures() const { return figures_; }
  LossyRelay::Counts counts() const { return relay_.counts(); }

  // A message of some type and size, posted again and again, with kills until the last time.
  void Message(size_t most_segs) {
    const size_t segs =
        1 + random_.Below(std::min<size_t>(most_segs, CommandedRank::kMostElements / kSegElements));
    WorkRequest request;
    floats_ = random_.Chance(0.5);
    request.type = floats_ ? DataType::kFloat32 : DataType::kInt32;
    if (floats_) request.flags |= WorkRequest::kDeterministic;
    if (random_.Chance(0.5)) request.flags |= WorkRequest::kAllowPartial;
    request.jid = random_.Chance(0.5) ? kRing : kTree;
    request.mid = next_mid_++;
    request.length = segs * kSegBytes;
    for (auto& rank : ranks_) {
      for (uint32_t& word : rank->send().first(segs * kSegElements)) {
        const auto value = static_cast<int32_t>(random_.Next());
        word =
            floats_ ? std::bit_cast<uint32_t>(static_cast<float>(value) / 7) : static_cast<uint32_t>(value);
      }
    }
    for (uint64_t bad_times = random_.Below(3); bad_times > 0; --bad_times, ++request.generation) {
      Attempt(request, true);
      if (testing::Test::HasFailure()) return;
    }
    // A node whose new process was not heard of yet is dead once more: its hello was lost.
    for (int tries = 1; !Attempt(request, false); ++tries, ++request.generation) {
      if (testing::Test::HasFailure()) return;
      ASSERT_LT(tries, kNodes) << "no attempt succeeds, and nothing is killed";
    }
    figures_.segs += segs;
  }

  // What no rank has joined is forgotten after two deadlines of the job.
  void ExpectNoSegInUse() {
    const auto end = Clock::now() + milliseconds(5000 * LONGHAUL_SLOWNESS);
    for (uint8_t node = 0; node < kNodes; ++node) {
      uint32_t in_use = 1;
      while (in_use > 0 && Clock::now() < end)
        in_use = AnswerTo(node * kRanks, CommandedRank::Command{CommandedRank::Kind::kStats}).segs_in_use;
      EXPECT_EQ(in_use, 0u) << "of node " << int{node};
    }
  }

  // Ends the daemons in order; what they have counted since their last start.
  uint64_t Counter(const char* part, const char* name) {
    uint64_t sum = 0;
    for (uint8_t node = 0; node < kNodes; ++node) {
      EXPECT_EQ(site_.process(node).End(SIGTERM), 0);
      const auto json = nlohmann::json::parse(site_.Json(node));
      sum += part[0] == 'u' ? json["udp"][name].get<uint64_t>() : json["nodes"][0][name].get<uint64_t>();
    }
    return sum;
  }

 private:
  static std::string RelayAddress(uint8_t at, uint8_t of) {
    return UdpProcesses::AddressOf(100 + at * kNodes + of);
  }
  static uint64_t BitOfRank(size_t index) { return uint64_t{1} << index; }
  bool Lives(size_t index) const { return (dead_ & BitOfRank(index)) == 0; }

  Report AnswerTo(size_t index, const CommandedRank::Command& command) {
    ranks_[index]->Ask(command);
    const auto report = ranks_[index]->Answer(60'000);
    EXPECT_TRUE(report && report->outcome == Outcome::kDone) << "rank " << index << " does not answer";
    return report.value_or(Report{});
  }

  void OpenAll() {
    CommandedRank::Command open{CommandedRank::Kind::kOpen};
    open.jobs[kRing] = {.nodes = (1 << kNodes) - 1, .deadline = kJobDeadline};
    open.jobs[kTree] = {.nodes = (1 << kNodes) - 1, .route = Route::kTree, .deadline = kJobDeadline};
    for (size_t i = 0; i < ranks_.size(); ++i) AnswerTo(i, open);
  }

  // All ranks post, something happens, and every request of those that live has ended. Whether all succeeded.
  bool Attempt(WorkRequest request, bool kills) {
    ++figures_.attempts;
    dead_ = 0;
    request.wr_id = next_wr_++;
    request.deadline =
        kills ? milliseconds(50 + random_.Below(250)) : milliseconds(20'000 * LONGHAUL_SLOWNESS);
    const size_t canceller = kills && random_.Chance(0.2) ? random_.Below(ranks_.size()) : ranks_.size();
    for (size_t i = 0; i < ranks_.size(); ++i) {
      CommandedRank::Command post{CommandedRank::Kind::kPost, request};
      if (i == canceller) {
        ++figures_.cancels;
        post.cancel_after_us = static_cast<int64_t>(random_.Below(10'000));
      }
      ranks_[i]->Ask(post);
    }
    while (kills) {
      usleep(static_cast<useconds_t>(random_.Below(8000)));
      Kill((request.flags & WorkRequest::kAllowPartial) != 0);
      kills = random_.Chance(0.3);
    }
    std::vector<Report> reports(ranks_.size());
    const auto limit = static_cast<int>(2 * request.deadline / milliseconds(1)) + 20'000;
    for (size_t i = 0; i < ranks_.size(); ++i) {
      if (!Lives(i) && ranks_[i]->IsKilled()) continue;
      const auto report = ranks_[i]->Answer(limit);
      EXPECT_TRUE(report) << "rank " << i << " hangs";
      reports[i] = report.value_or(Report{});
    }
    bool all_succeeded = true;
    for (size_t i = 0; i < ranks_.size(); ++i) {
      Check(i, reports, request);
      all_succeeded = all_succeeded && reports[i].completion.status == WorkStatus::kSuccess;
    }
    if (dead_ == 0) return all_succeeded;
    for (size_t i = 0; i < ranks_.size(); ++i) {
      if (ranks_[i]->IsKilled()) ranks_[i]->Start();
    }
    OpenAll();
    return all_succeeded;
  }

  void Kill(bool ranks_above_all) {
    const size_t index = random_.Below(ranks_.size());
    if (!Lives(index)) return;
    if (random_.Chance(ranks_above_all ? 0.8 : 0.5)) {
      ++figures_.kills_of_ranks;
      ranks_[index]->Kill();
      dead_ |= BitOfRank(index);
      return;
    }
    ++figures_.kills_of_engines;
    const auto node = static_cast<uint8_t>(index / kRanks);
    for (uint8_t rank = 0; rank < kRanks; ++rank) dead_ |= BitOfRank(size_t{node} * kRanks + rank);
    EXPECT_EQ(site_.process(node).End(SIGKILL), -SIGKILL);
    usleep(static_cast<useconds_t>(random_.Below(30'000)));
    site_.process(node).Start();
  }

  void Check(size_t index, const std::vector<Report>& reports, const WorkRequest& request) {
    const Report& report = reports[index];
    if (report.outcome == Outcome::kKilled || report.outcome == Outcome::kDaemonGone) {
      EXPECT_FALSE(Lives(index)) << "rank " << index << " of a daemon that lives";
      return;
    }
    ASSERT_EQ(report.outcome, Outcome::kDone) << "rank " << index << " hangs";
    const Completion& done = report.completion;
    ++figures_.ends[done.status];
    ASSERT_NE(WorkStatusName(done.status), "unknown");
    if (request.deadline > milliseconds(1000)) {
      const bool fine = done.status == WorkStatus::kSuccess || done.status == WorkStatus::kPeerDead;
      ASSERT_TRUE(fine) << WorkStatusName(done.status) << " of rank " << index << ", and nothing was killed";
    }
    uint64_t may_miss = 0;
    if (done.status == WorkStatus::kPartial) {
      // Ranks that it names, and ranks of other nodes that theirs name or that were killed.
      may_miss = dead_;
      for (size_t i = 0; i < reports.size(); ++i) {
        if (i / kRanks == index / kRanks && i != index) continue;
        if (reports[i].outcome == Outcome::kDone) {
          may_miss |= reports[i].completion.missing_ranks << i / kRanks * kRanks;
        }
      }
      for (uint8_t node = 0; node < kNodes; ++node) {
        if ((done.missing_nodes >> node & 1) != 0) may_miss |= uint64_t{3} << node * kRanks;
      }
    } else if (done.status != WorkStatus::kSuccess) {
      return;
    }
    PlainSum plain{kNodes, kRanks, request.mid, kSegElements, {}};
    if (request.jid == kTree) plain.tree_root = 0;
    const auto words = ranks_[index]->receive().first(request.length / 4);
    const bool fine =
        floats_ ? Explains<float>(plain, words, may_miss) : Explains<int32_t>(plain, words, may_miss);
    ASSERT_TRUE(fine) << WorkStatusName(done.status) << " of rank " << index << " is not the sum, without "
                      << may_miss;
  }

  template <typename T>
  bool Explains(const PlainSum& plain, std::span<const uint32_t> words, uint64_t may_miss) {
    std::vector<T> result(words.size());
    std::memcpy(result.data(), words.data(), words.size_bytes());
    return plain.Explains<T>(result, may_miss, [this](uint8_t node, uint8_t rank, size_t i) {
      return std::bit_cast<T>(ranks_[size_t{node} * kRanks + rank]->send()[i]);
    });
  }

  Random random_;
  LossyRelay relay_;
  UdpProcesses site_;
  std::vector<std::unique_ptr<CommandedRank>> ranks_;  // node after node
  SoakFigures figures_;
  bool floats_ = false;
  uint64_t dead_ = 0;  // ranks killed in this attempt, or with their daemon
  uint64_t next_wr_ = 1;
  uint32_t next_mid_ = 0;
};

class UdpSoakTest : public testing::TestWithParam<bool> {};

TEST_P(UdpSoakTest, KillsAndABadNetworkChangeNoBitAndLeaveNoSeg) {
  const uint64_t seed = SoakSeed();
  std::cout << "LONGHAUL_SEED=" << seed << std::endl;
  SCOPED_TRACE("LONGHAUL_SEED=" + std::to_string(seed));
  UdpSoak soak(seed, GetParam());
  const SoakFigures& f = soak.figures();
  while ((f.segs < SoakSegs() || f.kills_of_ranks == 0 || f.kills_of_engines == 0) && !HasFailure()) {
    soak.Message(4000);
  }
  if (HasFailure()) return;
  soak.ExpectNoSegInUse();
  const LossyRelay::Counts counts = soak.counts();
  std::cout << f << "; " << counts.datagrams << " datagrams, " << counts.lost << " lost, " << counts.repeated
            << " repeated, " << counts.delayed << " delayed" << std::endl;
  EXPECT_GT(counts.lost, counts.datagrams / 25);
  EXPECT_EQ(soak.Counter("nodes", "segs_in_use"), 0u);
}

INSTANTIATE_TEST_SUITE_P(Sealed, UdpSoakTest, testing::Values(true));
INSTANTIATE_TEST_SUITE_P(Plain, UdpSoakTest, testing::Values(false));

}  // namespace
}  // namespace longhaul::offload
