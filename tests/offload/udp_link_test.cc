// Engines of several machines over UDP: bad networks, strangers, restarts, other keys, counters.
#include <cstring>
#include <fstream>
#include <sstream>
#include <thread>

#include "base/counters.h"
#include "tests/offload/udp_support.h"

namespace longhaul::offload {
namespace {

constexpr JobConfig kJob{.policy = StragglerPolicy::kCascade, .deadline = std::chrono::seconds(15)};

// Every rank of a site, with floats whose sum depends on the order.
class Floats {
 public:
  Floats(std::vector<Device>& devices, size_t elements, uint64_t seed) : devices_(&devices) {
    Random random(seed);
    for (Device& device : devices) {
      auto& data = data_.emplace_back();
      data.send.resize(elements);
      data.receive.resize(elements);
      for (float& v : data.send) v = static_cast<float>(random.Normal() * 1000 * random.Uniform());
      data.send_key = device.Register(std::as_writable_bytes(std::span(data.send))).value();
      data.receive_key = device.Register(std::as_writable_bytes(std::span(data.receive))).value();
    }
  }
  void Post(size_t rank, uint32_t mid, uint32_t generation = 0) {
    WorkRequest request{.wr_id = uint64_t{mid} << 8 | generation, .flags = WorkRequest::kDeterministic};
    request.mid = mid;
    request.generation = generation;
    request.length = 4 * data_[rank].send.size();
    request.send.key = data_[rank].send_key;
    request.receive.key = data_[rank].receive_key;
    ASSERT_TRUE((*devices_)[rank].Post({&request, 1}).ok());
  }
  // Every rank's bytes after an all-reduce of that message.
  std::vector<std::vector<float>> AllReduce(uint32_t mid, uint32_t generation = 0) {
    for (size_t rank = 0; rank < data_.size(); ++rank) Post(rank, mid, generation);
    for (Device& device : *devices_) {
      const Completion done = NextOf(device);
      EXPECT_EQ(done.status, WorkStatus::kSuccess)
          << WorkStatusName(done.status) << " of message " << mid << ", missing nodes " << done.missing_nodes
          << " ranks " << done.missing_ranks << ", " << done.segs_done << " of " << done.segs_total
          << " segs";
      EXPECT_EQ(done.wr_id, uint64_t{mid} << 8 | generation);
    }
    std::vector<std::vector<float>> results;
    for (const auto& data : data_) results.push_back(data.receive);
    return results;
  }

 private:
  struct Data {
    std::vector<float> send, receive;
    uint32_t send_key = 0, receive_key = 0;
  };
  std::vector<Device>* devices_;
  std::vector<Data> data_;
};

// What devices of one process make of the same.
std::vector<std::vector<float>> Reference(const SiteOptions& site, size_t elements, uint64_t seed,
                                          uint32_t mid, const JobConfig& job) {
  std::vector<Device> devices;
  for (uint8_t node = 0; node < site.nodes; ++node) {
    for (uint8_t rank = 0; rank < site.ranks_per_node; ++rank) {
      devices.push_back(Device::Open("inproc:reference", {node, rank, site}).value());
    }
  }
  ConfigureAll(devices, site, job);
  return Floats(devices, elements, seed).AllReduce(mid);
}

bool SameBytes(const std::vector<std::vector<float>>& a, const std::vector<std::vector<float>>& b) {
  for (size_t i = 0; i < a.size(); ++i) {
    if (std::memcmp(a[i].data(), b[i].data(), 4 * a[i].size()) != 0) return false;
  }
  return a.size() == b.size();
}

TEST(Udp, LossDuplicationReorderingAndStaleGenerationsChangeNoBit) {
  for (const Route route : {Route::kRing, Route::kTree}) {
    SCOPED_TRACE(route == Route::kRing ? "ring" : "tree");
    const SiteOptions site{.nodes = 3, .ranks_per_node = 2, .aggregator = route == Route::kTree};
    JobConfig job = kJob;
    job.route = route;
    job.root_node = route == Route::kTree ? 3 : 0;
    UdpSite udp(
        {.site = site, .faults = {.loss = 0.05, .duplication = 0.05, .reordering = 0.05}, .seed = 11});
    auto devices = udp.OpenAll();
    ConfigureAll(devices, site, job);
    constexpr size_t kElements = 100'000;
    Floats floats(devices, kElements, 5);
    for (uint32_t mid = 0; mid < 4; ++mid) {
      // A first attempt that some have begun, whose packets are under way when it ends.
      floats.Post(0, mid, 0);
      floats.Post(1, mid, 0);
      ASSERT_TRUE(devices[1].Query(0, mid, 66).ok());
      EXPECT_EQ(NextOf(devices[1]).wr_id, 66u);  // the daemon has both
      ASSERT_TRUE(devices[0].Cancel(0, mid, 77).ok());
      for (const size_t rank : {size_t{0}, size_t{1}}) {
        EXPECT_EQ(NextOf(devices[rank]).status, WorkStatus::kCancelled);
      }
      EXPECT_EQ(NextOf(devices[0]).wr_id, 77u);
      EXPECT_TRUE(SameBytes(floats.AllReduce(mid, 1), Reference(site, kElements, 5, mid, job)));
    }
    // What was lost of the last acknowledgements is sent again.
    for (size_t rank = 0; rank < devices.size(); rank += 2) {
      const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(10);
      while (devices[rank].stats().segs_in_use > 0 && std::chrono::steady_clock::now() < end) {
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
    }
    udp.StopAll();
    uint64_t again = 0, replayed = 0;
    for (uint8_t node = 0; node < udp.machines(); ++node) {
      // An aggregator may still wait for acknowledgements; there is no device to ask it.
      if (node < site.nodes) {
        EXPECT_EQ(udp.stats(node).segs_in_use, 0u) << int{node};
      }
      again += udp.stats(node).retransmissions;
      replayed += udp.counters(node).replayed;
    }
    EXPECT_GT(again, 50u);
    EXPECT_GT(replayed, 50u);
  }
}

TEST(Udp, PacketsLeaveAndArriveInBatches) {
  const SiteOptions site{.nodes = 2, .ranks_per_node = 1};
  UdpSite udp(site);
  auto devices = udp.OpenAll();
  ConfigureAll(devices, site, kJob);
  Floats floats(devices, 1'000'000, 1);
  floats.AllReduce(0);
  udp.StopAll();
  const UdpCounters counters = udp.counters(0);
  EXPECT_GT(counters.datagrams_sent, 3900u);
  EXPECT_LT(counters.send_calls, counters.datagrams_sent / 4);
  EXPECT_EQ(counters.forged + counters.foreign + counters.old_processes + counters.unknown_senders, 0u);
}

TEST(Udp, ForgedReplayedTruncatedAndForeignDatagramsChangeNothing) {
  for (const bool sealed : {true, false}) {
    const SiteOptions site{.nodes = 2, .ranks_per_node = 2};
    UdpSite udp({.site = site, .sealed = sealed, .faults = {.keep = 300}});
    auto devices = udp.OpenAll();
    ConfigureAll(devices, site, kJob);
    Floats floats(devices, 50'000, 3);
    const auto expected = Reference(site, 50'000, 3, 0, kJob);
    EXPECT_TRUE(SameBytes(floats.AllReduce(0), expected));
    std::atomic<bool> stop{false};
    std::atomic<int> rounds{0};
    std::thread attacker([&] {
      Stranger stranger;
      Random random(9);
      for (int i = 0; !stop; ++i) {
        for (auto datagram : udp.sender(0).kept()) {
          if (i % 4 == 1) datagram[29] = 0x40;  // a number that has not been here
          if (i % 4 == 1) datagram[32 + random.Below(datagram.size() - 32)] ^= 0x10;
          if (i % 4 == 2) datagram.resize(random.Below(datagram.size()));
          if (i % 4 == 3) {
            for (uint8_t& byte : datagram) byte = static_cast<uint8_t>(random.Next());
          }
          stranger.Send(udp.address(1), datagram);
        }
        ++rounds;
        std::this_thread::sleep_for(std::chrono::milliseconds(1));  // the port is read meanwhile
      }
    });
    for (uint32_t mid = 2; mid <= 20; mid += 2) {  // of one rotation of the ring
      EXPECT_TRUE(SameBytes(floats.AllReduce(mid), expected)) << mid;
    }
    while (rounds < 8) std::this_thread::sleep_for(std::chrono::milliseconds(1));  // all kinds, twice
    stop = true;
    attacker.join();
    udp.StopAll();
    const UdpCounters counters = udp.counters(1);
    if (sealed) {
      EXPECT_GT(counters.replayed, 100u);
      EXPECT_GT(counters.forged, 100u);
      EXPECT_GT(counters.foreign, 100u);
    } else {
      EXPECT_GT(counters.unknown_senders, 400u);
    }
    EXPECT_EQ(udp.stats(1).segs_in_use, 0u);
    EXPECT_EQ(udp.stats(1).messages_failed, 0u);
  }
}

TEST(Udp, ARestartedPeerIsAcceptedAndTheOldProcessIsNot) {
  const SiteOptions site{.nodes = 2, .ranks_per_node = 1};
  UdpSite udp({.site = site, .faults = {.keep = 500}});
  auto devices = udp.OpenAll();
  ConfigureAll(devices, site, kJob);
  {
    Floats floats(devices, 50'000, 3);
    floats.AllReduce(0);
  }
  const auto recorded = udp.sender(1).kept();
  ASSERT_GE(recorded.size(), 200u);
  udp.Stop(1);
  udp.Start(1);
  devices.erase(devices.begin() + 1);
  devices.push_back(udp.Open(1, 0));
  ASSERT_TRUE(devices[1].Configure(0, {.nodes = 0b11}, 999).ok());
  ASSERT_EQ(NextOf(devices[1]).status, WorkStatus::kSuccess);
  Stranger stranger;
  for (const auto& datagram : recorded) stranger.Send(udp.address(0), datagram);
  Floats floats(devices, 50'000, 3);
  EXPECT_TRUE(SameBytes(floats.AllReduce(100), Reference(site, 50'000, 3, 100, kJob)));
  for (const auto& datagram : recorded) stranger.Send(udp.address(0), datagram);
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  udp.StopAll();
  EXPECT_EQ(udp.counters(0).restarts, 1u);
  EXPECT_GT(udp.counters(0).old_processes, 100u);
  EXPECT_EQ(udp.counters(1).restarts, 0u);
}

// What it had acknowledged is gone: no request waits for its deadline.
TEST(Udp, AMessageThatARestartedPeerHadBegunEndsAsPeerDead) {
  const SiteOptions site{.nodes = 2, .ranks_per_node = 1};
  UdpSite udp(site);
  auto devices = udp.OpenAll();
  ConfigureAll(devices, site, kJob);
  {
    Floats floats(devices, 1000, 3);
    floats.AllReduce(0);
    floats.Post(0, 1);
    const auto begin = std::chrono::steady_clock::now();
    udp.Stop(1);
    udp.Start(1);
    const Completion ended = NextOf(devices[0]);
    EXPECT_EQ(ended.status, WorkStatus::kPeerDead);
    EXPECT_EQ(ended.missing_nodes, 0b10u);
    EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(20));
  }
}

TEST(Udp, AnotherKeyIsCountedAndRequestsEndAsTimeout) {
  const SiteOptions site{.nodes = 3, .ranks_per_node = 1};
  UdpSite udp({.site = site, .node_with_another_key = 2});
  auto devices = udp.OpenAll();
  JobConfig job = kJob;
  job.deadline = std::chrono::milliseconds(400);
  ConfigureAll(devices, site, job);
  Floats floats(devices, 1000, 3);
  for (size_t rank = 0; rank < 3; ++rank) floats.Post(rank, 0);
  for (Device& device : devices) {
    const Completion ended = NextOf(device);
    EXPECT_EQ(ended.status, WorkStatus::kTimeout) << WorkStatusName(ended.status);
  }
  floats.Post(0, 1);
  const Completion alone = NextOf(devices[0]);
  EXPECT_EQ(alone.missing_nodes & 0b100u, 0b100u);
  udp.StopAll();
  for (const uint8_t node : {uint8_t{0}, uint8_t{1}}) {
    EXPECT_GT(udp.counters(node).forged, 0u);
    EXPECT_GT(udp.counters(node).packets_without_peer, 0u);
    EXPECT_NE(udp.log(node).find("sends datagrams that do not open"), std::string::npos) << udp.log(node);
  }
  EXPECT_EQ(udp.counters(2).opened, 0u);
  EXPECT_GT(udp.counters(2).forged, 0u);
  for (const char* other : {"node 0 at", "node 1 at"}) {
    EXPECT_NE(udp.log(2).find(other), std::string::npos) << udp.log(2);
  }
}

TEST(Udp, NodesWithOtherSettingsAreNamed) {
  const SiteOptions site{.nodes = 2, .ranks_per_node = 1};
  UdpSite udp({.site = site, .seg_bytes_of_node_1 = 2048});
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  udp.StopAll();
  EXPECT_NE(udp.log(0).find("node 1 has 2 nodes of 1 ranks (a relay to a server counts), segs of 2048 bytes, "
                            "this one 2 nodes of 1 ranks (a relay to a server counts), segs of 1024 bytes"),
            std::string::npos)
      << udp.log(0);
  EXPECT_NE(udp.log(1).find("node 0 has"), std::string::npos) << udp.log(1);
  UdpSite alike({.site = site});
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  alike.StopAll();
  EXPECT_EQ(alike.log(0).find("node 1 has"), std::string::npos) << alike.log(0);
}

TEST(Udp, ANodeThatDoesNotAnswerIsNamedOnce) {
  const SiteOptions site{.nodes = 2, .ranks_per_node = 1};
  UdpSite udp({.site = site, .most_silence = std::chrono::milliseconds(200)});
  udp.Stop(1);
  udp.Stop(0);
  udp.Start(0);
  Device device = udp.Open(0, 0);
  ASSERT_TRUE(device.Configure(0, {.nodes = 0b11, .deadline = std::chrono::seconds(1)}).ok());
  EXPECT_EQ(NextOf(device).status, WorkStatus::kSuccess);
  RankArrays x(device, 1000, 1);
  ASSERT_TRUE(x.Post(1, 0).ok());
  EXPECT_EQ(NextOf(device).status, WorkStatus::kTimeout);
  device.Close();
  udp.StopAll();
  const size_t first = udp.log(0).find("does not answer");
  EXPECT_NE(first, std::string::npos) << udp.log(0);
  EXPECT_EQ(udp.log(0).find("does not answer", first + 1), std::string::npos) << udp.log(0);
}

// Foreign and malformed datagrams from a peer's own address and port.
TEST(Udp, GarbageOfAPeerIsCountedAndChangesNothing) {
  for (const bool sealed : {true, false}) {
    const SiteOptions site{.nodes = 2, .ranks_per_node = 2};
    UdpSite udp({.site = site, .sealed = sealed, .faults = {.garbage = 0.5}});
    auto devices = udp.OpenAll();
    ConfigureAll(devices, site, kJob);
    Floats floats(devices, 50'000, 3);
    const auto expected = Reference(site, 50'000, 3, 0, kJob);
    for (uint32_t mid = 0; mid <= 4; mid += 2) EXPECT_TRUE(SameBytes(floats.AllReduce(mid), expected)) << mid;
    udp.StopAll();
    const UdpCounters counters = udp.counters(1);
    const OffloadStats stats = udp.stats(1);
    if (sealed) {
      EXPECT_GT(counters.forged, 50u);
      EXPECT_GT(counters.foreign, 50u);
      EXPECT_EQ(stats.damaged_packets + stats.foreign_packets, 0u);
    } else {
      EXPECT_GT(stats.damaged_packets, 50u);
      EXPECT_GT(stats.foreign_packets, 50u);
    }
    EXPECT_EQ(stats.messages_failed, 0u);
    EXPECT_EQ(stats.packets_refused, 0u);
  }
}

// A link of node 1 without a daemon, whose peer is the test.
struct BareLink {
  explicit BareLink(udp::SendCalls calls = udp::SendCalls::System(),
                    ByteCount receive_buffer = ByteCount(1 << 20)) {
    UdpLinkOptions options;
    options.socket.receive_buffer = receive_buffer;
    options.node = 1;
    options.bind = Address::V4(127, 0, 0, 1, 0);
    options.socket.force_buffers = false;
    options.socket.calls = std::move(calls);
    link = std::move(UdpLink::Open(std::move(options)).value());
    link->SetPeer(0, peer.address());
    EngineOptions engine_options;
    engine_options.node = 1;
    engine_options.nodes = 0b111;
    engine.emplace(engine_options);
  }
  void Deliver() {
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(5);
    while (!link->Fetch() && std::chrono::steady_clock::now() < end) {
    }
    link->Deliver(Instant::FromNanoseconds(1), *engine);
  }

  Stranger peer;
  std::unique_ptr<UdpLink> link;
  std::optional<Engine> engine;
};

TEST(Udp, ANodeSpeaksForItself) {
  BareLink site;
  Header header;
  header.nodes = 0b111;
  std::vector<uint8_t> packet(kHeaderBytes);
  for (const uint8_t source : {uint8_t{0}, uint8_t{2}}) {
    header.source = source;
    ASSERT_EQ(Encapsulate(header, {}, packet), packet.size());
    site.peer.Send(site.link->local_address(), packet);
    site.Deliver();
    EXPECT_EQ(site.engine->stats().packets_received, 1u);
    EXPECT_EQ(site.link->counters().unknown_senders, source == 0 ? 0u : 1u);
  }
}

TEST(Udp, AFullSocketIsCountedAndTriedAgain) {
  int full = 3;
  udp::SendCalls calls = udp::SendCalls::System();
  calls.sendmsg = [&full](int fd, const msghdr* message, int flags) -> ssize_t {
    if (full-- <= 0) return ::sendmsg(fd, message, flags);
    errno = EAGAIN;
    return -1;
  };
  BareLink site(calls);
  const JobConfig job{.nodes = 0b11};
  WorkRequest request{.opcode = Opcode::kConfig, .root_node = 0};
  request.config = &job;
  ASSERT_TRUE(site.engine->Post(Instant::FromNanoseconds(1), 0, request).ok());
  for (int i = 0; i < 3; ++i) {
    EXPECT_FALSE(site.link->Transmit(Instant::FromNanoseconds(1), *site.engine));
    EXPECT_TRUE(site.link->IsBlocked());
  }
  EXPECT_TRUE(site.peer.Receive(0).empty());
  site.link->Transmit(Instant::FromNanoseconds(1), *site.engine);
  EXPECT_FALSE(site.link->IsBlocked());
  EXPECT_EQ(site.link->counters().socket_full, 3u);
  EXPECT_EQ(site.peer.Receive().size(), kHeaderBytes + kConfigBytes);
  EXPECT_TRUE(site.peer.Receive(0).empty());  // once
}

TEST(Udp, WhatAFullReceiveBufferLosesIsCounted) {
  BareLink site(udp::SendCalls::System(), ByteCount(64 << 10));
  const std::vector<uint8_t> datagram(1000);
  constexpr uint64_t kSent = 1000;
  for (uint64_t i = 0; i < kSent; ++i) site.peer.Send(site.link->local_address(), datagram);
  while (site.link->Fetch()) {
  }
  site.peer.Send(site.link->local_address(), datagram);  // the kernel tells with the next one
  site.Deliver();
  const UdpCounters counters = site.link->counters();
  EXPECT_GT(counters.host_drops, kSent / 2);
  EXPECT_EQ(counters.datagrams_received + counters.host_drops, kSent + 1);
}

TEST(Udp, ABatchIsOfOneSizeAndTheLastMayBeShorter) {
  DatagramBatch batch;
  EXPECT_TRUE(batch.Takes(100));
  batch.Add(batch.Place(100).size());
  EXPECT_FALSE(batch.Takes(101));
  EXPECT_TRUE(batch.Takes(100));
  batch.Add(batch.Place(100).size());
  EXPECT_TRUE(batch.Takes(60));
  batch.Add(batch.Place(60).size());
  EXPECT_FALSE(batch.Takes(60));
  EXPECT_EQ(batch.bytes().size(), 260u);
  batch.Drop(100);
  EXPECT_EQ(batch.bytes().size(), 160u);
  EXPECT_FALSE(batch.Takes(60));
  batch.Drop(160);
  for (size_t i = 0; i < udp::kMaxSegments; ++i) {
    ASSERT_TRUE(batch.Takes(1000));
    batch.Add(batch.Place(1000).size());
  }
  EXPECT_FALSE(batch.Takes(1000));  // as many as a call sends
  batch.Drop(batch.bytes().size());
  for (size_t i = 0; i < 7; ++i) batch.Add(batch.Place(8308).size());
  EXPECT_FALSE(batch.Takes(8308));  // as many bytes
}

// A device that lives on takes a configuration with a lower number for an old one, and the clock of a host
// that was restarted begins anew.
TEST(Udp, ConfigurationsOfARestartedNodeAreNewer) {
  const auto number = [](Instant now, uint64_t config_number) {
    EngineOptions options;
    options.nodes = 0b11;
    options.config_number = config_number;
    Engine engine(options);
    const JobConfig job{.nodes = 0b11, .route = Route::kTree, .root_node = 1};
    WorkRequest request{.opcode = Opcode::kConfig, .root_node = 1};
    request.config = &job;
    EXPECT_TRUE(engine.Post(now, 0, request).ok());
    std::vector<uint8_t> packet(2048);
    const auto out = engine.PollTransmit(now, packet);
    const auto parsed = Parse(ByteSpan(packet).first(out->bytes));
    return uint64_t{parsed->header.mid} << 32 | parsed->header.generation;
  };
  EXPECT_GT(number(Instant::FromNanoseconds(5), 2'000'000),
            number(Instant::FromNanoseconds(900'000), 1'000'000));
}

// docs/reference/counters.md: LONGHAUL_WRITE_DOCS=1 test_offload_udp --gtest_filter='UdpCounters.*'
TEST(UdpCounters, ThePageHasEveryCounter) {
  const std::string path = std::string(LONGHAUL_SOURCE_DIR) + "/docs/reference/counters.md";
  std::stringstream text;
  text << std::ifstream(path).rdbuf();
  const std::string page = text.str(), begin = "<!-- counters: offload udp -->\n";
  const size_t from = page.find(begin), to = page.find("<!-- end -->", from);
  ASSERT_NE(to, std::string::npos);
  const std::string expected =
      page.substr(0, from + begin.size()) + CounterPage<UdpCounters>(kUdpCounters) + page.substr(to);
  if (std::getenv("LONGHAUL_WRITE_DOCS") != nullptr) std::ofstream(path) << expected;
  EXPECT_TRUE(page == expected) << path << " is old; LONGHAUL_WRITE_DOCS=1 writes it anew";
  EXPECT_EQ(sizeof(UdpCounters), kUdpCounters.size() * sizeof(uint64_t));
}

}  // namespace
}  // namespace longhaul::offload
