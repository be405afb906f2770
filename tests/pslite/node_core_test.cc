// Nodes of a job in virtual time, all behind links of one kind:
//
//   scheduler 10.0.0.1:8000 ---- servers 10.0.1.x ---- workers 10.0.2.x
#include "pslite/node_core.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "tests/sim/reference_coder.h"
#include "tests/sim/simulated_host.h"
#include "tests/sim/virtual_network.h"

namespace longhaul::pslite {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

const Address kSchedulerAddress = Address::V4(10, 0, 0, 1, 8000);

// One node, and what its hooks were called with.
struct TestNode {
  TestNode(wan::VirtualNetwork* network, wan::VirtualNetwork::SiteId site, const Address& address,
           NodeOptions options, codec::ErasureCoder* coder, uint64_t seed)
      : network_(network) {
    NodeHooks hooks;
    hooks.on_started = [this](const std::vector<Welcome::Own>& numbers) { own = numbers; };
    hooks.on_message = [this](const ps::Message& message, const Ticket& ticket) {
      if (!takes) return false;
      messages.push_back(message);
      tickets.push_back(ticket);
      return true;
    };
    hooks.on_released = [this](const Barrier& barrier) { released.push_back(barrier.id); };
    hooks.on_sent = [this](size_t cost) { sent += cost; };
    hooks.on_failed = [this](const Status& why) {
      failure = why.message();
      failed_at = network_->now();
    };
    hooks.on_left = [this] { left = true; };
    core = std::make_unique<NodeCore>(options, hooks, coder, Random(seed));
    host = std::make_unique<sim::SimulatedHost>(network, address, site, core.get());
  }

  void Join(uint32_t customer = 0) {
    core->Join(network_->now(), customer);
    host->Pump();
  }
  // Hands back what was taken, as a customer does that has handled it.
  void HandBack() {
    for (const Ticket& ticket : std::exchange(tickets, {})) core->Taken(ticket);
    host->Pump();
  }
  uint32_t id() const { return own.empty() ? 0 : own.front().id; }

  wan::VirtualNetwork* network_;
  bool takes = true;
  std::vector<Welcome::Own> own;
  std::vector<ps::Message> messages;
  std::vector<Ticket> tickets;
  std::vector<uint32_t> released;
  size_t sent = 0;
  std::string failure;
  Instant failed_at;
  bool left = false;
  std::unique_ptr<NodeCore> core;
  std::unique_ptr<sim::SimulatedHost> host;
};

class PsNode : public ::testing::Test {
 protected:
  void Up(const std::string& link, uint32_t servers = 2, uint32_t workers = 2) {
    scheduler_.reset();
    server_.clear();
    worker_.clear();
    servers_ = servers;
    workers_ = workers;
    wan::VirtualNetwork::Options options;
    options.local_link = wan::ParseLinkOptions(link).value();
    network_ = std::make_unique<wan::VirtualNetwork>(options);
    site_ = network_->AddSite("A");
    scheduler_ = Make(Role::kScheduler, kSchedulerAddress);
    for (uint32_t i = 0; i < servers; ++i)
      server_.push_back(Make(Role::kServer, Address::V4(10, 0, 1, uint8_t(i), 4000)));
    for (uint32_t i = 0; i < workers; ++i)
      worker_.push_back(Make(Role::kWorker, Address::V4(10, 0, 2, uint8_t(i), 4000)));
  }
  std::unique_ptr<TestNode> Make(Role role, const Address& address,
                                 const std::optional<Address>& reached = {}) {
    NodeOptions node;
    node.role = role;
    node.workers = workers_;
    node.servers = servers_;
    node.scheduler = kSchedulerAddress;
    node.address = reached;
    node.connection.idle_timeout = seconds(5);
    node.connection.keepalive = seconds(1);
    node.connect_timeout = seconds(20);
    node.wait_timeout = seconds(60);
    return std::make_unique<TestNode>(network_.get(), site_, address, node, &coder_, ++seed_);
  }
  std::vector<TestNode*> All() {
    std::vector<TestNode*> all = {scheduler_.get()};
    for (const auto& each : server_) all.push_back(each.get());
    for (const auto& each : worker_) all.push_back(each.get());
    return all;
  }
  // Joined one after the other, so that ranks are as their addresses.
  void Start() {
    for (TestNode* node : All()) {
      node->Join();
      network_->RunFor(seconds(2));
    }
    for (TestNode* node : All()) ASSERT_FALSE(node->own.empty()) << node->failure;
  }
  ps::Message Request(const TestNode& from, uint32_t to, int head, size_t bytes) {
    ps::Message m;
    m.sender = static_cast<int>(from.id());
    m.recver = static_cast<int>(to);
    m.head = head;
    m.timestamp = head;
    m.request = m.push = true;
    m.value_bytes = 1;
    m.vals.resize(bytes);
    for (size_t i = 0; i < bytes; ++i) m.vals[i] = static_cast<char>(i * 31 + static_cast<size_t>(head));
    return m;
  }
  void Send(TestNode& from, const ps::Message& message) {
    from.core->Send(static_cast<uint32_t>(message.recver), *Encode(message), message.request);
    from.host->Pump();
  }
  void Enter(TestNode& node, uint32_t group, bool last = false) {
    node.core->Enter({node.id(), group, last});
    node.host->Pump();
  }
  void ExpectNoFailure() {
    for (TestNode* node : All()) {
      EXPECT_EQ(node->failure, "");
      EXPECT_EQ(node->host->violation(), "");
    }
  }

  codec::ReferenceCoder coder_;
  uint32_t servers_ = 2;
  uint32_t workers_ = 2;
  uint64_t seed_ = 0;
  std::unique_ptr<wan::VirtualNetwork> network_;
  wan::VirtualNetwork::SiteId site_ = 0;
  std::unique_ptr<TestNode> scheduler_;
  std::vector<std::unique_ptr<TestNode>> server_;
  std::vector<std::unique_ptr<TestNode>> worker_;
};

TEST_F(PsNode, StartsWhenAllAreThereAndKnowsItsRank) {
  Up("delay=20ms,loss=10%");
  for (TestNode* node : All()) {
    for (const TestNode* each : All()) EXPECT_TRUE(each->own.empty());
    node->Join();
    network_->RunFor(seconds(2));
  }
  EXPECT_EQ(scheduler_->id(), 1u);
  EXPECT_THAT((std::vector<uint32_t>{server_[0]->id(), server_[1]->id()}), ElementsAre(8u, 10u));
  EXPECT_THAT((std::vector<uint32_t>{worker_[0]->id(), worker_[1]->id()}), ElementsAre(9u, 11u));
  ExpectNoFailure();
}

TEST_F(PsNode, SendsAsSoonAsItHasStarted) {
  Up("delay=20ms", 1, 1);
  for (TestNode* node : All()) node->Join();
  for (int i = 0; i < 5000 && worker_[0]->own.empty(); ++i) network_->RunFor(milliseconds(1));
  Send(*worker_[0], Request(*worker_[0], 8, 1, 10));
  network_->RunFor(seconds(1));
  EXPECT_EQ(server_[0]->messages.size(), 1u);
  ExpectNoFailure();
}

TEST_F(PsNode, IsReachedWhereItSays) {
  Up("delay=1ms", 1, 1);
  server_[0] = Make(Role::kServer, Address::V4(10, 0, 1, 7, 4000), Address::V4(10, 0, 5, 5, 0));
  for (TestNode* node : All()) node->Join();
  network_->RunFor(seconds(30));
  EXPECT_THAT(worker_[0]->failure, HasSubstr("no answer from server 0 (10.0.5.5:4000)"));
}

TEST_F(PsNode, OfTwoCustomersHasTwoRanks) {
  Up("delay=5ms", 1, 2);
  worker_.pop_back();
  scheduler_->Join();
  server_[0]->Join();
  worker_[0]->Join(0);
  worker_[0]->Join(1);
  network_->RunFor(seconds(2));
  ASSERT_EQ(worker_[0]->own.size(), 2u);
  EXPECT_EQ(worker_[0]->own[1].customer, 1u);
  EXPECT_EQ(worker_[0]->own[1].id, 11u);
  ps::Message of_second = Request(*worker_[0], 8, 1, 10);
  of_second.sender = 11;
  Send(*worker_[0], of_second);
  network_->RunFor(seconds(1));
  ASSERT_EQ(server_[0]->messages.size(), 1u);
  EXPECT_EQ(server_[0]->messages[0].sender, 11);
  ExpectNoFailure();
}

// 60 requests of 10 bytes to 200 kB, in an order that the network does not keep.
TEST_F(PsNode, RequestsOfAWorkerArriveInOrderAndWholeAcrossLoss) {
  Up("delay=20ms,jitter=15ms,loss=5%");
  Start();
  std::vector<ps::Message> asked;
  size_t cost = 0;
  for (int i = 0; i < 60; ++i) {
    asked.push_back(Request(*worker_[1], 10, i, i % 7 == 0 ? 200'000 : size_t(10 + 300 * i)));
    cost += Encode(asked.back())->cost();
    Send(*worker_[1], asked.back());
  }
  for (int i = 0; i < 300 && server_[1]->messages.size() < asked.size(); ++i) {
    network_->RunFor(milliseconds(100));
    server_[1]->HandBack();
  }
  network_->RunFor(seconds(5));
  ASSERT_EQ(server_[1]->messages.size(), asked.size());
  for (size_t i = 0; i < asked.size(); ++i) {
    const ps::Message& got = server_[1]->messages[i];
    ASSERT_EQ(got.head, asked[i].head);
    ASSERT_EQ(got.vals.size(), asked[i].vals.size());
    ASSERT_EQ(std::memcmp(got.vals.data(), asked[i].vals.data(), got.vals.size()), 0) << i;
  }
  EXPECT_EQ(worker_[1]->sent, cost);
  EXPECT_TRUE(server_[0]->messages.empty());
  ExpectNoFailure();
}

// What is not handed back bounds what comes.
TEST_F(PsNode, TakesNoMoreThanItHandsBack) {
  Up("delay=1ms");
  Start();
  for (int i = 0; i < 100; ++i) Send(*worker_[0], Request(*worker_[0], 8, i, 10));
  network_->RunFor(seconds(3));
  EXPECT_EQ(server_[0]->messages.size(), size_t{Pipe::kMaxOpenWindows});
  for (int i = 0; i < 10; ++i) {
    server_[0]->HandBack();
    network_->RunFor(seconds(1));
  }
  EXPECT_EQ(server_[0]->messages.size(), 100u);

  server_[0]->messages.clear();
  const size_t large = Pipe::kMaxOpenBytes / 3;
  for (int i = 0; i < 4; ++i) Send(*worker_[0], Request(*worker_[0], 8, i, large));
  for (int i = 0; i < 60; ++i) network_->RunFor(seconds(1));
  EXPECT_EQ(server_[0]->messages.size(), 2u);
  ExpectNoFailure();
}

TEST_F(PsNode, KeepsARequestUntilItsServerIsMade) {
  Up("delay=1ms");
  Start();
  server_[0]->takes = false;
  for (int i = 0; i < 5; ++i) Send(*worker_[0], Request(*worker_[0], 8, i, 10));
  network_->RunFor(seconds(10));
  EXPECT_TRUE(server_[0]->messages.empty());
  server_[0]->takes = true;
  server_[0]->core->Retry();
  server_[0]->host->Pump();
  network_->RunFor(seconds(1));
  EXPECT_EQ(server_[0]->messages.size(), 5u);
  network_->RunFor(seconds(30));
  ExpectNoFailure();
}

TEST_F(PsNode, SaysThatARequestHasNoServer) {
  Up("delay=1ms");
  Start();
  server_[0]->takes = false;
  ps::Message request = Request(*worker_[0], 8, 0, 10);
  request.app_id = 6;
  Send(*worker_[0], request);
  network_->RunFor(seconds(25));
  EXPECT_THAT(server_[0]->failure,
              AllOf(HasSubstr("worker 0"), HasSubstr("app 6"), HasSubstr("no such server")));
  EXPECT_THAT(worker_[0]->failure, AllOf(HasSubstr("server 0"), HasSubstr("app 6")));
}

// By name, everywhere, and not later than the idle time-out and a little.
TEST_F(PsNode, ADeadServerEndsTheJobByName) {
  Up("delay=10ms");
  Start();
  network_->RunFor(seconds(3));
  const Instant killed = network_->now();
  server_[1]->host->Kill();
  network_->RunFor(seconds(10));
  for (TestNode* node : {scheduler_.get(), server_[0].get(), worker_[0].get(), worker_[1].get()}) {
    EXPECT_THAT(node->failure, HasSubstr("server 1"));
    EXPECT_LE(node->failed_at - killed, seconds(7));
  }
  EXPECT_THAT(worker_[0]->failure + scheduler_->failure, HasSubstr("was silent for 5.0 s"));
}

TEST_F(PsNode, OtherNumbersThanTheSchedulersAreRefusedByName) {
  Up("delay=1ms");
  scheduler_->Join();
  workers_ = 3;
  const auto other = Make(Role::kWorker, Address::V4(10, 0, 3, 1, 4000));
  other->Join();
  network_->RunFor(seconds(2));
  EXPECT_THAT(other->failure,
              AllOf(HasSubstr("3 workers and 2 servers"), HasSubstr("scheduler 2 workers and 2 servers")));
  EXPECT_EQ(scheduler_->failure, "");
}

TEST_F(PsNode, OneTooManyIsRefusedByName) {
  Up("delay=1ms", 1, 1);
  scheduler_->Join();
  worker_[0]->Join();
  network_->RunFor(seconds(1));
  const auto other = Make(Role::kWorker, Address::V4(10, 0, 3, 1, 4000));
  other->Join();
  network_->RunFor(seconds(2));
  EXPECT_THAT(other->failure, HasSubstr("all 1 workers of this job are there already"));
  server_[0]->Join();
  network_->RunFor(seconds(2));
  EXPECT_EQ(worker_[0]->id(), 9u);
}

TEST_F(PsNode, TheSchedulerSaysWhoDidNotCome) {
  Up("delay=1ms");
  scheduler_->Join();
  worker_[0]->Join();
  network_->RunFor(seconds(61));
  EXPECT_THAT(scheduler_->failure, HasSubstr("0 of 2 servers, 1 of 2 workers"));
  EXPECT_THAT(worker_[0]->failure, HasSubstr("0 of 2 servers, 1 of 2 workers"));
}

TEST_F(PsNode, LooksForTheSchedulerUntilItsTimeIsOver) {
  Up("delay=1ms", 1, 1);
  scheduler_.reset();
  worker_[0]->Join();
  network_->RunFor(seconds(12));  // longer than one attempt
  EXPECT_EQ(worker_[0]->failure, "");
  scheduler_ = Make(Role::kScheduler, kSchedulerAddress);
  scheduler_->Join();
  server_[0]->Join();
  network_->RunFor(seconds(6));
  EXPECT_EQ(worker_[0]->id(), 9u);

  const auto alone = Make(Role::kServer, Address::V4(10, 0, 3, 1, 4000));
  scheduler_->host->Kill();
  alone->Join();
  network_->RunFor(seconds(26));
  EXPECT_THAT(alone->failure, HasSubstr("no answer from scheduler (10.0.0.1:8000) within 20.0 s"));
}

TEST_F(PsNode, ABarrierOpensWhenAllOfItsGroupAreThere) {
  Up("delay=10ms,loss=5%");
  Start();
  Enter(*worker_[0], ps::kWorkerGroup);
  Enter(*server_[0], ps::kServerGroup + ps::kWorkerGroup);
  network_->RunFor(seconds(3));
  EXPECT_TRUE(worker_[0]->released.empty());
  Enter(*worker_[1], ps::kWorkerGroup);
  network_->RunFor(seconds(3));
  EXPECT_THAT(worker_[0]->released, ElementsAre(9u));
  EXPECT_THAT(worker_[1]->released, ElementsAre(11u));
  EXPECT_TRUE(server_[0]->released.empty());
  ExpectNoFailure();
}

TEST_F(PsNode, ABarrierWithoutOneThatHasLeftEndsByName) {
  Up("delay=10ms");
  Start();
  worker_[1]->core->Leave();
  worker_[1]->host->Pump();
  network_->RunFor(seconds(1));
  EXPECT_TRUE(worker_[1]->left);
  Enter(*worker_[0], ps::kWorkerGroup);
  network_->RunFor(seconds(1));
  EXPECT_THAT(worker_[0]->failure, HasSubstr("worker 1 has left"));
}

TEST_F(PsNode, ARequestToAServerThatHasLeftEndsByName) {
  Up("delay=10ms");
  Start();
  Send(*worker_[0], Request(*worker_[0], 8, 1, 10));
  network_->RunFor(seconds(1));
  server_[0]->HandBack();
  server_[0]->core->Leave();
  server_[0]->host->Pump();
  network_->RunFor(seconds(1));
  EXPECT_THAT(worker_[0]->failure, HasSubstr("left without answering 1 request"));
}

TEST_F(PsNode, AServerThatHasAnsweredMayLeave) {
  Up("delay=10ms");
  Start();
  Send(*worker_[0], Request(*worker_[0], 8, 1, 10));
  network_->RunFor(seconds(1));
  server_[0]->HandBack();
  ps::Message answer = Request(*server_[0], 9, 1, 10);
  answer.request = false;
  Send(*server_[0], answer);
  server_[0]->core->Leave();
  server_[0]->host->Pump();
  network_->RunFor(seconds(1));
  EXPECT_TRUE(server_[0]->left);
  ExpectNoFailure();
  Send(*worker_[0], Request(*worker_[0], 8, 2, 10));
  network_->RunFor(seconds(1));
  EXPECT_THAT(worker_[0]->failure, HasSubstr("server 0 has left"));
}

TEST_F(PsNode, WhatWasSentBeforeLeavingArrives) {
  Up("delay=20ms,loss=5%");
  Start();
  for (int i = 0; i < 20; ++i) Send(*worker_[0], Request(*worker_[0], 8, i, 100'000));
  worker_[0]->core->Leave();
  worker_[0]->host->Pump();
  for (int i = 0; i < 100 && !worker_[0]->left; ++i) {
    network_->RunFor(milliseconds(100));
    server_[0]->HandBack();
  }
  EXPECT_TRUE(worker_[0]->left);
  EXPECT_EQ(server_[0]->messages.size(), 20u);
  ExpectNoFailure();
}

// A worker has not waited for an answer, and is not done with its Finalize when the server is.
TEST_F(PsNode, AfterTheLastBarrierNothingIsOwed) {
  Up("delay=10ms");
  Start();
  Send(*worker_[0], Request(*worker_[0], 8, 1, 10));
  for (TestNode* node : All()) Enter(*node, 7, true);
  network_->RunFor(seconds(1));
  server_[0]->HandBack();
  server_[0]->core->Leave();
  server_[0]->host->Pump();
  network_->RunFor(seconds(1));
  EXPECT_TRUE(server_[0]->left);
  ExpectNoFailure();
}

TEST_F(PsNode, AllLeaveAcrossLossAndNoneTakesItForADeath) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    seed_ = seed * 100;
    Up("delay=20ms,loss=15%");
    Start();
    for (TestNode* node : All()) Enter(*node, 7, true);
    for (int i = 0; i < 200; ++i) {
      network_->RunFor(milliseconds(50));
      for (TestNode* node : All()) {
        if (node->released.empty()) continue;
        node->core->Leave();
        node->host->Pump();
      }
    }
    network_->RunFor(seconds(10));
    for (TestNode* node : All()) EXPECT_TRUE(node->left) << "seed " << seed;
    ExpectNoFailure();
  }
}

TEST_F(PsNode, AnAnswerIsTakenAtOnce) {
  Up("delay=1ms");
  Start();
  for (int i = 0; i < 50; ++i) {
    ps::Message answer = Request(*server_[0], 9, i, 10);
    answer.request = false;
    Send(*server_[0], answer);
  }
  network_->RunFor(seconds(2));
  EXPECT_EQ(worker_[0]->messages.size(), 50u);
  ExpectNoFailure();
}

TEST_F(PsNode, SendsToItself) {
  Up("delay=1ms");
  Start();
  Send(*scheduler_, Request(*scheduler_, 1, 5, 100));
  ASSERT_EQ(scheduler_->messages.size(), 1u);
  EXPECT_EQ(scheduler_->messages[0].head, 5);
  EXPECT_GT(scheduler_->sent, 100u);
}

TEST_F(PsNode, ASenderIsWhoItHasSaidToBe) {
  Up("delay=1ms");
  Start();
  ps::Message forged = Request(*worker_[0], 8, 1, 10);
  forged.sender = 11;
  Send(*worker_[0], forged);
  network_->RunFor(seconds(1));
  EXPECT_TRUE(server_[0]->messages.empty());
  EXPECT_THAT(server_[0]->failure, AllOf(HasSubstr("worker 0"), HasSubstr("a message of another node")));
}

// Drains an endpoint that has no other owner, and keeps why its latest connection ended.
class Drained final : public transport::DatagramCore {
 public:
  explicit Drained(transport::Endpoint* endpoint) : endpoint_(endpoint) {}
  std::string ended;

  void HandleDatagram(Instant now, const Address& from, MutableByteSpan datagram,
                      const transport::ReceiveInfo& info) override {
    endpoint_->HandleDatagram(now, from, datagram, info);
    Drain();
  }
  void HandleTimeout(Instant now) override {
    endpoint_->HandleTimeout(now);
    Drain();
  }
  void HandleSendRefused(Instant, const Address&, size_t) override {}
  std::optional<transport::Transmit> PollTransmit(Instant now, MutableByteSpan buffer) override {
    return endpoint_->PollTransmit(now, buffer);
  }
  Instant NextTimeout() const override { return endpoint_->NextTimeout(); }

 private:
  void Drain() {
    while (const auto happened = endpoint_->PollEvent()) {
      if (const auto* closed = std::get_if<transport::event::Closed>(&happened->event))
        ended = closed->why.message();
    }
  }
  transport::Endpoint* endpoint_;
};

TEST_F(PsNode, AStrangerDisturbsNobody) {
  Up("delay=1ms");
  Start();
  transport::EndpointOptions options;
  options.coder = &coder_;
  transport::Endpoint stranger(options, Random(99));
  Drained drained(&stranger);
  sim::SimulatedHost host(network_.get(), Address::V4(10, 0, 9, 9, 4000), site_, &drained);
  for (const bool is_long : {true, false}) {
    transport::Connection* const connection =
        stranger.Connect(network_->now(), Address::V4(10, 0, 1, 0, 4000));
    host.Pump();
    network_->RunFor(seconds(1));
    Pipe pipe(connection);
    pipe.Send(is_long ? Bytes::Of(100'000) : Encode(Barrier{9, 4, false}));
    ASSERT_TRUE(pipe.Work().ok());
    host.Pump();
    network_->RunFor(seconds(1));
    EXPECT_EQ(drained.ended,
              is_long ? "a long message before the first one" : "a message before the first one");
  }
  Send(*worker_[0], Request(*worker_[0], 8, 1, 10));
  network_->RunFor(seconds(1));
  EXPECT_EQ(server_[0]->messages.size(), 1u);
  ExpectNoFailure();
}

}  // namespace
}  // namespace longhaul::pslite
