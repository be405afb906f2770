// Downlink lossy in virtual time: whole cores, and a checker of its own that knows what the server has (it is
// computed here, and pulled) and what every worker has (its results).
//
//   workers, site 1 ──[ no loss ]──► server, site 0 ──[ loss ]──► workers
//
// Replicas may be behind by one round in what they missed, never by two, and are equal in hash rounds.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "codec/policy/state_hash.h"
#include "server/results/lossy_downlink.h"
#include "server/server_core.h"
#include "tests/sim/reference_coder.h"
#include "tests/sim/simulated_host.h"
#include "wan/link_options.h"
#include "worker/client/replica.h"
#include "worker/client/worker_core.h"

namespace longhaul::sim {
namespace {

using Values = std::vector<float>;

struct Options {
  std::string up = "rate 100mbit delay 10ms";
  std::string down = "rate 100mbit delay 10ms loss 20%";
  Downlink downlink = Downlink::kLossy;
  uint64_t rounds = 24;
  uint32_t hash_rounds = 6;
  uint64_t seed = 1;
  bool exact = true;  // nothing is lost upwards: the values follow from the gradients
};

class Job {
 public:
  static constexpr uint32_t kWorkers = 4;
  static constexpr uint64_t kCount = 30'000;
  static constexpr Duration kRoundLimit = std::chrono::seconds(60);

  explicit Job(const Options& options)
      : options_(options), network_({.seed = options.seed}), chance_(options.seed), model_(kCount) {
    server::ServerCoreOptions server;
    server.settings.world_size = server.settings.min_workers = kWorkers;
    server.settings.downlink = options.downlink;
    server.settings.hash_rounds = options.hash_rounds;
    server.settings.policy = LossPolicy::kResidual;
    server.settings.close_ratio = 1;
    const auto server_site = network_.AddSite("server");
    const auto site = network_.AddSite("workers");
    server_ = std::make_unique<server::ServerCore>(server, &coder_, chance_.Fork(1));
    server_host_ = std::make_unique<SimulatedHost>(&network_, kServer, server_site, server_.get());
    network_.SetLink(site, server_site, *wan::ParseLinkOptions(options.up));
    network_.SetLink(server_site, site, *wan::ParseLinkOptions(options.down));
    for (uint32_t rank = 0; rank < kWorkers; ++rank) AddWorker(rank, site);
  }

  void Run() {
    for (auto& worker : workers_) {
      worker.core->Start(network_.now(), kServer);
      worker.host->Pump();
    }
    while (failure_.empty() && round_ < options_.rounds) {
      if (network_.now() > begun_ + kRoundLimit) failure_ = "no end of round " + std::to_string(round_);
      if (!network_.Step()) failure_ = "nothing happens any more";
      for (auto& worker : workers_) {
        if (!worker.core->failure().ok()) failure_ = worker.core->failure().ToString();
      }
    }
    // The report of the last round.
    network_.RunFor(std::chrono::seconds(1));
  }

  const std::string& failure() const { return failure_; }
  uint64_t stale_values() const { return stale_values_; }
  uint64_t diverged_rounds() const { return diverged_rounds_; }
  server::ServerStats server_stats() const { return server_->stats(); }
  ClientStats worker_stats(uint32_t rank) const { return workers_[rank].core->stats(); }

 private:
  struct Worker {
    std::unique_ptr<worker::WorkerCore> core;
    std::unique_ptr<SimulatedHost> host;
    worker::TensorHandle handle = 0;
    Values gradient = Values(kCount);
    Values out = Values(kCount, -1.0f);
    std::vector<bool> stale = std::vector<bool>(kCount, false);  // in the round before
  };
  const Address kServer = Address::V4(10, 0, 0, 1, 7700);

  void AddWorker(uint32_t rank, wan::VirtualNetwork::SiteId site) {
    const worker::WorkerCoreOptions options{.rank = rank, .world_size = kWorkers};
    Worker& worker = workers_.emplace_back();
    worker.core = std::make_unique<worker::WorkerCore>(options, &coder_, chance_.Fork(100 + rank));
    worker.host = std::make_unique<SimulatedHost>(
        &network_, Address::V4(10, 0, 1, static_cast<uint8_t>(rank + 1), 9000), site, worker.core.get());
    worker.core->SetStateListener([this, rank](worker::WorkerCore::State state) {
      if (state == worker::WorkerCore::State::kStarted) Declare(rank);
    });
  }

  void Declare(uint32_t rank) {
    const worker::Declaration declaration{.name = "w", .count = kCount, .optimizer = "sgd:lr=0.5"};
    workers_[rank].core->Declare(declaration, [this, rank](const Result<worker::TensorHandle>& handle) {
      if (!handle.ok()) return Fail(handle.status().ToString());
      workers_[rank].handle = *handle;
      if (++ready_ == kWorkers) network_.Schedule(network_.now(), [this] { StartRound(); });
    });
  }

  // Positive multiples of one quarter after the mean: sums are exact, every value changes in every round.
  void StartRound() {
    begun_ = network_.now();
    running_ = kWorkers;
    for (uint64_t i = 0; i < kCount; ++i) {
      float sum = 0;
      for (Worker& worker : workers_) {
        const auto scale = static_cast<float>(1 + i / 700 % 5);
        sum += worker.gradient[i] = scale * static_cast<float>(1 + chance_.Below(4));
      }
      model_[i] -= 0.5f * (sum / kWorkers);
    }
    for (Worker& worker : workers_) {
      worker.core->PushPull(worker.handle, worker.gradient, worker.out,
                            [this](const Status& outcome, const OperationStats&) {
                              if (!outcome.ok()) return Fail(outcome.ToString());
                              if (--running_ == 0) network_.Schedule(network_.now(), [this] { Pull(); });
                            });
      worker.host->Pump();
    }
  }

  void Pull() {
    Worker& worker = workers_[0];
    worker.core->Pull(worker.handle, servers_, {.min_round = round_ + 1},
                      [this](const Status& outcome, const OperationStats& stats) {
                        if (!outcome.ok()) return Fail(outcome.ToString());
                        if (stats.round != round_ + 1) return Fail("pulled another version");
                        network_.Schedule(network_.now(), [this] { EndRound(); });
                      });
    worker.host->Pump();
  }

  void EndRound() {
    Check();
    before_ = servers_;
    if (++round_ < options_.rounds && failure_.empty()) StartRound();
  }

  // Element by element: what the worker has is the server's, or what the server had one round before, and
  // that not in two rounds running.
  void Check() {
    const std::string when = " in round " + std::to_string(round_);
    if (options_.exact && servers_ != model_) return Fail("the server's values are not the model's" + when);
    const bool hash = codec::IsHashRound(round_, options_.hash_rounds);
    for (uint32_t rank = 0; rank < kWorkers; ++rank) {
      Worker& worker = workers_[rank];
      uint64_t stale = 0;
      for (uint64_t i = 0; i < kCount; ++i) {
        const bool is_new = worker.out[i] == servers_[i];
        if (!is_new && (before_.empty() || worker.out[i] != before_[i])) {
          return Fail("worker " + std::to_string(rank) + " has a value of its own" + when);
        }
        if (!is_new && worker.stale[i]) return Fail("two rounds behind" + when);
        worker.stale[i] = !is_new;
        stale += is_new ? 0 : 1;
      }
      if (hash && stale > 0) return Fail("replicas differ in hash round " + std::to_string(round_));
      stale_values_ += stale;
      diverged_rounds_ += stale > 0 ? 1 : 0;
    }
  }

  void Fail(const std::string& why) {
    if (failure_.empty()) failure_ = why;
  }

  Options options_;
  wan::VirtualNetwork network_;
  Random chance_;
  codec::ReferenceCoder coder_;
  std::unique_ptr<server::ServerCore> server_;
  std::unique_ptr<SimulatedHost> server_host_;
  std::vector<Worker> workers_;
  Values model_;
  Values servers_ = Values(kCount);
  Values before_;
  uint64_t round_ = 0;
  uint32_t ready_ = 0;
  uint32_t running_ = 0;
  uint64_t stale_values_ = 0;
  uint64_t diverged_rounds_ = 0;
  Instant begun_;
  std::string failure_;
};

void ExpectDivergesAndAgrees(const Options& options) {
  SCOPED_TRACE("seed " + std::to_string(options.seed));
  Job job(options);
  job.Run();
  ASSERT_EQ(job.failure(), "");
  EXPECT_GT(job.stale_values(), 0u) << "something must have been lost, else this shows nothing";
  EXPECT_GT(job.diverged_rounds(), options.rounds);
  uint64_t lost = 0;
  for (uint32_t rank = 0; rank < Job::kWorkers; ++rank) {
    const ClientStats stats = job.worker_stats(rank);
    // Of every hash round and of the round before it, unless a CLOSE that was lost came after the hash
    // round's end.
    const uint64_t hash_rounds = options.rounds / options.hash_rounds;
    EXPECT_LE(stats.state_hashes_agreed, 2 * hash_rounds) << rank;
    EXPECT_GE(stats.state_hashes_agreed, options.exact ? 2 * hash_rounds : hash_rounds + 1) << rank;
    EXPECT_EQ(stats.state_hash_mismatches, 0u);
    lost += stats.result_chunks_lost;
  }
  const server::ServerStats server = job.server_stats();
  EXPECT_EQ(server.result_chunks_lost, lost) << "both sides count the same";
  EXPECT_EQ(server.result_chunks_repaid, lost) << "the last round is a hash round";
  EXPECT_EQ(server.state_hashes, options.rounds / options.hash_rounds);
}

TEST(LossyDownlink, ReplicasDivergeByOneRoundAndAgreeInHashRounds) {
  for (uint64_t seed = 1; seed <= 3; ++seed) ExpectDivergesAndAgrees({.seed = seed});
}

TEST(LossyDownlink, SoTheyDoWithBurstsAndReordering) {
  ExpectDivergesAndAgrees({.down = "rate 100mbit delay 10ms jitter 3ms loss 10% burst 10", .seed = 5});
}

// CLOSEs, acknowledgements and gradients are lost as well.
TEST(LossyDownlink, SoTheyDoWithLossBothWays) {
  const std::string link = "rate 100mbit delay 10ms loss 20%";
  for (uint64_t seed = 1; seed <= 3; ++seed) {
    ExpectDivergesAndAgrees({.up = link, .down = link, .seed = seed, .exact = false});
  }
}

// --- The books of both ends by themselves, and what happens when one of them is wrong ---

enum class Mistake : uint8_t {
  kNone,
  kReceiptForgotten,   // the server takes what was missed for received, and so does not repay it
  kRepaymentDropped,   // what is owed arrives, but the worker does not write it
  kChunkWrittenWrong,  // a chunk that arrives is damaged in the worker's memory
};

// Rounds until a difference is named. hash_rounds: 8.
std::string FirstComplaint(Mistake mistake, uint64_t seed, uint64_t* agreed) {
  constexpr codec::ChunkGeometry kGeometry{.count = 400, .chunk_elements = 10};
  Random random(seed);
  server::LossyDownlink downlink(kGeometry, {.high_share = 0.2, .high_energy = 0, .hash_rounds = 8});
  worker::Replica replica(kGeometry, 8);
  Values values(kGeometry.count);
  transport::ChunkBitmap owed(kGeometry.chunks());
  std::string complaint;
  const auto judge = [&](const Status& status) {
    if (complaint.empty() && !status.ok()) complaint = status.message();
  };
  for (uint64_t round = 0; round < 64 && complaint.empty(); ++round) {
    downlink.BeginRound(round);
    const Values before = values;
    for (float& value : values) value += static_cast<float>(random.Uniform());
    transport::ChunkBitmap missed(kGeometry.chunks());
    transport::ChunkBitmap received(kGeometry.chunks());
    const transport::ChunkBitmap low = downlink.Low(0, round);
    for (uint32_t chunk = 0; chunk < kGeometry.chunks(); ++chunk) {
      const std::span<const float> now = kGeometry.Elements(std::span<const float>(values), chunk);
      downlink.ChangedBy(chunk, kGeometry.Elements(std::span<const float>(before), chunk), now);
      if (low.Test(chunk) && random.Chance(0.3)) {
        missed.Set(chunk);
        continue;
      }
      received.Set(chunk);
      // In the round before a hash round, whose own result would heal it.
      const bool here = round == 22;
      if (here && mistake == Mistake::kRepaymentDropped && owed.Test(chunk)) continue;
      std::ranges::copy(now, kGeometry.Elements(replica.writable(), chunk).begin());
      const bool first = received.count() == 1;
      if (here && mistake == Mistake::kChunkWrittenWrong && first) {
        kGeometry.Elements(replica.writable(), chunk).front() += 1;
      }
    }
    judge(replica.OnResult(round, received));
    if (codec::IsHashRound(round, 8)) {
      judge(replica.OnServerHash(round, codec::StateHash(values)));
      if (const auto hash = downlink.ReplicaHash(0, round - 1))
        judge(replica.OnReplicaHash(round - 1, *hash));
    }
    owed = missed;
    const bool forgets = mistake == Mistake::kReceiptForgotten && round == 22;
    downlink.OnReceipt(0, round, forgets ? transport::ChunkBitmap(kGeometry.chunks()) : missed);
  }
  *agreed = replica.stats().agreed;
  return complaint;
}

// A hash round alone sees none of these: whatever went wrong before is overwritten by its own result.
TEST(LossyDownlinkBooks, WhatIsForgottenIsNamedByTheHashOfTheRoundBefore) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    uint64_t agreed = 0;
    EXPECT_EQ(FirstComplaint(Mistake::kNone, seed, &agreed), "") << seed;
    EXPECT_EQ(agreed, 2 * 64u / 8) << seed;
    for (const Mistake mistake :
         {Mistake::kReceiptForgotten, Mistake::kRepaymentDropped, Mistake::kChunkWrittenWrong}) {
      EXPECT_THAT(
          FirstComplaint(mistake, seed, &agreed),
          testing::HasSubstr("after round 22 this worker's values are not what the server takes them for"))
          << "seed " << seed << " mistake " << static_cast<int>(mistake);
    }
  }
}

TEST(LossyDownlink, WithAReliableOneNothingIsLostAndNothingHashed) {
  Job job({.downlink = Downlink::kReliable});
  job.Run();
  ASSERT_EQ(job.failure(), "");
  EXPECT_EQ(job.stale_values(), 0u);
  EXPECT_EQ(job.server_stats().state_hashes, 0u);
  EXPECT_EQ(job.worker_stats(0).state_hashes_agreed, 0u);
}

}  // namespace
}  // namespace longhaul::sim
