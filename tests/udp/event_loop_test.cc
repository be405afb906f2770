#include "transport/udp/event_loop.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <atomic>
#include <csignal>
#include <cstring>
#include <deque>
#include <future>
#include <memory>
#include <new>
#include <thread>

#include "base/zeroed_array.h"
#include "socket_test_util.h"
#include "transport/udp/clock.h"

namespace longhaul::udp {
namespace {

using namespace std::chrono_literals;
using transport::DatagramCore;
using transport::ReceiveInfo;
using transport::Transmit;

// A core with a queue of datagrams to send; counts the calls that it gets.
class ToyCore : public DatagramCore {
 public:
  void HandleDatagram(Instant now, const Address& from, MutableByteSpan datagram,
                      const ReceiveInfo&) override {
    EXPECT_GE(now, latest);
    latest = now;
    ++received;
    bytes_received += datagram.size();
    if (echo) replies.push_back({from, {datagram.begin(), datagram.end()}});
    if (on_datagram) on_datagram(datagram);
  }
  void HandleTimeout(Instant now) override {
    EXPECT_GE(now, latest);
    latest = now;
    ++timeouts;
    if (on_timeout) on_timeout(now);
  }
  void HandleSendRefused(Instant, const Address&, size_t datagram_bytes) override {
    refused.push_back(datagram_bytes);
    if (on_refused) on_refused();
  }
  std::optional<Transmit> PollTransmit(Instant now, MutableByteSpan buffer) override {
    EXPECT_GE(now, latest);
    EXPECT_GE(buffer.size(), kMaxBatchBytes);
    latest = now;
    if (replies.empty()) return std::nullopt;
    Transmit out{replies.front().first, 0, replies.front().second.size()};
    size_t count = 0;
    while (!replies.empty() && replies.front().first == out.destination && count < kMaxSegments) {
      const std::vector<uint8_t>& bytes = replies.front().second;
      if (bytes.size() != out.segment_bytes || out.size + bytes.size() > kMaxBatchBytes) break;
      std::copy(bytes.begin(), bytes.end(), buffer.begin() + static_cast<ptrdiff_t>(out.size));
      out.size += bytes.size();
      ++count;
      replies.pop_front();
    }
    return out;
  }
  Instant NextTimeout() const override { return next_timeout; }
  bool WantsPort() const override { return wants_port; }
  void HandlePort(Instant) override {
    wants_port = false;
    ++ports;
    if (on_port) on_port();
  }

  bool wants_port = false;
  int ports = 0;
  std::function<void()> on_port;
  bool echo = false;
  std::deque<std::pair<Address, std::vector<uint8_t>>> replies;
  std::function<void(ByteSpan)> on_datagram;
  std::function<void(Instant)> on_timeout;
  std::function<void()> on_refused;
  std::vector<size_t> refused;
  Instant next_timeout = Instant::Infinite();
  Instant latest;
  uint64_t received = 0;
  uint64_t bytes_received = 0;
  uint64_t timeouts = 0;
};

std::unique_ptr<EventLoop> LoopOrDie(DatagramCore* core, UdpSocket socket, FaultInjector* faults = nullptr,
                                     const EventLoopOptions& options = {}) {
  auto loop = EventLoop::Create(core, std::move(socket), faults, options);
  if (!loop.ok()) ADD_FAILURE() << loop.status().ToString();
  return std::move(loop).value();
}

// Runs a loop in a thread of its own and stops it at the end of the scope.
class Running {
 public:
  explicit Running(EventLoop& loop) : loop_(loop), thread_([this] { loop_.Run(); }) {}
  ~Running() { Stop(); }
  void Stop() {
    loop_.Stop();
    if (thread_.joinable()) thread_.join();
  }

 private:
  EventLoop& loop_;
  std::thread thread_;
};

// Stops `loop` after ten seconds, so that a lost datagram fails a test instead of hanging it.
class Watchdog {
 public:
  explicit Watchdog(EventLoop& loop)
      : thread_([this, &loop] {
          if (done_.get_future().wait_for(10s) == std::future_status::timeout) {
            ADD_FAILURE() << "nothing happened for ten seconds";
            loop.Stop();
          }
        }) {}
  ~Watchdog() {
    done_.set_value();
    thread_.join();
  }

 private:
  std::promise<void> done_;
  std::thread thread_;
};

// A client that keeps 256 datagrams in flight towards an echoing server until 10,000 came back.
class PingCore : public ToyCore {
 public:
  PingCore(Address server, uint64_t total, std::function<void()> done)
      : server_(server), total_(total), done_(std::move(done)) {
    on_datagram = [this](ByteSpan) {
      if (received == total_) done_();
      Refill();
    };
    Refill();
  }
  void Refill() {
    while (sent_ < total_ && sent_ - received < 256) {
      replies.push_back({server_, std::vector<uint8_t>(1200, static_cast<uint8_t>(sent_))});
      ++sent_;
    }
  }

 private:
  Address server_;
  uint64_t total_;
  std::function<void()> done_;
  uint64_t sent_ = 0;
};

//  client (256 in flight) <---- loopback ----> echo
TEST(EventLoop, DrivesAnEchoOfTenThousandDatagrams) {
  ToyCore echo;
  echo.echo = true;
  UdpSocket server_socket = OpenOrDie();
  const Address server = server_socket.local_address();
  const auto server_loop = LoopOrDie(&echo, std::move(server_socket));
  EventLoop* stop = nullptr;
  PingCore ping(server, 10'000, [&] { stop->Stop(); });
  const auto client_loop = LoopOrDie(&ping, OpenOrDie());
  stop = client_loop.get();
  Running running(*server_loop);
  {
    Watchdog watchdog(*client_loop);
    client_loop->Run();
  }
  running.Stop();
  EXPECT_EQ(ping.received, 10'000u);
  EXPECT_EQ(ping.bytes_received, 12'000'000u);
  EXPECT_EQ(echo.received, 10'000u);
  const EventLoopCounters counters = client_loop->counters();
  EXPECT_EQ(counters.datagrams_sent, 10'000u);
  EXPECT_EQ(counters.datagrams_received, 10'000u);
  EXPECT_LT(counters.batches_sent, 5'000u) << "datagrams leave in batches";
  EXPECT_EQ(counters.timer_wakeups, 0u) << "no timer was armed";
}

TEST(EventLoop, CallsTheCoreAtItsDeadlineAndNotBefore) {
  ToyCore core;
  const auto loop = LoopOrDie(&core, OpenOrDie());
  std::vector<Instant> fired;
  Instant wanted = core.next_timeout = Now() + 20ms;
  core.on_timeout = [&](Instant now) {
    EXPECT_GE(now, wanted);
    fired.push_back(now);
    wanted = core.next_timeout = fired.size() < 3 ? now + 10ms : Instant::Infinite();
    if (fired.size() == 3) loop->Stop();
  };
  Watchdog watchdog(*loop);
  loop->Run();
  EXPECT_EQ(fired.size(), 3u);
  EXPECT_EQ(core.timeouts, 3u);
  EXPECT_LE(loop->counters().timer_wakeups, 5u);
}

TEST(EventLoop, AfterAStallItHearsBeforeItTimesOut) {
  ToyCore core;
  UdpSocket peer = OpenOrDie();
  UdpSocket own = OpenOrDie();
  const Address address = own.local_address();
  const auto loop = LoopOrDie(&core, std::move(own));
  core.next_timeout = Now() + 20ms;
  core.on_datagram = [&](ByteSpan) {
    core.next_timeout = Instant::Infinite();
    loop->Stop();
  };
  core.on_timeout = [&](Instant) { loop->Stop(); };
  ASSERT_TRUE(loop->Post([&] {
                    const std::vector<uint8_t> alive(100);
                    peer.Send(address, alive, alive.size(), false);
                    std::this_thread::sleep_for(30ms);
                  })
                  .ok());
  Watchdog watchdog(*loop);
  loop->Run();
  EXPECT_EQ(core.received, 1u);
  EXPECT_EQ(core.timeouts, 0u);
}

TEST(EventLoop, ACoreGetsAnotherPortAndHearsAndSpeaksByIt) {
  ToyCore core;
  UdpSocket peer = OpenOrDie();
  const Address to = peer.local_address();
  UdpSocket own = OpenOrDie();
  const Address before = own.local_address();
  const auto loop =
      LoopOrDie(&core, std::move(own), nullptr, {.open_socket = [] { return UdpSocket::Open(Loopback4()); }});
  core.wants_port = true;
  core.on_port = [&] { core.replies.push_back({to, std::vector<uint8_t>(100)}); };
  core.on_datagram = [&](ByteSpan) { loop->Stop(); };
  Watchdog watchdog(*loop);
  Running running(*loop);
  const std::vector<Arrived> arrived = ReceiveAll(peer, 1);
  ASSERT_EQ(arrived.size(), 1u);
  EXPECT_NE(arrived[0].from.port, before.port);
  const std::vector<uint8_t> answer(200);
  peer.Send(arrived[0].from, answer, answer.size(), false);
  const Instant deadline = Now() + 5s;
  while (loop->Post([] {}).ok() && Now() < deadline) std::this_thread::sleep_for(1ms);
  running.Stop();
  EXPECT_EQ(core.received, 1u);
  EXPECT_EQ(core.ports, 1);
  EXPECT_EQ(loop->counters().ports_taken, 1u);
  EXPECT_EQ(loop->socket().local_address(), arrived[0].from);
}

TEST(EventLoop, WithoutAnotherSocketACoreKeepsItsPort) {
  ToyCore core;
  const auto loop = LoopOrDie(&core, OpenOrDie(), nullptr, {.open_socket = []() -> Result<UdpSocket> {
    return Status(StatusCode::kInternal, "no descriptors");
  }});
  const Address before = loop->socket().local_address();
  core.wants_port = true;
  core.next_timeout = Now() + 20ms;
  core.on_timeout = [&](Instant) { loop->Stop(); };
  Watchdog watchdog(*loop);
  loop->Run();
  EXPECT_EQ(core.ports, 0);
  EXPECT_GE(loop->counters().ports_missed, 1u);
  EXPECT_LE(loop->counters().ports_missed, loop->counters().turns);
  EXPECT_EQ(loop->socket().local_address(), before);
}

TEST(EventLoop, DoesNotSpinForACoreThatIsAlwaysLate) {
  ToyCore core;
  const auto loop = LoopOrDie(&core, OpenOrDie());
  core.next_timeout = Now() - 1s;
  const Instant start = Now();
  core.on_timeout = [&](Instant) {
    if (core.timeouts == 100) loop->Stop();
  };
  Watchdog watchdog(*loop);
  loop->Run();
  EXPECT_GE(Now() - start, 99 * EventLoop::kMinWait);
  EXPECT_GE(loop->counters().overdue, 99u);
}

TEST(EventLoop, PostRunsOnTheLoopsThreadInOrderFromManyThreads) {
  ToyCore core;
  const auto loop = LoopOrDie(&core, OpenOrDie());
  constexpr int kThreads = 4;
  constexpr int kEach = 2000;
  std::vector<int> next(kThreads, 0);  // touched by the loop's thread only
  std::thread::id loop_thread;
  std::atomic<int> ran{0};
  std::vector<std::thread> threads;
  Running running(*loop);
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < kEach; ++i) {
        const Status status = loop->Post([&, t, i] {
          if (loop_thread == std::thread::id()) loop_thread = std::this_thread::get_id();
          EXPECT_EQ(loop_thread, std::this_thread::get_id());
          EXPECT_EQ(next[static_cast<size_t>(t)]++, i);
          ++ran;
        });
        EXPECT_TRUE(status.ok()) << status.ToString();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  running.Stop();
  EXPECT_EQ(ran, kThreads * kEach) << "Stop runs behind what was posted before it";
  EXPECT_EQ(loop->counters().posted, uint64_t{kThreads * kEach});
}

TEST(EventLoop, LetsTheCoreSendAfterAPostedFunction) {
  ToyCore core;
  UdpSocket receiver = OpenOrDie();
  const auto loop = LoopOrDie(&core, OpenOrDie());
  Running running(*loop);
  ASSERT_TRUE(loop->Post([&] {
                    core.replies.push_back({receiver.local_address(), Pattern(1, 100, 100)});
                  })
                  .ok());
  EXPECT_EQ(ReceiveAll(receiver, 1).size(), 1u);
}

TEST(EventLoop, RefusesPostsBeyondItsBoundAndAfterItHasStopped) {
  ToyCore core;
  EventLoopOptions options;
  options.max_posted = 2;
  const auto loop = LoopOrDie(&core, OpenOrDie(), nullptr, options);
  int ran = 0;
  EXPECT_TRUE(loop->Post([&] { ++ran; }).ok());
  EXPECT_TRUE(loop->Post([&] { ++ran; }).ok());
  EXPECT_EQ(loop->Post([&] { ++ran; }).code(), StatusCode::kResourceExhausted);
  loop->Stop();
  EXPECT_EQ(loop->Post([&] { ++ran; }).code(), StatusCode::kFailedPrecondition);
  loop->Run();
  EXPECT_EQ(ran, 2);
  EXPECT_EQ(loop->counters().post_refused, 1u);
}

TEST(EventLoop, StopEndsItPromptlyAndLetsTheCoreSayGoodbye) {
  ToyCore core;
  UdpSocket receiver = OpenOrDie();
  const auto loop = LoopOrDie(&core, OpenOrDie());
  core.next_timeout = Now() + 1h;
  Running running(*loop);
  ASSERT_TRUE(loop->Post([&] {
                    core.replies.push_back({receiver.local_address(), Pattern(1, 50, 50)});
                  })
                  .ok());
  const Instant start = Now();
  running.Stop();
  EXPECT_LT(Now() - start, 2s);
  EXPECT_EQ(ReceiveAll(receiver, 1).size(), 1u);
  loop->Stop();  // once more does no harm
}

TEST(EventLoop, FullSocketHoldsTheRestBackAndLosesNothing) {
  // The first ten calls find the buffer full, half of them after one datagram.
  std::atomic<int> calls{0};
  SocketOptions options;
  options.segmentation_offload = false;
  options.calls.sendmmsg = [&](int fd, mmsghdr* messages, unsigned count, int flags) {
    const int call = calls++;
    if (call >= 10) return ::sendmmsg(fd, messages, count, flags);
    if (call % 2 == 0) return ::sendmmsg(fd, messages, 1, flags);
    return errno = EAGAIN, -1;
  };
  ToyCore core;
  UdpSocket receiver = OpenOrDie();
  const auto bytes = Pattern(200, 1000, 1000);
  for (size_t i = 0; i < 200; ++i) {
    core.replies.push_back({receiver.local_address(), {&bytes[i * 1000], &bytes[i * 1000] + 1000}});
  }
  const auto loop = LoopOrDie(&core, OpenOrDie(Loopback4(), options));
  {
    Running running(*loop);
    EXPECT_EQ(Concatenate(ReceiveAll(receiver, 200)), bytes);
  }
  EXPECT_EQ(loop->counters().would_block, 5u);
}

TEST(EventLoop, TellsTheCoreWhichSizeWasRefusedAndAsksAgain) {
  SocketOptions options;
  options.segmentation_offload = false;
  options.calls.sendmmsg = [](int fd, mmsghdr* messages, unsigned count, int flags) {
    if (messages[0].msg_hdr.msg_iov[0].iov_len > 1200) return errno = EMSGSIZE, -1;
    return ::sendmmsg(fd, messages, count, flags);
  };
  ToyCore core;
  UdpSocket receiver = OpenOrDie();
  for (int i = 0; i < 3; ++i) core.replies.push_back({receiver.local_address(), Pattern(1, 1452, 1452)});
  core.on_refused = [&] {
    for (int i = 0; i < 3; ++i) core.replies.push_back({receiver.local_address(), Pattern(1, 1200, 1200)});
  };
  const auto loop = LoopOrDie(&core, OpenOrDie(Loopback4(), options));
  {
    Running running(*loop);
    EXPECT_EQ(ReceiveAll(receiver, 3).size(), 3u);
  }
  EXPECT_EQ(core.refused, std::vector<size_t>{1452});
  EXPECT_EQ(loop->counters().send_refused, 1u);
}

TEST(EventLoop, ReceivesBetweenTheBatchesOfACoreThatNeverStopsSending) {
  // A core that always has something to say must still hear the datagram that tells it to be quiet.
  class Talker : public ToyCore {
   public:
    explicit Talker(Address to) : to_(to) {}
    std::optional<Transmit> PollTransmit(Instant, MutableByteSpan buffer) override {
      if (received > 0) return std::nullopt;
      std::fill_n(buffer.begin(), 100, uint8_t{1});
      return Transmit{to_, 100, 100};
    }

   private:
    Address to_;
  };
  UdpSocket quiet = OpenOrDie();
  Talker talker(quiet.local_address());
  UdpSocket socket = OpenOrDie();
  const Address talker_address = socket.local_address();
  const auto loop = LoopOrDie(&talker, std::move(socket));
  talker.on_datagram = [&](ByteSpan) { loop->Stop(); };
  Watchdog watchdog(*loop);
  std::thread thread([&] {
    ReceiveAll(quiet, 100);
    quiet.Send(talker_address, Pattern(1, 10, 10), 10);
  });
  loop->Run();
  thread.join();
  EXPECT_EQ(talker.received, 1u);
  EXPECT_GT(loop->counters().yields, 0u);
}

TEST(EventLoop, FaultInjectorStandsBetweenSocketAndCoreInBothDirections) {
  // 1000 pings through 10 ms of delay and 20 % loss each way: about 640 pongs, none before 20 ms.
  FaultInjector faults(*ParseFaults("drop=0.2,delay=10ms,seed=9"));
  ToyCore echo;
  echo.echo = true;
  UdpSocket server_socket = OpenOrDie();
  const Address server = server_socket.local_address();
  const auto server_loop = LoopOrDie(&echo, std::move(server_socket));
  ToyCore client;
  Instant first_pong;
  client.on_datagram = [&](ByteSpan) {
    if (client.received == 1) first_pong = Now();
  };
  for (int i = 0; i < 1000; ++i) client.replies.push_back({server, std::vector<uint8_t>(500)});
  const auto client_loop = LoopOrDie(&client, OpenOrDie(), &faults);
  client.next_timeout = Now() + 1s;
  client.on_timeout = [&](Instant) { client_loop->Stop(); };
  const Instant start = Now();
  Running running(*server_loop);
  client_loop->Run();
  running.Stop();

  EXPECT_EQ(faults.outgoing()->counters().packets_in, 1000u);
  EXPECT_EQ(faults.outgoing()->counters().packets_delivered, echo.received);
  EXPECT_EQ(faults.incoming()->counters().packets_in, echo.received);
  EXPECT_EQ(faults.incoming()->counters().packets_delivered, client.received);
  EXPECT_NEAR(static_cast<double>(client.received), 640, 100);
  EXPECT_GE(first_pong - start, 20ms);
}

// --- How long events take ---

// A core that notes its longest event.
struct NotedCore : ToyCore {
  void HandleLongestEvent(Duration cpu) override { longest = cpu; }
  Duration longest{0};
};

void BusyFor(Duration cpu) {
  for (const Duration until = ThreadCpuTime() + cpu; ThreadCpuTime() < until;) {
  }
}

TEST(EventLoop, TheLongestEventCountsCpuTimeAndNoWaiting) {
  NotedCore core;
  auto loop = LoopOrDie(&core, OpenOrDie());
  ASSERT_TRUE(loop->Post([] { std::this_thread::sleep_for(30ms); }).ok());
  ASSERT_TRUE(
      loop->Post([&] { EXPECT_LT(loop->counters().longest_event, 20ms) << "nothing was done"; }).ok());
  ASSERT_TRUE(loop->Post([] { BusyFor(30ms); }).ok());
  ASSERT_TRUE(loop->Post([&] { loop->Stop(); }).ok());
  const Watchdog watchdog(*loop);
  loop->Run();
  EXPECT_GE(loop->counters().longest_event, 30ms);
  EXPECT_LT(loop->counters().longest_event, 50ms);
  EXPECT_EQ(core.longest, loop->counters().longest_event);
}

TEST(EventLoop, MemoryThatRunsOutEndsTheLoopByName) {
  ToyCore core;
  auto loop = LoopOrDie(&core, OpenOrDie());
  auto owned = std::make_shared<int>(1);
  ASSERT_TRUE(loop->Post([&] {
                    // It waits behind this turn: nothing may run any more, and nothing is kept for it.
                    ASSERT_TRUE(loop->Post([owned] { *owned = 2; }).ok());
                    throw std::bad_alloc();
                  })
                  .ok());
  loop->Run();
  EXPECT_EQ(loop->failure().code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(loop->failure().message(), "out of memory");
  EXPECT_EQ(*owned, 1);
  EXPECT_EQ(owned.use_count(), 1) << "what was posted ends with the loop";
  EXPECT_EQ(loop->Post([] {}).code(), StatusCode::kFailedPrecondition);
  loop->Stop();
}

// What an event frees goes back in slices, also when nothing else happens.
TEST(EventLoop, FreedMemoryIsGivenBackWhileTheLoopIsIdle) {
  ToyCore core;
  auto loop = LoopOrDie(&core, OpenOrDie());
  auto large = std::make_unique<ZeroedArray<uint8_t>>(size_t{64} << 20);
  uint8_t* const first = large->data();
  std::memset(first, 1, large->size());
  {
    Running running(*loop);
    ASSERT_TRUE(loop->Post([&large] { large.reset(); }).ok());
    const auto mapped = [first] {
      unsigned char in_memory = 0;
      return ::mincore(first, 4096, &in_memory) == 0;
    };
    for (int i = 0; i < 1000 && mapped(); ++i) std::this_thread::sleep_for(10ms);
    EXPECT_FALSE(mapped());
  }
  EXPECT_GE(loop->counters().turns, 32u) << "2 MiB a turn";
}

}  // namespace
}  // namespace longhaul::udp
