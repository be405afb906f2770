// A site in this process: the daemon in a thread, its relay, and clients of it.
#pragma once

#include <gtest/gtest.h>
#include <stdlib.h>

#include <atomic>
#include <filesystem>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "offload/shm/site_daemon.h"
#include "tests/worker/client_harness.h"
#include "worker/site/site_relay.h"

namespace longhaul::site {

class TestSite {
 public:
  // A site of so many ranks, as one member of the server's job.
  TestSite(const ConnectOptions& connect, uint8_t ranks, uint32_t queue_depth = 256) {
    std::string folder = "/tmp/longhaul-site-XXXXXX";
    EXPECT_NE(mkdtemp(folder.data()), nullptr);
    folder_ = folder;
    offload::DaemonOptions options;
    options.path = folder_ + "/site.sock";
    options.site.ranks_per_node = static_cast<uint8_t>(ranks + 1);
    options.site.queue_depth = queue_depth;
    options.on_rank = [this](uint8_t, uint8_t rank, bool here) {
      const std::lock_guard lock(mutex_);
      if (relay_) relay_->OnRank(rank, here);
    };
    daemon_ = offload::SiteDaemon::Start(options).value();
    thread_ = std::thread([this] { daemon_->Run(); });
    RelayOptions relay;
    relay.where = where();
    relay.connect = connect;
    relay.connect.site = "site";
    relay.connect.log = [this](LogLevel, std::string_view line) {
      const std::lock_guard lock(log_mutex_);
      log_ += std::string(line) + "\n";
    };
    relay.on_end = [this](const Status& status) {
      end_ = status;
      ended_ = true;
    };
    auto started = SiteRelay::Start(relay).value();
    const std::lock_guard lock(mutex_);
    relay_ = std::move(started);
  }
  ~TestSite() {
    EndRelay();
    EndDaemon();
    std::error_code ignored;
    std::filesystem::remove_all(folder_, ignored);
  }

  std::string where() const { return "unix:" + folder_ + "/site.sock"; }
  ConnectOptions Rank(uint8_t rank) const {
    ConnectOptions options;
    options.offload = where();
    options.site_rank = rank;
    return options;
  }
  // Before the daemon's callback, which takes the lock.
  void EndRelay() {
    std::unique_ptr<SiteRelay> relay;
    {
      const std::lock_guard lock(mutex_);
      relay = std::move(relay_);
    }
  }
  void EndDaemon() {
    if (daemon_) daemon_->Stop();
    if (thread_.joinable()) thread_.join();
    daemon_.reset();
  }
  ClientStats stats() {
    const std::lock_guard lock(mutex_);
    return relay_ ? relay_->stats() : ClientStats();
  }
  std::string log() {
    const std::lock_guard lock(log_mutex_);
    return log_;
  }
  // Whether the relay has ended, within 20 s, and how.
  bool WaitForEnd(Status* end) {
    for (int i = 0; i < 2000 && !ended_; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(10));
    if (ended_) *end = end_;
    return ended_;
  }

 private:
  std::string folder_;
  std::unique_ptr<offload::SiteDaemon> daemon_;
  std::thread thread_;
  std::mutex mutex_;
  std::unique_ptr<SiteRelay> relay_;
  std::mutex log_mutex_;
  std::string log_;
  Status end_;
  std::atomic<bool> ended_{false};
};

// Clients of all ranks, which join at the same time.
inline std::vector<Client> ConnectAll(const TestSite& site, uint8_t ranks) {
  std::vector<Client> clients;
  for (uint8_t rank = 0; rank < ranks; ++rank) clients.push_back(MustConnect(site.Rank(rank)));
  return clients;
}

// Calls `what(i)` for every i on a thread of its own.
template <typename F>
void InParallel(size_t count, const F& what) {
  std::vector<std::thread> threads;
  for (size_t i = 0; i < count; ++i) threads.emplace_back([&what, i] { what(i); });
  for (std::thread& thread : threads) thread.join();
}

}  // namespace longhaul::site
