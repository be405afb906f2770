// The C interface against a server in this process. All of its functions are called by a C99 program in
// tests/python.
#include "longhaul/c_api.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "longhaul/server.h"
#include "tests/worker/client_harness.h"

namespace longhaul {
namespace {

class CApi : public ::testing::Test {
 protected:
  CApi() : server_(StartServer(1, EverythingReliable())) {
    const std::string join = "join=" + server_.address();
    const char* const settings[] = {join.c_str(), "insecure=true"};
    EXPECT_EQ(longhaul_connect(settings, 2, nullptr, nullptr, &client_), LONGHAUL_OK)
        << longhaul_last_error();
    EXPECT_EQ(longhaul_declare(client_, "w", 4, nullptr, 0, nullptr, &tensor_), LONGHAUL_OK)
        << longhaul_last_error();
  }
  ~CApi() override { longhaul_destroy(client_); }

  Server server_;
  longhaul_client* client_ = nullptr;
  longhaul_tensor* tensor_ = nullptr;
};

// The two workers of a server, with a tensor.
struct Pair {
  explicit Pair(const Server& server) {
    const auto join = [&](size_t rank) {
      const std::string place = "join=" + server.address(), number = "rank=" + std::to_string(rank);
      const char* const settings[] = {place.c_str(), "insecure=true", "world-size=2", number.c_str()};
      EXPECT_EQ(longhaul_connect(settings, 4, nullptr, nullptr, &clients[rank]), LONGHAUL_OK)
          << longhaul_last_error();
      EXPECT_EQ(longhaul_declare(clients[rank], "w", 4, nullptr, 0, nullptr, &tensors[rank]), LONGHAUL_OK)
          << longhaul_last_error();
    };
    std::thread other(join, 1);
    join(0);
    other.join();
  }
  ~Pair() {
    for (longhaul_client* client : clients) longhaul_destroy(client);
  }
  Pair(const Pair&) = delete;
  Pair& operator=(const Pair&) = delete;

  longhaul_client* clients[2] = {};
  longhaul_tensor* tensors[2] = {};
};

TEST_F(CApi, ElementsOf16BitsAreConvertedBothWays) {
  const uint16_t halves[] = {0x3c00, 0xc000, 0x3800, 0x5600};  // 1, -2, 0.5, 96 as binary16
  const uint16_t brains[] = {0x3f80, 0xc000, 0x3f00, 0x42c0};  // as bfloat16
  for (const auto& [dtype, values] :
       {std::pair{LONGHAUL_FLOAT16, halves}, std::pair{LONGHAUL_BFLOAT16, brains}}) {
    uint16_t out[4] = {};
    longhaul_operation* step = nullptr;
    ASSERT_EQ(longhaul_push_pull(client_, tensor_, values, out, 4, dtype, 0, &step), LONGHAUL_OK);
    EXPECT_EQ(longhaul_wait(step, 30), LONGHAUL_OK) << longhaul_last_error();
    EXPECT_EQ(std::memcmp(out, values, sizeof out), 0);
    longhaul_release(step);
  }
}

TEST_F(CApi, AnOperationThatIsReleasedGoesOn) {
  const std::vector<float> gradient(4, 3);
  std::vector<float> out(4);
  longhaul_operation* step = nullptr;
  ASSERT_EQ(longhaul_push(client_, tensor_, gradient.data(), 4, LONGHAUL_FLOAT32, 0, &step), LONGHAUL_OK);
  longhaul_release(step);
  ASSERT_EQ(longhaul_push_pull(client_, tensor_, gradient.data(), out.data(), 4, LONGHAUL_FLOAT32, 0, &step),
            LONGHAUL_OK);
  EXPECT_EQ(longhaul_wait(step, -1), LONGHAUL_OK);
  char* stats = nullptr;
  ASSERT_EQ(longhaul_operation_stats(step, &stats), LONGHAUL_OK);
  EXPECT_NE(std::string(stats).find("\"round\":1"), std::string::npos) << stats;
  longhaul_free(stats);
  longhaul_release(step);
}

TEST_F(CApi, DoneIsSaidWhenNothingIsBorrowedAnyMore) {
  uint16_t gradient[4] = {0x3c00, 0x3c00, 0x3c00, 0x3c00}, out[4] = {};
  longhaul_operation* step = nullptr;
  ASSERT_EQ(longhaul_push_pull(client_, tensor_, gradient, out, 4, LONGHAUL_FLOAT16, 0, &step), LONGHAUL_OK);
  while (longhaul_done(step) == 0) std::this_thread::yield();
  EXPECT_EQ(out[3], 0x3c00);
  longhaul_release(step);
}

TEST_F(CApi, ErrorsAreOfTheirThread) {
  EXPECT_EQ(longhaul_barrier(client_, nullptr), LONGHAUL_INVALID_ARGUMENT);
  std::thread([&] {
    EXPECT_STREQ(longhaul_last_error(), "");
    EXPECT_EQ(longhaul_wait(nullptr, 0), LONGHAUL_INVALID_ARGUMENT);
  }).join();
  EXPECT_STREQ(longhaul_last_error(), "the name is null");
}

TEST_F(CApi, WhatIsPendingEndsWithTheClient) {
  const std::string join = "join=" + server_.address();
  std::vector<float> out(4);
  longhaul_tensor* kept = nullptr;
  const char* const sgd[] = {"optimizer=sgd:lr=1"};
  ASSERT_EQ(longhaul_declare(client_, "kept", 4, sgd, 1, nullptr, &kept), LONGHAUL_OK);
  longhaul_operation* never = nullptr;
  ASSERT_EQ(longhaul_pull(client_, kept, out.data(), 4, LONGHAUL_FLOAT32, 99, -1, &never), LONGHAUL_OK);
  std::atomic<int> code{-1};
  ASSERT_EQ(longhaul_then(
                never, [](void* user, int32_t how) { *static_cast<std::atomic<int>*>(user) = how; }, &code),
            LONGHAUL_OK);
  longhaul_close(client_);
  EXPECT_EQ(longhaul_status(client_), LONGHAUL_FAILED_PRECONDITION);
  EXPECT_EQ(longhaul_wait(never, 10), LONGHAUL_CANCELLED);
  EXPECT_EQ(code, LONGHAUL_CANCELLED);
  longhaul_release(never);
}

TEST_F(CApi, CloseEndsWhatAnotherThreadWaitsFor) {
  Server server = StartServer(2, EverythingReliable());
  const std::string join = "join=" + server.address();
  const char* const settings[] = {join.c_str(), "insecure=true", "world-size=2"};
  longhaul_client* client = nullptr;
  ASSERT_EQ(longhaul_connect(settings, 3, nullptr, nullptr, &client), LONGHAUL_OK) << longhaul_last_error();
  longhaul_tensor* tensor = nullptr;
  std::thread waits([&] {  // for a worker that does not come
    EXPECT_EQ(longhaul_declare(client, "w", 4, nullptr, 0, nullptr, &tensor), LONGHAUL_CANCELLED)
        << longhaul_last_error();
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  longhaul_close(client);
  longhaul_close(client);
  waits.join();
  uint32_t rank = 0;
  EXPECT_EQ(longhaul_rank(client, &rank), LONGHAUL_FAILED_PRECONDITION);
  EXPECT_STREQ(longhaul_last_error(), "the client was closed");
  longhaul_destroy(client);
}

TEST_F(CApi, AWaitSaysTheOutcomeWhileCallbacksStillRun) {
  Server server = StartServer(2, EverythingReliable());
  std::atomic<int> may_end{0};  // outlives the pair: the callback reads it until the pair ends
  const Pair pair(server);
  const std::vector<float> gradient(4, 1);
  std::vector<float> mean(4);
  longhaul_operation* steps[2] = {};
  // Not a push, which may be done before it has its callback: this one waits for the other worker.
  ASSERT_EQ(
      longhaul_push_pull(pair.clients[0], pair.tensors[0], gradient.data(), mean.data(), 4, 0, 0, &steps[0]),
      LONGHAUL_OK);
  ASSERT_EQ(longhaul_then(
                steps[0],
                [](void* user, int32_t) {
                  while (*static_cast<std::atomic<int>*>(user) == 0) std::this_thread::yield();
                },
                &may_end),
            LONGHAUL_OK);
  // It ends during this wait, for as long as the callback runs.
  std::thread other([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    EXPECT_EQ(longhaul_push(pair.clients[1], pair.tensors[1], gradient.data(), 4, 0, 0, &steps[1]),
              LONGHAUL_OK);
  });
  int32_t outcome = LONGHAUL_OK;
  do {  // on a busy machine it ends later than that
    outcome = longhaul_wait(steps[0], 3);
  } while (outcome == LONGHAUL_DEADLINE_EXCEEDED && longhaul_done(steps[0]) == 0);
  EXPECT_EQ(outcome, LONGHAUL_OK);
  EXPECT_EQ(longhaul_done(steps[0]), 1);
  // And had ended before this one.
  EXPECT_EQ(longhaul_wait(steps[0], -1), LONGHAUL_OK);
  may_end = 1;
  other.join();
  EXPECT_EQ(longhaul_wait(steps[1], 30), LONGHAUL_OK);
  for (longhaul_operation* step : steps) longhaul_release(step);
}

TEST_F(CApi, CloseInACallbackLeavesACallThatWaitsToItsEnd) {
  Server server = StartServer(2, EverythingReliable());
  const Pair pair(server);
  std::atomic<bool> through{false};
  std::thread waits([&] {
    EXPECT_EQ(longhaul_barrier(pair.clients[0], "b"), LONGHAUL_OK) << longhaul_last_error();
    through = true;
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  const std::vector<float> gradient(4, 1);
  std::vector<float> mean(4);
  longhaul_operation* steps[2] = {};
  // Not a push, which may be done before it has its callback: this one waits for the other worker.
  ASSERT_EQ(
      longhaul_push_pull(pair.clients[0], pair.tensors[0], gradient.data(), mean.data(), 4, 0, 0, &steps[0]),
      LONGHAUL_OK);
  ASSERT_EQ(longhaul_then(
                steps[0], [](void* user, int32_t) { longhaul_close(static_cast<longhaul_client*>(user)); },
                pair.clients[0]),
            LONGHAUL_OK);
  ASSERT_EQ(longhaul_push(pair.clients[1], pair.tensors[1], gradient.data(), 4, 0, 0, &steps[1]),
            LONGHAUL_OK);
  for (longhaul_operation* step : steps) EXPECT_EQ(longhaul_wait(step, 30), LONGHAUL_OK);
  while (longhaul_status(pair.clients[0]) == LONGHAUL_OK) std::this_thread::yield();
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  EXPECT_FALSE(through);
  EXPECT_EQ(longhaul_barrier(pair.clients[1], "b"), LONGHAUL_OK) << longhaul_last_error();
  waits.join();
  for (longhaul_operation* step : steps) longhaul_release(step);
}

TEST_F(CApi, ElementsThatAreConvertedAreCountedFirst) {
  uint16_t few[4] = {};
  longhaul_operation* step = nullptr;
  EXPECT_EQ(longhaul_push(client_, tensor_, few, uint64_t{1} << 61, LONGHAUL_FLOAT16, 0, &step),
            LONGHAUL_INVALID_ARGUMENT);
  EXPECT_STRNE(longhaul_last_error(), "");
  EXPECT_EQ(step, nullptr);
}

}  // namespace
}  // namespace longhaul
