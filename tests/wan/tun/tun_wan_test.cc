// Real UDP and TCP through real namespaces. Needs root and /dev/net/tun; skips loudly otherwise.
#include "wan/tun/tun_wan.h"

#include <gmock/gmock.h>
#include <signal.h>
#include <sys/wait.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>
#include <numeric>

#include "tests/wan/tun/wan_fixture.h"
#include "wan/tun/process.h"

namespace longhaul::wan {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;

constexpr uint16_t kPort = 9000;

// Answers every datagram to `port` of a site until it is destroyed.
class UdpEcho {
 public:
  UdpEcho(TunWan& wan, const std::string& site) : socket_(SocketIn(wan, site, SOCK_DGRAM, kPort)) {
    thread_ = std::thread([this] {
      uint8_t data[2000];
      while (!stop_) {
        sockaddr_in from{};
        socklen_t length = sizeof from;
        const ssize_t size =
            recvfrom(socket_.get(), data, sizeof data, 0, reinterpret_cast<sockaddr*>(&from), &length);
        if (size > 0)
          sendto(socket_.get(), data, static_cast<size_t>(size), 0, reinterpret_cast<sockaddr*>(&from),
                 length);
      }
    });
  }
  ~UdpEcho() {
    stop_ = true;
    thread_.join();
  }

 private:
  FileDescriptor socket_;
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

// Round trips of `count` pings one after the other; lost ones are missing.
std::vector<Clock::duration> Ping(TunWan& wan, const std::string& from, const std::string& address,
                                  int count) {
  const FileDescriptor fd = SocketIn(wan, from, SOCK_DGRAM);
  ConnectTo(fd, address, kPort);
  std::vector<Clock::duration> trips;
  for (int i = 0; i < count; ++i) {
    const auto start = Clock::now();
    char byte = 'x';
    if (send(fd.get(), &byte, 1, 0) == 1 && recv(fd.get(), &byte, 1, 0) == 1)
      trips.push_back(Clock::now() - start);
  }
  std::ranges::sort(trips);
  return trips;
}

// Sends `count` datagrams of `size` bytes, one every `spacing`.
void Blast(TunWan& wan, const std::string& from, const std::string& address, int count, size_t size,
           Clock::duration spacing) {
  const FileDescriptor fd = SocketIn(wan, from, SOCK_DGRAM);
  ConnectTo(fd, address, kPort);
  const std::vector<uint8_t> data(size, 1);
  const auto start = Clock::now();
  for (int i = 0; i < count; ++i) {
    ASSERT_EQ(send(fd.get(), data.data(), data.size(), 0), static_cast<ssize_t>(size))
        << std::strerror(errno);
    std::this_thread::sleep_until(start + (i + 1) * spacing);
  }
}

int ReceiveAll(const FileDescriptor& fd) {
  int count = 0;
  uint8_t data[2000];
  while (recv(fd.get(), data, sizeof data, 0) > 0) ++count;  // until the socket's time-out
  return count;
}

// When the kernel received the next datagram, in seconds, however late this test gets to run; 0 when none
// comes.
double ReceiveWithKernelTime(const FileDescriptor& fd) {
  uint8_t data[2000];
  alignas(cmsghdr) char control[64];
  iovec vector{.iov_base = data, .iov_len = sizeof data};
  msghdr message{};
  message.msg_iov = &vector;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  if (recvmsg(fd.get(), &message, 0) < 0) return 0;
  const cmsghdr* header = CMSG_FIRSTHDR(&message);
  if (header == nullptr || header->cmsg_type != SCM_TIMESTAMPNS) return 0;
  timespec time{};
  std::memcpy(&time, CMSG_DATA(header), sizeof time);
  return static_cast<double>(time.tv_sec % 100'000) + static_cast<double>(time.tv_nsec) * 1e-9;
}

using TunWanTest = WanTest;

TEST_F(TunWanTest, TheRoundTripIsTheSumOfBothDelays) {
  //  A -- 30 ms -> B,  B -- 10 ms -> A
  TunWan::Options options = Sites("delay 30ms");
  options.overrides.push_back({"B", "A", *ParseLinkOptions("delay 10ms")});
  auto wan = TunWan::Up(options);
  ASSERT_TRUE(wan.ok()) << wan.status().ToString();
  const UdpEcho echo(**wan, "B");
  const auto trips = Ping(**wan, "A", "10.77.2.1", 30);
  ASSERT_EQ(trips.size(), 30u);
  EXPECT_GE(trips.front(), 40ms);
  // The best of them: on a busy machine most of the rest is the time until this test runs again.
  EXPECT_LT(trips.front(), 45ms);
  EXPECT_TRUE((*wan)->Down().ok());
}

TEST_F(TunWanTest, TheCountersAreExactlyWhatWasLost) {
  auto wan = TunWan::Up(Sites("rate 20mbit delay 5ms loss gemodel 5% burst 5 queue 20ms"));
  ASSERT_TRUE(wan.ok()) << wan.status().ToString();
  const FileDescriptor receiver = SocketIn(**wan, "B", SOCK_DGRAM, kPort);
  // 30 Mbit/s into 20: both kinds of drops happen.
  Blast(**wan, "A", "10.77.2.1", 3000, 1472, 400us);
  const int received = ReceiveAll(receiver);
  const auto link = (*wan)->Link("A", "B");
  ASSERT_TRUE(link.ok());
  const LinkCounters& c = link->counters;
  EXPECT_EQ(c.packets_in, 3000u);
  EXPECT_EQ(c.bytes_in, 3000u * 1500);
  EXPECT_GT(c.dropped_loss, 50u);
  EXPECT_GT(c.dropped_queue, 200u);
  EXPECT_EQ(c.dropped_loss + c.dropped_queue + static_cast<uint64_t>(received), 3000u);
  EXPECT_LE(c.max_queue_delay, 20ms);
  const TunKernelCounters kernel = (*wan)->KernelCounters();
  EXPECT_EQ(kernel.dropped_before_read + kernel.dropped_after_write, 0u);
  EXPECT_EQ((*wan)->ForwarderStatistics().overload, 0u);
}

TEST_F(TunWanTest, TheRateIsTheRate) {
  auto wan = TunWan::Up(Sites("rate 40mbit delay 5ms queue 10s"));
  ASSERT_TRUE(wan.ok()) << wan.status().ToString();
  const FileDescriptor receiver = SocketIn(**wan, "B", SOCK_DGRAM, kPort);
  const int on = 1;
  setsockopt(receiver.get(), SOL_SOCKET, SO_TIMESTAMPNS, &on, sizeof on);
  std::thread sender([&] { Blast(**wan, "A", "10.77.2.1", 2000, 1472, 100us); });  // 120 Mbit/s
  std::vector<double> arrivals;
  while (arrivals.size() < 2000) {
    const double time = ReceiveWithKernelTime(receiver);
    if (time == 0) break;
    arrivals.push_back(time);
  }
  sender.join();
  ASSERT_EQ(arrivals.size(), 2000u);
  // Never faster. Slower only when the machine is too busy to keep the queue filled, so that bound is wide.
  EXPECT_GE(arrivals.back() - arrivals.front(), 1999 * 300e-6 - 0.02);
  EXPECT_LE(arrivals.back() - arrivals.front(), 1999 * 300e-6 + 1.5);
}

TEST_F(TunWanTest, TcpCrossesALossyLinkUnharmed) {
  auto wan = TunWan::Up(Sites("rate 100mbit delay 5ms loss 1% duplicate 1% reorder 1% corrupt 0.5%"));
  ASSERT_TRUE(wan.ok()) << wan.status().ToString();
  const FileDescriptor listener = SocketIn(**wan, "B", SOCK_STREAM, kPort);
  ASSERT_EQ(listen(listener.get(), 1), 0);
  std::vector<uint8_t> sent(1'000'000), got;
  std::iota(sent.begin(), sent.end(), uint8_t{0});
  const FileDescriptor client = SocketIn(**wan, "A", SOCK_STREAM);
  std::thread sender([&] {
    ConnectTo(client, "10.77.2.1", kPort);
    for (size_t at = 0; at < sent.size();) {
      const ssize_t n = send(client.get(), sent.data() + at, sent.size() - at, MSG_NOSIGNAL);
      if (n <= 0) break;
      at += static_cast<size_t>(n);
    }
    shutdown(client.get(), SHUT_WR);
  });
  FileDescriptor server;
  EXPECT_TRUE(Eventually([&] {  // the accept's time-out is that of the socket
    server.Reset(accept(listener.get(), nullptr, nullptr));
    return server.valid();
  }));
  const timeval patience{.tv_sec = 20, .tv_usec = 0};
  setsockopt(server.get(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
  uint8_t data[65536];
  for (ssize_t n = 0; (n = recv(server.get(), data, sizeof data, 0)) > 0;)
    got.insert(got.end(), data, data + n);
  sender.join();
  EXPECT_TRUE(got == sent) << got.size() << " bytes arrived";
  const LinkCounters c = (*wan)->Link("A", "B")->counters;
  EXPECT_GE(c.packets_in, 680u) << "segments of at most the MTU, not the 64 kB bursts of offload";
  EXPECT_GT(c.dropped_loss, 0u);
}

TEST_F(TunWanTest, CorruptedDatagramsFailTheirChecksumAndCopiesArriveTwice) {
  auto wan = TunWan::Up(Sites("duplicate 10% corrupt 10%"));
  ASSERT_TRUE(wan.ok()) << wan.status().ToString();
  const FileDescriptor receiver = SocketIn(**wan, "B", SOCK_DGRAM, kPort);
  Blast(**wan, "A", "10.77.2.1", 1000, 500, 100us);
  const auto received = static_cast<uint64_t>(ReceiveAll(receiver));
  const LinkCounters c = (*wan)->Link("A", "B")->counters;
  EXPECT_GT(c.corrupted, 50u);
  EXPECT_GT(c.duplicated, 50u);
  // A flipped bit in a header field that no checksum covers cannot exist in IPv4 with UDP.
  EXPECT_EQ(received, c.packets_delivered - c.corrupted);
}

TEST_F(TunWanTest, ThreeSitesHaveSixLinksAndTheWeatherChanges) {
  auto wan = TunWan::Up(Sites("delay 1ms", {"north", "east", "south"}));
  ASSERT_TRUE(wan.ok()) << wan.status().ToString();
  EXPECT_EQ((*wan)->Links().size(), 6u);
  const UdpEcho echo(**wan, "south");
  EXPECT_EQ(Ping(**wan, "north", "10.77.3.1", 3).size(), 3u);
  ASSERT_TRUE((*wan)->SetLink("north", "south", *ParseLinkOptions("loss 100%")).ok());
  EXPECT_EQ(Ping(**wan, "north", "10.77.3.1", 2).size(), 0u);
  EXPECT_EQ(Ping(**wan, "east", "10.77.3.1", 3).size(), 3u);
  EXPECT_EQ((*wan)->Link("north", "south")->counters.dropped_loss, 2u);
  EXPECT_EQ((*wan)->SetLink("north", "west", LinkOptions()).code(), StatusCode::kNotFound);
}

TEST_F(TunWanTest, ProgramsRunInsideASiteAndTheirExitCodesComeBack) {
  auto wan = TunWan::Up(Sites("delay 1ms"));
  ASSERT_TRUE(wan.ok()) << wan.status().ToString();
  EXPECT_EQ(*(*wan)->RunInSite("A", {"sh", "-c", "grep -q wan0 /proc/net/dev && exit 7"}), 7);
  EXPECT_EQ(*(*wan)->RunInSite("B", {"sh", "-c", "kill -9 $$"}), 128 + SIGKILL);
  EXPECT_EQ((*wan)->RunInSite("B", {"/nonexistent/program"}).status().code(), StatusCode::kUnavailable);
  EXPECT_EQ((*wan)->RunInSite("C", {"true"}).status().code(), StatusCode::kNotFound);
  EXPECT_EQ((*wan)->RunInSite("A", {}).status().code(), StatusCode::kInvalidArgument);
  // `ip netns` sees the site under its name.
  const std::string name = std::filesystem::path((*wan)->sites()[0].namespace_path).filename();
  const auto output = RunAndCapture({"ip", "netns", "exec", name, "cat", "/proc/net/dev"});
  ASSERT_TRUE(output.ok()) << output.status().ToString();
  EXPECT_THAT(output->text, HasSubstr("wan0"));
}

TEST_F(TunWanTest, DownRemovesEverythingAndEndsWhatRunsInside) {
  auto wan = TunWan::Up(Sites("delay 1ms"));
  ASSERT_TRUE(wan.ok()) << wan.status().ToString();
  EXPECT_EQ(Namespaces(), 2);
  const pid_t guardian = (*wan)->guardian_pid();
  EXPECT_EQ(kill(guardian, 0), 0);
  const auto sleeper = (*wan)->Spawn("A", {"sleep", "1000"});
  ASSERT_TRUE(sleeper.ok());
  EXPECT_TRUE((*wan)->Down().ok());
  EXPECT_EQ(Namespaces(), 0);
  EXPECT_TRUE(ListRunStates(StateDirectory()).empty());
  EXPECT_EQ(kill(guardian, 0), -1) << "the guardian is still there";
  EXPECT_EQ(*WaitFor(*sleeper), 128 + SIGTERM);
  EXPECT_EQ((*wan)->RunInSite("A", {"true"}).status().code(), StatusCode::kFailedPrecondition);
  const auto json = nlohmann::json::parse((*wan)->StatsJson());
  EXPECT_EQ(json.at("links").size(), 2u) << "counters can be read afterwards";
  EXPECT_TRUE((*wan)->Down().ok());
}

// A child process that makes a WAN and waits. Returns when the WAN is up.
pid_t UpInChild(const TunWan::Options& options) {
  int ends[2];
  EXPECT_EQ(pipe2(ends, O_CLOEXEC), 0);
  const pid_t child = fork();
  if (child == 0) {
    auto wan = TunWan::Up(options);
    if (!wan.ok()) _exit(1);
    (void)!write(ends[1], "u", 1);
    for (;;) pause();
  }
  close(ends[1]);
  char byte = 0;
  EXPECT_EQ(read(ends[0], &byte, 1), 1);
  close(ends[0]);
  return child;
}

TEST_F(TunWanTest, AKilledOwnerLeavesNothingSinceTheGuardianCleansUp) {
  const pid_t child = UpInChild(Sites("delay 1ms"));
  EXPECT_EQ(Namespaces(), 2);
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  EXPECT_TRUE(Eventually([&] { return Namespaces() == 0; }));
  EXPECT_TRUE(Eventually([&] { return ListRunStates(StateDirectory()).empty(); }));
}

TEST_F(TunWanTest, WhatIsLeftWhenTheGuardianDiedTooIsFoundAndRemoved) {
  const pid_t child = UpInChild(Sites("delay 1ms"));
  auto runs = ListRunStates(StateDirectory());
  ASSERT_EQ(runs.size(), 1u);
  EXPECT_TRUE(runs[0].IsAlive());
  kill(runs[0].guardian, SIGKILL);
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  EXPECT_FALSE(runs[0].IsAlive());
  EXPECT_EQ(Namespaces(), 2);
  EXPECT_TRUE(RemoveRun(StateDirectory(), runs[0]).ok());
  EXPECT_EQ(Namespaces(), 0);
}

TEST_F(TunWanTest, TheSameTagTwiceIsRefusedWhileTheFirstLives) {
  auto first = TunWan::Up(Sites("delay 1ms"));
  ASSERT_TRUE(first.ok()) << first.status().ToString();
  EXPECT_EQ(TunWan::Up(Sites("delay 1ms")).status().code(), StatusCode::kAlreadyExists);
  EXPECT_EQ(Namespaces(), 2) << "the refused run removed the first one's namespaces";
}

TEST_F(TunWanTest, AutoSaysWhyItDoesNotUseNetem) {
  if (ProbeNetem().ok()) GTEST_SKIP() << "this kernel has netem";
  TunWan::Options options = Sites("delay 1ms");
  options.backend = Backend::kAuto;
  auto wan = TunWan::Up(options);
  ASSERT_TRUE(wan.ok()) << wan.status().ToString();
  EXPECT_EQ((*wan)->backend(), Backend::kTun);
  EXPECT_THAT((*wan)->backend_reason(), HasSubstr("sch_netem"));
  (void)(*wan)->Down();
  options.backend = Backend::kNetem;
  const auto refused = TunWan::Up(options);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.status().code(), StatusCode::kUnavailable);
  EXPECT_THAT(refused.status().message(), HasSubstr("sch_netem"));
}

// Without sch_netem the shaping cannot be tried, but everything around it can.
TEST_F(TunWanTest, NetemsBridgesAndRoutesConnectTheSites) {
  ASSERT_TRUE(PrepareNetnsDirectory(kNetnsDirectory).ok());
  std::vector<std::string> paths;
  std::vector<FileDescriptor> fds;
  for (const char* name : {"hub", "A", "B"}) {
    paths.push_back(std::string(kNetnsDirectory) + "/lh-" + name + "-" + tag_);
    ASSERT_TRUE(CreateNamespace(paths.back()).ok());
    fds.push_back(std::move(*OpenNamespace(paths.back())));
  }
  const std::vector<LinkOptions> links(4);
  const auto commands = NetemSetup({{"10.77.1.1", paths[1]}, {"10.77.2.1", paths[2]}}, links, 1500);
  ASSERT_TRUE(commands.ok());
  for (const NetemCommand& command : *commands) {
    if (command.argv[0] == "tc") continue;
    const auto done =
        RunAndCapture(command.argv, {.network_namespace = fds[static_cast<size_t>(command.site + 1)].get()});
    ASSERT_TRUE(done.ok() && done->exit_code == 0) << done->text;
  }
  FileDescriptor a, b;
  const auto make = [](FileDescriptor& fd) {
    return [&fd] {
      fd.Reset(socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
      return Status::Ok();
    };
  };
  ASSERT_TRUE(RunInNamespace(fds[1].get(), make(a)).ok());
  ASSERT_TRUE(RunInNamespace(fds[2].get(), make(b)).ok());
  sockaddr_in any{};
  any.sin_family = AF_INET;
  any.sin_port = htons(kPort);
  ASSERT_EQ(bind(b.get(), reinterpret_cast<sockaddr*>(&any), sizeof any), 0);
  ConnectTo(a, "10.77.2.1", kPort);
  char byte = 'n';
  // A bridge's port needs a moment until it forwards.
  EXPECT_TRUE(Eventually([&] {
    (void)!send(a.get(), &byte, 1, 0);
    return recv(b.get(), &byte, 1, MSG_DONTWAIT) == 1;
  }));
  a.Reset();
  b.Reset();
  for (const std::string& path : paths) EXPECT_TRUE(RemoveNamespace(path).ok());
}

TEST(TunWanOptions, ImpossibleOnesAreRefusedBeforeAnythingIsMade) {
  const auto code = [](const TunWan::Options& options) { return TunWan::Up(options).status().code(); };
  TunWan::Options good;
  good.sites = {"A", "B"};
  const auto with = [&good](auto change) {
    TunWan::Options options = good;
    change(options);
    return options;
  };
  for (const auto& bad : {
           with([](auto& o) { o.sites = {"A"}; }),
           with([](auto& o) {
             o.sites = {"A", "A"};
           }),
           with([](auto& o) {
             o.sites = {"A", "../B"};
           }),
           with([](auto& o) {
             o.sites = {"A", ""};
           }),
           with([](auto& o) { o.sites.assign(65, "x"); }),
           with([](auto& o) { o.tag = "a/b"; }),
           with([](auto& o) { o.mtu = 100; }),
           with([](auto& o) { o.link.loss = 2; }),
           with([](auto& o) {
             o.overrides.push_back({"A", "C", {}});
           }),
           with([](auto& o) {
             o.overrides.push_back({"A", "A", {}});
           }),
       }) {
    EXPECT_EQ(code(bad), StatusCode::kInvalidArgument);
  }
}

TEST(TunWanOptions, AMissingTunDeviceIsNamed) {
  TunWan::Options options;
  options.sites = {"A", "B"};
  options.tun_device = "/nonexistent/tun";
  const auto refused = TunWan::Up(options);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.status().code(), StatusCode::kUnavailable);
  EXPECT_THAT(refused.status().message(), HasSubstr("/nonexistent/tun"));
}

}  // namespace
}  // namespace longhaul::wan
