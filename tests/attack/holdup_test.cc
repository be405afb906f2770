// A member of the job, with its key, that holds the others up: it takes what they need, does nothing, or
// never comes.
#include <algorithm>
#include <atomic>
#include <iostream>
#include <mutex>
#include <thread>

#include "tests/attack/support/attack_test.h"

namespace longhaul::attack {
namespace {

constexpr size_t kElements = 4096;
constexpr uint32_t kWorkers = 4;

class Holdup : public AttackTest {
 protected:
  // `workers` of a job of `world_size` are in, with these options beside their own.
  void Join(uint32_t workers, uint32_t world_size, const ConnectOptions& more = {}) {
    for (uint32_t rank = 0; rank < workers; ++rank) {
      ConnectOptions options = more;
      options.servers = {address()};
      options.rank = rank;
      options.world_size = world_size;
      options.key_file = key_file();
      options.connect_timeout = kPatience;
      auto client = Client::Connect(options);
      ASSERT_TRUE(client.ok()) << client.status().ToString();
      clients().emplace_back(*std::move(client));
    }
  }
  void DeclareAll() {
    for (auto& client : clients()) {
      auto tensor = client->Declare("w", {.count = kElements, .optimizer = "aggregate"});
      ASSERT_TRUE(tensor.ok()) << tensor.status().ToString();
      tensors_.push_back(*tensor);
    }
  }
  void StartJob() {
    StartTarget({{"--workers", std::to_string(kWorkers)}});
    Join(kWorkers, kWorkers);
    DeclareAll();
  }
  // A round in which all push this value; what they read.
  float Mean(float value) {
    const std::vector<float> given(kElements, value);
    std::vector<std::vector<float>> results(kWorkers, std::vector<float>(kElements));
    std::vector<Operation> operations;
    for (uint32_t rank = 0; rank < kWorkers; ++rank) {
      operations.push_back(clients()[rank]->PushPull(tensors_[rank], given, results[rank]));
    }
    for (const Operation& operation : operations) EXPECT_TRUE(operation.WaitFor(kPatience).ok());
    for (const std::vector<float>& result : results) {
      EXPECT_EQ(result, std::vector<float>(kElements, results[0][0]));
    }
    return results[0][0];
  }

  std::vector<Tensor> tensors_;
};

// Would gain: that the honest worker that comes next is disconnected and blamed.
TEST_F(Holdup, ThatHoardsBarriersIsRefusedAndTheOthersMeetAtTheirs) {
  StartJob();
  Client& hoarder = *clients()[3];
  std::vector<std::thread> threads;
  std::vector<Status> junk(80);
  std::atomic<int> ended = 0;
  for (size_t i = 0; i < junk.size(); ++i) {
    threads.emplace_back([&, i] {
      junk[i] = hoarder.Barrier("junk" + std::to_string(i));
      ++ended;
    });
  }
  EXPECT_TRUE(e2e::Eventually([&] { return ended == 16; })) << ended << " of 80 are beyond what one may open";
  std::vector<Status> epoch(kWorkers);
  for (uint32_t rank = 0; rank < kWorkers; ++rank) {
    // The hoarder has no name to open, so it may not come first.
    threads.emplace_back([&, rank] {
      do {
        epoch[rank] = clients()[rank]->Barrier("epoch");
      } while (epoch[rank].code() == StatusCode::kResourceExhausted);
    });
  }
  for (uint32_t rank = 0; rank < kWorkers; ++rank) threads[junk.size() + rank].join();
  for (const Status& status : epoch) EXPECT_TRUE(status.ok()) << status.ToString();
  EXPECT_NEAR(Mean(1), 1, 1e-6);
  EXPECT_TRUE(hoarder.Leave(Status(StatusCode::kCancelled, "has seen enough")).ok());
  for (size_t i = 0; i < junk.size(); ++i) threads[i].join();
  const auto refused = std::ranges::count(junk, StatusCode::kResourceExhausted, &Status::code);
  EXPECT_EQ(refused, 16);
  for (const Status& status : junk) {
    if (status.code() != StatusCode::kResourceExhausted) continue;
    EXPECT_THAT(status.message(), ::testing::HasSubstr("worker rank 3 holds 64 of 64 barriers"));
  }
}

// Would gain: that the others have no room for their model.
TEST_F(Holdup, ThatHoardsTensorsHasItsPartAndTheOthersHaveTheirModel) {
  constexpr uint64_t kPart = 1 << 20;  // elements; a model has four of these
  StartTarget({{"--workers", std::to_string(kWorkers)}, {"--max-model-bytes", std::to_string(16 << 20)}});
  Join(kWorkers, kWorkers, {.wait_timeout = seconds(3)});
  Client& hoarder = *clients()[3];
  int taken = 0;
  Status refused;
  for (int i = 0; i < 100 && refused.ok(); ++i) {
    refused = hoarder.Declare("junk" + std::to_string(i), {.count = kPart / 4}).status();
    taken += refused.ok() ? 1 : 0;
  }
  EXPECT_EQ(taken, 4);
  EXPECT_EQ(refused.code(), StatusCode::kDeadlineExceeded) << refused.ToString();
  EXPECT_THAT(refused.message(),
              ::testing::AllOf(::testing::HasSubstr("by worker rank 3 ("),
                               ::testing::HasSubstr("one worker alone may take no more than 25.0 %")));
  EXPECT_THAT(refused.message(), ::testing::HasSubstr("worker rank 0"));
  std::vector<std::thread> honest;
  std::vector<Status> declared(3);
  for (uint32_t rank = 0; rank < 3; ++rank) {
    honest.emplace_back([&, rank] {
      for (const char* name : {"w1", "w2", "w3"}) {
        const Status status = clients()[rank]->Declare(name, {.count = kPart}).status();
        if (declared[rank].ok()) declared[rank] = status;
      }
    });
  }
  for (std::thread& thread : honest) thread.join();
  for (const Status& status : declared) EXPECT_TRUE(status.ok()) << status.ToString();
  EXPECT_EQ(AskServer().value("joined", -1), 4) << "nobody was thrown out";
}

// Would gain: a job that stands still for ever.
TEST_F(Holdup, ThatLivesAndDoesNothingIsLeftOutByName) {
  constexpr int kSilence = 2 * kSlowness;
  StartServer({{"--workers", std::to_string(kWorkers)},
               {"--high-share", "1"},
               {"--idle-timeout", std::to_string(kSilence)}});
  Join(kWorkers, kWorkers);
  DeclareAll();
  for (int round = 0; round < 10; ++round) EXPECT_NEAR(Mean(1), 1, 1e-6);
  const std::vector<float> given(kElements, 4.0f);
  std::vector<std::vector<float>> results(kWorkers, std::vector<float>(kElements));
  const auto begun = e2e::Clock::now();
  std::vector<Operation> operations;
  for (uint32_t rank = 0; rank < 3; ++rank) {
    operations.push_back(clients()[rank]->PushPull(tensors_[rank], given, results[rank]));
  }
  const auto all_done = [&] { return std::ranges::all_of(operations, &Operation::done); };
  ASSERT_TRUE(e2e::Eventually(all_done, 20 * seconds(kSilence))) << "holds everyone up";
  const double waited = e2e::SecondsFrom(begun, e2e::Clock::now());
  std::cout << "left out after " << waited << " s with an idle time-out of " << kSilence << " s\n";
  EXPECT_GE(waited, 12 * kSilence - 1);
  for (const Operation& operation : operations) EXPECT_TRUE(operation.Wait().ok());
  const auto left_out = server().WaitForEvent("left_out");
  ASSERT_TRUE(left_out) << server().Everything();
  EXPECT_EQ(left_out->value("rank", -1), 3);
  EXPECT_THAT(server().Errors(), ::testing::HasSubstr("worker rank 3"));
  const auto waiting = server().WaitForEvent("waiting");
  ASSERT_TRUE(waiting) << server().Everything();
  EXPECT_EQ((*waiting)["missing"], nlohmann::json({3}));
  EXPECT_TRUE(AskServer()["members"][3].value("lags", false));
  // It wakes up: what it gives counts from there on.
  operations = {clients()[3]->PushPull(tensors_[3], given, results[3])};
  ASSERT_TRUE(e2e::Eventually([&] { return !AskServer()["members"][3].value("lags", true); }));
  for (uint32_t rank = 0; rank < 3; ++rank) {
    operations.push_back(clients()[rank]->PushPull(tensors_[rank], given, results[rank]));
  }
  for (const Operation& operation : operations) EXPECT_TRUE(operation.WaitFor(kPatience).ok());
  EXPECT_EQ(results[0], given) << "the mean of four that give the same";
}

// Would gain: the model, by rounds without the others while they evaluate. Without the rule: 6,040 in 3 s.
TEST_F(Holdup, ThatPushesOnWhileTheOthersPauseMakesOneRoundInTheirPatience) {
  constexpr int kSilence = 1 * kSlowness;
  StartServer({{"--workers", std::to_string(kWorkers)},
               {"--high-share", "1"},
               {"--idle-timeout", std::to_string(kSilence)}});
  Join(kWorkers, kWorkers);
  DeclareAll();
  for (int round = 0; round < 20; ++round) EXPECT_NEAR(Mean(1), 1, 1e-6);
  const std::vector<float> evil(kElements, -3.0f);
  std::vector<float> result(kElements);
  const auto end = e2e::Clock::now() + 15 * seconds(kSilence);
  int alone = 0;
  Operation push;
  while (e2e::Clock::now() < end) {
    push = clients()[3]->PushPull(tensors_[3], evil, result);
    const Status status = push.WaitFor(std::max<Duration>(end - e2e::Clock::now(), milliseconds(1)));
    if (status.code() == StatusCode::kDeadlineExceeded) break;  // it waits for the others
    ASSERT_TRUE(status.ok()) << status.ToString();
    ++alone;
  }
  std::cout << alone << " rounds without the others in " << 15 * kSilence << " s\n";
  EXPECT_EQ(alone, 1) << "after twelve idle time-outs";
  // The others are back: the round that waits for them is theirs as well.
  const std::vector<float> given(kElements, 5.0f);
  std::vector<std::vector<float>> results(3, std::vector<float>(kElements));
  std::vector<Operation> operations = {push};
  for (uint32_t rank = 0; rank < 3; ++rank) {
    operations.push_back(clients()[rank]->PushPull(tensors_[rank], given, results[rank]));
  }
  for (const Operation& operation : operations) EXPECT_TRUE(operation.WaitFor(kPatience).ok());
  EXPECT_EQ(results[0], std::vector<float>(kElements, 3.0f)) << "the mean of 5, 5, 5 and -3";
}

// Not an attack, and nothing that helps against one either: before, these calls waited for ever.
TEST_F(Holdup, ThatNeverComesEndsTheWaitsOfTheOthersByName) {
  StartServer({{"--workers", "3"}});
  std::mutex mutex;
  std::vector<std::string> said;
  ConnectOptions options{.wait_timeout = seconds(6)};
  options.log = [&](LogLevel, std::string_view text) {
    const std::lock_guard lock(mutex);
    said.emplace_back(text);
  };
  Join(2, 3, options);
  std::vector<Status> ends(2);
  std::thread declares([&] { ends[0] = clients()[0]->Declare("w", {.count = 10}).status(); });
  ends[1] = clients()[1]->Barrier("epoch");
  declares.join();
  for (const Status& end : ends) {
    EXPECT_EQ(end.code(), StatusCode::kDeadlineExceeded) << end.ToString();
    EXPECT_THAT(end.message(), ::testing::HasSubstr("waits for rank 2, which has not joined"));
  }
  const auto waiting = server().WaitForEvent("waiting");
  ASSERT_TRUE(waiting) << server().Everything();
  EXPECT_EQ((*waiting)["missing"], nlohmann::json({2}));
  EXPECT_TRUE(clients()[0]->status().ok()) << "it may go on waiting";
  for (auto& client : clients()) EXPECT_TRUE(client->Leave().ok());
  clients().clear();
  const std::lock_guard lock(mutex);
  EXPECT_THAT(said, ::testing::Contains(::testing::HasSubstr("rank 2, which has not joined")));
}

// A pull of a round that no worker makes.
TEST_F(Holdup, LeaveDoesNotWaitForWhatNeverComes) {
  StartTarget();
  Join(2, 2, {.wait_timeout = seconds(2)});
  std::vector<Tensor> tensors(2);
  for (size_t i = 0; i < 2; ++i) {
    auto tensor = clients()[i]->Declare("v", {.count = 10, .optimizer = "sgd:lr=0.1"});
    ASSERT_TRUE(tensor.ok()) << tensor.status().ToString();
    tensors[i] = *tensor;
  }
  std::vector<float> out(10);
  const Operation pull = clients()[0]->Pull(tensors[0], out, {.min_round = 1000});
  const auto begun = e2e::Clock::now();
  EXPECT_TRUE(clients()[0]->Leave().ok());
  EXPECT_LT(e2e::SecondsFrom(begun, e2e::Clock::now()), 8 * kSlowness);
  EXPECT_EQ(pull.Wait().code(), StatusCode::kDeadlineExceeded) << pull.Wait().ToString();
  EXPECT_THAT(pull.Wait().message(), ::testing::HasSubstr("round 1000 of tensor \"v\" has not come"));
}

}  // namespace
}  // namespace longhaul::attack
