// Two jobs on one link:
//
//   job a, weight 3 ─┐
//                    ├─ --capacity
//   job b, weight 1 ─┘
#include "server/grants/link_share.h"

#include <gtest/gtest.h>

#include <optional>
#include <thread>
#include <vector>

namespace longhaul::server {
namespace {

TEST(LinkShareTest, AJobAloneHasTheLinkAndTwoHaveTheirWeights) {
  const auto total = std::make_shared<LinkShare::Total>(0);
  LinkShare a(total, 3);
  LinkShare b(total, 1);
  EXPECT_EQ(a.Part(), 1) << "no job runs";
  a.SetRunning(true);
  a.SetRunning(true);
  EXPECT_EQ(a.Part(), 1) << "b waits for its workers, and takes nothing";
  EXPECT_EQ(b.Part(), 0.25) << "what it would have";
  b.SetRunning(true);
  EXPECT_EQ(a.Part(), 0.75);
  EXPECT_EQ(b.Part(), 0.25);
}

TEST(LinkShareTest, WhatAJobHadIsTheOthersWhenItEndsOrIsGone) {
  const auto total = std::make_shared<LinkShare::Total>(0);
  LinkShare a(total, 3);
  std::optional<LinkShare> b(std::in_place, total, 1);
  a.SetRunning(true);
  b->SetRunning(true);
  b->SetRunning(false);
  EXPECT_EQ(a.Part(), 1);
  b->SetRunning(true);
  EXPECT_EQ(a.Part(), 0.75);
  b.reset();
  EXPECT_EQ(a.Part(), 1);
}

TEST(LinkShareTest, PartsOfManyThreadsAddUp) {
  const auto total = std::make_shared<LinkShare::Total>(0);
  std::vector<std::thread> jobs;
  for (uint32_t weight = 1; weight <= 8; ++weight) {
    jobs.emplace_back([total, weight] {
      LinkShare share(total, weight);
      for (int i = 0; i < 10'000; ++i) {
        share.SetRunning(i % 2 == 0);
        const double part = share.Part();
        ASSERT_TRUE(part > 0 && part <= 1);
      }
    });
  }
  for (std::thread& job : jobs) job.join();
  EXPECT_EQ(*total, 0);
}

}  // namespace
}  // namespace longhaul::server
