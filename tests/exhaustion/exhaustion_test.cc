// "Fail the n-th": a job whose n-th allocation, or n-th system call, fails ends with a name, for every n: no
// crash, no hang, no wrong value. After SQLite's tests. Late ones are sampled: what comes again and again is
// alike.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <map>
#include <random>
#include <string>

#include "longhaul/status.h"
#include "tests/exhaustion/job.h"

namespace longhaul::exhaustion {
namespace {

// "CODE: why", of a Status that ends an operation or a job; std::bad_alloc in the caller's thread; or what
// the library of JSON makes of it. kCancelled would say that the program had ended it.
bool IsNamed(const std::string& text) {
  if (text.starts_with("std::bad_alloc") || text == "a destructor of JSON") return true;
  for (const StatusCode code :
       {StatusCode::kResourceExhausted, StatusCode::kUnavailable, StatusCode::kInternal,
        StatusCode::kAlreadyExists, StatusCode::kPeerDead, StatusCode::kAborted}) {
    const std::string name(StatusCodeName(code));
    if (text.starts_with(name + ": ") && text.size() > name.size() + 2) return true;
  }
  return false;
}

// All of the first, then a sample, until a job is through without a failure.
void FailEach(What what, uint64_t all_of, std::chrono::seconds budget) {
  const auto begin = std::chrono::steady_clock::now();
  std::map<std::string, uint64_t> endings;
  uint64_t n = 1, runs = 0, unharmed = 0;
  const unsigned seed = std::random_device()();
  std::printf("seed %u\n", seed);
  std::mt19937 random(seed);
  bool through = false;
  for (; !through; n += n < all_of ? 1 : 1 + random() % std::max<uint64_t>(1, n / 10)) {
    if (std::chrono::steady_clock::now() - begin > budget) break;
    const Ending ending = RunJob(what, n);
    ++runs;
    EXPECT_FALSE(ending.crashed) << "number " << n << ": " << ending.text;
    EXPECT_EQ(ending.text.find("hangs"), std::string::npos) << "number " << n << ": " << ending.text;
    EXPECT_EQ(ending.text.find("wrong value"), std::string::npos) << "number " << n << ": " << ending.text;
    EXPECT_TRUE(ending.finished || ending.struck || ending.crashed) << "number " << n << ": " << ending.text;
    EXPECT_TRUE(ending.finished || IsNamed(ending.text)) << "number " << n << ": " << ending.text;
    unharmed += ending.struck && ending.finished ? 1 : 0;
    if (!ending.finished) ++endings[ending.text.substr(0, ending.text.find(':'))];
    through = !ending.struck && !ending.crashed;
  }
  std::printf("%llu jobs, up to number %llu%s; %llu went on as if nothing had happened\n",
              static_cast<unsigned long long>(runs), static_cast<unsigned long long>(n),
              through ? ", beyond the last" : ", the time is over",
              static_cast<unsigned long long>(unharmed));
  for (const auto& [text, times] : endings)
    std::printf("  %llu x %s\n", static_cast<unsigned long long>(times), text.c_str());
  EXPECT_GT(runs, 20u);
}

TEST(Exhaustion, TheNthSystemCallThatFailsEndsInAName) {
  FailEach(What::kSystemCall, 40, std::chrono::seconds(15));
}

TEST(Exhaustion, TheNthAllocationThatFailsEndsInAName) {
  FailEach(What::kAllocation, 60, std::chrono::seconds(25));
}

}  // namespace
}  // namespace longhaul::exhaustion
