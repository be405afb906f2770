// The path of one worker of four shrinks in mid-job, grows again, or was small from the start: the job goes
// on, every sum is exact, and only that worker's chunks leave in parts. Whole cores in virtual time, a link
// each.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "server/server_core.h"
#include "tests/sim/reference_coder.h"
#include "tests/sim/simulated_host.h"
#include "wan/link_options.h"
#include "worker/client/worker_core.h"

namespace longhaul::sim {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr uint32_t kWorkers = 4;  // a mean of four small integers is exact
constexpr uint32_t kSmall = 3;    // the worker whose path changes
constexpr size_t kElements = 60'000;
constexpr uint64_t kShrinks = 12;  // after so many rounds
constexpr uint64_t kGrows = 27;
constexpr uint64_t kRounds = 45;

struct Scene {
  std::string link = "rate 100mbit delay 20ms queue 50ms";
  std::string at_first;  // words for the small worker's link
  std::string then;      // likewise, from kShrinks to kGrows
  std::string behind;    // likewise, from kGrows on
  bool up = true, down = true;
  float high_share = 1;  // all of it is repaired or sent again: every sum is exact
  uint32_t min_workers = kWorkers;
  bool replaced = false;  // at kShrinks, by one whose path is `then` from its handshake on
  uint64_t seed = 1;
};

struct Outcome {
  std::string failure;  // of a worker that should not fail
  Status small;         // of the small worker
  std::vector<double> rounds_ms;
  uint64_t wrong = 0;  // values that are not the sum
  std::vector<server::MemberStats> members;
  std::vector<uint64_t> cut_when_grown;  // chunks cut each way of the small worker, 12 rounds after kGrows
  uint64_t done = 0;
  Duration fell_out{0};  // since the change
};

double Milliseconds(Duration d) { return static_cast<double>(d.count()) * 1e-6; }

class Job {
 public:
  explicit Job(const Scene& scene) : scene_(scene), network_({.seed = scene.seed}) {
    server::ServerCoreOptions server;
    server.settings.world_size = kWorkers;
    server.settings.min_workers = scene.min_workers;
    server.settings.high_share = scene.high_share;
    server_site_ = network_.AddSite("server");
    server_ = std::make_unique<server::ServerCore>(server, &coder_, Random(scene.seed));
    server_host_ = std::make_unique<SimulatedHost>(&network_, kServer, server_site_, server_.get());
    for (uint32_t rank = 0; rank < kWorkers; ++rank) {
      workers_.push_back(std::make_unique<Worker>());
      workers_[rank]->site = network_.AddSite("worker" + std::to_string(rank));
      SetLink(rank, rank == kSmall ? scene.at_first : "");
      Begin(rank, 0);
    }
  }

  Outcome Run() {
    const Instant limit = network_.now() + seconds(240);
    while (outcome_.failure.empty() && outcome_.done < kRounds) {
      if (network_.now() > limit || !network_.Step()) {
        outcome_.failure = "comes to no end in round " + std::to_string(outcome_.done);
      }
    }
    for (const auto& worker : workers_) {
      if (!worker->host->violation().empty()) outcome_.failure = worker->host->violation();
    }
    if (!server_host_->violation().empty()) outcome_.failure = server_host_->violation();
    outcome_.members = server_->stats().members;
    outcome_.small = workers_[kSmall]->core->failure();
    return std::move(outcome_);
  }

  uint64_t Cut() const {
    const server::MemberStats member = server_->stats().members[kSmall];
    return member.traffic.chunks_cut + member.traffic.chunks_joined;
  }

 private:
  struct Worker {
    wan::VirtualNetwork::SiteId site = 0;
    std::unique_ptr<worker::WorkerCore> core;
    std::unique_ptr<SimulatedHost> host;
    worker::TensorHandle handle = 0;
    std::vector<float> gradient = std::vector<float>(kElements);
    std::vector<float> out = std::vector<float>(kElements);
    bool ready = false;
    bool gone = false;
    bool pushing = false;
  };

  const Address kServer = Address::V4(10, 0, 0, 1, 7700);

  void SetLink(uint32_t rank, const std::string& words) {
    const auto parsed = [&](bool this_way) {
      return wan::ParseLinkOptions(scene_.link + " " + (this_way ? words : "")).value();
    };
    network_.SetLink(workers_[rank]->site, server_site_, parsed(scene_.up));
    network_.SetLink(server_site_, workers_[rank]->site, parsed(scene_.down));
  }

  void Begin(uint32_t rank, uint64_t incarnation) {
    Worker& worker = *workers_[rank];
    const worker::WorkerCoreOptions options{.rank = rank, .world_size = kWorkers, .incarnation = incarnation};
    worker.ready = worker.pushing = false;
    worker.core = std::make_unique<worker::WorkerCore>(options, &coder_, Random(100 + rank + incarnation));
    const auto port = static_cast<uint16_t>(9000 + incarnation);
    worker.host = std::make_unique<SimulatedHost>(&network_,
                                                  Address::V4(10, 0, 1, static_cast<uint8_t>(rank + 1), port),
                                                  worker.site, worker.core.get());
    worker.core->SetStateListener([this, rank](worker::WorkerCore::State state) {
      if (state == worker::WorkerCore::State::kStarted) Declare(rank);
      if (state == worker::WorkerCore::State::kFailed) Gone(rank);
    });
    worker.core->Start(network_.now(), kServer);
    worker.host->Pump();
  }

  void Gone(uint32_t rank) {
    workers_[rank]->gone = true;
    outcome_.fell_out = network_.now() - changed_;
    if (rank != kSmall || scene_.min_workers == kWorkers) {
      outcome_.failure = "rank " + std::to_string(rank) + ": " + workers_[rank]->core->failure().ToString();
    }
  }

  void Declare(uint32_t rank) {
    workers_[rank]->core->Declare({.name = "w", .count = kElements, .optimizer = "aggregate"},
                                  [this, rank](const Result<worker::TensorHandle>& handle) {
                                    if (!handle.ok()) return;
                                    workers_[rank]->handle = *handle;
                                    workers_[rank]->ready = true;
                                    PushWhenAllAreReady();
                                  });
  }

  void PushWhenAllAreReady() {
    for (const auto& worker : workers_) {
      if (!worker->gone && (!worker->ready || worker->pushing)) return;
    }
    begun_ = network_.now();
    for (uint32_t rank = 0; rank < kWorkers; ++rank) {
      if (!workers_[rank]->gone) Push(rank);
    }
  }

  float Value(uint32_t rank, size_t e) const {
    return static_cast<float>((e * 31 + rank * 17 + outcome_.done * 7) % 64 * 4);
  }

  void Push(uint32_t rank) {
    Worker& worker = *workers_[rank];
    worker.pushing = true;
    for (size_t e = 0; e < kElements; ++e) worker.gradient[e] = Value(rank, e);
    worker.core->PushPull(worker.handle, worker.gradient, worker.out,
                          [this, rank](const Status& outcome, const OperationStats&) {
                            if (outcome.ok()) Check(rank);
                            Worker& w = *workers_[rank];
                            w.pushing = false;
                            const bool over = std::ranges::none_of(
                                workers_, [](const auto& other) { return other->pushing && !other->gone; });
                            if (over) network_.Schedule(network_.now(), [this] { EndRound(); });
                          });
    network_.Schedule(network_.now(), [this, rank] { workers_[rank]->host->Pump(); });
  }

  void Check(uint32_t rank) {
    if (scene_.high_share < 1 || scene_.min_workers < kWorkers) return;
    for (size_t e = 0; e < kElements; ++e) {
      float sum = 0;
      for (uint32_t r = 0; r < kWorkers; ++r) sum += Value(r, e);
      if (workers_[rank]->out[e] != sum / kWorkers) ++outcome_.wrong;
    }
  }

  void EndRound() {
    outcome_.rounds_ms.push_back(Milliseconds(network_.now() - begun_));
    ++outcome_.done;
    if (outcome_.done == kShrinks) Shrink();
    if (outcome_.done == kGrows) SetLink(kSmall, scene_.behind);
    // Three quarters of a minute of rounds: then a path that has grown is known.
    if (outcome_.done == kGrows + 12) outcome_.cut_when_grown.push_back(Cut());
    const bool slow = outcome_.done > kGrows;
    if (outcome_.done >= kRounds) return;
    network_.Schedule(network_.now() + (slow ? seconds(4) : milliseconds(50)),
                      [this] { PushWhenAllAreReady(); });
  }

  void Shrink() {
    changed_ = network_.now();
    SetLink(kSmall, scene_.then);
    if (!scene_.replaced) return;
    workers_[kSmall]->host->Kill();
    Begin(kSmall, 1);
  }

  Scene scene_;
  wan::VirtualNetwork network_;
  codec::ReferenceCoder coder_;
  wan::VirtualNetwork::SiteId server_site_ = 0;
  std::unique_ptr<server::ServerCore> server_;
  std::unique_ptr<SimulatedHost> server_host_;
  std::vector<std::unique_ptr<Worker>> workers_;
  Instant begun_, changed_;
  Outcome outcome_;
};

double Median(const std::vector<double>& values, size_t from, size_t to) {
  std::vector<double> sorted(values.begin() + static_cast<std::ptrdiff_t>(from),
                             values.begin() + static_cast<std::ptrdiff_t>(to));
  std::ranges::sort(sorted);
  return sorted[sorted.size() / 2];
}

void ExpectOnlyTheSmallOneCuts(const Outcome& outcome) {
  for (uint32_t rank = 0; rank < kWorkers; ++rank) {
    const transport::ConnectionStats& traffic = outcome.members[rank].traffic;
    EXPECT_EQ(traffic.chunks_cut + traffic.chunks_joined > 0, rank == kSmall) << "rank " << rank;
    EXPECT_TRUE(rank == kSmall || traffic.black_holes == 0) << "rank " << rank;
  }
}

struct Step {
  const char* mtu;
  const char* loss;
  bool up, down;
};

TEST(PathMtuOfAJob, AStepInMidRunCostsOneStallAndNoSum) {
  for (const Step& step : {Step{"mtu 1300b", "", true, true}, Step{"mtu 1300b", " loss 3%", true, false},
                           Step{"mtu 1300b", " loss 3%", false, true}, Step{"mtu 1000b", "", true, false},
                           Step{"mtu 1000b", "", false, true}, Step{"mtu 1000b", " loss 3%", true, true}}) {
    const char* way = step.up && step.down ? "both ways" : step.up ? "up" : "down";
    SCOPED_TRACE(testing::Message() << step.mtu << step.loss << ", " << way);
    Scene scene;
    scene.link += step.loss;
    scene.then = step.mtu;
    scene.up = step.up;
    scene.down = step.down;
    scene.seed = 7;
    const Outcome outcome = Job(scene).Run();
    ASSERT_EQ(outcome.failure, "");
    EXPECT_EQ(outcome.done, kRounds);
    EXPECT_EQ(outcome.wrong, 0u);
    ExpectOnlyTheSmallOneCuts(outcome);
    const double before = Median(outcome.rounds_ms, 5, kShrinks);
    const double during = Median(outcome.rounds_ms, kShrinks + 5, kGrows);
    const double longest =
        *std::max_element(outcome.rounds_ms.begin() + kShrinks, outcome.rounds_ms.begin() + kGrows);
    std::printf("%s%s, %s: rounds %.0f ms, then %.0f ms, the longest %.0f ms\n", step.mtu, step.loss, way,
                before, during, longest);
    EXPECT_LE(during, 1.6 * before) << "twice the packets, a tenth more bytes, twice the loss";
    EXPECT_LE(longest, 1000 + 3 * before);
    // The path has grown: whole chunks again.
    ASSERT_EQ(outcome.cut_when_grown.size(), 1u);
    const transport::ConnectionStats& traffic = outcome.members[kSmall].traffic;
    EXPECT_EQ(traffic.chunks_cut + traffic.chunks_joined, outcome.cut_when_grown[0]);
  }
}

TEST(PathMtuOfAJob, AWorkerWithASmallPathFromTheStartMakesTheChunksOfAllSmall) {
  Scene scene;
  scene.at_first = scene.then = scene.behind = "mtu 1300b";
  const Outcome outcome = Job(scene).Run();
  ASSERT_EQ(outcome.failure, "");
  EXPECT_EQ(outcome.wrong, 0u);
  EXPECT_EQ(outcome.members[kSmall].traffic.chunks_cut, 0u);
}

TEST(PathMtuOfAJob, AReplacementOnASmallerPathIsTaken) {
  Scene scene;
  scene.then = scene.behind = "mtu 1300b";
  scene.replaced = true;
  const Outcome outcome = Job(scene).Run();
  ASSERT_EQ(outcome.failure, "");
  EXPECT_EQ(outcome.wrong, 0u);
  ExpectOnlyTheSmallOneCuts(outcome);
  EXPECT_EQ(outcome.members[kSmall].traffic.black_holes, 0u) << "its handshake found the size";
}

TEST(PathMtuOfAJob, AWorkerBelowTheMinimumEndsByNameAndTheOthersGoOn) {
  Scene scene;
  scene.then = scene.behind = "mtu 500b";
  scene.min_workers = kWorkers - 1;
  const Outcome outcome = Job(scene).Run();
  ASSERT_EQ(outcome.failure, "");
  EXPECT_EQ(outcome.done, kRounds);
  EXPECT_NE(outcome.small.message().find("has shrunk"), std::string::npos) << outcome.small.ToString();
  EXPECT_LE(outcome.fell_out, seconds(12));
  std::printf("below the minimum: named after %.1f s\n", Milliseconds(outcome.fell_out) / 1000);
}

}  // namespace
}  // namespace longhaul::sim
