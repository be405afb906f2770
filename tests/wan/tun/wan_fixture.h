// What the tests on real namespaces share.
#pragma once

#include <arpa/inet.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <iostream>
#include <memory>
#include <string>
#include <thread>

#include "wan/tun/namespaces.h"
#include "wan/tun/tun_wan.h"

namespace longhaul::wan {

using Clock = std::chrono::steady_clock;

// Why real namespaces cannot be made here; empty when they can.
inline std::string WhyNoNamespaces() {
  if (geteuid() != 0) return "this test makes network namespaces and needs root";
  if (const Status s = TunDevice::Probe("/dev/net/tun"); !s.ok()) return s.message();
  const std::string path = "/tmp/longhaul-wan-probe-" + std::to_string(getpid());
  const Status made = CreateNamespace(path);
  if (!made.ok()) return made.message();
  const Status removed = RemoveNamespace(path);
  return removed.ok() ? "" : removed.message();
}

// A directory for run states that no other test uses, and a check that nothing is left of what the test made.
class WanTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const std::string why = WhyNoNamespaces();
    if (!why.empty()) {
      std::cerr << "\n*** NOT TESTED: " << why << " ***\n\n";
      GTEST_SKIP() << why;
    }
    char pattern[] = "/tmp/longhaul-wan-test-XXXXXX";
    directory_ = mkdtemp(pattern);
    chmod(pattern, 0777);
    tag_ = "t" + std::to_string(getpid());
  }
  void TearDown() override {
    if (directory_.empty()) return;
    EXPECT_EQ(Namespaces(), 0) << "namespaces of this test are left";
    EXPECT_TRUE(ListRunStates(StateDirectory()).empty());
    std::error_code ignored;
    std::filesystem::remove_all(directory_, ignored);
  }

  std::string StateDirectory() const { return directory_ + "/state"; }

  // Of this test's tag, as `ip netns list` would show them.
  int Namespaces() const {
    int count = 0;
    std::error_code none;
    for (const auto& entry : std::filesystem::directory_iterator(kNetnsDirectory, none)) {
      count += entry.path().filename().string().ends_with("-" + tag_);
    }
    return count;
  }

  TunWan::Options Sites(const std::string& words, std::vector<std::string> names = {"A", "B"}) const {
    const auto link = ParseLinkOptions(words);
    EXPECT_TRUE(link.ok()) << link.status().ToString();
    TunWan::Options options;
    options.sites = std::move(names);
    options.link = *link;
    options.tag = tag_;
    options.backend = Backend::kTun;
    options.state_directory = StateDirectory();
    return options;
  }

  static bool Eventually(const std::function<bool()>& condition,
                         Clock::duration patience = std::chrono::seconds(10)) {
    for (const auto end = Clock::now() + patience; Clock::now() < end;) {
      if (condition()) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    return condition();
  }

  std::string directory_;
  std::string tag_;
};

// An IPv4 socket that lives in a site, whichever thread uses it.
inline FileDescriptor SocketIn(TunWan& wan, const std::string& site, int type, uint16_t port = 0) {
  FileDescriptor out;
  const auto ns = wan.OpenSiteNamespace(site);
  EXPECT_TRUE(ns.ok());
  const FileDescriptor owned(*ns);
  const Status status = RunInNamespace(owned.get(), [&] {
    out.Reset(socket(AF_INET, type | SOCK_CLOEXEC, 0));
    return Status::Ok();
  });
  EXPECT_TRUE(status.ok() && out.valid());
  const int large = 16 << 20, on = 1;
  setsockopt(out.get(), SOL_SOCKET, SO_RCVBUFFORCE, &large, sizeof large);
  setsockopt(out.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  const timeval patience{.tv_sec = 0, .tv_usec = 400'000};
  setsockopt(out.get(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
  sockaddr_in any{};
  any.sin_family = AF_INET;
  any.sin_port = htons(port);
  EXPECT_EQ(bind(out.get(), reinterpret_cast<sockaddr*>(&any), sizeof any), 0);
  return out;
}

inline void ConnectTo(const FileDescriptor& fd, const std::string& address, uint16_t port) {
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_port = htons(port);
  inet_pton(AF_INET, address.c_str(), &to.sin_addr);
  ASSERT_EQ(connect(fd.get(), reinterpret_cast<sockaddr*>(&to), sizeof to), 0) << std::strerror(errno);
}

}  // namespace longhaul::wan
