#include "transport/udp/socket.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cerrno>
#include <deque>
#include <memory>
#include <thread>

#include "socket_test_util.h"

namespace longhaul::udp {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;

// Fails system calls on request, in front of the real ones.
struct FaultyCalls {
  std::deque<int> segmented;  // errors of the next sendmsg calls with UDP_SEGMENT; 0: let through
  std::deque<int> single;     // of sendmsg without
  std::deque<int> many;       // of sendmmsg; 0: send only the first datagram
  int segmented_always = 0;

  static bool Fails(std::deque<int>& errors) {
    if (errors.empty()) return false;
    errno = errors.front();
    errors.pop_front();
    return errno != 0;
  }
  UdpSocket Open(bool segmentation_offload = true) {
    SocketOptions options;
    options.segmentation_offload = segmentation_offload;
    options.calls = {[this](int fd, const msghdr* message, int flags) -> ssize_t {
                       const bool is_segmented = message->msg_controllen > 0;
                       if (is_segmented && segmented_always != 0) return errno = segmented_always, -1;
                       if (Fails(is_segmented ? segmented : single)) return -1;
                       return ::sendmsg(fd, message, flags);
                     },
                     [this](int fd, mmsghdr* messages, unsigned count, int flags) {
                       const bool only_one = !many.empty() && many.front() == 0;
                       if (Fails(many)) return -1;
                       return ::sendmmsg(fd, messages, only_one ? 1 : count, flags);
                     }};
    return OpenOrDie(Loopback4(), options);
  }
};

class SocketFamilies : public testing::TestWithParam<bool> {
 protected:
  void SetUp() override {
    if (GetParam() && !HasIpv6()) GTEST_SKIP() << "no IPv6 here";
  }
  Address Bind() const { return GetParam() ? Loopback6() : Loopback4(); }
};
INSTANTIATE_TEST_SUITE_P(BothFamilies, SocketFamilies, testing::Values(false, true),
                         [](const auto& family) { return family.param ? "IPv6" : "IPv4"; });

TEST_P(SocketFamilies, SegmentedAndSeparateSendingDeliverTheSameDatagramsInOrder) {
  for (const bool offload : {true, false}) {
    SocketOptions options;
    options.segmentation_offload = offload;
    UdpSocket sender = OpenOrDie(Bind(), options);
    UdpSocket receiver = OpenOrDie(Bind(), options);
    const auto bytes = Pattern(40, 1452, 700);
    const SendResult result = sender.Send(receiver.local_address(), bytes, 1452);
    EXPECT_EQ(result.outcome, SendOutcome::kDone);
    EXPECT_EQ(result.done_bytes, bytes.size());

    const auto datagrams = ReceiveAll(receiver, 40);
    ASSERT_EQ(datagrams.size(), 40u) << "offload " << offload;
    for (size_t i = 0; i < 40; ++i) {
      EXPECT_EQ(datagrams[i].bytes.size(), i == 39 ? 700u : 1452u);
      EXPECT_EQ(datagrams[i].from, sender.local_address());
    }
    EXPECT_EQ(Concatenate(datagrams), bytes) << "offload " << offload;
    EXPECT_EQ(sender.send_counters().gso_calls, offload ? 1u : 0u);
    EXPECT_EQ(sender.send_counters().sendmmsg_calls, offload ? 0u : 1u);
    EXPECT_EQ(sender.send_counters().datagrams, 40u);
    EXPECT_EQ(receiver.receive_counters().datagrams, 40u);
    EXPECT_EQ(receiver.receive_counters().bytes, bytes.size());
  }
}

TEST_P(SocketFamilies, LargestBatchAndLargestCountGoThrough) {
  UdpSocket sender = OpenOrDie(Bind());
  UdpSocket receiver = OpenOrDie(Bind());
  const auto many = Pattern(kMaxSegments, 1000, 1);
  EXPECT_EQ(sender.Send(receiver.local_address(), many, 1000).outcome, SendOutcome::kDone);
  EXPECT_EQ(Concatenate(ReceiveAll(receiver, kMaxSegments)), many);
  std::vector<uint8_t> large(kMaxBatchBytes, 7);
  EXPECT_EQ(sender.Send(receiver.local_address(), large, 9000).outcome, SendOutcome::kDone);
  EXPECT_EQ(Concatenate(ReceiveAll(receiver, 8)), large);
}

TEST(UdpSocket, OnTheIPv6WildcardHearsIPv4AsMappedAndAnswersIt) {
  if (!HasIpv6()) GTEST_SKIP() << "no IPv6 here";
  UdpSocket server = OpenOrDie(Address{});
  UdpSocket client = OpenOrDie();
  const Address server4 = Address::V4(127, 0, 0, 1, server.local_address().port);
  client.Send(server4, Pattern(3, 100, 100), 100);
  const auto requests = ReceiveAll(server, 3);
  ASSERT_EQ(requests.size(), 3u);
  EXPECT_EQ(requests[0].from, client.local_address());
  EXPECT_EQ(server.Send(requests[0].from, Pattern(3, 100, 100), 100).outcome, SendOutcome::kDone);
  EXPECT_EQ(ReceiveAll(client, 3).size(), 3u);
}

TEST(UdpSocket, PortInUseIsNamed) {
  const UdpSocket first = OpenOrDie();
  const Result<UdpSocket> second = UdpSocket::Open(first.local_address());
  ASSERT_FALSE(second.ok());
  EXPECT_EQ(second.status().code(), StatusCode::kAlreadyExists);
  EXPECT_THAT(second.status().message(), HasSubstr(first.local_address().ToString()));
  EXPECT_THAT(second.status().message(), HasSubstr("in use"));
}

TEST(UdpSocket, ForeignAddressIsNamed) {
  const Result<UdpSocket> socket = UdpSocket::Open(Address::V4(192, 0, 2, 1, 0));  // RFC 5737: no host's
  ASSERT_FALSE(socket.ok());
  EXPECT_EQ(socket.status().code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(socket.status().message(), HasSubstr("192.0.2.1"));
}

TEST(UdpSocket, SmallReceiveBufferWarnsWithTheSysctl) {
  SocketOptions options;
  options.force_buffers = false;
  options.receive_buffer = options.send_buffer = ByteCount(900 << 20);  // more than any default maximum
  const UdpSocket socket = OpenOrDie(Loopback4(), options);
  ASSERT_EQ(socket.warnings().size(), 2u);
  EXPECT_THAT(socket.warnings()[0], HasSubstr("net.core.rmem_max=943718400"));
  EXPECT_THAT(socket.warnings()[0], HasSubstr(std::to_string(socket.receive_buffer().value())));
  EXPECT_THAT(socket.warnings()[1], HasSubstr("net.core.wmem_max"));
  EXPECT_LT(socket.receive_buffer(), options.receive_buffer);

  options.receive_buffer = options.send_buffer = ByteCount(65536);
  EXPECT_THAT(OpenOrDie(Loopback4(), options).warnings(), IsEmpty());
}

TEST(UdpSocket, FullReceiveBufferIsCountedAsHostDrops) {
  SocketOptions options;
  options.force_buffers = false;
  options.receive_buffer = ByteCount(16384);
  options.segmentation_offload = false;
  UdpSocket receiver = OpenOrDie(Loopback4(), options);
  UdpSocket sender = OpenOrDie(Loopback4(), options);
  for (int i = 0; i < 10; ++i) sender.Send(receiver.local_address(), Pattern(60, 1000, 1000), 1000);
  const size_t kept = ReceiveAll(receiver, 1).size();
  ASSERT_GT(kept, 0u);
  ASSERT_LT(kept, 600u);
  // The count travels with the next datagram that is queued after the drops.
  sender.Send(receiver.local_address(), Pattern(1, 10, 10), 10);
  const auto next = ReceiveAll(receiver, 1);
  ASSERT_EQ(next.size(), 1u);
  EXPECT_EQ(next[0].info.host_drops, 600 - kept);
  EXPECT_EQ(receiver.receive_counters().host_drops, 600 - kept);
}

TEST_P(SocketFamilies, CongestionExperiencedIsReported) {
  UdpSocket receiver = OpenOrDie(Bind());
  UdpSocket sender = OpenOrDie(Bind());
  const int ce = 3;
  if (GetParam()) {
    ::setsockopt(sender.fd(), IPPROTO_IPV6, IPV6_TCLASS, &ce, sizeof ce);
  } else {
    ::setsockopt(sender.fd(), IPPROTO_IP, IP_TOS, &ce, sizeof ce);
  }
  sender.Send(receiver.local_address(), Pattern(5, 100, 100), 100);
  const auto datagrams = ReceiveAll(receiver, 5);
  ASSERT_EQ(datagrams.size(), 5u);
  for (const Arrived& datagram : datagrams) EXPECT_TRUE(datagram.info.ecn_ce);
  EXPECT_EQ(receiver.receive_counters().ecn_ce, 5u);
}

TEST_P(SocketFamilies, MarksAsEcnCapableWhatIsAskedFor) {
  UdpSocket receiver = OpenOrDie(Bind());
  SocketOptions off;
  off.ecn_capable = false;
  UdpSocket sender = OpenOrDie(Bind());
  UdpSocket plain = OpenOrDie(Bind(), off);
  const Address to = receiver.local_address();
  const auto marks = [&](size_t count) {
    std::vector<bool> marked;
    for (const Arrived& datagram : ReceiveAll(receiver, count)) marked.push_back(datagram.info.ecn_ect0);
    return marked;
  };
  // Alone, in one segmented send, and not at all.
  sender.Send(to, Pattern(1, 100, 100), 100, true);
  EXPECT_EQ(marks(1), std::vector<bool>(1, true));
  sender.Send(to, Pattern(5, 100, 100), 100, true);
  EXPECT_EQ(marks(5), std::vector<bool>(5, true));
  sender.Send(to, Pattern(5, 100, 100), 100, false);
  EXPECT_EQ(marks(5), std::vector<bool>(5, false));
  plain.Send(to, Pattern(5, 100, 100), 100, true);
  EXPECT_EQ(marks(5), std::vector<bool>(5, false));
  EXPECT_EQ(receiver.receive_counters().ecn_ce, 0u);
}

TEST(DatagramSender, TheMarkSurvivesTheFallbackFromSegmentation) {
  FaultyCalls faults;
  faults.segmented = {EIO};
  UdpSocket sender = faults.Open();
  UdpSocket receiver = OpenOrDie();
  sender.Send(receiver.local_address(), Pattern(4, 500, 500), 500, true);
  const auto datagrams = ReceiveAll(receiver, 4);
  ASSERT_EQ(datagrams.size(), 4u);
  for (const Arrived& datagram : datagrams) EXPECT_TRUE(datagram.info.ecn_ect0);
}

TEST(DatagramReceiver, ALateReaderKnowsWhenDatagramsArrived) {
  UdpSocket sender = OpenOrDie();
  UdpSocket receiver = OpenOrDie();
  // The kernel begins to take the time soon after the first socket has asked for it.
  Duration waited(0);
  for (int attempt = 0; attempt < 20 && waited < std::chrono::milliseconds(20); ++attempt) {
    const Instant before = Now();
    sender.Send(receiver.local_address(), Pattern(10, 1200, 1200), 1200);
    const Instant after = Now();
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    const Instant read = Now();
    for (const Arrived& datagram : ReceiveAll(receiver, 10)) {
      if (datagram.info.received.IsInfinite()) continue;  // the clock was set, or this thread stood still
      EXPECT_GE(datagram.info.received, before - StampClock::kMaxShift);
      waited = std::max(waited, read - datagram.info.received);
      if (read - datagram.info.received < std::chrono::milliseconds(20)) continue;
      EXPECT_LE(datagram.info.received, after + StampClock::kMaxShift);
    }
  }
  EXPECT_GE(waited, std::chrono::milliseconds(20));
}

TEST(StampClockTest, BelievesTheOtherClockWhileItIsNotSet) {
  constexpr int64_t kMs = 1'000'000;
  const Instant start = Instant::FromNanoseconds(100'000 * kMs);
  const int64_t epoch = int64_t{1'700'000'000'000} * kMs;
  StampClock clock;
  const auto read = [&](int64_t ms, int64_t set_ms) {
    clock.Set(start + std::chrono::milliseconds(ms), epoch + (ms + set_ms) * kMs);
  };
  const auto at = [&](int64_t ms, int64_t set_ms) { return clock.At(epoch + (ms + set_ms) * kMs); };
  read(0, 0);
  EXPECT_TRUE(at(0, 0).IsInfinite());  // nothing to compare with
  read(30, 0);
  EXPECT_EQ(at(10, 0), start + std::chrono::milliseconds(10));
  EXPECT_EQ(at(31, 0), start + std::chrono::milliseconds(30));  // not after the reading
  read(5000, 0);
  EXPECT_EQ(at(10, 0), start + std::chrono::milliseconds(4000));  // not longer than kOldest ago
  for (const int64_t set : {-60'000, 20, 0}) {
    read(6000, set);  // set between the arrival and the reading
    EXPECT_TRUE(at(5999, 0).IsInfinite());
    read(6001, set);
    EXPECT_EQ(at(5999, set), start + std::chrono::milliseconds(5999));
  }
}

TEST(DatagramSender, BatchRefusedBySegmentationLeavesAtOnceAnotherWay) {
  for (const int error : {EIO, EINVAL, ENOTSUP}) {
    FaultyCalls faults;
    faults.segmented_always = error;
    UdpSocket sender = faults.Open();
    UdpSocket receiver = OpenOrDie();
    const auto bytes = Pattern(30, 1200, 77);
    EXPECT_EQ(sender.Send(receiver.local_address(), bytes, 1200).outcome, SendOutcome::kDone);
    EXPECT_EQ(Concatenate(ReceiveAll(receiver, 30)), bytes);
    EXPECT_EQ(sender.send_counters().gso_fallbacks, 1u);
    EXPECT_EQ(sender.send_counters().paths_without_gso, 1u);
    // The path is marked: the next batch does not try. Another destination does.
    EXPECT_EQ(sender.Send(receiver.local_address(), bytes, 1200).outcome, SendOutcome::kDone);
    EXPECT_EQ(sender.send_counters().gso_calls, 1u);
    Address other = receiver.local_address();
    other.ip[15] = 2;  // 127.0.0.2
    sender.Send(other, bytes, 1200);
    EXPECT_EQ(sender.send_counters().gso_calls, 2u);
  }
}

TEST(DatagramSender, SegmentationMayFailAfterItHasWorked) {
  FaultyCalls faults;
  faults.segmented = {0, EIO};
  UdpSocket sender = faults.Open();
  UdpSocket receiver = OpenOrDie();
  const auto bytes = Pattern(20, 1200, 1200);
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(sender.Send(receiver.local_address(), bytes, 1200).outcome, SendOutcome::kDone);
    EXPECT_EQ(Concatenate(ReceiveAll(receiver, 20)), bytes) << "batch " << i;
  }
  EXPECT_EQ(sender.send_counters().gso_calls, 2u);
}

TEST(DatagramSender, FullBufferTellsHowMuchWasSent) {
  FaultyCalls faults;
  faults.many = {0, EAGAIN};
  UdpSocket sender = faults.Open(/*segmentation_offload=*/false);
  UdpSocket receiver = OpenOrDie();
  const auto bytes = Pattern(10, 1000, 500);
  const SendResult first = sender.Send(receiver.local_address(), bytes, 1000);
  EXPECT_EQ(first.outcome, SendOutcome::kWouldBlock);
  EXPECT_EQ(first.done_bytes, 1000u);
  const SendResult second =
      sender.Send(receiver.local_address(), ByteSpan(bytes).subspan(first.done_bytes), 1000);
  EXPECT_EQ(second.outcome, SendOutcome::kDone);
  EXPECT_EQ(Concatenate(ReceiveAll(receiver, 10)), bytes);
  EXPECT_EQ(sender.send_counters().would_block, 1u);
}

TEST(DatagramSender, FullBufferStopsASegmentedBatchAsAWhole) {
  FaultyCalls faults;
  faults.segmented = {EAGAIN};
  UdpSocket sender = faults.Open();
  const SendResult result = sender.Send(sender.local_address(), Pattern(10, 1000, 500), 1000);
  EXPECT_EQ(result.outcome, SendOutcome::kWouldBlock);
  EXPECT_EQ(result.done_bytes, 0u);
  EXPECT_EQ(sender.send_counters().paths_without_gso, 0u);
}

TEST(DatagramSender, DatagramLargerThanTheInterfaceIsTooBigAndDoesNotBlameThePath) {
  FaultyCalls faults;
  faults.segmented = {EINVAL};  // older kernels' answer to a segment beyond the MTU
  faults.many = {EMSGSIZE};
  UdpSocket sender = faults.Open();
  UdpSocket receiver = OpenOrDie();
  const auto bytes = Pattern(4, 1452, 1452);
  const SendResult result = sender.Send(receiver.local_address(), bytes, 1452);
  EXPECT_EQ(result.outcome, SendOutcome::kTooBig);
  EXPECT_EQ(result.done_bytes, 0u);
  EXPECT_EQ(sender.send_counters().too_big, 1u);
  EXPECT_EQ(sender.send_counters().paths_without_gso, 0u);
  EXPECT_EQ(sender.Send(receiver.local_address(), bytes, 1452).outcome, SendOutcome::kDone);
  EXPECT_EQ(sender.send_counters().gso_calls, 2u);
}

TEST(DatagramSender, DatagramsAreNotFragmentedButRefused) {
  if (!HasIpv6()) GTEST_SKIP() << "no IPv6 here";
  // IPV6_MTU lowers the MTU that the kernel assumes for this socket: 1300 - 48 = 1252 bytes of payload fit.
  UdpSocket sender = OpenOrDie(Loopback6());
  UdpSocket receiver = OpenOrDie(Loopback6());
  const int mtu = 1300;
  ASSERT_EQ(::setsockopt(sender.fd(), IPPROTO_IPV6, IPV6_MTU, &mtu, sizeof mtu), 0);
  for (const size_t count : {1u, 8u}) {
    const auto large = Pattern(count, 1253, 1253);
    EXPECT_EQ(sender.Send(receiver.local_address(), large, 1253).outcome, SendOutcome::kTooBig) << count;
    const auto small = Pattern(count, 1252, 1252);
    EXPECT_EQ(sender.Send(receiver.local_address(), small, 1252).outcome, SendOutcome::kDone) << count;
    EXPECT_EQ(Concatenate(ReceiveAll(receiver, count)), small);
  }
  EXPECT_EQ(sender.send_counters().too_big, 2u);
  EXPECT_EQ(sender.send_counters().paths_without_gso, 0u);
}

TEST(DatagramSender, RefusedConnectionsAreIgnoredAndTheBatchIsSent) {
  FaultyCalls faults;
  faults.segmented = {ECONNREFUSED};
  faults.single = {ECONNREFUSED};
  UdpSocket sender = faults.Open();
  UdpSocket receiver = OpenOrDie();
  const auto bytes = Pattern(4, 500, 500);
  EXPECT_EQ(sender.Send(receiver.local_address(), bytes, 500).outcome, SendOutcome::kDone);
  EXPECT_EQ(sender.Send(receiver.local_address(), ByteSpan(bytes).first(500), 500).outcome,
            SendOutcome::kDone);
  EXPECT_EQ(ReceiveAll(receiver, 5).size(), 5u);
  EXPECT_EQ(sender.send_counters().connection_refused, 2u);
}

TEST(DatagramSender, AFirewallsRefusalLosesOneDatagramNotTheRest) {
  FaultyCalls faults;
  faults.many = {EPERM};
  UdpSocket sender = faults.Open(/*segmentation_offload=*/false);
  UdpSocket receiver = OpenOrDie();
  const auto bytes = Pattern(4, 500, 500);
  EXPECT_EQ(sender.Send(receiver.local_address(), bytes, 500).outcome, SendOutcome::kDone);
  EXPECT_EQ(ReceiveAll(receiver, 3).size(), 3u);
  EXPECT_EQ(sender.send_counters().not_permitted, 1u);
  EXPECT_EQ(sender.send_counters().datagrams, 3u);
}

TEST(DatagramSender, ImpossibleDestinationsAreCountedAsLost) {
  UdpSocket sender = OpenOrDie();
  Address v6 = Loopback6();
  v6.port = 7;
  EXPECT_EQ(sender.Send(v6, Pattern(2, 10, 10), 10).outcome, SendOutcome::kDone);  // from an IPv4 socket
  EXPECT_EQ(sender.Send(Loopback4(), Pattern(2, 10, 10), 10).outcome, SendOutcome::kDone);  // port 0
  EXPECT_EQ(sender.send_counters().unreachable, 2u);
  EXPECT_EQ(sender.send_counters().datagrams, 0u);
}

}  // namespace
}  // namespace longhaul::udp
