// What a program may do wrong with the public API: every wrong argument and wrong moment has a named end, and
// the process goes on.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cmath>
#include <future>
#include <limits>
#include <memory>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "longhaul/client.h"
#include "longhaul/server.h"
#include "tests/worker/client_harness.h"

namespace longhaul {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::HasSubstr;

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr size_t kCount = 500;
constexpr auto kSoon = seconds(20);  // "at once", on a busy machine

const std::vector<float> kOnes(kCount, 1.0f);

template <typename E>
constexpr E Unknown() {
  return static_cast<E>(99);
}

void ExpectInvalid(const Status& status, const std::string& words) {
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << status.ToString();
  EXPECT_THAT(status.message(), HasSubstr(words));
}

// One worker and its tensor.
struct Alone {
  explicit Alone(ServerOptions server_options = EverythingReliable(), ConnectOptions connect = {})
      : server(StartServer(1, std::move(server_options))) {
    connect.servers = {server.address()};
    connect.insecure = true;
    client.emplace(MustConnect(connect));
    w = *client->Declare("w", {.count = kCount, .optimizer = "sgd:lr=1"});
  }
  Server server;
  std::optional<Client> client;
  Tensor w;
};

// --- Arguments ---

TEST(S12PublicApi, ADeclarationThatCannotBeIsRefused) {
  Alone alone;
  const auto declare = [&](const std::string& name, const TensorOptions& options) {
    return alone.client->Declare(name, options).status();
  };
  ExpectInvalid(declare("x", {.count = (uint64_t{1} << 40) + 1}), "more than 2^40");
  ExpectInvalid(declare("x", {.count = ~uint64_t{0}}), "more than 2^40");
  ExpectInvalid(declare("x", {}), "no elements");
  ExpectInvalid(declare("", {.count = 1}), "1..256 bytes");
  ExpectInvalid(declare(std::string(257, 'n'), {.count = 1}), "1..256 bytes");
  ExpectInvalid(declare(std::string("a\0b", 3), {.count = 1}), "control characters");
  ExpectInvalid(declare("\xff", {.count = 1}), "control characters");
  ExpectInvalid(declare("x", {.dtype = Unknown<DType>(), .count = 1}), "unknown");
  ExpectInvalid(declare("x", {.wire_dtype = Unknown<DType>(), .count = 1}), "unknown wire type");
  ExpectInvalid(declare("x", {.result_dtype = Unknown<DType>(), .count = 1}), "unknown");
  ExpectInvalid(declare("x", {.high_ranges = {{1, ~uint64_t{0}}}, .count = 9}), "ends beyond");
  ExpectInvalid(declare("x", {.high_share = kNaN, .count = 1}), "0..1");
  ExpectInvalid(declare("x", {.high_energy = -1.0, .count = 1}), "0..1");
  ExpectInvalid(declare("x", {.count = 1, .optimizer = std::string("sgd\0lr=1", 8)}), "control characters");
  ExpectInvalid(declare("x", {.count = 1, .optimizer = "sgd:lr=nan"}), "");
  ExpectInvalid(declare("x", {.count = 5, .initial = {static_cast<const float*>(nullptr), 5}}),
                "null pointer");
  std::vector<float> out(kCount);
  EXPECT_TRUE(alone.client->PushPull(alone.w, kOnes, out).Wait().ok());
}

TEST(S12PublicApi, LeavingWithACodeThatIsNoneIsRefused) {
  Alone alone;
  ExpectInvalid(alone.client->Leave(Status(static_cast<StatusCode>(200), "x")), "200 is not a status code");
  EXPECT_TRUE(alone.client->status().ok()) << "it has not left";
  EXPECT_TRUE(alone.client->Leave().ok());
}

TEST(S12PublicApi, OptionsOfAClientAreCheckedWhateverTheyAre) {
  const auto status = [](auto change) {
    ConnectOptions options;
    options.servers = {"127.0.0.1:9"};
    options.insecure = true;
    change(options);
    return Client::Connect(options).status();
  };
  ExpectInvalid(status([](auto& o) { o.insecure = false, o.cipher = Unknown<Cipher>(); }),
                "'cipher' is unknown");
  ExpectInvalid(status([](auto& o) { o.rate_controller = Unknown<RateControl>(); }), "rate_controller");
  ExpectInvalid(status([](auto& o) { o.weight = std::nanf(""); }), "weight");
  ExpectInvalid(status([](auto& o) { o.weight = -1; }), "weight");
  ExpectInvalid(status([](auto& o) { o.rate_cap = Bandwidth::Mbps(-1); }), "rate_cap is negative");
  ExpectInvalid(status([](auto& o) { o.rate_floor = Bandwidth::Mbps(kNaN); }), "rate_floor is negative");
  ExpectInvalid(status([](auto& o) { o.connect_timeout = Duration::max(); }), "connect_timeout");
  ExpectInvalid(status([](auto& o) { o.idle_timeout = Duration::min(); }), "idle_timeout");
  ExpectInvalid(status([](auto& o) { o.servers = {std::string("127.0.0.1\0x:9", 13)}; }), "zero byte");
  ExpectInvalid(status([](auto& o) { o.site = std::string("a\0b", 3); }), "site");
  ExpectInvalid(status([](auto& o) {
                  o.insecure = false;
                  o.key_file = std::string("/dev/null\0x", 11);
                }),
                "zero byte");
}

TEST(S12PublicApi, OptionsOfAServerAreCheckedWhateverTheyAre) {
  const auto status = [](auto change) {
    ServerOptions options;
    options.listen = "127.0.0.1:0";
    options.insecure = true;
    change(options);
    return Server::Start(options).status();
  };
  ExpectInvalid(status([](auto& o) { o.job_spec.policy = Unknown<LossPolicy>(); }), "policy");
  ExpectInvalid(status([](auto& o) { o.job_spec.priority = Unknown<Priority>(); }), "priority");
  ExpectInvalid(status([](auto& o) { o.job_spec.downlink = Unknown<Downlink>(); }), "downlink");
  ExpectInvalid(status([](auto& o) { o.job_spec.high_share = kNaN; }), "high_share");
  ExpectInvalid(status([](auto& o) { o.job_spec.norm_guard = -1; }), "norm_guard");
  ExpectInvalid(status([](auto& o) { o.job_spec.round_bound = Duration(-1); }), "round_bound");
  ExpectInvalid(status([](auto& o) { o.job_spec.idle_timeout = Duration::max(); }), "idle_timeout");
  ExpectInvalid(status([](auto& o) { o.cipher = Unknown<Cipher>(); }), "'cipher' is unknown");
  ExpectInvalid(status([](auto& o) { o.capacity = Bandwidth::Mbps(-5); }), "capacity is");
  ExpectInvalid(status([](auto& o) { o.worker_rate_floor = Bandwidth::Mbps(-5); }), "worker_rate_floor is");
  ExpectInvalid(status([](auto& o) { o.max_model = ByteCount(-1); }), "max_model");
  ExpectInvalid(status([](auto& o) { o.workers = ~0u; }), "workers");
  ExpectInvalid(status([](auto& o) { o.job = std::string("a\0b", 3); }), "job");
  ExpectInvalid(status([](auto& o) { o.fault = std::string("drop=nan"); }), "drop");
  ExpectInvalid(status([](auto& o) { o.listen = std::string("127.0.0.1\0:0", 12); }), "zero byte");
}

TEST(S12PublicApi, SpansWithoutMemoryAreRefused) {
  Alone alone;
  const std::span<float> none(static_cast<float*>(nullptr), kCount);
  std::vector<float> out(kCount);
  ExpectInvalid(alone.client->Push(alone.w, none).Wait(), "null pointer");
  ExpectInvalid(alone.client->Pull(alone.w, none).Wait(), "null pointer");
  ExpectInvalid(alone.client->PushPull(alone.w, none, out).Wait(), "null pointer");
  ExpectInvalid(alone.client->PushPull(alone.w, kOnes, none).Wait(), "null pointer");
  ExpectInvalid(alone.client->SetScores(alone.w, none), "null pointer");
  ExpectInvalid(alone.client->Owed(alone.w, none), "null pointer");
  ExpectInvalid(alone.client->Owed(alone.w, {}), "memory for 0");
  ExpectInvalid(alone.client->Owed(alone.w, std::span(out).first(kCount - 1)), "memory for");
  ExpectInvalid(alone.client->Owed(Tensor(), out), "never declared");
  ExpectInvalid(alone.client->Push(alone.w, {}).Wait(), "0");
  ExpectInvalid(alone.client->Pull(alone.w, {}).Wait(), "0");
}

TEST(S12PublicApi, InitialValuesThatAreNotFiniteAreRefused) {
  Alone alone;
  std::vector<float> initial(kCount, 1.0f);
  initial.back() = std::numeric_limits<float>::infinity();
  const auto declared =
      alone.client->Declare("v", {.count = kCount, .optimizer = "sgd:lr=1", .initial = initial});
  ExpectInvalid(declared.status(), "initial value " + std::to_string(kCount - 1) + " is inf");
}

// The server's guard would leave such chunks out, and only its log would say so.
TEST(S12PublicApi, AGradientThatCannotBeSummedIsRefusedAndTheLargestThatIsNotCounts) {
  for (const LossPolicy policy : ValuesOf<LossPolicy>()) {
    ServerOptions options = EverythingReliable();
    options.job_spec.policy = policy;
    ConnectOptions connect;
    connect.weight = 1000;
    Alone alone(options, connect);
    const float bound = std::numeric_limits<float>::max() / 32 / 1000;
    std::vector<float> out(kCount);
    std::vector<float> gradient(kCount, 1.0f);
    gradient[7] = 3e38f;
    ExpectInvalid(alone.client->PushPull(alone.w, gradient, out).Wait(), "magnitude is above");
    gradient[7] = -bound * 1.01f;
    ExpectInvalid(alone.client->Push(alone.w, gradient).Wait(), "chunk 0 (elements 0 to");
    gradient[7] = bound * 0.99f;
    const Operation largest = alone.client->PushPull(alone.w, gradient, out);
    ASSERT_TRUE(largest.Wait().ok()) << largest.Wait().ToString();
    EXPECT_EQ(out[8], -1.0f) << NameOf(policy);
    EXPECT_EQ(out[7], -gradient[7]) << NameOf(policy);
    EXPECT_THAT(alone.server.StatsJson(), HasSubstr("\"rejected_chunks\":0"));
  }
}

TEST(S12PublicApi, EveryLengthOfAWaitIsTaken) {
  Server server = StartServer(2);
  std::optional<Client> first = MustConnect(OptionsFor(server, 0, 2));
  Client second = MustConnect(OptionsFor(server, 1, 2));
  auto declared = std::async(std::launch::async, [&] { return second.Declare("w", {.count = kCount}); });
  const Tensor w = *first->Declare("w", {.count = kCount});
  ASSERT_TRUE(declared.get().ok());
  std::vector<float> out(kCount);
  const Operation step = first->PushPull(w, kOnes, out);  // the other worker does not push
  for (const Duration limit : {Duration::min(), Duration(-1), Duration(0), Duration(1)}) {
    EXPECT_EQ(step.WaitFor(limit).code(), StatusCode::kDeadlineExceeded);
  }
  auto longest = std::async(std::launch::async, [&] { return step.WaitFor(Duration::max()); });
  EXPECT_EQ(longest.wait_for(milliseconds(50)), std::future_status::timeout);
  first.reset();
  EXPECT_EQ(longest.get().code(), StatusCode::kCancelled);
  EXPECT_EQ(server.WaitFor(Duration::min()), std::nullopt);
  server.Stop();
  EXPECT_TRUE(server.WaitFor(Duration::max()).has_value());
}

// --- Objects that were moved from ---

TEST(S12PublicApi, WhatWasMovedFromDoesNothing) {
  Alone alone;
  Client& from = *alone.client;
  Client to = std::move(from);
  std::vector<float> out(kCount);
  const auto refused = [](const Status& status) { return status.code() == StatusCode::kFailedPrecondition; };
  EXPECT_TRUE(refused(from.Declare("x", {.count = 1}).status()));
  EXPECT_TRUE(refused(from.Push(alone.w, kOnes).Wait()));
  EXPECT_TRUE(refused(from.Pull(alone.w, out).Wait()));
  EXPECT_TRUE(refused(from.PushPull(alone.w, kOnes, out).Wait()));
  EXPECT_TRUE(refused(from.SetScores(alone.w, kOnes)));
  EXPECT_TRUE(refused(from.Owed(alone.w, out)));
  EXPECT_TRUE(refused(from.Barrier("b")));
  EXPECT_TRUE(refused(from.Leave()));
  EXPECT_TRUE(refused(from.status()));
  EXPECT_FALSE(from.Answers());
  EXPECT_TRUE(to.Answers());
  EXPECT_EQ(from.rank() + from.world_size() + from.stats().packets_sent, 0u);
  EXPECT_EQ(from.settings(), JobSpec());
  Client& same = to;
  to = std::move(same);
  EXPECT_TRUE(to.status().ok()) << "assigned to itself";

  Operation first = to.PushPull(alone.w, kOnes, out);
  const Operation second = std::move(first);
  EXPECT_TRUE(first.done());
  EXPECT_TRUE(refused(first.Wait()));
  EXPECT_TRUE(refused(first.WaitFor(seconds(1))));
  EXPECT_EQ(first.stats().round, 0u);
  int called = 0;
  first.Then([&](const Status& status) { called += refused(status) ? 1 : 0; });
  EXPECT_EQ(called, 1);
  EXPECT_TRUE(second.Wait().ok());

  Server server = std::move(alone.server);
  EXPECT_TRUE(refused(alone.server.Wait()));
  EXPECT_TRUE(refused(*alone.server.WaitFor(seconds(1))));
  alone.server.Stop();
  EXPECT_EQ(alone.server.port(), 0);
  EXPECT_EQ(
      alone.server.address() + alone.server.job() + alone.server.security() + alone.server.fec_backend(), "");
  EXPECT_EQ(alone.server.StatsJson(), "{}");
  EXPECT_NE(server.port(), 0);
}

// --- Callbacks ---

// Holds the client's thread in a callback: what is begun meanwhile is pending until Release.
class Held {
 public:
  Held(Client& client, const Tensor& w) {
    const std::thread::id here = std::this_thread::get_id();
    bool at_once = true;  // the operation was over before Then was called
    while (at_once) {
      at_once = false;
      operation_ = client.PushPull(w, kOnes, out_);
      operation_.Then([this, here, &at_once](const Status&) {
        if (std::this_thread::get_id() == here) {
          at_once = true;
        } else {
          go_.get_future().wait();
        }
      });
    }
  }
  void Release() { go_.set_value(); }

 private:
  std::vector<float> out_ = std::vector<float>(kCount);
  std::promise<void> go_;
  Operation operation_;
};

// What `in_callback` returns when it runs on the client's thread.
template <typename F>
auto InACallback(Alone& alone, F in_callback) {
  std::promise<decltype(in_callback())> result;
  auto future = result.get_future();
  std::vector<float> out(kCount);
  Held held(*alone.client, alone.w);
  const Operation next = alone.client->PushPull(alone.w, kOnes, out);
  next.Then([&](const Status&) { result.set_value(in_callback()); });
  held.Release();
  EXPECT_EQ(future.wait_for(kSoon), std::future_status::ready);
  EXPECT_TRUE(next.Wait().ok());
  return future.get();
}

TEST(S12PublicApi, WaitingInACallbackIsRefused) {
  Alone alone;
  std::vector<float> out(kCount);
  const std::vector<Status> refused = InACallback(alone, [&] {
    const Operation next = alone.client->PushPull(alone.w, kOnes, out);
    return std::vector<Status>{next.Wait(),
                               next.WaitFor(seconds(60)),
                               alone.client->Declare("y", {.count = 1}).status(),
                               alone.client->Barrier("b"),
                               alone.client->Leave(),
                               Client::Connect(OptionsFor(alone.server, 0, 1)).status(),
                               alone.server.Wait()};
  });
  for (size_t i = 0; i < refused.size(); ++i) {
    EXPECT_EQ(refused[i].code(), StatusCode::kFailedPrecondition) << i << ": " << refused[i].ToString();
  }
  std::vector<float> last(kCount);
  EXPECT_TRUE(alone.client->PushPull(alone.w, kOnes, last).Wait().ok());
  EXPECT_LT(out[0], 0) << "what the callback began has happened";
  EXPECT_EQ(last[0], out[0] - 1);
  EXPECT_TRUE(InACallback(alone, [&] { return alone.client->status(); }).ok());
  EXPECT_GT(InACallback(alone, [&] { return alone.client->stats().packets_sent; }), 0u);
}

TEST(S12PublicApi, ExceptionsOfCallbacksAreLoggedAndCounted) {
  std::mutex mutex;
  std::string all;
  const LogCallback log = [&](LogLevel, std::string_view text) {
    const std::lock_guard lock(mutex);
    all += std::string(text) + "\n";
    throw std::runtime_error("the log throws as well");
  };
  ServerOptions options = EverythingReliable();
  options.log = log;
  options.listen = "127.0.0.1:0";
  options.insecure = true;
  std::atomic<int> events{0};
  Result<Server> server = Server::Start(options, [&](const ServerEvent&) {
    ++events;
    throw std::runtime_error("event trouble");
  });
  ASSERT_TRUE(server.ok());
  ConnectOptions connect = OptionsFor(*server, 0, 1);
  connect.log = log;
  connect.fault = "drop=0";  // is logged
  Client client = MustConnect(connect);
  const Tensor w = *client.Declare("w", {.count = kCount});
  std::vector<float> out(kCount);
  Held held(client, w);
  const Operation step = client.PushPull(w, kOnes, out);
  step.Then([](const Status&) { throw std::runtime_error("boom"); });
  step.Then([](const Status&) { throw 7; });
  int after = 0;
  step.Then([&](const Status&) { ++after; });
  held.Release();
  EXPECT_TRUE(step.Wait().ok()) << "its outcome is its own";
  EXPECT_EQ(after, 1);
  EXPECT_EQ(client.stats().callbacks_threw, 5u) << "two, their lines in the log, and that of the faults";
  EXPECT_THAT(server->StatsJson(), testing::Not(HasSubstr("\"callbacks_threw\":0")));
  EXPECT_TRUE(client.Leave().ok());
  server->Stop();
  EXPECT_GE(events, 3);
  const std::lock_guard lock(mutex);
  EXPECT_THAT(all, HasSubstr("Then callback threw: boom"));
  EXPECT_THAT(all, HasSubstr("an exception of unknown type"));
  EXPECT_THAT(all, HasSubstr("on_event callback threw: event trouble"));
}

TEST(S12PublicApi, AClientMayBeDestroyedInItsOwnCallback) {
  Alone alone;
  std::vector<float> out(kCount);
  std::vector<float> more(kCount);
  std::optional<Operation> pending;
  InACallback(alone, [&] {
    pending = alone.client->PushPull(alone.w, kOnes, more);
    alone.client.reset();
    return 0;
  });
  EXPECT_EQ(pending->WaitFor(kSoon).code(), StatusCode::kCancelled);
  // The rank is free again.
  Client next = MustConnect(OptionsFor(alone.server, 0, 1));
  EXPECT_TRUE(next.status().ok());
  // Assigned over in its own callback, and owned by what its operation owns.
  const auto w = next.Declare("v", {.count = kCount});
  ASSERT_TRUE(w.ok()) << w.status().ToString();
  auto shared = std::make_shared<Client>(std::move(next));
  Held held(*shared, *w);
  const Operation last = shared->PushPull(*w, kOnes, out);
  last.Then([owner = std::move(shared)](const Status&) {});
  held.Release();
  EXPECT_TRUE(last.WaitFor(kSoon).ok()) << last.WaitFor(kSoon).ToString();
}

TEST(S12PublicApi, AServerMayBeStoppedAskedAndDestroyedInItsOwnCallback) {
  for (const bool destroy : {false, true}) {
    ServerOptions options;
    options.listen = "127.0.0.1:0";
    options.insecure = true;
    std::mutex mutex;  // held until the handle is in place
    std::unique_lock lock(mutex);
    std::optional<Server> server;
    std::promise<Status> waited;
    Result<Server> started = Server::Start(options, [&](const ServerEvent& event) {
      if (event.kind != ServerEvent::Kind::kJoin) return;
      const std::lock_guard in_place(mutex);
      EXPECT_THAT(server->StatsJson(), HasSubstr("callbacks_threw"));
      EXPECT_EQ(server->WaitFor(seconds(60)), std::nullopt);
      server->Stop();
      const Status status = server->Wait();
      if (destroy) server.reset();
      waited.set_value(status);
    });
    ASSERT_TRUE(started.ok());
    server.emplace(*std::move(started));
    const ConnectOptions connect = OptionsFor(*server, 0, 1);
    lock.unlock();
    Result<Client> client = Client::Connect(connect);
    auto future = waited.get_future();
    ASSERT_EQ(future.wait_for(kSoon), std::future_status::ready);
    EXPECT_EQ(future.get().code(), StatusCode::kFailedPrecondition);
    if (!destroy) {
      EXPECT_TRUE(server->WaitFor(kSoon).has_value());
    }
    if (client.ok()) {
      // What it asks while the server ends may still be answered.
      const auto limit = std::chrono::steady_clock::now() + kSoon;
      bool answered = true;
      while (answered && std::chrono::steady_clock::now() < limit) answered = client->Barrier("b").ok();
      EXPECT_FALSE(answered) << "the server is gone";
    }
  }
}

TEST(Reload, AServerWithoutKeysHasNoneToReadAgain) {
  Alone alone;
  EXPECT_EQ(alone.server.Reload({.key_file = "/nowhere"}).code(), StatusCode::kFailedPrecondition);
  EXPECT_TRUE(alone.client->Leave().ok()) << "and goes on";
}

}  // namespace
}  // namespace longhaul
