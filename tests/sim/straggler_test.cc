// One worker of four is ten times slower than the others, by its link or by its computing time: what that
// costs the others, and whether its gradients still count. Whole cores in virtual time; every worker goes at
// its own pace.
//
//   worker i:  compute -> PushPull -> compute -> PushPull ...        each over a link of its own
//
// Every gradient is 1 at the elements of its worker and a small integer elsewhere, and the server takes steps
// of 1 along the mean. So the parameters tell how many gradients of each worker are in them, exactly.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "base/quantile.h"
#include "server/server_core.h"
#include "server/tensor/stragglers.h"
#include "tests/sim/reference_coder.h"
#include "tests/sim/simulated_host.h"
#include "wan/link_options.h"
#include "worker/client/worker_core.h"

namespace longhaul::sim {
namespace {

using std::chrono::milliseconds;

constexpr uint32_t kWorkers = 4;
constexpr uint32_t kSlow = kWorkers - 1;
constexpr uint32_t kPeriod = 8;       // one element in so many is a worker's own
constexpr size_t kElements = 40'000;  // 160 kB
constexpr uint64_t kLearning = 10;    // rounds, until the times of the others are known
constexpr double kFactor = 2;
constexpr Duration kDelay = milliseconds(5);
constexpr Duration kQueue = milliseconds(20);
constexpr double kHeaders = 1.04;  // IP packet over the gradient bytes in it

struct Scene {
  double rate_mbps = 16;
  double slow_rate_mbps = 16;
  Duration compute = milliseconds(60);
  Duration slow_compute = milliseconds(60);
  double factor = kFactor;
  int32_t staleness = 0;
  uint32_t quorum = 0;
  LossPolicy policy = LossPolicy::kResidual;
  double shift_alpha = 1;
  double high_share = 0.2;
  double loss = 0;
  uint64_t rounds = 40;
  uint64_t seed = 1;
};

struct Outcome {
  std::string failure;
  std::vector<Duration> others;  // PushPull of the other workers, once their times are known
  std::vector<Duration> rounds;  // at the server: first window opened to last chunk final; as above
  std::vector<uint64_t> pushed = std::vector<uint64_t>(kWorkers);
  std::vector<float>
      least;  // by rank: the fewest gradients of it that are in any of its elements, at its last push
  std::vector<float> most;    // ... and the most that are not
  std::vector<double> share;  // ... and how many are in, on average over its elements, by those pushed
  uint64_t last_round = 0;    // that the slow worker had the result of
  Duration slow_ended{0};
  server::MemberStats slow;
  uint64_t late_windows = 0;
  uint64_t epoch_refused = 0;
  // By how many pushes the values that a worker had at the end of one were behind it, at most: of its own
  // pushes, those that another worker had fewer of in them.
  float stalest = 0;
};

class Job final : public server::ServerEvents {
 public:
  explicit Job(const Scene& scene) : scene_(scene), network_({.seed = scene.seed}) {
    server::ServerCoreOptions server;
    server::ServerSettings& settings = server.settings;
    settings.world_size = settings.min_workers = kWorkers;
    settings.policy = scene.policy;
    settings.shift_alpha = scene.shift_alpha;
    settings.high_share = scene.high_share;
    settings.straggler_factor = scene.factor;
    settings.staleness = scene.staleness;
    settings.quorum = scene.quorum;
    server.events = this;
    const auto server_site = network_.AddSite("server");
    server_ = std::make_unique<server::ServerCore>(server, &coder_, Random(scene.seed));
    server_host_ = std::make_unique<SimulatedHost>(&network_, kServer, server_site, server_.get());
    for (uint32_t rank = 0; rank < kWorkers; ++rank) AddWorker(rank, server_site);
  }

  Outcome Run() {
    for (const auto& worker : workers_) {
      worker->core->Start(network_.now(), kServer);
      worker->host->Pump();
    }
    const Instant limit = network_.now() + std::chrono::seconds(60);
    while (outcome_.failure.empty() && !over_) {
      if (network_.now() > limit || !network_.Step()) Fail("comes to no end");
    }
    for (const auto& worker : workers_) {
      if (!worker->core->failure().ok()) Fail(worker->core->failure().ToString());
      if (!worker->host->violation().empty()) Fail(worker->host->violation());
    }
    if (!server_host_->violation().empty()) Fail(server_host_->violation());
    const server::ServerStats stats = server_->stats();
    outcome_.slow = stats.members.at(kSlow);
    outcome_.late_windows = stats.late_windows_taken;
    outcome_.epoch_refused = stats.epoch_refused;
    for (const auto& worker : workers_) {
      outcome_.least.push_back(worker->least);
      outcome_.most.push_back(worker->most);
      outcome_.share.push_back(worker->share);
    }
    return std::move(outcome_);
  }

  void OnRound(const server::JobRound& round, const server::ServerStats&) override {
    if (round.round >= kLearning) outcome_.rounds.push_back(round.duration);
  }

 private:
  struct Worker {
    std::unique_ptr<worker::WorkerCore> core;
    std::unique_ptr<SimulatedHost> host;
    worker::TensorHandle handle = 0;
    std::vector<float> gradient = std::vector<float>(kElements);
    std::vector<float> parameters = std::vector<float>(kElements);
    Random values{0};
    uint64_t pushes = 0;
    Instant begun;
    float least = 0;
    float most = 0;
    double share = 0;
  };

  const Address kServer = Address::V4(10, 0, 0, 1, 7700);

  void Fail(const std::string& why) {
    if (outcome_.failure.empty()) outcome_.failure = why;
  }

  void AddWorker(uint32_t rank, wan::VirtualNetwork::SiteId server_site) {
    const auto site = network_.AddSite("worker" + std::to_string(rank));
    wan::LinkOptions link;
    link.rate = Bandwidth::Mbps(rank == kSlow ? scene_.slow_rate_mbps : scene_.rate_mbps);
    link.delay = kDelay;
    link.queue_time = kQueue;
    link.loss = scene_.loss;
    network_.SetLinkBothWays(site, server_site, link);
    const worker::WorkerCoreOptions options{.rank = rank, .world_size = kWorkers};
    workers_.push_back(std::make_unique<Worker>());
    Worker& worker = *workers_.back();
    worker.values = Random(scene_.seed).Fork(1000 + rank);
    worker.core = std::make_unique<worker::WorkerCore>(options, &coder_, Random(100 + rank));
    worker.host = std::make_unique<SimulatedHost>(
        &network_, Address::V4(10, 0, 1, static_cast<uint8_t>(rank + 1), 9000), site, worker.core.get());
    worker.core->SetStateListener([this, rank](worker::WorkerCore::State state) {
      if (state == worker::WorkerCore::State::kStarted) Declare(rank);
    });
  }

  void Declare(uint32_t rank) {
    const worker::Declaration declaration{.name = "w", .count = kElements, .optimizer = "sgd:lr=1"};
    workers_[rank]->core->Declare(declaration, [this, rank](const Result<worker::TensorHandle>& handle) {
      if (!handle.ok()) return Fail(handle.status().ToString());
      workers_[rank]->handle = *handle;
      Compute(rank);
    });
  }

  void Compute(uint32_t rank) {
    const Duration time = rank == kSlow ? scene_.slow_compute : scene_.compute;
    network_.Schedule(network_.now() + time, [this, rank] {
      Push(rank);
      workers_[rank]->host->Pump();
    });
  }

  void Push(uint32_t rank) {
    Worker& worker = *workers_[rank];
    for (size_t e = 0; e < kElements; ++e) {
      const size_t slot = e % kPeriod;
      const auto fill = static_cast<float>(static_cast<int>(worker.values.Below(9)) - 4);
      worker.gradient[e] = slot >= kWorkers ? fill : slot == rank ? 1.0f : 0.0f;
    }
    ++worker.pushes;
    worker.begun = network_.now();
    worker.core->PushPull(
        worker.handle, worker.gradient, worker.parameters,
        [this, rank](const Status& outcome, const OperationStats& stats) { OnEnd(rank, outcome, stats); });
  }

  void OnEnd(uint32_t rank, const Status& outcome, const OperationStats& stats) {
    if (!outcome.ok()) return Fail("rank " + std::to_string(rank) + ": " + outcome.ToString());
    Worker& worker = *workers_[rank];
    Count(rank);
    for (size_t e = 0; e < kElements; ++e) {
      if (e % kPeriod >= kWorkers) continue;
      const float behind = static_cast<float>(worker.pushes) + worker.parameters[e] * kWorkers;
      outcome_.stalest = std::max(outcome_.stalest, behind);
    }
    if (rank == kSlow) {
      outcome_.pushed[rank] = worker.pushes;
      outcome_.last_round = stats.round;
      over_ = stats.round >= scene_.rounds;
    } else if (stats.round >= kLearning) {
      outcome_.others.push_back(network_.now() - worker.begun);
    }
    if (!over_) Compute(rank);
  }

  // How many of the rank's gradients are in its elements. With policy residual: all but what it still owes.
  // With shift the server adds what it expects of a worker that it does not hear: one in every round, since
  // all are 1.
  void Count(uint32_t rank) {
    Worker& worker = *workers_[rank];
    const std::span<const float> owed = worker.core->session().residual(worker.handle);
    worker.least = std::numeric_limits<float>::infinity();
    worker.most = 0;
    double sum = 0;
    for (size_t e = rank; e < kElements; e += kPeriod) {
      const float counted = -worker.parameters[e] * kWorkers;
      worker.least = std::min(worker.least, counted);
      sum += counted;
      if (owed.empty()) continue;
      worker.most = std::max(worker.most, owed[e]);
      if (counted + owed[e] == static_cast<float>(worker.pushes)) continue;
      return Fail("element " + std::to_string(e) + " of rank " + std::to_string(rank) + ": " +
                  std::to_string(counted) + " counted and " + std::to_string(owed[e]) + " owed of " +
                  std::to_string(worker.pushes));
    }
    worker.share = sum / static_cast<double>(worker.pushes) / (kElements / kPeriod);
  }

  Scene scene_;
  wan::VirtualNetwork network_;
  codec::ReferenceCoder coder_;
  std::unique_ptr<server::ServerCore> server_;
  std::unique_ptr<SimulatedHost> server_host_;
  std::vector<std::unique_ptr<Worker>> workers_;
  bool over_ = false;
  Outcome outcome_;
};

Duration Longest(const std::vector<Duration>& times) { return *std::max_element(times.begin(), times.end()); }

double Ms(Duration d) { return std::chrono::duration<double, std::milli>(d).count(); }

// What the close rule allows a round to take, of which the others alone take these times: the rule's formulae
// (server/tensor/stragglers.h, server/tensor/stragglers.h), written once more.
Duration Allowed(const std::vector<Duration>& alone, double factor, Duration longest_rtt) {
  const Duration median = Quantile(alone, 0.5);
  std::vector<Duration> deviations;
  for (const Duration time : alone) deviations.push_back(time > median ? time - median : median - time);
  const Duration spread =
      std::max({Quantile(deviations, 0.5), median / 16, Duration(std::chrono::milliseconds(1))});
  const Duration usual = median + 3 * spread;
  const Duration scaled(static_cast<int64_t>(factor * static_cast<double>(usual.count())));
  const Duration deadline = std::max({scaled, usual + 2 * longest_rtt, usual + milliseconds(50)});
  return deadline +
         std::max(longest_rtt, Duration(milliseconds(5)));  // one round trip for what was asked for
}

Outcome Simulate(const Scene& scene) {
  Outcome outcome = Job(scene).Run();
  EXPECT_EQ(outcome.failure, "");
  return outcome;
}

void Print(const char* what, const Outcome& o) {
  std::printf(
      "  %-28s others p50 %.0f p99 %.0f max %.0f ms; at the server p50 %.0f max %.0f ms; slow one: "
      "%llu pushes in %llu rounds, in the model %.3f of them on average, %.0f at least, %.0f owed at most, "
      "left out %llu times\n",
      what, Ms(Quantile(o.others, 0.5)), Ms(Quantile(o.others, 0.99)), Ms(Longest(o.others)),
      Ms(Quantile(o.rounds, 0.5)), Ms(Longest(o.rounds)), static_cast<unsigned long long>(o.pushed[kSlow]),
      static_cast<unsigned long long>(o.last_round), o.share[kSlow], static_cast<double>(o.least[kSlow]),
      static_cast<double>(o.most[kSlow]), static_cast<unsigned long long>(o.slow.excluded));
}

struct Case {
  const char* name;
  bool by_link = false;  // else by computing time
  LossPolicy policy = LossPolicy::kResidual;
  double loss = 0;
};

class SlowWorker : public testing::TestWithParam<Case> {
 protected:
  SlowWorker() {
    alone_.policy = GetParam().policy;
    alone_.loss = GetParam().loss;
    slow_ = alone_;
    if (GetParam().by_link) {
      slow_.slow_rate_mbps = alone_.rate_mbps / 10;
    } else {
      slow_.slow_compute = 10 * (alone_.compute + down_ + 2 * kDelay);
    }
  }

  Scene alone_;
  Scene slow_;
  const Duration down_ =
      Bandwidth::Mbps(alone_.rate_mbps)
          .TransferTime(ByteCount(static_cast<int64_t>(kHeaders * kElements * sizeof(float))));
};

TEST_P(SlowWorker, DelaysTheOthersByNoMoreThanTheCloseRuleSaysAndItsGradientsCount) {
  const Outcome alone = Simulate(alone_);
  const Outcome with = Simulate(slow_);
  slow_.factor = 0;
  slow_.rounds = 12;
  const Outcome patient = Simulate(slow_);
  ASSERT_FALSE(HasFailure());
  const Duration allowed = Allowed(alone.rounds, kFactor, 2 * (kDelay + kQueue));
  std::printf("  by the rule: %.0f ms at the server\n", Ms(allowed));
  Print("nobody is slow:", alone);
  Print("one is, factor 2:", with);
  Print("one is, all wait for it:", patient);

  // What was waited for last still has to come down, and the request before it had to get there.
  EXPECT_LE(Longest(with.others), allowed + down_ + 2 * kDelay);
  EXPECT_GT(Quantile(patient.others, 0.5), 2 * Longest(with.others)) << "or it is not slow";
  EXPECT_GT(with.slow.excluded, 0u);

  EXPECT_GT(with.pushed[kSlow], with.last_round / 10);
  EXPECT_LT(with.pushed[kSlow], with.last_round / 2);
  if (GetParam().policy == LossPolicy::kShift) {
    EXPECT_GE(with.least[kSlow], static_cast<float>(with.last_round) * 0.9f) << "it counts in every round";
  } else if (GetParam().by_link) {
    EXPECT_GE(with.share[kSlow], 0.7);
    EXPECT_GE(with.least[kSlow], static_cast<float>(with.pushed[kSlow]) / 3) << "no part of it is starved";
  } else {
    // Its link is as good as the others': at its last push it owes less than one gradient on average.
    EXPECT_GE(with.share[kSlow], 1 - 1.0 / static_cast<double>(with.pushed[kSlow]));
  }
}

// One of four computes ten times as long, and nothing is lost: what the others need for a push.
struct Consistency : testing::Test {
  Consistency() {
    alone.high_share = 1;
    alone.factor = 0;
    slow = alone;
    slow.slow_compute = 10 * (alone.compute + milliseconds(100));
  }
  Scene alone;
  Scene slow;
};

TEST_F(Consistency, AQuorumHidesAStraggler) {
  const Outcome without = Simulate(alone);
  slow.quorum = kWorkers - 1;
  const Outcome with = Simulate(slow);
  Print("nobody is slow:", without);
  Print("one is, quorum 3 of 4:", with);
  EXPECT_LE(Ms(Quantile(with.others, 0.5)), 1.1 * Ms(Quantile(without.others, 0.5)));
  EXPECT_GT(with.slow.excluded, 0u);
  EXPECT_GE(with.share[kSlow], 1 - 1.0 / static_cast<double>(with.pushed[kSlow])) << "and it counts";
}

TEST_F(Consistency, WithoutABoundAStragglerHoldsNobodyAndEveryPushCountsOnce) {
  alone.staleness = slow.staleness = -1;
  alone.rounds = 4 * 40;  // steps
  slow.rounds = 4 * 40;
  const Outcome without = Simulate(alone);
  const Outcome with = Simulate(slow);
  Print("nobody is slow, ASP:", without);
  Print("one is, ASP:", with);
  EXPECT_LE(Ms(Quantile(with.others, 0.5)), 1.1 * Ms(Quantile(without.others, 0.5)));
  EXPECT_GT(with.stalest, 3) << "the others have gone on";
  EXPECT_EQ(with.share[kSlow], 1.0);
}

TEST_F(Consistency, AWorkerIsNeverFurtherAheadThanTheStalenessAllows) {
  for (const int32_t staleness : {1, 3}) {
    slow.staleness = staleness;
    slow.rounds = 4 * 20;
    const Outcome with = Simulate(slow);
    Print(("SSP " + std::to_string(staleness) + ":").c_str(), with);
    EXPECT_EQ(with.stalest, static_cast<float>(staleness)) << "not more, and not less";
  }
}

// Windows that many steps are made during: each chunk is in one of them.
TEST_F(Consistency, APushThatManyStepsAreMadeDuringCountsOnceAsAWhole) {
  slow.slow_compute = slow.compute;
  slow.slow_rate_mbps = slow.rate_mbps / 10;
  slow.staleness = -1;
  slow.rounds = 4 * 40;
  for (const double loss : {0.0, 0.05}) {
    slow.loss = loss;
    slow.high_share = loss > 0 ? 0.2 : 1;
    const Outcome with = Simulate(slow);
    Print("ASP, one by its link:", with);
    EXPECT_GT(with.share[kSlow], loss > 0 ? 0.7 : 0.99);
  }
}

INSTANTIATE_TEST_SUITE_P(, SlowWorker,
                         testing::Values(Case{"ByItsLink", true, LossPolicy::kResidual},
                                         Case{"ByItsLinkWithShift", true, LossPolicy::kShift},
                                         Case{"ByItsComputingWithShift", false, LossPolicy::kShift},
                                         Case{"ByItsComputingUnderLoss", false, LossPolicy::kResidual, 0.05}),
                         [](const auto& test) { return std::string(test.param.name); });

}  // namespace
}  // namespace longhaul::sim
