// The public client API against a job of several servers in the same process (decision 0029).
//
//   worker 0 ─┬─ server 1 (first): settings, lets workers in
//             ├─ server 2
//   worker 1 ─┴─ server 3
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <limits>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "longhaul/client.h"
#include "longhaul/server.h"
#include "tests/worker/client_harness.h"
#include "tests/worker/udp_relay.h"

namespace longhaul {
namespace {

using std::chrono::milliseconds;
using ::testing::HasSubstr;

constexpr size_t kLarge = 50'000;  // in three parts
constexpr size_t kSmall = 100;     // whole

std::vector<Server> StartServers(uint32_t count, uint32_t workers,
                                 ServerOptions options = EverythingReliable()) {
  std::vector<Server> servers;
  options.servers = count;
  servers.push_back(StartServer(workers, options));
  ServerOptions more;
  more.first_server = servers.front().address();
  for (uint32_t i = 1; i < count; ++i) servers.push_back(StartServer(1, more));
  return servers;
}

// Both at once: Connect may wait for servers, Declare for workers.
template <typename Each>
void OnAll(size_t workers, const Each& each) {
  std::vector<std::thread> threads;
  for (size_t i = 0; i < workers; ++i) threads.emplace_back([&each, i] { each(static_cast<uint32_t>(i)); });
  for (std::thread& thread : threads) thread.join();
}

std::vector<float> Values(size_t count, uint32_t seed) {
  std::vector<float> values(count);
  for (size_t i = 0; i < count; ++i)
    values[i] = static_cast<float>((i * 31 + seed * 17) % 101) * 0.0137f - 0.5f;
  return values;
}

// What rank 0 has after some rounds of two tensors, with Adam and a mean.
std::vector<std::vector<float>> Train(const std::vector<std::string>& addresses) {
  std::vector<std::vector<float>> result;
  OnAll(2, [&](uint32_t rank) {
    ConnectOptions options;
    options.servers = {addresses[rank % addresses.size()]};
    options.rank = rank;
    options.world_size = 2;
    options.insecure = true;
    Client client = MustConnect(options);
    EXPECT_EQ(client.rank(), rank);
    EXPECT_EQ(client.world_size(), 2u);
    const std::vector<float> initial = Values(kLarge, 99);
    const auto large =
        client.Declare("large", {.count = kLarge, .optimizer = "adam:lr=0.01", .initial = initial});
    const auto small = client.Declare("small", {.count = kSmall});
    ASSERT_TRUE(large.ok() && small.ok()) << large.status().ToString();
    std::vector<float> weights(kLarge), mean(kSmall), pulled(kLarge);
    for (uint32_t round = 0; round < 5; ++round) {
      const std::vector<float> g = Values(kLarge, 2 * round + rank), h = Values(kSmall, round + rank);
      const Operation first = client.PushPull(*large, g, weights);
      const Operation second = client.PushPull(*small, h, mean);
      ASSERT_TRUE(first.Wait().ok()) << first.Wait().ToString();
      ASSERT_TRUE(second.Wait().ok()) << second.Wait().ToString();
      EXPECT_EQ(first.stats().round, round);
      EXPECT_EQ(first.stats().bytes, ByteCount(2 * 4 * kLarge));
    }
    ASSERT_TRUE(client.Barrier("end").ok());
    ASSERT_TRUE(client.Pull(*large, pulled).Wait().ok());
    EXPECT_EQ(pulled, weights);
    EXPECT_EQ(client.stats().operations_succeeded, client.stats().operations_started);
    EXPECT_EQ(client.Leave(), Status());
    if (rank == 0) result = {weights, mean};
  });
  return result;
}

std::vector<std::string> AddressesOf(const std::vector<Server>& servers) {
  std::vector<std::string> addresses;
  for (const Server& server : servers) addresses.push_back(server.address());
  return addresses;
}

TEST(ShardedClient, LearnsTheSameBitsFromThreeServersAsFromOne) {
  ServerOptions options = EverythingReliable();
  options.job_spec.deterministic = true;
  const auto one = StartServers(1, 2, options);
  const auto three = StartServers(3, 2, options);
  // Rank 1 asks the second server, which sends it to the first.
  const auto expected = Train(AddressesOf(one));
  const auto learned = Train(AddressesOf(three));
  ASSERT_EQ(expected.size(), 2u);
  EXPECT_EQ(learned, expected);
  for (const Server& server : three) {
    const std::string stats = server.StatsJson();
    EXPECT_THAT(stats, HasSubstr("\"jobs_finished\":1"));
    EXPECT_THAT(stats, HasSubstr("\"servers\":3"));
  }
}

// One of two servers goes on without a worker, the other one does not. If its push counted there when it is
// back, rounds later than at the other one, that one would wait for its next push, and the next push for this
// one.
TEST(ShardedClient, AServerThatWentOnWithoutAWorkerAndOneThatDidNotGoOnTogether) {
  // A machine that runs this beside others, with a sanitizer, stands still for a second.
  constexpr auto kIdle = std::chrono::seconds(LONGHAUL_SLOWNESS > 4 ? 4 : 1);
  ServerOptions options = EverythingReliable();
  options.servers = 2;
  options.min_workers = 1;
  options.job_spec.idle_timeout = kIdle;
  options.job_spec.round_patience = 0;  // which would end it, in a minute or two
  const Server first = StartServer(2, options);
  Relay path;
  ServerOptions more;
  more.first_server = first.address();
  more.advertise = path.address();
  const Server second = StartServer(1, more);
  path.Lead(second.address());

  const auto connect = [&](uint32_t rank) {
    ConnectOptions worker = OptionsFor(first, rank, 2);
    worker.reconnect_timeout = std::chrono::minutes(1);
    worker.idle_timeout = kIdle;
    return MustConnect(worker);
  };
  Client steady = connect(1);
  const size_t kept = path.ports();
  Client cut = connect(0);
  constexpr int kRounds = 15;
  std::array<std::atomic<int>, 2> rounds = {};
  std::array<uint64_t, 2> passed_over = {};
  const auto train = [&](Client& client) {
    const auto tensor = client.Declare("large", {.count = kLarge, .optimizer = "sgd:lr=0.1"});
    ASSERT_TRUE(tensor.ok()) << tensor.status().ToString();
    const std::vector<float> gradient = Values(kLarge, client.rank());
    std::vector<float> mean(kLarge);
    for (int round = 0; round < kRounds; ++round) {
      if (client.rank() == 0 && round == 3) path.Keep(kept);
      const Operation step = client.PushPull(*tensor, gradient, mean);
      const Status done = step.WaitFor(40 * kIdle);
      ASSERT_TRUE(done.ok()) << "rank " << client.rank() << ", round " << round << ": " << done.ToString();
      ++rounds[client.rank()];
      std::this_thread::sleep_for(milliseconds(20));
    }
    passed_over[client.rank()] = client.stats().pushes_passed_over;
    EXPECT_EQ(client.Leave(), Status());
  };
  std::thread thread([&] { train(steady); });
  std::thread other([&] { train(cut); });
  for (int i = 0; i < 10'000 && rounds[0] < 3; ++i) std::this_thread::sleep_for(milliseconds(1));
  std::this_thread::sleep_for(4 * kIdle);
  EXPECT_LT(rounds[1], kRounds - 2) << "they wait";
  path.Keep(SIZE_MAX);
  thread.join();
  other.join();
  EXPECT_EQ(passed_over[0], 2u) << "the one on its way, and the next one";
  EXPECT_EQ(passed_over[1], 0u);
}

ConnectOptions Alone(const Server& server) {
  ConnectOptions options;
  options.servers = {server.address()};
  options.insecure = true;
  return options;
}

TEST(ShardedClient, SendsNothingOfAGradientThatOneServerWouldRefuse) {
  const auto servers = StartServers(3, 1);
  Client client = MustConnect(Alone(servers[0]));
  const auto w = client.Declare("w", {.count = kLarge, .optimizer = "sgd:lr=1"});
  ASSERT_TRUE(w.ok()) << w.status().ToString();
  std::vector<float> gradient(kLarge, 1), weights(kLarge);
  gradient.back() = std::numeric_limits<float>::quiet_NaN();
  const Status refused = client.PushPull(*w, gradient, weights).Wait();
  EXPECT_EQ(refused.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(refused.message(), HasSubstr("element 49999"));
  gradient.back() = 3e38f;
  EXPECT_EQ(client.Push(*w, gradient).Wait().code(), StatusCode::kInvalidArgument);
  gradient.back() = 1;
  EXPECT_EQ(client.Push(*w, std::span(gradient).first(10)).Wait().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(client.Pull(*w, std::span(weights).first(10)).Wait().code(), StatusCode::kInvalidArgument);
  const Operation good = client.PushPull(*w, gradient, weights);
  ASSERT_TRUE(good.Wait().ok()) << good.Wait().ToString();
  EXPECT_EQ(good.stats().round, 0u);
  EXPECT_EQ(weights, std::vector<float>(kLarge, -1));
  EXPECT_TRUE(client.Leave().ok());
}

TEST(ShardedClient, RefusesWhatIsNoTensor) {
  const auto servers = StartServers(3, 1);
  Client client = MustConnect(Alone(servers[0]));
  EXPECT_EQ(client.Declare("w", {.count = 0}).status().code(), StatusCode::kInvalidArgument);
  const std::vector<float> initial(10);
  EXPECT_EQ(
      client.Declare("w", {.count = kLarge, .optimizer = "sgd:lr=1", .initial = initial}).status().code(),
      StatusCode::kInvalidArgument);
  EXPECT_EQ(client.Declare("w", {.high_ranges = {{kLarge - 1, 2}}, .count = kLarge}).status().code(),
            StatusCode::kInvalidArgument);
  ASSERT_TRUE(client.Declare("w", {.high_ranges = {{10'000, 30'000}}, .count = kLarge}).ok());
  EXPECT_EQ(client.Declare("w", {.count = kLarge + 1}).status().code(), StatusCode::kSettingsMismatch);
  EXPECT_TRUE(client.Leave().ok());
}

TEST(ShardedClient, TakesScores) {
  const auto servers = StartServers(3, 1);
  Client client = MustConnect(Alone(servers[0]));
  const auto w = client.Declare("w", {.count = kLarge});
  ASSERT_TRUE(w.ok());
  EXPECT_EQ(client.SetScores(*w, std::vector<float>{-1}).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(client.SetScores(*w, std::vector<float>(100, 1)), Status());
  std::vector<float> gradient(kLarge, 2), mean(kLarge);
  EXPECT_EQ(client.PushPull(*w, gradient, mean).Wait(), Status());
  EXPECT_EQ(mean, gradient);
}

TEST(ShardedClient, SaysWhatIsOwedOfAllItsParts) {
  const auto servers = StartServers(3, 1);
  Client client = MustConnect(Alone(servers[0]));
  const auto w = client.Declare("w", {.count = kLarge, .topk_share = 0.1});
  ASSERT_TRUE(w.ok());
  const std::vector<float> gradient = Values(kLarge, 5);
  std::vector<float> mean(kLarge), owed(kLarge, 7);
  ASSERT_EQ(client.Owed(*w, owed), Status());
  EXPECT_EQ(owed, std::vector<float>(kLarge, 0));
  ASSERT_EQ(client.PushPull(*w, gradient, mean).Wait(), Status());
  ASSERT_EQ(client.Owed(*w, owed), Status());
  size_t zeros = 0;
  for (size_t i = 0; i < kLarge; ++i) {
    ASSERT_EQ(owed[i] + mean[i], gradient[i]) << i;
    zeros += owed[i] == 0;
  }
  EXPECT_LT(zeros, kLarge / 2);
}

TEST(ShardedClient, MayBeDestroyedInItsOwnCallback) {
  const auto servers = StartServers(3, 1);
  std::optional<Client> client = MustConnect(Alone(servers[0]));
  const auto w = client->Declare("w", {.count = kLarge});
  ASSERT_TRUE(w.ok());
  std::vector<float> gradient(kLarge, 2), mean(kLarge);
  const Operation step = client->PushPull(*w, gradient, mean);
  std::atomic<bool> destroyed = false;
  step.Then([&](const Status&) {
    client.reset();
    destroyed = true;
  });
  EXPECT_EQ(step.Wait(), Status());
  EXPECT_TRUE(destroyed);
}

TEST(ShardedClient, EndsWithTheServerThatEnds) {
  auto servers = StartServers(3, 2);
  std::vector<Client> clients;
  for (uint32_t rank = 0; rank < 2; ++rank) clients.push_back(MustConnect(OptionsFor(servers[0], rank, 2)));
  std::vector<Tensor> tensors(2);
  OnAll(2, [&](uint32_t rank) { tensors[rank] = *clients[rank].Declare("w", {.count = kLarge}); });
  std::vector<float> gradient(kLarge, 2), mean(kLarge);
  // Rank 1 does not come: this one waits at every server.
  const Operation waits = clients[0].PushPull(tensors[0], gradient, mean);
  const std::string second = servers[1].address();
  servers[1].Stop();
  const Status why = waits.Wait();
  EXPECT_EQ(why.code(), StatusCode::kAborted);
  EXPECT_THAT(why.message(), HasSubstr(second));
  EXPECT_EQ(clients[0].status(), why);
  EXPECT_EQ(clients[0].Push(tensors[0], gradient).Wait(), why);
  EXPECT_EQ(clients[0].Leave(), why);
}

TEST(ShardedClient, WaitsForServersThatAreNotThereByName) {
  ServerOptions options;
  options.servers = 3;
  Server first = StartServer(1, options);
  ConnectOptions impatient = Alone(first);
  impatient.connect_timeout = milliseconds(300);
  const auto client = Client::Connect(impatient);
  EXPECT_EQ(client.status().code(), StatusCode::kUnavailable);
  EXPECT_THAT(client.status().message(), HasSubstr("the job waits for server 2 of 3, server 3 of 3"));
}

TEST(ShardedClient, BelongsToTheFirstServersJob) {
  ServerOptions options;
  options.servers = 2;
  const Server first = StartServer(1, options);
  ServerOptions other;
  other.first_server = first.address();
  other.listen = "127.0.0.1:0";
  other.insecure = true;
  other.job = "another";
  const auto refused = Server::Start(other);
  EXPECT_EQ(refused.status().code(), StatusCode::kSettingsMismatch);
  EXPECT_THAT(refused.status().message(), HasSubstr("of job \"default\", and that one of job \"another\""));
  other.job = "default";
  const auto second = Server::Start(other);
  ASSERT_TRUE(second.ok()) << second.status().ToString();
  // A first server of itself, and one with settings of its own.
  ServerOptions third = other;
  third.first_server = second->address();
  EXPECT_THAT(Server::Start(third).status().message(),
              HasSubstr("this is no first server: that is " + first.address()));
  third.first_server = first.address();
  third.job_spec.fec_k = 7;
  EXPECT_EQ(Server::Start(third).status().code(), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace longhaul
