// A job of real daemons on the loopback interface, in a directory of its own, with a data set so small that a
// worker is up at once.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <deque>
#include <string>

#include "tests/e2e/support/program.h"

namespace longhaul::e2e {

// 320 images to learn from and 80 to test with, in ten classes that are easy to tell apart. As
// Fashion-MNIST's files, not compressed.
void WriteSmallDataset(const std::string& directory);

class JobTest : public ::testing::Test {
 protected:
  // The one time-out of every job here. A shared machine may keep a daemon of ThreadSanitizer waiting for
  // seconds.
  static constexpr int kIdleSeconds = kSlowness == 8 ? 12 : 3;
  static constexpr Duration kIdle = seconds(kIdleSeconds);

  void SetUp() override;
  // Shows on failure what everyone said.
  void TearDown() override;

  // In a child: no terminal, as under systemd.
  static int LeaveTerminal();
  // A server on a free port, without a terminal, ready; the workers below join the latest one.
  Program& StartServer(const Flags& more = {});
  // Site "site<rank>", world size 2, small data, rounds that do not end within a test's time.
  Program& StartWorker(uint32_t rank, const Flags& more = {});
  Program& Start(const std::string& name, const std::vector<std::string>& arguments,
                 const std::function<int()>& before_exec = {});

  // Both must end, with this code.
  void ExpectEnd(Program& program, int code, Duration limit = kPatience);
  // Joins ranks 0 and 1 and waits until they have finished a round. About 4 s of rounds then remain.
  void StartRunningJob();
  // The running job is still running and finishes.
  void ExpectRunningJobFinishes();

  // The key flags of all daemons of a test's job.
  virtual Flags security() const { return {{"--key", key_file()}}; }
  // Of the job "default".
  std::string key_file() const { return directory_ + "/job.key"; }

  const std::string& directory() const { return directory_; }
  std::string dataset() const { return directory_ + "/data"; }
  const std::string& address() const { return address_; }
  uint16_t port() const;
  Program& server() { return *server_; }
  Program& worker(size_t rank) { return *job_workers_.at(rank); }

 private:
  std::string directory_;
  std::string address_;
  std::deque<Program> programs_;
  Program* server_ = nullptr;
  std::vector<Program*> job_workers_;
};

// Seconds between two moments, for bounds and messages.
inline double SecondsFrom(Clock::time_point begin, Clock::time_point end) {
  return std::chrono::duration<double>(end - begin).count();
}

}  // namespace longhaul::e2e
