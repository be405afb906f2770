// Sites of several nodes, each with a daemon of its own, over the loopback:
//
//   rank 0 ─┬─ daemon 0 ─ relay 0 (leads) ── server
//   rank 1 ─┘     │ UDP
//   rank 2 ─┬─ daemon 1 ─ relay 1 (stands by)
//   rank 3 ─┘
#include <iostream>
#include <numeric>
#include <optional>

#include "tests/offload/udp_support.h"
#include "tests/worker/site/fake_rank.h"
#include "transport/udp/resolve.h"
#include "worker/site/leadership.h"
#include "worker/site/site_clock.h"

namespace longhaul::site {
namespace {

constexpr size_t kCount = 3000;
// For relays; ranks wait three times as long for a leader.
constexpr Duration kIdle = std::chrono::milliseconds(1500) * LONGHAUL_SLOWNESS;
// For what must happen, whenever it is.
constexpr Duration kPatience = std::chrono::seconds(10) * LONGHAUL_SLOWNESS;

std::shared_ptr<offload::UdpLink> OpenLink(uint8_t node, const Address& bind, offload::FaultySender* sender) {
  offload::UdpLinkOptions options;
  options.node = node;
  options.bind = bind;
  options.socket.force_buffers = false;
  options.socket.calls = sender->Calls();
  return offload::UdpLink::Open(std::move(options)).value();
}

offload::FaultySender::Faults Losing(double loss) { return {.loss = loss}; }

class Nodes : public ::testing::Test {
 protected:
  void Start(uint8_t nodes, uint8_t ranks, ServerOptions options = EverythingReliable(),
             const offload::FaultySender::Faults& faults = {}) {
    server_.emplace(StartServer(members_, options));
    ranks_ = ranks;
    connect_ = OptionsFor(*server_, 0, members_);
    connect_.idle_timeout = idle_;
    connect_.weight = static_cast<float>(nodes * ranks);
    const Address any = udp::ResolveListen("127.0.0.1:0").value();
    for (uint8_t node = 0; node < nodes; ++node) {
      senders_.push_back(std::make_unique<offload::FaultySender>(faults, node));
      links_.push_back(OpenLink(node, any, senders_.back().get()));
      addresses_.push_back(links_.back()->local_address());
    }
    nodes_.resize(nodes);
    for (uint8_t node = 0; node < nodes; ++node) StartNode(node);
  }
  void StartNode(uint8_t node) {
    if (!links_[node]) links_[node] = OpenLink(node, addresses_[node], senders_[node].get());
    for (uint8_t other = 0; other < addresses_.size(); ++other) {
      if (other != node) links_[node]->SetPeer(other, addresses_[other]);
    }
    auto options = DaemonOf(folder_.path() + "/node" + std::to_string(node) + ".sock",
                            static_cast<uint8_t>(addresses_.size()), ranks_);
    options.link = std::move(links_[node]);
    options.site.scratch_bytes = scratch_;
    nodes_[node] = std::make_unique<TestNode>(options, connect_);
  }
  // Its daemon first: nothing is said to the other nodes.
  void Kill(uint8_t node) {
    nodes_[node]->EndDaemon();
    nodes_[node].reset();
  }
  // Nothing of its datagrams arrives, or leaves, any more.
  void Cut(uint8_t node, bool cut) {
    for (uint8_t n = 0; n < senders_.size(); ++n) {
      if (n == node || addresses_.size() == 2) senders_[n]->Set(Losing(cut ? 1 : 0));
    }
  }
  void ConnectRanks() {
    for (uint8_t node = 0; node < nodes_.size(); ++node) {
      for (uint8_t rank = 0; rank < ranks_; ++rank) {
        ConnectOptions options = nodes_[node]->Rank(rank);
        options.idle_timeout = 6 * connect_.idle_timeout;
        Result<Client> client = Client::Connect(options);
        ASSERT_TRUE(client.ok()) << client.status().ToString() << "\n" << Logs();
        clients_.push_back(*std::move(client));
      }
    }
    out_.resize(clients_.size());
    tensors_.resize(clients_.size());
  }
  void DeclareAll(const TensorOptions& options = {.count = kCount}) {
    InParallel(clients_.size(), [&](size_t i) {
      Result<Tensor> tensor = clients_[i].Declare("w", options);
      ASSERT_TRUE(tensor.ok()) << tensor.status().ToString();
      tensors_[i] = *tensor;
    });
  }
  // Rank i's gradient is first + i. Whether all are well.
  Status StepOf(size_t i, float first) {
    const std::vector<float> gradient(kCount, first + static_cast<float>(i));
    out_[i].resize(kCount);
    return clients_[i].PushPull(tensors_[i], gradient, out_[i]).Wait();
  }
  void StepAll(float first, size_t from = 0) {
    InParallel(clients_.size() - from, [&](size_t i) {
      const Status status = StepOf(from + i, first);
      EXPECT_TRUE(status.ok()) << "rank " << from + i << ": " << status.ToString();
    });
  }
  void ExpectAll(float value, size_t from = 0) {
    for (size_t i = from; i < out_.size(); ++i) {
      EXPECT_EQ(out_[i], std::vector<float>(kCount, value)) << "rank " << i;
    }
  }
  std::string Logs() const {
    std::string all;
    for (const auto& node : nodes_) all += node ? node->log() : "";
    return all;
  }

  Folder folder_;
  std::optional<Server> server_;
  ConnectOptions connect_;
  Duration idle_ = kIdle;
  uint64_t scratch_ = offload::SiteOptions().scratch_bytes;
  uint8_t ranks_ = 1;
  uint32_t members_ = 1;
  std::vector<std::shared_ptr<offload::UdpLink>> links_;
  std::vector<Address> addresses_;
  std::vector<std::unique_ptr<offload::FaultySender>> senders_;  // outlive the nodes
  std::vector<std::unique_ptr<TestNode>> nodes_;
  std::vector<float> gradient_;  // outlives the clients, which read it until a push ends
  std::vector<Client> clients_;
  std::vector<Tensor> tensors_;
  std::vector<std::vector<float>> out_;
};

TEST_F(Nodes, TwoAreOneMemberWhoseSumCrossesOnce) {
  Start(2, 2);
  ConnectRanks();
  EXPECT_EQ(clients_[3].rank(), 3u);
  EXPECT_EQ(clients_[0].world_size(), 4u);
  DeclareAll();
  for (int round = 0; round < 3; ++round) {
    StepAll(1);
    ExpectAll(2.5f);
  }
  InParallel(4, [&](size_t i) { EXPECT_TRUE(clients_[i].Leave().ok()); });
  const int64_t sent = nodes_[0]->stats().chunk_bytes_sent.value();
  EXPECT_LT(sent, 3 * static_cast<int64_t>(kCount * sizeof(float)) * 11 / 10) << "the sum crosses once";
  EXPECT_EQ(nodes_[1]->stats().chunk_bytes_sent.value(), 0);
  clients_.clear();
  for (const auto& node : nodes_) {
    Status end(StatusCode::kInternal, "");
    ASSERT_TRUE(node->WaitForEnd(&end));
    EXPECT_TRUE(end.ok()) << end.ToString();
  }
}

TEST_F(Nodes, ThreeWithInitialValuesOfTheLast) {
  Start(3, 1);
  ConnectRanks();
  std::vector<float> initial(kCount);
  std::iota(initial.begin(), initial.end(), 5.0f);
  InParallel(3, [&](size_t i) {
    TensorOptions options{.count = kCount, .optimizer = "sgd:lr=1"};
    if (i == 2) options.initial = initial;
    Result<Tensor> tensor = clients_[i].Declare("w", options);
    ASSERT_TRUE(tensor.ok()) << tensor.status().ToString();
    tensors_[i] = *tensor;
    out_[i].resize(kCount);
    EXPECT_TRUE(clients_[i].Pull(tensors_[i], out_[i]).Wait().ok());
    EXPECT_EQ(out_[i], initial) << "rank " << i;
    EXPECT_TRUE(clients_[i].Barrier("b").ok());
  });
  StepAll(0);
  EXPECT_FLOAT_EQ(out_[0][7], initial[7] - 1);
  EXPECT_EQ(out_[1], out_[0]);
  EXPECT_EQ(out_[2], out_[0]);
}

TEST_F(Nodes, InOneDaemonAreOneSite) {
  server_.emplace(StartServer(1, EverythingReliable()));
  TestSite site(OptionsFor(*server_, 0, 1), 1, 256, 2);
  ConnectOptions any;
  any.offload = site.where();
  for (int i = 0; i < 2; ++i) clients_.push_back(MustConnect(any));
  EXPECT_EQ(Client::Connect(any).status().code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(clients_[1].rank(), 1u);
  out_.resize(2);
  tensors_.resize(2);
  DeclareAll();
  StepAll(1);
  ExpectAll(1.5f);
}

TEST_F(Nodes, ARankOfAnotherNodeThatDiesIsInNoLaterSum) {
  Start(2, 2);
  ConnectRanks();
  DeclareAll();
  StepAll(1);
  std::vector<Operation> steps;
  const std::vector<float> gradient(kCount, 6);
  for (size_t i = 0; i < 3; ++i) steps.push_back(clients_[i].PushPull(tensors_[i], gradient, out_[i]));
  EXPECT_EQ(steps[0].WaitFor(std::chrono::milliseconds(50)).code(), StatusCode::kDeadlineExceeded);
  clients_.pop_back();
  out_.pop_back();
  for (const Operation& step : steps) {
    const Status status = step.WaitFor(kPatience);
    EXPECT_TRUE(status.ok()) << status.ToString();
  }
  ExpectAll(6);
  EXPECT_NE(Logs().find("rank 3 of the site has died: the site goes on with 3 ranks"), std::string::npos)
      << Logs();
}

// Its engine ends the sum before its relay can say which rank it was.
TEST_F(Nodes, ARankOfAnotherNodeThatDiesInASumIsLeftOutOfIt) {
  Start(2, 1);
  clients_.push_back(MustConnect(nodes_[0]->Rank(0)));
  auto fake = std::make_unique<FakeRank>(*nodes_[1], uint8_t{0});
  Result<Tensor> tensor = Status(StatusCode::kInternal, "");
  uint32_t index = 0;
  InParallel(2, [&](size_t i) {
    if (i == 0) tensor = clients_[0].Declare("w", {.count = FakeRank::kCount});
    if (i == 1) index = fake->Declare("w").tensor;
  });
  ASSERT_TRUE(tensor.ok()) << tensor.status().ToString();
  const std::vector<float> gradient(FakeRank::kCount, 4);
  std::vector<float> out(FakeRank::kCount);
  Operation step = clients_[0].PushPull(*tensor, gradient, out);
  EXPECT_NE(fake->AskStep(index).mid, 0u);
  fake.reset();
  const Status status = step.WaitFor(kPatience);
  EXPECT_TRUE(status.ok()) << status.ToString();
  EXPECT_EQ(out, gradient);
}

TEST_F(Nodes, ANodeThatDiesIsNamedAndTheOtherGoesOn) {
  Start(2, 2);
  ConnectRanks();
  DeclareAll();
  StepAll(1);
  std::vector<Operation> steps;
  const std::vector<float> gradient(kCount, 6);
  for (size_t i = 0; i < 3; ++i) steps.push_back(clients_[i].PushPull(tensors_[i], gradient, out_[i]));
  Kill(1);
  const Status dead = steps[2].WaitFor(kPatience);
  EXPECT_EQ(dead.code(), StatusCode::kPeerDead) << dead.ToString();
  EXPECT_NE(dead.message().find("longhaul-offload at unix:"), std::string::npos) << dead.ToString();
  for (size_t i = 0; i < 2; ++i) {
    const Status status = steps[i].WaitFor(kPatience);
    EXPECT_TRUE(status.ok()) << status.ToString();
    EXPECT_EQ(out_[i], gradient);
  }
  EXPECT_NE(Logs().find("rank 2 of the site is gone: node 1 was silent for"), std::string::npos) << Logs();
}

TEST_F(Nodes, ALeaderThatIsSilentIsFollowedByTheNextNode) {
  Start(2, 2);
  ConnectRanks();
  DeclareAll();
  StepAll(1);
  ExpectAll(2.5f);
  std::vector<Operation> steps;
  std::vector<std::vector<float>> gradients;
  for (size_t i = 0; i < 4; ++i) gradients.emplace_back(kCount, 10.0f + static_cast<float>(i));
  for (size_t i = 1; i < 4; ++i) steps.push_back(clients_[i].PushPull(tensors_[i], gradients[i], out_[i]));
  const Instant killed = Now();
  Cut(0, true);
  for (size_t i = 1; i < 3; ++i) {
    const Status status = steps[i].WaitFor(kPatience);
    EXPECT_TRUE(status.ok()) << status.ToString() << "\n" << Logs();
  }
  const Duration took = Now() - killed;
  EXPECT_LT(took, Leadership::SilenceOf(kIdle) + std::chrono::seconds(1) * LONGHAUL_SLOWNESS);
  std::cout << "takeover: " << std::chrono::duration<double>(took).count() << " s, of which silence "
            << std::chrono::duration<double>(Leadership::SilenceOf(kIdle)).count() << " s\n";
  ExpectAll(12.5f, 2);
  EXPECT_NE(Logs().find("node 1 of the site takes over: the relay of node 0 was silent for"),
            std::string::npos)
      << Logs();
  ASSERT_EQ(nodes_[1]->takeovers().size(), 1u);
  EXPECT_EQ(nodes_[1]->takeovers()[0].from, 0);
  for (int round = 0; round < 3; ++round) {
    StepAll(20, 2);
    ExpectAll(22.5f, 2);
  }
  // The server has another one in its place, which its ranks learn.
  EXPECT_FALSE(steps[0].WaitFor(kPatience).ok());
  InParallel(2, [&](size_t i) { EXPECT_TRUE(clients_[2 + i].Barrier("b").ok()); });
  InParallel(2, [&](size_t i) {
    EXPECT_TRUE(clients_[2 + i].Declare("later", {.count = 10}).ok());
    EXPECT_TRUE(clients_[2 + i].Leave().ok());
  });
  clients_.clear();
  Status end(StatusCode::kInternal, "");
  ASSERT_TRUE(nodes_[1]->WaitForEnd(&end));
  EXPECT_TRUE(end.ok()) << end.ToString();
}

TEST_F(Nodes, ALeaderThatEndsHandsOver) {
  Start(3, 1);
  ConnectRanks();
  DeclareAll({.count = kCount, .optimizer = "sgd:lr=1"});
  StepAll(1);
  ExpectAll(-2);
  std::vector<Operation> steps;
  const std::vector<float> gradient(kCount, 4);
  for (size_t i = 1; i < 3; ++i) steps.push_back(clients_[i].PushPull(tensors_[i], gradient, out_[i]));
  const Instant begun = Now();
  nodes_[0]->EndRelay();
  Kill(0);
  EXPECT_LT(Now() - begun, std::chrono::seconds(2) * LONGHAUL_SLOWNESS);
  for (const Operation& step : steps) {
    const Status status = step.WaitFor(kPatience);
    EXPECT_TRUE(status.ok()) << status.ToString() << "\n" << Logs();
  }
  ExpectAll(-6, 1);
  EXPECT_NE(Logs().find("node 1 of the site takes over: the relay of node 0 hands over"), std::string::npos);
  // And once more; of the last node's rank alone.
  nodes_[1]->EndRelay();
  Kill(1);
  EXPECT_TRUE(StepOf(2, 2).ok());
  EXPECT_EQ(out_[2], std::vector<float>(kCount, -10));
}

// By itself, not by a signal: the site is still the member that it was.
TEST_F(Nodes, ALeaderWhoseDaemonEndsIsFollowedByTheNextNode) {
  Start(3, 1);
  ConnectRanks();
  DeclareAll({.count = kCount, .optimizer = "sgd:lr=1"});
  StepAll(1);
  Kill(0);
  StepAll(3, 1);  // 4, 5
  ExpectAll(-6.5f, 1);
}

// The server must not lose the member before its successor has connected.
TEST_F(Nodes, ALeaderThatIsOlderThanTheIdleTimeoutHandsOver) {
  Start(3, 1);
  ConnectRanks();
  DeclareAll({.count = kCount, .optimizer = "sgd:lr=1"});
  StepAll(1);
  ExpectAll(-2);
  std::this_thread::sleep_for(kIdle + std::chrono::milliseconds(200));
  nodes_[0]->EndRelay();
  Kill(0);
  StepAll(3, 1);  // 4, 5
  ExpectAll(-6.5f, 1);
}

TEST_F(Nodes, ADeclarationThatNeedsMoreScratchThanThereIsNamesTheOption) {
  scratch_ = 3 * (kCount + 1) * sizeof(float);
  Start(2, 1);
  ConnectRanks();
  InParallel(2, [&](size_t i) {
    for (const char* name : {"a", "b", "c"}) EXPECT_TRUE(clients_[i].Declare(name, {.count = kCount}).ok());
    const Status refused = clients_[i].Declare("d", {.count = 1}).status();
    EXPECT_EQ(refused.code(), StatusCode::kResourceExhausted) << refused.ToString();
    const std::string wanted = "4 largest tensors take " + std::to_string(scratch_ + 8) + " bytes";
    EXPECT_NE(refused.message().find(wanted), std::string::npos) << refused.ToString();
    EXPECT_NE(refused.message().find("--scratch-bytes"), std::string::npos) << refused.ToString();
  });
}

// Of six tensors' sums that are under way at a time.
TEST_F(Nodes, OnlyTheLargestTensorsNeedScratch) {
  scratch_ = 6 * (kCount + 1) * sizeof(float);
  Start(2, 1);
  ConnectRanks();
  InParallel(2, [&](size_t i) {
    for (int t = 0; t < 9; ++t)
      EXPECT_TRUE(clients_[i].Declare("t" + std::to_string(t), {.count = kCount}).ok());
  });
}

// Node 1 has rank 2, and one that takes its daemon's scratch memory for something else.
TEST_F(Nodes, ACollectiveThatARanksDeviceRefusesEndsForAllAsThat) {
  scratch_ = 6 * (FakeRank::kCount + 1) * sizeof(float);
  idle_ = 4 * kIdle;
  Start(2, 2);
  for (uint8_t i = 0; i < 3; ++i) clients_.push_back(MustConnect(nodes_[i / 2]->Rank(i % 2)));
  FakeRank fake(*nodes_[1], 1);
  tensors_.resize(3);
  uint32_t index = 0;
  InParallel(4, [&](size_t i) {
    if (i == 3) index = fake.Declare("w").tensor;
    if (i < 3) tensors_[i] = clients_[i].Declare("w", {.count = FakeRank::kCount}).value();
  });
  fake.TakeScratch(scratch_ - sizeof(float));
  const Instant begun = Now();
  std::vector<Operation> steps;
  const std::vector<float> gradient(FakeRank::kCount, 4);
  for (size_t i = 0; i < 3; ++i) steps.push_back(clients_[i].Push(tensors_[i], gradient));
  (void)fake.AskStep(index);
  for (const Operation& step : steps) {
    const Status refused = step.WaitFor(kPatience);
    EXPECT_NE(refused.message().find("buffer_error"), std::string::npos) << refused.ToString();
  }
  EXPECT_LT(Now() - begun, idle_ / 2);
  EXPECT_NE(Logs().find("rank 2 of the site: its device refuses a collective: buffer_error"),
            std::string::npos)
      << Logs();
}

// Rank 4 has contributed to six sums of the first leader, rank 5 has not, and the next one gives it up. Its
// node has scratch memory for six.
TEST_F(Nodes, CollectivesOfADeadLeaderTakeNoRoom) {
  scratch_ = 6 * (FakeRank::kCount + 1) * sizeof(float);
  Start(3, 2);
  for (uint8_t i = 0; i < 5; ++i) {
    ConnectOptions options = nodes_[i / 2]->Rank(i % 2);
    options.idle_timeout = 6 * idle_;
    clients_.push_back(MustConnect(options));
  }
  FakeRank fake(*nodes_[2], 1);
  constexpr size_t kTensors = 6;
  std::vector<std::vector<Tensor>> tensors(5, std::vector<Tensor>(kTensors));
  std::vector<uint32_t> index(kTensors);
  InParallel(6, [&](size_t i) {
    for (size_t t = 0; t < kTensors; ++t) {
      const std::string name = "t" + std::to_string(t);
      if (i == 5) index[t] = fake.Declare(name).tensor;
      if (i < 5) tensors[i][t] = clients_[i].Declare(name, {.count = FakeRank::kCount}).value();
    }
  });
  gradient_.assign(FakeRank::kCount, 4);
  std::vector<Operation> steps;
  for (size_t i = 0; i < 5; ++i) {
    for (const Tensor& tensor : tensors[i]) steps.push_back(clients_[i].Push(tensor, gradient_));
  }
  for (const uint32_t tensor : index) EXPECT_NE(fake.AskStep(tensor).mid, 0u);
  Cut(0, true);
  for (size_t step = 4 * kTensors; step < steps.size(); ++step) {
    const Status status = steps[step].WaitFor(kPatience);
    EXPECT_TRUE(status.ok()) << status.ToString() << "\n" << Logs();
  }
}

// Another client has taken the site's place in between, and given up, so that the server has ended the job.
TEST_F(Nodes, ASuccessorRefusesAnotherJob) {
  Start(3, 1);
  ConnectRanks();
  DeclareAll({.count = kCount, .optimizer = "sgd:lr=1"});
  StepAll(1);
  Kill(0);
  connect_.incarnation = 5;
  EXPECT_TRUE(MustConnect(connect_).Leave({StatusCode::kCancelled, "no"}).ok());
  InParallel(2, [&](size_t i) {
    const Status over = StepOf(1 + i, 1);
    EXPECT_EQ(over.code(), StatusCode::kAborted) << over.ToString();
    EXPECT_NE(over.message().find("has another one"), std::string::npos) << over.ToString();
  });
  Status end;
  ASSERT_TRUE(nodes_[1]->WaitForEnd(&end));
  EXPECT_EQ(end.code(), StatusCode::kAborted) << end.ToString();
}

// The site's idle time-out is far longer: the server would have ended the job.
TEST_F(Nodes, ASuccessorComesBeforeTheServerGivesTheSiteUp) {
  ServerOptions server = EverythingReliable();
  server.job_spec.idle_timeout = kIdle;
  idle_ = 20 * kIdle;
  Start(2, 1, server);
  ConnectRanks();
  DeclareAll({.count = kCount, .optimizer = "sgd:lr=1"});
  StepAll(1);
  std::this_thread::sleep_for(3 * Leadership::kBeatEvery);
  Cut(0, true);
  const Instant cut = Now();
  EXPECT_TRUE(StepOf(1, 3).ok());
  EXPECT_EQ(out_[1], std::vector<float>(kCount, -5.5f));
  EXPECT_LT(Now() - cut, Leadership::SilenceOf(kIdle) + std::chrono::seconds(1) * LONGHAUL_SLOWNESS);
}

// sgd with lr 1: what counts twice shows. A plain worker keeps the rounds open.
class NodesAndAWorker : public Nodes {
 protected:
  // Steps that have not ended borrow what goes before the clients.
  ~NodesAndAWorker() override { clients_.clear(); }
  void ConnectAll() {
    members_ = 2;
    Start(2, 1);
    Result<Client> plain = Status(StatusCode::kInternal, "");
    std::thread joins([&] { plain = Client::Connect(OptionsFor(*server_, 1, 2)); });
    ConnectRanks();
    joins.join();
    ASSERT_TRUE(plain.ok()) << plain.status().ToString();
    clients_.push_back(*std::move(plain));
    out_.resize(3);
    tensors_.resize(3);
  }
  // The site's ranks learn the rounds that they have from a step, or from a pull.
  void StartAll(bool steps = true) {
    ConnectAll();
    DeclareAll({.count = kCount, .optimizer = "sgd:lr=1"});
    if (steps) {
      StepAll(1);  // 1, 2, 3
      ExpectAll(-2);
    }
    for (auto& values : out_) values.assign(kCount, 0);
    if (!steps)
      InParallel(2, [&](size_t i) { EXPECT_TRUE(clients_[i].Pull(tensors_[i], out_[i]).Wait().ok()); });
    step_ = clients_[1].PushPull(tensors_[1], gradient_, out_[1]);
    other_ = clients_[0].PushPull(tensors_[0], gradient_, out_[0]);
    // Until the sum is at the server.
    EXPECT_EQ(step_.WaitFor(std::chrono::milliseconds(200)).code(), StatusCode::kDeadlineExceeded);
    Cut(0, true);
  }
  void AwaitTakeover() {
    for (int i = 0; i < 1000 && nodes_[1]->takeovers().empty(); ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    ASSERT_EQ(nodes_[1]->takeovers().size(), 1u);
  }
  // The leader was stopped, or cut off, for less than its grace.
  void Heal() {
    AwaitTakeover();
    std::this_thread::sleep_for(Leadership::SilenceOf(kIdle) / 2);
    Cut(0, false);
  }
  void ExpectStep(float value, uint64_t round = 1) {
    const Status status = step_.WaitFor(kPatience);
    ASSERT_TRUE(status.ok()) << status.ToString() << "\n" << Logs();
    EXPECT_EQ(out_[1], std::vector<float>(kCount, value));
    EXPECT_EQ(out_[2], out_[1]);
    EXPECT_EQ(step_.stats().round, round);
    StepAll(0, 1);  // 1, 2
    ExpectAll(value - 1.5f, 1);
  }

  const std::vector<float> gradient_ = std::vector<float>(kCount, 4);
  Operation step_;
  Operation other_;
};

TEST_F(NodesAndAWorker, AStepWhoseRoundHasEndedCountsOnce) {
  StartAll();
  EXPECT_TRUE(StepOf(2, 8).ok());  // 10: the site's 4 counts for two
  EXPECT_EQ(out_[2], std::vector<float>(kCount, -8));
  AwaitTakeover();
  ExpectStep(-8);
}

TEST_F(NodesAndAWorker, AStepAfterAPullCountsOnceToo) {
  StartAll(/*steps=*/false);
  EXPECT_TRUE(StepOf(2, 8).ok());
  AwaitTakeover();
  ExpectStep(-6, 0);
}

TEST_F(NodesAndAWorker, AStepOfALeaderThatIsBackWithinItsGraceGoesOn) {
  StartAll();
  Heal();
  EXPECT_TRUE(StepOf(2, 8).ok());
  for (const Operation& step : {step_, other_}) {
    const Status status = step.WaitFor(kPatience);
    EXPECT_TRUE(status.ok()) << status.ToString() << "\n" << Logs();
  }
  EXPECT_EQ(out_[0], std::vector<float>(kCount, -8));
}

TEST_F(NodesAndAWorker, ABarrierOfALeaderThatIsBackWithinItsGraceGoesOn) {
  ConnectAll();
  Status outcomes[3];
  const auto wait = [&](size_t i) { outcomes[i] = clients_[i].Barrier("b"); };
  std::vector<std::thread> ranks;
  for (const size_t i : {0, 1}) ranks.emplace_back(wait, i);
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  Cut(0, true);
  Heal();
  ranks.emplace_back(wait, 2);
  for (std::thread& rank : ranks) rank.join();
  for (const Status& outcome : outcomes) EXPECT_TRUE(outcome.ok()) << outcome.ToString();
}

// The server answers when the other worker is in.
TEST_F(NodesAndAWorker, ADeclarationOfALeaderThatIsBackWithinItsGraceGoesOn) {
  members_ = 2;
  Start(2, 1);
  ConnectRanks();
  Status outcomes[2];
  std::vector<std::thread> ranks;
  for (const size_t i : {0, 1})
    ranks.emplace_back([&, i] { outcomes[i] = clients_[i].Declare("w", {.count = 1}).status(); });
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  Cut(0, true);
  Heal();
  Client plain = MustConnect(OptionsFor(*server_, 1, 2));
  EXPECT_TRUE(plain.Declare("w", {.count = 1}).ok());
  for (std::thread& rank : ranks) rank.join();
  for (const Status& outcome : outcomes) EXPECT_TRUE(outcome.ok()) << outcome.ToString();
}

TEST_F(NodesAndAWorker, AStepWhoseRoundIsOpenCountsOnce) {
  StartAll();
  AwaitTakeover();
  EXPECT_TRUE(StepOf(2, 8).ok());  // as above: the server has what the old leader has pushed
  ExpectStep(-8);
}

TEST_F(Nodes, DatagramsThatAreLostComeAgain) {
  Start(2, 2, EverythingReliable(), {.loss = 0.05, .duplication = 0.05, .reordering = 0.05});
  ConnectRanks();
  DeclareAll();
  for (int round = 0; round < 20; ++round) {
    StepAll(static_cast<float>(round));
    ExpectAll(static_cast<float>(round) + 1.5f);
  }
}

// Before it is missed.
TEST_F(Nodes, ALeaderThatIsStartedAgainAtOnceLeadsAgain) {
  Start(2, 1);
  ConnectRanks();
  DeclareAll();
  StepAll(1);
  Kill(0);
  StartNode(0);
  clients_[0] = MustConnect(nodes_[0]->Rank(0));
  Result<Tensor> tensor = clients_[0].Declare("w", {.count = kCount});
  ASSERT_TRUE(tensor.ok()) << tensor.status().ToString();
  tensors_[0] = *tensor;
  StepAll(1);
  ExpectAll(1.5f);
  ASSERT_EQ(nodes_[0]->takeovers().size(), 1u);
  EXPECT_EQ(nodes_[0]->takeovers()[0].silence, Duration(0));
  EXPECT_NE(Logs().find("node 0 of the site takes over: the relay of node 0 was started again"),
            std::string::npos)
      << Logs();
}

TEST_F(Nodes, ANodeThatComesBackTakesItsPlace) {
  Start(2, 1);
  ConnectRanks();
  DeclareAll();
  StepAll(1);
  nodes_[1]->EndRelay();
  Kill(1);
  clients_.pop_back();
  EXPECT_TRUE(StepOf(0, 3).ok());
  StartNode(1);
  clients_.push_back(MustConnect(nodes_[1]->Rank(0)));
  Result<Tensor> tensor = clients_[1].Declare("w", {.count = kCount});
  ASSERT_TRUE(tensor.ok()) << tensor.status().ToString();
  tensors_[1] = *tensor;
  StepAll(1);
  ExpectAll(1.5f);
}

}  // namespace
}  // namespace longhaul::site
