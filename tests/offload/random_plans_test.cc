// Random sites, messages, orders and links against the plain reference: bitwise equal, no seg leaked, nothing
// hangs.
#include <gtest/gtest.h>

#include <cstdlib>
#include <random>

#include "tests/offload/all_reduce.h"

namespace longhaul::offload {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::seconds;

LinkFaults RandomFaults(Random& random) {
  LinkFaults faults;
  if (random.Chance(0.7)) faults.loss = random.Uniform() * 0.2;
  if (random.Chance(0.7)) faults.duplication = random.Uniform() * 0.2;
  if (random.Chance(0.7)) faults.reordering = random.Uniform() * 0.3;
  if (random.Chance(0.5)) faults.stale = random.Uniform() * 0.2;
  faults.delay = microseconds(1 + random.Below(200));
  return faults;
}

class Plan {
 public:
  static constexpr uint32_t kMostNodes = 5;

  explicit Plan(uint64_t seed) : random_(seed) {
    VirtualSiteOptions options;
    options.seed = seed;
    options.nodes = static_cast<uint8_t>(1 + random_.Below(kMostNodes));
    options.ranks = static_cast<uint8_t>(1 + random_.Below(4));
    options.faults = RandomFaults(random_);
    options.engine.seg_bytes = static_cast<uint32_t>(64 * (1 + random_.Below(8)));
    // The least pools are slow: a refused partial comes back after up to 250 ms.
    options.engine.pool_segs = static_cast<uint32_t>(2 * (kMostNodes + 1) + random_.Below(200));
    options.engine.window_segs = static_cast<uint32_t>(1 + random_.Below(64));
    JobConfig job;
    job.route = options.nodes > 1 && random_.Chance(0.4) ? Route::kTree : Route::kRing;
    options.aggregator = job.route == Route::kTree && random_.Chance(0.5);
    job.root_node = options.aggregator ? options.nodes : static_cast<uint8_t>(random_.Below(options.nodes));
    job.policy = static_cast<StragglerPolicy>(random_.Below(5));
    job.skip_after = microseconds(1 + random_.Below(1000));
    site_ = std::make_unique<VirtualSite>(options);
    job.nodes = site_->all_nodes();
    what_ = std::to_string(options.nodes) + " nodes of " + std::to_string(options.ranks) +
            (options.aggregator          ? ", aggregator"
             : job.route == Route::kTree ? ", tree"
                                         : ", ring") +
            ", policy " + std::to_string(static_cast<int>(job.policy)) + ", pool " +
            std::to_string(options.engine.pool_segs) + ", window " +
            std::to_string(options.engine.window_segs);
    site_->Configure(job);
    site_->RunFor(seconds(2));  // the aggregator has it
    tree_root_ = job.route == Route::kTree && options.nodes > 1 ? std::optional(job.root_node) : std::nullopt;
  }

  template <typename T>
  void Messages(bool deterministic) {
    std::vector<std::unique_ptr<AllRanks<T>>> messages;
    struct Piece {
      size_t message;
      uint8_t node, rank;
      uint32_t first, count;
    };
    std::vector<Piece> pieces;
    const size_t count = 1 + random_.Below(4);
    for (size_t m = 0; m < count; ++m) {
      const uint64_t salt = random_.Next();
      messages.push_back(std::make_unique<AllRanks<T>>(
          *site_, 1 + random_.Below(6000), [salt](uint8_t node, uint8_t rank, size_t i) {
            const uint64_t mix = ((salt ^ (i * 16 + node)) * 64 + rank) * 0x9e3779b97f4a7c15;
            return static_cast<T>(static_cast<int32_t>(mix >> 33)) / static_cast<T>(1 + mix % 7);
          }));
      AllRanks<T>& message = *messages.back();
      message.request.mid = next_mid_++;
      message.request.deadline = seconds(60);
      message.tree_root = tree_root_;
      if (deterministic) message.request.flags = WorkRequest::kDeterministic;
      const auto segs =
          static_cast<uint32_t>(SegCount(message.request.length, site_->engine(0).options().seg_bytes));
      for (uint8_t node = 0; node < site_->nodes(); ++node) {
        for (uint8_t rank = 0; rank < site_->ranks(); ++rank) {
          const uint32_t cut =
              random_.Chance(0.3) && segs > 1 ? 1 + static_cast<uint32_t>(random_.Below(segs - 1)) : 0;
          if (cut > 0) pieces.push_back({m, node, rank, 0, cut});
          pieces.push_back({m, node, rank, cut, segs - cut});
        }
      }
    }
    for (size_t i = pieces.size(); i > 1; --i) std::swap(pieces[i - 1], pieces[random_.Below(i)]);
    uint64_t wr_id = next_wr_;
    for (const Piece& piece : pieces) {
      WorkRequest request = messages[piece.message]->RequestOf(piece.node, piece.rank, next_wr_++);
      request.first_seg = piece.first;
      request.seg_count = piece.count;
      site_->Post(piece.node, piece.rank, request);
      if (random_.Chance(0.5)) site_->RunFor(microseconds(random_.Below(3000)));
    }
    site_->RunFor(seconds(60));
    for (const Piece& piece : pieces) {
      ASSERT_EQ(site_->CountOf(piece.node, piece.rank, wr_id), 1u) << "a request hangs";
      ASSERT_EQ(site_->CompletionOf(piece.node, piece.rank, wr_id++).status, WorkStatus::kSuccess)
          << Stats() << "node " << int{piece.node} << " rank " << int{piece.rank} << " message "
          << piece.message;
    }
    for (auto& message : messages) ASSERT_TRUE(message->AllReceived(message->Expected()));
    site_->RunFor(seconds(30));
    ASSERT_EQ(site_->SegsInUse(), 0u);
    for (uint8_t node = 0; node < site_->nodes(); ++node) {
      ASSERT_EQ(site_->engine(node).stats().overlaps_refused, 0u);
    }
  }

  Random& random() { return random_; }
  const std::string& what() const { return what_; }

 private:
  std::string Stats() {
    std::string text;
    for (uint8_t node = 0; node < std::popcount(site_->all_nodes()); ++node) {
      const OffloadStats stats = site_->engine(node).stats();
      text += "engine " + std::to_string(node) + ":";
      for (const auto& counter : kOffloadCounters) {
        if (const auto* field = std::get_if<uint64_t OffloadStats::*>(&counter.field)) {
          if (stats.**field > 0)
            text += " " + std::string(counter.name) + " " + std::to_string(stats.**field);
        }
      }
      text += "\n";
    }
    return text;
  }

  Random random_;
  std::unique_ptr<VirtualSite> site_;
  std::optional<uint8_t> tree_root_;
  std::string what_;
  uint32_t next_mid_ = 0;
  uint64_t next_wr_ = 100;
};

// LONGHAUL_SEED=N replays plan N; LONGHAUL_PLANS sets how many.
TEST(OffloadRandomPlans, AreBitwiseEqualToThePlainReference) {
  const char* const replay = std::getenv("LONGHAUL_SEED");
  const char* const plans = std::getenv("LONGHAUL_PLANS");
  const uint64_t first = replay != nullptr ? std::strtoull(replay, nullptr, 10) : std::random_device()();
  const uint64_t count = replay != nullptr ? 1 : plans != nullptr ? std::strtoull(plans, nullptr, 10) : 60;
  std::printf("first seed %llu\n", static_cast<unsigned long long>(first));
  for (uint64_t seed = first; seed < first + count && !HasFatalFailure(); ++seed) {
    SCOPED_TRACE("LONGHAUL_SEED=" + std::to_string(seed));
    Plan plan(seed);
    SCOPED_TRACE(plan.what());
    plan.Messages<int32_t>(plan.random().Chance(0.3));
    if (!HasFatalFailure()) plan.Messages<float>(true);
    if (!HasFatalFailure()) plan.Messages<int32_t>(false);
  }
}

}  // namespace
}  // namespace longhaul::offload
