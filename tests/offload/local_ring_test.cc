// A ring over the devices of one host, and what is left of it when devices die.
#include <gtest/gtest.h>

#include <bit>
#include <string>

#include "tests/offload/all_reduce.h"
#include "tests/offload/rank_arrays.h"

namespace longhaul::offload {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr uint8_t kPartialAllowed = WorkRequest::kAllowPartial;
// Segs of 1 KiB in a message: some for each of 16 owners.
constexpr size_t kElements = 256 * 48;

// Virtual devices of one rank each. A message is one of all that live, of the job's nodes.
class Ring {
 public:
  explicit Ring(uint8_t nodes, JobConfig job = {}, const LinkFaults& faults = {},
                uint8_t flags = kPartialAllowed)
      : site({.nodes = nodes, .ranks = 1, .faults = faults}), ranks(site, kElements, Small) {
    job.nodes = site.all_nodes();
    site.Configure(job);
    ranks.request.nodes = 0;
    ranks.request.flags = flags;
  }

  uint64_t Living() const {
    uint64_t living = 0;
    for (uint8_t node = 0; node < site.nodes(); ++node) living |= site.IsDead(node) ? 0 : BitOf(node);
    return living;
  }
  void PostNext(uint64_t nodes) {
    ++ranks.request.mid;
    for (uint8_t node = 0; node < site.nodes(); ++node) {
      if ((nodes & BitOf(node)) != 0) ranks.Post(node, 0, ranks.request.mid);
    }
  }
  Completion EndAt(uint8_t node) { return site.CompletionOf(node, 0, ranks.request.mid); }
  void ExpectEnds(WorkStatus status, uint64_t missing) {
    for (uint8_t node = 0; node < site.nodes(); ++node) {
      if (site.IsDead(node)) continue;
      EXPECT_EQ(EndAt(node).status, status) << int{node} << ' ' << WorkStatusName(EndAt(node).status);
      EXPECT_EQ(EndAt(node).missing_nodes, missing) << int{node};
    }
  }
  // Every element at every device that lives: the sum of exactly these.
  void ExpectSumsOf(uint64_t nodes) {
    std::vector<int32_t> sum(kElements);
    for (size_t i = 0; i < kElements; ++i) {
      for (uint8_t node = 0; node < site.nodes(); ++node) {
        if ((nodes & BitOf(node)) != 0) sum[i] += Small(node, 0, i);
      }
    }
    for (uint8_t node = 0; node < site.nodes(); ++node) {
      if (site.IsDead(node)) continue;
      EXPECT_TRUE(ranks.at(node, 0).receive == sum) << int{node};
    }
  }
  Duration Slowest() {
    Duration slowest{0};
    for (uint8_t node = 0; node < site.nodes(); ++node) {
      if (!site.IsDead(node)) slowest = std::max(slowest, EndAt(node).elapsed);
    }
    return slowest;
  }

  VirtualSite site;
  AllRanks<int32_t> ranks;
};

// One device after the other dies in mid-message, until one is left. That message ends with the name of the
// dead, soon after it is missed; the next ones take no longer than before, and have exactly those that live.
TEST(LocalRing, FormsAnewAfterEachDeath) {
  for (const uint8_t nodes : {uint8_t{3}, uint8_t{4}, uint8_t{8}}) {
    for (int policy = 0; policy <= static_cast<int>(StragglerPolicy::kLeafDemote); ++policy) {
      SCOPED_TRACE(std::to_string(nodes) + " devices, policy " + std::to_string(policy));
      Ring ring(nodes, {.policy = static_cast<StragglerPolicy>(policy), .skip_after = milliseconds(1)});
      Duration usual{0};
      for (int i = 0; i < 10; ++i) {
        ring.PostNext(ring.Living());
        ring.site.RunFor(milliseconds(20));
        ring.ExpectEnds(WorkStatus::kSuccess, 0);
        usual = std::max(usual, ring.Slowest());
      }
      uint64_t dead = 0;
      for (const uint8_t victim : {uint8_t{1}, uint8_t{0}, uint8_t(nodes - 1)}) {
        if (std::popcount(ring.Living()) == 1) break;
        ring.PostNext(ring.Living());
        ring.site.RunFor(microseconds(7));
        ring.site.Kill(victim);
        dead |= BitOf(victim);
        ring.site.RunFor(milliseconds(1300));
        ring.ExpectEnds(WorkStatus::kPeerDead, dead);
        for (int i = 0; i < 3; ++i) {
          ring.PostNext(ring.Living());
          ring.site.RunFor(milliseconds(20));
          ring.ExpectEnds(WorkStatus::kPartial, dead);
          ring.ExpectSumsOf(ring.Living());
          EXPECT_LE(ring.Slowest(), 2 * usual);
        }
      }
      EXPECT_GE(std::popcount(dead), std::min(3, nodes - 1));
    }
  }
}

// Loss, duplication and reordering; the dead had not begun the message.
TEST(LocalRing, FormsAnewOverABadNetwork) {
  Ring ring(4, {}, {.loss = 0.1, .duplication = 0.1, .reordering = 0.1});
  ring.PostNext(0b1111);
  ring.site.RunFor(seconds(3));
  ring.ExpectEnds(WorkStatus::kSuccess, 0);
  ring.site.Kill(2);
  ring.PostNext(0b1011);
  ring.site.RunFor(seconds(2));
  ring.ExpectEnds(WorkStatus::kPeerDead, 0b0100);
  ring.PostNext(0b1011);
  ring.site.RunFor(seconds(3));
  ring.ExpectEnds(WorkStatus::kPartial, 0b0100);
  ring.ExpectSumsOf(0b1011);
}

// A request that allows no partial result names the dead at once; its caller decides which nodes go on.
TEST(LocalRing, WithoutAllowPartialTheDeadAreNamedAtOnce) {
  Ring ring(4, {}, {}, 0);
  ring.PostNext(0b1111);
  ring.site.RunFor(milliseconds(20));
  ring.site.Kill(3);
  ring.PostNext(0b0111);
  ring.site.RunFor(milliseconds(1300));
  ring.ExpectEnds(WorkStatus::kPeerDead, 0b1000);
  ring.PostNext(0b0111);
  ring.site.RunFor(microseconds(1));
  ring.ExpectEnds(WorkStatus::kPeerDead, 0b1000);
  ring.site.Configure({.nodes = 0b0111});
  ring.PostNext(0b0111);
  ring.site.RunFor(milliseconds(20));
  ring.ExpectEnds(WorkStatus::kSuccess, 0);
  ring.ExpectSumsOf(0b0111);
}

// A device that comes back is in again once the job is configured anew.
TEST(LocalRing, AConfigurationTakesADeviceInAgain) {
  Ring ring(3);
  ring.PostNext(0b111);
  ring.site.RunFor(milliseconds(20));
  ring.site.Kill(1);
  ring.PostNext(0b101);
  ring.site.RunFor(milliseconds(1300));
  ring.ExpectEnds(WorkStatus::kPeerDead, 0b010);
  ring.site.Restart(1);
  ring.site.RunFor(milliseconds(10));
  ring.site.Register(1, 0, ring.ranks.at(1, 0));
  ring.site.Configure({.nodes = 0b111});
  ring.PostNext(0b111);
  ring.site.RunFor(milliseconds(20));
  ring.ExpectEnds(WorkStatus::kSuccess, 0);
  ring.ExpectSumsOf(0b111);
}

// Only one engine has found out, and its notice of the end is lost; they have posted the same message over
// different rings. Both ways: the node that knows more hears the other, or is heard by it.
TEST(LocalRing, DevicesThatDoNotAgreeOnWhoIsDeadLearnItFromEachOther) {
  for (const uint8_t knows : {uint8_t{0}, uint8_t{1}, uint8_t{2}}) {
    for (const bool first : {true, false}) {
      SCOPED_TRACE(std::to_string(knows) + (first ? " is first" : " is last"));
      Ring ring(4);
      ring.PostNext(0b1111);
      ring.site.RunFor(milliseconds(20));
      ring.site.Kill(3);
      ring.site.engine(knows).NodeGone(ring.site.now(), 3);
      const uint64_t others = 0b0111 & ~BitOf(knows);
      ring.PostNext(first ? BitOf(knows) : others);
      ring.site.RunFor(microseconds(200));
      --ring.ranks.request.mid;
      ring.PostNext(first ? others : BitOf(knows));
      ring.site.RunFor(milliseconds(100));  // much less than silence takes
      for (uint8_t node = 0; node < 3; ++node) {
        EXPECT_NE(ring.EndAt(node).status, WorkStatus::kOpMismatch);
        EXPECT_EQ(ring.EndAt(node).missing_nodes, 0b1000u) << int{node};
      }
      ring.PostNext(0b0111);
      ring.site.RunFor(milliseconds(20));
      ring.ExpectEnds(WorkStatus::kPartial, 0b1000);
      ring.ExpectSumsOf(0b0111);
    }
  }
}

// What the one that knows more sends is lost: it answers what the others send.
TEST(LocalRing, ADeviceThatKnowsLessIsTold) {
  Ring ring(4);
  ring.PostNext(0b1111);
  ring.site.RunFor(milliseconds(20));
  ring.site.Kill(3);
  ring.site.engine(2).NodeGone(ring.site.now(), 3);
  ring.site.filter = [](uint8_t, uint8_t, std::vector<uint8_t>& datagram) {
    const Header h = Parse(datagram)->header;
    return h.kind == PacketKind::kAbort || (h.flags & Header::kReformed) == 0;
  };
  ring.PostNext(0b0111);
  ring.site.RunFor(milliseconds(100));
  for (const uint8_t node : {uint8_t{0}, uint8_t{1}}) {
    EXPECT_EQ(ring.EndAt(node).status, WorkStatus::kPeerDead);
    EXPECT_EQ(ring.EndAt(node).missing_nodes, 0b1000u);
  }
  ring.site.filter = nullptr;
  ring.site.RunFor(milliseconds(300));
  ring.ExpectEnds(WorkStatus::kPeerDead, 0b1000);
}

// It is alive, and finds out that the others go on without it.
TEST(LocalRing, ADeviceThatIsTakenForDeadIsTold) {
  Ring ring(3);
  ring.PostNext(0b111);
  ring.site.RunFor(milliseconds(20));
  ring.PostNext(0b110);
  ring.site.RunFor(milliseconds(1));
  ring.site.engine(0).NodeGone(ring.site.now(), 2);
  ring.PostNext(0b111);
  ring.site.RunFor(milliseconds(100));
  EXPECT_EQ(ring.EndAt(2).status, WorkStatus::kPeerDead);
  EXPECT_EQ(ring.EndAt(2).missing_nodes, 0b100u);
  ring.PostNext(0b111);
  ring.site.RunFor(milliseconds(100));
  EXPECT_EQ(ring.EndAt(2).status, WorkStatus::kPeerDead);
  EXPECT_EQ(ring.EndAt(2).missing_nodes, 0b100u);
  EXPECT_EQ(ring.EndAt(0).status, WorkStatus::kPartial);
  EXPECT_EQ(ring.EndAt(1).status, WorkStatus::kPartial);
}

// Its engine answers, though three of ten packets are lost.
TEST(LocalRing, ADeviceWhoseRankIsSlowIsNotDead) {
  Ring ring(3, {}, {.loss = 0.3});
  ring.PostNext(0b111);
  ring.site.RunFor(seconds(5));
  ring.PostNext(0b011);
  ring.site.RunFor(seconds(9));
  --ring.ranks.request.mid;
  ring.PostNext(0b100);
  ring.site.RunFor(seconds(5));
  ring.ExpectEnds(WorkStatus::kSuccess, 0);
}

// It may not have started.
TEST(LocalRing, ADeviceThatWasNeverHeardIsWaitedFor) {
  Ring ring(3, {.deadline = seconds(5)});
  ring.site.Kill(2);
  ring.PostNext(0b011);
  ring.site.RunFor(seconds(4));
  EXPECT_EQ(ring.site.CountOf(0, 0, 1), 0u);
  ring.site.RunFor(seconds(16));
  EXPECT_EQ(ring.EndAt(0).status, WorkStatus::kTimeout);
  EXPECT_EQ(ring.EndAt(0).missing_nodes & 0b100, 0b100u);
}

// The engine lives: it answers for its device with the name. Nothing but the next message tells the others.
TEST(LocalRing, ADeviceThatIsClosedAnswersThatItIs) {
  Ring ring(3);
  ring.PostNext(0b111);
  ring.site.RunFor(milliseconds(20));
  ring.site.engine(1).RankGone(ring.site.now(), 0);
  ring.PostNext(0b101);
  ring.site.RunFor(milliseconds(20));
  for (const uint8_t node : {uint8_t{0}, uint8_t{2}}) {
    EXPECT_EQ(ring.EndAt(node).status, WorkStatus::kPeerDead);
    EXPECT_EQ(ring.EndAt(node).missing_nodes, 0b010u);
  }
  ring.PostNext(0b101);
  ring.site.RunFor(milliseconds(20));
  EXPECT_EQ(ring.EndAt(0).status, WorkStatus::kPartial);
  EXPECT_EQ(ring.EndAt(2).missing_nodes, 0b010u);
  EXPECT_EQ(ring.ranks.at(2, 0).receive[7], Small(0, 0, 7) + Small(2, 0, 7));
}

// What a device has of a message that its rank never posted is no reason to wait for it.
TEST(LocalRing, ADeviceThatIsClosedBeforeItPostsEndsWhatTheOthersWaitFor) {
  Ring ring(3);
  ring.PostNext(0b101);
  ring.site.RunFor(milliseconds(5));
  ring.site.engine(1).RankGone(ring.site.now(), 0);
  ring.site.RunFor(milliseconds(5));
  EXPECT_EQ(ring.EndAt(0).status, WorkStatus::kPeerDead);
  EXPECT_EQ(ring.EndAt(2).missing_nodes, 0b010u);
}

TEST(LocalRing, WhatNeedsTheDeadDoesNotGoOn) {
  Ring ring(3);
  ring.PostNext(0b111);
  ring.site.RunFor(milliseconds(20));
  ring.site.Kill(2);
  for (uint8_t node = 0; node < 2; ++node) ring.site.engine(node).NodeGone(ring.site.now(), 2);
  ring.ranks.request.opcode = Opcode::kReduce;
  for (const uint8_t root : {uint8_t{2}, uint8_t{0}}) {
    ring.ranks.request.root_node = root;
    ring.PostNext(0b011);
    ring.site.RunFor(milliseconds(20));
    ring.ExpectEnds(root == 2 ? WorkStatus::kPeerDead : WorkStatus::kPartial, 0b100);
  }
  ring.ranks.request.opcode = Opcode::kReduceScatter;  // every share would be another
  ring.PostNext(0b011);
  ring.site.RunFor(milliseconds(20));
  ring.ExpectEnds(WorkStatus::kPeerDead, 0b100);
}

TEST(LocalRing, AnAverageIsThatOfTheLiving) {
  Ring ring(4);
  ring.ranks.request.op = ReduceOp::kAverage;
  for (uint8_t node = 0; node < 3; ++node) ring.site.engine(node).NodeGone(ring.site.now(), 3);
  ring.site.Kill(3);
  ring.PostNext(0b0111);
  ring.site.RunFor(milliseconds(20));
  ring.ExpectEnds(WorkStatus::kPartial, 0b1000);
  EXPECT_EQ(ring.ranks.at(1, 0).receive[9], (0 + 1000 + 2000) / 3 + 9);
}

// Devices of this process: closing one is known at once, and the next message is a ring of the others.
TEST(LocalRing, DevicesOfOneProcess) {
  for (const uint8_t nodes : {uint8_t{3}, uint8_t{4}, uint8_t{8}}) {
    SCOPED_TRACE(int{nodes});
    const SiteOptions site{.nodes = nodes, .ranks_per_node = 1};
    std::vector<Device> devices;
    std::vector<RankArrays> arrays;
    devices.reserve(nodes);
    for (uint8_t node = 0; node < nodes; ++node) {
      devices.push_back(Device::Open("inproc:local-ring-" + std::to_string(nodes), {node, 0, site}).value());
      ASSERT_TRUE(devices.back().Configure(0, {.nodes = (uint64_t{1} << nodes) - 1}, 999).ok());
      ASSERT_EQ(NextOf(devices.back()).status, WorkStatus::kSuccess);
      arrays.emplace_back(devices.back(), kElements, 1000 * node);
    }
    uint32_t mid = 0;
    const auto reduce = [&](uint8_t from, uint8_t posts) {
      ++mid;
      for (uint8_t node = from; node < posts; ++node) {
        WorkRequest request = arrays[node].Request(mid, mid);
        request.flags = kPartialAllowed;
        ASSERT_TRUE(devices[node].Post({&request, 1}).ok());
      }
    };
    reduce(0, nodes);
    for (Device& device : devices) EXPECT_EQ(NextOf(device).status, WorkStatus::kSuccess);
    for (uint8_t dead = 0; dead + 1 < nodes; ++dead) {
      const uint64_t out = (uint64_t{2} << dead) - 1;
      reduce(dead + 1, nodes);  // the victim does not post
      devices[dead].Close();
      for (uint8_t node = dead + 1; node < nodes; ++node) {
        const Completion c = NextOf(devices[node]);
        EXPECT_EQ(c.status, WorkStatus::kPeerDead) << WorkStatusName(c.status);
        EXPECT_EQ(c.missing_nodes, out);
      }
      reduce(dead + 1, nodes);
      for (uint8_t node = dead + 1; node < nodes; ++node) {
        const Completion c = NextOf(devices[node]);
        EXPECT_EQ(c.status, WorkStatus::kPartial) << WorkStatusName(c.status);
        EXPECT_EQ(c.missing_nodes, out);
        int32_t sum = 0;
        for (int other = dead + 1; other < nodes; ++other) sum += 1000 * other + 11;
        EXPECT_EQ(arrays[node].receive[11], sum);
      }
    }
  }
}

}  // namespace
}  // namespace longhaul::offload
