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
#include <utility>
#include <vector>

#include "offload/shm/site_daemon.h"
#include "tests/worker/client_harness.h"
#include "worker/site/site_relay.h"

namespace longhaul::site {

// A folder that goes when it does.
class Folder {
 public:
  Folder() {
    path_ = "/tmp/longhaul-site-XXXXXX";
    EXPECT_NE(mkdtemp(path_.data()), nullptr);
  }
  ~Folder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

// A daemon and its relay: all of a site, or one node of it.
class TestNode {
 public:
  TestNode(offload::DaemonOptions options, const ConnectOptions& connect) {
    where_ = "unix:" + options.path;
    options.on_rank = [this](uint8_t node, uint8_t rank, bool here) {
      const std::lock_guard lock(mutex_);
      if (relay_) relay_->OnRank(node, rank, here);
    };
    const bool one_node = options.link != nullptr;
    daemon_ = offload::SiteDaemon::Start(options).value();
    thread_ = std::thread([this] { daemon_->Run(); });
    RelayOptions relay;
    relay.where = where();
    relay.connect = connect;
    relay.connect.site = "site";
    relay.one_node = one_node;
    relay.connect.log = [this](LogLevel, std::string_view line) {
      const std::lock_guard lock(log_mutex_);
      log_ += std::string(line) + "\n";
      std::this_thread::sleep_for(std::exchange(pause_, Duration(0)));
    };
    relay.on_end = [this](const Status& status) {
      end_ = status;
      ended_ = true;
    };
    relay.on_takeover = [this](const Takeover& takeover) {
      const std::lock_guard lock(log_mutex_);
      takeovers_.push_back(takeover);
    };
    auto started = SiteRelay::Start(relay).value();
    const std::lock_guard lock(mutex_);
    relay_ = std::move(started);
  }
  ~TestNode() {
    EndRelay();
    EndDaemon();
  }

  const std::string& where() const { return where_; }
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
  // The relay's thread sleeps when it writes its next line.
  void PauseAtNextLine(Duration pause) {
    const std::lock_guard lock(log_mutex_);
    pause_ = pause;
  }
  // Whether the log has it, within 20 s.
  bool WaitForLog(const std::string& text) {
    for (int i = 0; i < 2000 && log().find(text) == std::string::npos; ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    return log().find(text) != std::string::npos;
  }
  std::vector<Takeover> takeovers() {
    const std::lock_guard lock(log_mutex_);
    return takeovers_;
  }
  // Whether the relay has ended, within 20 s, and how.
  bool WaitForEnd(Status* end) {
    for (int i = 0; i < 2000 && !ended_; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(10));
    if (ended_) *end = end_;
    return ended_;
  }

 private:
  std::string where_;
  std::unique_ptr<offload::SiteDaemon> daemon_;
  std::thread thread_;
  std::mutex mutex_;
  std::unique_ptr<SiteRelay> relay_;
  std::mutex log_mutex_;
  std::string log_;
  Duration pause_{0};
  std::vector<Takeover> takeovers_;
  Status end_;
  std::atomic<bool> ended_{false};
};

inline offload::DaemonOptions DaemonOf(const std::string& path, uint8_t nodes, uint8_t ranks,
                                       uint32_t queue_depth = 256) {
  offload::DaemonOptions options;
  options.path = path;
  options.site.nodes = nodes;
  options.site.ranks_per_node = static_cast<uint8_t>(ranks + 1);
  options.site.queue_depth = queue_depth;
  return options;
}

// A site of so many ranks, as one member of the server's job.
class TestSite : private Folder, public TestNode {
 public:
  TestSite(const ConnectOptions& connect, uint8_t ranks, uint32_t queue_depth = 256, uint8_t nodes = 1)
      : TestNode(DaemonOf(path() + "/site.sock", nodes, ranks, queue_depth), connect) {}
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
