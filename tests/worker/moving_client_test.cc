// A worker whose job goes to other servers between two rounds (decision 0029), with real servers and their
// disks in this process.
//
//   client ── servers ──hand over──> DIR ──reshard──> OUT/server-1, ... ── the next servers ── client
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <atomic>
#include <filesystem>
#include <functional>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/placement.h"
#include "longhaul/client.h"
#include "longhaul/server.h"
#include "server/daemon.h"
#include "server/store/shards.h"
#include "tests/worker/client_harness.h"
#include "tests/worker/udp_relay.h"
#include "transport/crypto/keygen.h"
#include "transport/keys/key_file.h"
#include "transport/keys/load_security.h"
#include "transport/udp/clock.h"
#include "transport/udp/event_loop.h"
#include "transport/udp/resolve.h"
#include "worker/client/client_impl.h"
#include "worker/client/status_core.h"

namespace longhaul {
namespace {

using internal::ClientImpl;
using server::Daemon;
using std::chrono::seconds;
using ::testing::AnyOf;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Ne;

constexpr size_t kElements = 20'000;  // in parts, where there are several servers

class MovingClientTest : public ::testing::Test {
 protected:
  void SetUp() override {
    char pattern[] = "/tmp/longhaul-moving-XXXXXX";
    ASSERT_NE(mkdtemp(pattern), nullptr);
    root = pattern;
    const auto key = crypto::NewPsk("default");
    ASSERT_TRUE(key.ok() && keys::WriteKeyFile(key_file(), key->text()).ok());
    for (size_t i = 0; i < kElements; ++i) gradient.push_back(static_cast<float>(i % 97) - 48);
  }
  void TearDown() override {
    servers.clear();
    std::filesystem::remove_all(root);
  }
  std::string key_file() const { return root + "/key"; }

  ServerOptions Options(const std::string& directory) const {
    ServerOptions options;
    options.key_file = key_file();
    options.checkpoint_dir = directory;
    options.round_log = true;
    return options;
  }
  // The first one of several at the address that the one before had.
  void StartServers(const std::vector<std::string>& directories) {
    for (size_t i = 0; i < directories.size(); ++i) {
      ServerOptions options = Options(directories[i]);
      options.listen = i == 0 ? address : "127.0.0.1:0";
      if (i == 0) {
        options.workers = workers;
        options.servers = static_cast<uint32_t>(directories.size());
        // Of each gradient the largest tenth travels at first, the rest is owed.
        options.job_spec.high_share = 1;
        if (workers == 1) options.job_spec.priority = Priority::kTopK;
        options.job_spec.topk_share = 0.1;
      } else {
        options.first_server = address;
        options.advertise = second_at;
      }
      Result<Server> server = Server::Start(options);
      ASSERT_TRUE(server.ok()) << server.status().ToString();
      servers.push_back(*std::move(server));
      if (i == 0) address = servers.front().address();
    }
    directories_ = directories;
  }
  Result<std::string> Order(double limit_s = 10) const {
    auto security = keys::LoadSecurity({.key_file = key_file(), .role = crypto::Role::kTool});
    EXPECT_TRUE(security.ok());
    const auto server = udp::ResolvePeer(address);
    auto socket = udp::UdpSocket::Open(udp::UdpSocket::AnyAddressFor(*server));
    EXPECT_TRUE(server.ok() && socket.ok());
    udp::EventLoop* running = nullptr;
    const auto limit = std::chrono::duration_cast<Duration>(std::chrono::duration<double>(limit_s));
    worker::StatusCore core(
        {.timeout = limit + seconds(10), .security = security->security(), .hand_over = limit},
        Random(udp::EntropySeed()), [&running] { running->Stop(); });
    auto loop = udp::EventLoop::Create(&core, *std::move(socket), nullptr);
    EXPECT_TRUE(loop.ok());
    running = loop->get();
    core.Ask(udp::Now(), *server);
    (*loop)->Run();
    return *core.outcome();
  }
  // The servers have ended.
  void HandOver() {
    const auto outcome = Order();
    ASSERT_TRUE(outcome.ok()) << outcome.status().ToString();
    for (Server& server : servers) {
      ASSERT_EQ(server.WaitFor(seconds(20)), Status());
      EXPECT_EQ(Stats(server).value("joined", 0u), workers) << "its end is not the job's";
    }
    servers.clear();
  }
  static nlohmann::json Stats(const Server& server) { return nlohmann::json::parse(server.StatsJson()); }
  void GoOnAs(uint32_t count) {
    const auto out = root + "/out" + std::to_string(++outs_);
    const auto resharded =
        server::store::Reshard(SystemFiles(), {.directories = directories_, .servers = count, .out = out});
    ASSERT_TRUE(resharded.ok()) << resharded.status().ToString();
    EXPECT_TRUE(resharded->goes_on);
    StartServers(resharded->directories);
  }
  ConnectOptions With(Duration reconnect = seconds(30)) {
    ConnectOptions options;
    options.servers = {address};
    options.key_file = key_file();
    options.reconnect_timeout = reconnect;
    options.log = [this](LogLevel, std::string_view text) {
      const std::lock_guard lock(mutex);
      log += std::string(text) + "\n";
    };
    return options;
  }
  std::string Log() {
    const std::lock_guard lock(mutex);
    return log;
  }
  static Tensor MustDeclare(Client& client, const std::string& name = "w") {
    const std::vector<float> zeros(kElements);
    Result<Tensor> w = client.Declare(name, {.count = kElements, .optimizer = "sgd:lr=1", .initial = zeros});
    EXPECT_TRUE(w.ok()) << w.status().ToString();
    return *w;
  }
  static std::vector<float> OwedOf(Client& client, const Tensor& w) {
    std::vector<float> all;
    while (all.size() < kElements) {
      auto run = ClientImpl::Of(client).Owed(w, all.size(), kElements);
      EXPECT_TRUE(run.ok() && !run->empty());
      if (!run.ok() || run->empty()) break;
      all.insert(all.end(), run->begin(), run->end());
    }
    return all;
  }
  // The push that waits for the next servers: the first of a round above those before it.
  Operation PushUntilHeld(Client& client, const Tensor& w, std::span<const float> pushed, int* pushes) {
    while (true) {
      const Operation push = client.Push(w, pushed);
      ++*pushes;
      if (push.WaitFor(std::chrono::milliseconds(500)).code() == StatusCode::kDeadlineExceeded) return push;
    }
  }

  // ... and the servers have ended.
  Operation HandOverDuring(Client& client, const Tensor& w, std::span<const float> pushed, int* pushes) {
    std::thread order([this] { HandOver(); });
    Operation held = PushUntilHeld(client, w, pushed, pushes);
    order.join();
    EXPECT_FALSE(held.done());
    return held;
  }

  std::string root, address = "127.0.0.1:0";
  std::string second_at = "";  // where workers reach the second server; "": at itself
  uint32_t workers = 1;
  std::vector<Server> servers;
  std::vector<float> gradient;

 private:
  std::mutex mutex;
  std::string log;
  std::vector<std::string> directories_;
  int outs_ = 0;
};

// From one server to three and to two: what was pushed is in the values or owed, each element once.
TEST_F(MovingClientTest, TakesAlongWhatItOwes) {
  StartServers({root + "/one"});
  Client client = MustConnect(With());
  const Tensor w = MustDeclare(client);
  const std::vector<float> zeros(kElements);
  int pushes = 0;
  for (const uint32_t next : {3u, 2u}) {
    ASSERT_EQ(client.Push(w, gradient).Wait(), Status());
    ++pushes;
    const std::vector<float> before = OwedOf(client, w);
    EXPECT_THAT(before, Contains(Ne(0.0f)));
    int repaying = 0;
    const Operation held = HandOverDuring(client, w, zeros, &repaying);
    ASSERT_TRUE(servers.empty());
    GoOnAs(next);
    ASSERT_EQ(held.Wait(), Status());
    EXPECT_THAT(Log(), HasSubstr("the job goes on at " + std::to_string(next) + " servers"));
  }
  std::vector<float> values(kElements);
  ASSERT_EQ(client.Pull(w, values).Wait(), Status());
  const std::vector<float> owed = OwedOf(client, w);
  for (size_t i = 0; i < kElements; ++i)
    ASSERT_EQ(owed[i] - values[i], static_cast<float>(pushes) * gradient[i]) << i;
  EXPECT_THAT(owed, Contains(Ne(0.0f))) << "nothing was left to be taken along";
  EXPECT_EQ(client.stats().operations_failed, 0u);
  EXPECT_GE(client.stats().operations_succeeded, 7u) << "what was counted before is forgotten";
  EXPECT_EQ(client.Leave(), Status());
}

// Everything that comes after the push that waits, waits: calls of other threads as well.
TEST_F(MovingClientTest, EveryRequestWaitsForTheNextServersAndEnds) {
  StartServers({root + "/one"});
  Client client = MustConnect(With());
  const Tensor w = MustDeclare(client);
  std::thread order([this] { HandOver(); });
  int pushes = 0;
  const Operation held = PushUntilHeld(client, w, gradient, &pushes);
  std::vector<float> out(kElements), other(kElements), owed(kElements);
  const Operation pull = client.Pull(w, out);
  const Operation push = client.PushPull(w, gradient, other);
  ASSERT_EQ(client.SetScores(w, std::vector<float>(kElements, 1)), Status());
  std::atomic<int> ended = 0;
  std::vector<std::thread> calls;
  const auto call = [&](const std::function<Status()>& what) {
    calls.emplace_back([&ended, what] {
      EXPECT_EQ(what(), Status());
      ++ended;
    });
  };
  call([&] { return client.Barrier("here"); });
  call([&] { return client.Clock(w).status(); });
  call([&] { return client.Declare("late", {.count = 10}).status(); });
  call([&] { return client.Owed(w, owed); });
  order.join();
  EXPECT_EQ(ended, 0);
  EXPECT_EQ(client.status(), Status());
  EXPECT_FALSE(held.done() || pull.done() || push.done());
  GoOnAs(2);
  for (std::thread& each : calls) each.join();
  EXPECT_EQ(ended, 4);
  for (const Operation& operation : {held, pull, push}) EXPECT_EQ(operation.Wait(), Status());
  // A busy host may leave the push that waited out of its round: it is owed then, and counts with the next
  // one.
  EXPECT_THAT(client.Clock(w)->own, AnyOf(pushes, pushes + 1));
  owed = OwedOf(client, w);
  for (size_t i = 0; i < kElements; ++i)
    ASSERT_EQ(owed[i] - other[i], static_cast<float>(pushes + 1) * gradient[i]) << i;
  EXPECT_EQ(client.Leave(), Status());
}

TEST_F(MovingClientTest, TheServersThatThereWereMayGoOnAsWell) {
  StartServers({root + "/one"});
  Client client = MustConnect(With());
  const Tensor w = MustDeclare(client);
  int pushes = 0;
  const Operation held = HandOverDuring(client, w, gradient, &pushes);
  StartServers({root + "/one"});
  ASSERT_EQ(held.Wait(), Status());
  std::vector<float> values(kElements);
  ASSERT_EQ(client.Pull(w, values).Wait(), Status());
  const std::vector<float> owed = OwedOf(client, w);
  for (size_t i = 0; i < kElements; ++i)
    ASSERT_EQ(owed[i] - values[i], static_cast<float>(pushes) * gradient[i]) << i;
}

// The first one starts the job when all workers are in, also where one of them finds another server too late.
TEST_F(MovingClientTest, AServerThatIsReachedLateCostsATryAndNotTheJob) {
  StartServers({root + "/one"});
  Client client = MustConnect(With());
  const Tensor w = MustDeclare(client);
  int pushes = 0;
  const Operation held = HandOverDuring(client, w, gradient, &pushes);
  Relay relay;
  second_at = relay.address();
  GoOnAs(2);
  std::this_thread::sleep_for(seconds(3));  // the first try takes one
  relay.Lead(servers[1].address());
  ASSERT_EQ(held.Wait(), Status());
  EXPECT_EQ(client.Clock(w)->own, static_cast<uint64_t>(pushes));
  EXPECT_EQ(client.Leave(), Status());
}

TEST_F(MovingClientTest, ServersWithAnotherJobAreRefusedByName) {
  StartServers({root + "/one"});
  Client client = MustConnect(With());
  const Tensor w = MustDeclare(client);
  int pushes = 0;
  const Operation held = HandOverDuring(client, w, gradient, &pushes);
  StartServers({root + "/another"});
  const Status outcome = held.Wait();
  EXPECT_EQ(outcome.code(), StatusCode::kAborted);
  EXPECT_THAT(outcome.message(), HasSubstr("another job"));
  EXPECT_EQ(client.status(), outcome);
  EXPECT_EQ(client.Barrier("b"), outcome);
  EXPECT_EQ(client.Push(w, gradient).Wait(), outcome);
  EXPECT_EQ(client.Leave(), outcome);
}

TEST_F(MovingClientTest, WhenNoServerComesEverythingEnds) {
  StartServers({root + "/one"});
  Client client = MustConnect(With(seconds(3)));
  const Tensor w = MustDeclare(client);
  std::thread order([this] { HandOver(); });
  int pushes = 0;
  const Operation held = PushUntilHeld(client, w, gradient, &pushes);
  std::thread waits([&] { EXPECT_EQ(client.Barrier("b").code(), StatusCode::kPeerDead); });
  order.join();
  const Status outcome = held.Wait();
  EXPECT_EQ(outcome.code(), StatusCode::kPeerDead);
  EXPECT_THAT(outcome.message(), HasSubstr("have not come within 3.0 s"));
  waits.join();
}

// By its handle, and in a callback of what ends with it.
TEST_F(MovingClientTest, MayBeDestroyedWhileItWaits) {
  for (const bool in_callback : {false, true}) {
    address = "127.0.0.1:0";
    StartServers({root + "/one" + std::to_string(in_callback)});
    std::optional<Client> client = MustConnect(With(seconds(2)));
    const Tensor w = MustDeclare(*client);
    std::thread order([this] { HandOver(); });
    int pushes = 0;
    const Operation held = PushUntilHeld(*client, w, gradient, &pushes);
    if (in_callback) held.Then([&client](const Status&) { client.reset(); });
    order.join();
    if (!in_callback) client.reset();
    const Status outcome = held.Wait();
    EXPECT_EQ(outcome.code(), in_callback ? StatusCode::kPeerDead : StatusCode::kCancelled);
    EXPECT_FALSE(client.has_value());
  }
}

// Whenever it is asked for: between two pushes of a round, at one worker only, or with the answers on their
// way.
TEST_F(MovingClientTest, TwoWorkersStopAtOneRequestEachTime) {
  workers = 2;
  StartServers({root + "/one"});
  std::atomic<bool> over = false;
  std::atomic<int> steps = 0;
  std::vector<std::thread> trainers;
  std::vector<std::vector<float>> last(2);
  for (uint32_t rank : {0u, 1u}) {
    trainers.emplace_back([&, rank] {
      ConnectOptions options = With();
      options.rank = rank;
      options.world_size = 2;
      options.fault = "delay=5ms";
      Client client = MustConnect(options);
      const Tensor w = MustDeclare(client), v = MustDeclare(client, "v");
      std::vector<float> values(kElements), others(kElements);
      for (bool ends = false; !ends;) {
        const Operation first = client.PushPull(w, gradient, values);
        // Both end in one step: rank 0 says in which.
        const std::vector<float> end(kElements, rank == 0 && over ? 1.0f : 0.0f);
        const Operation second = client.PushPull(v, end, others);
        EXPECT_EQ(first.Wait(), Status());
        EXPECT_EQ(second.Wait(), Status());
        ends = others[0] != 0 || !first.WaitFor(seconds(0)).ok() || !second.WaitFor(seconds(0)).ok();
        // It computes for longer than the other one, which has begun the next round by then.
        if (rank == 0) std::this_thread::sleep_for(std::chrono::milliseconds(30));
        if (rank == 0) ++steps;
      }
      last[rank] = values;
      EXPECT_EQ(client.Leave(), Status());
    });
  }
  for (int i = 0; i < 5; ++i) {
    const int begun = steps;
    for (int ms = 0; steps < begun + 3 && ms < 20'000; ++ms)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    std::this_thread::sleep_for(std::chrono::milliseconds(i));
    HandOver();
    StartServers({root + "/one"});
  }
  over = true;
  for (std::thread& each : trainers) each.join();
  EXPECT_EQ(last[0], last[1]);
}

// A part at another server than the one that is asked: what is on its way there holds the others' end up.
TEST_F(MovingClientTest, NothingEndsWhileARequestIsOnItsWay) {
  Relay relay;
  second_at = relay.address();
  StartServers({root + "/one", root + "/two"});
  relay.Lead(servers[1].address());
  Client client = MustConnect(With());
  constexpr size_t kFew = 100;
  const auto at_server = [&](uint32_t server) {
    std::string name = "t";
    while (PlaceTensor(name, kFew, 2).front().server != server) name += "t";
    return *client.Declare(name, {.count = kFew});
  };
  const Tensor here = at_server(0), there = at_server(1);
  const std::vector<float> ones(kFew, 1);
  ASSERT_EQ(client.Push(there, ones).Wait(), Status());
  relay.Keep(0);
  const Operation blocked = client.Push(there, ones);
  std::optional<Result<std::string>> outcome;
  std::atomic<bool> over = false;
  std::thread order([&] {
    outcome = Order(1);
    over = true;
  });
  while (!over) EXPECT_EQ(client.Push(here, ones).Wait(), Status());
  order.join();
  ASSERT_FALSE(outcome->ok()) << **outcome;
  EXPECT_THAT(outcome->status().message(), HasSubstr("no word from worker rank 0"));
  EXPECT_FALSE(blocked.done());
  relay.Keep(1000);
  EXPECT_EQ(blocked.Wait(), Status());
  EXPECT_EQ(client.Leave(), Status());
}

// One that was told to stop before ends the job as always: no server goes on with it.
TEST_F(MovingClientTest, AServerThatStopsHandsNothingOver) {
  std::atomic<Server*> running = nullptr;
  ServerOptions options = Options(root + "/one");
  options.listen = address;
  options.log = [&running](LogLevel, std::string_view text) {  // in its loop's thread: nothing comes between
    if (text.find("rank 0 joined") == std::string_view::npos) return;
    Daemon::BeginStop(*running);
    EXPECT_EQ(Daemon::BeginHandOver(*running), Status());
  };
  Result<Server> server = Server::Start(options);
  ASSERT_TRUE(server.ok()) << server.status().ToString();
  running = &*server;
  address = server->address();
  (void)Client::Connect(With());
  (void)server->Wait();
  EXPECT_FALSE(Daemon::HandsOver(*server));
}

// Connect goes on with the server that comes in the place of one that was lost while it waited for another.
TEST_F(MovingClientTest, AServerThatIsLostBeforeItLetsAWorkerInIsWaitedFor) {
  ServerOptions alone = Options(root + "/one");
  alone.listen = address;
  alone.servers = 2;
  Result<Server> server = Server::Start(alone);
  ASSERT_TRUE(server.ok()) << server.status().ToString();
  address = server->address();
  std::optional<Client> client;
  ConnectOptions options = With();
  options.connect_timeout = seconds(60);
  std::thread joins([&] { client = MustConnect(options); });
  const auto until_it_says = [this](const std::string& text) {
    for (int ms = 0; Log().find(text) == std::string::npos && ms < 20'000; ++ms)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    EXPECT_THAT(Log(), HasSubstr(text));
  };
  until_it_says("the job waits for server 2");
  ASSERT_EQ(Daemon::BeginHandOver(*server), Status());
  ASSERT_EQ(server->Wait(), Status());
  server = Status(StatusCode::kUnavailable, "it has ended");
  until_it_says("is lost");
  StartServers({root + "/one", root + "/two"});
  joins.join();
  EXPECT_EQ(client->settings().priority, Priority::kTopK) << "it was not in yet when Connect returned";
  EXPECT_EQ(client->Push(MustDeclare(*client), gradient).Wait(), Status());
  EXPECT_EQ(client->Leave(), Status());
}

// A worker that leaves, or one that pushes nothing: all that waited goes on at the servers that there are.
TEST_F(MovingClientTest, NothingIsLostWhenItDoesNotHappen) {
  StartServers({root + "/one"});
  Client client = MustConnect(With());
  const Tensor w = MustDeclare(client);
  ASSERT_EQ(client.Push(w, gradient).Wait(), Status());
  const auto refused = Order(0.5);  // the worker computes
  ASSERT_FALSE(refused.ok());
  EXPECT_THAT(refused.status().message(), HasSubstr("no word from worker rank 0"));
  for (int i = 0; i < 5; ++i) ASSERT_EQ(client.Push(w, gradient).Wait(), Status());
  EXPECT_EQ(client.Clock(w)->own, 6u);
  EXPECT_EQ(client.Leave(), Status());
}

}  // namespace
}  // namespace longhaul
