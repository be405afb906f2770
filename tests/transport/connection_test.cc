// A worker's and a server's connection across a WAN, in virtual time.

#include "transport/core/connection/connection.h"

#include "proto/version.h"
#include "tests/transport/bare_pair.h"
#include "tests/transport/connection_pair.h"
#include "transport/core/connection/packet_builder.h"
#include "transport/core/security/integrity_tag.h"
#include "transport/core/window/fec_policy.h"

namespace longhaul::transport {
namespace {

using namespace std::chrono_literals;

TEST(Connection, HandshakeTakesOneRoundTrip) {
  ConnectionPair pair({});
  pair.Connect();
  ASSERT_TRUE(pair.RunUntil([&] { return pair.worker.connected > 0; }, 1s));
  // 50 ms of delay and a little for 2 x 1452 bytes at 200 Mbit/s.
  EXPECT_GE(pair.network().now() - Instant(), 50ms);
  EXPECT_LE(pair.network().now() - Instant(), 51ms);
  ASSERT_TRUE(pair.RunUntil([&] { return pair.server.connected > 0; }, 1s));
  EXPECT_EQ(pair.connection->max_datagram(), ByteCount(1452));
  EXPECT_EQ(pair.connection->MaxChunkBytes(), 1392u);
  pair.ExpectNoTimeViolation();
}

TEST(Connection, AnOwnerThatWaitsMayHaveThePeerAskedMoreOften) {
  ConnectionPair pair({});
  ASSERT_TRUE(pair.Establish());
  pair.RunFor(3s);  // the path's MTU is found
  const auto sent_in = [&](Duration time) {
    const uint64_t before = pair.connection->stats().packets_sent;
    pair.RunFor(time);
    return pair.connection->stats().packets_sent - before;
  };
  EXPECT_LE(sent_in(4s), 4u) << "a PING in two seconds, and ACKs of the server's";
  pair.connection->SetKeepalive(250ms);
  EXPECT_GE(sent_in(4s), 12u);
  pair.connection->SetKeepalive(2s);
  EXPECT_LE(sent_in(4s), 5u);
}

TEST(Connection, SmallerDatagramSizeOfEitherSideWins) {
  ConnectionPair::Options options;
  options.server.max_datagram = ByteCount(1300);
  ConnectionPair pair(options);
  ASSERT_TRUE(pair.Establish());
  EXPECT_EQ(pair.worker.connection->max_datagram(), ByteCount(1300));
  EXPECT_EQ(pair.server.connection->max_datagram(), ByteCount(1300));
}

// A buffer that holds no whole number of datagrams, as a core's owner has it, leaves a rest that no chunk
// fits.
TEST(Connection, DatagramsOfAnySizeCarryWindows) {
  for (const int64_t bytes : {1600, 2000, 3000, 9000, 20'000, 65'000, 65'507}) {
    SCOPED_TRACE(bytes);
    ConnectionPair::Options options;
    options.link += " mtu 65535b";
    options.worker.max_datagram = options.server.max_datagram = ByteCount(bytes);
    ConnectionPair pair(options);
    ASSERT_TRUE(pair.Establish());
    EXPECT_GT(pair.worker.connection->max_datagram(), ByteCount(bytes * 9 / 10));
    pair.SendWindow({1, 0}, 60, 60, 20, static_cast<uint16_t>(pair.connection->MaxChunkBytes()));
    EXPECT_TRUE(pair.RunUntil([&] { return pair.worker.outgoing.contains({1, 0}); }, 20s));
  }
}

TEST(Connection, FallsBackTo1200BytesAtOnceWhenTheKernelRefuses) {
  ConnectionPair::Options options;
  options.link += " mtu 1300b";
  ConnectionPair pair(options);
  pair.Connect();
  pair.worker_endpoint->HandleSendRefused(pair.network().now(), pair.server_address, 1452);
  pair.worker_host->Pump();
  // One INIT, and then the sizes between: four round trips for each that does not pass.
  ASSERT_TRUE(pair.RunUntil([&] { return pair.worker.connected > 0; }, 1500ms));
  EXPECT_EQ(pair.worker.connection->max_datagram(), ByteCount(1264));
}

TEST(Connection, NoAnswerEndsAsUnavailableNamingTheAddress) {
  ConnectionPair::Options options;
  options.server_up = false;
  options.worker.idle_timeout = 3s;
  ConnectionPair pair(options);
  pair.Connect();
  ASSERT_TRUE(pair.RunUntil([&] { return pair.worker.closed > 0; }, 4s));
  EXPECT_EQ(pair.worker.close_status.code(), StatusCode::kUnavailable);
  EXPECT_NE(pair.worker.close_status.message().find("10.0.0.2:7700"), std::string::npos);
  EXPECT_EQ(pair.worker_endpoint->connection_count(), 0u);
}

// A sealed long packet without a connection behind it.
std::vector<uint8_t> LongPacket(wire::LongType type, uint16_t version, wire::ConnectionId to,
                                wire::ConnectionId from, const wire::Frame& frame) {
  std::vector<uint8_t> packet(1200);
  PacketBuilder builder(packet);
  builder.StartLong(type, version, to, from, 0);
  std::visit([&](const auto& f) { EXPECT_TRUE(builder.Add(f)); }, frame);
  if (type == wire::LongType::kInit) builder.PadTo(packet.size());
  IntegrityTag tag;
  packet.resize(builder.Seal(tag));
  return packet;
}

TEST(Connection, AnotherProtocolVersionIsRefusedByName) {
  ConnectionPair pair({});
  pair.Connect();
  // The worker's own INIT, as a worker of version 77 would have sent it.
  std::vector<uint8_t> init = LongPacket(wire::LongType::kInit, 77, {}, pair.connection->local_id(),
                                         wire::TransportParametersFrame{1452, 10'000, 1 << 20, 16, 1 << 30});
  pair.server_endpoint->HandleDatagram(pair.network().now(), pair.worker_address, init, {});
  EXPECT_EQ(pair.server_endpoint->stats().version_refused, 1u);
  // And a server of version 77 answers this worker.
  std::vector<uint8_t> refuse =
      LongPacket(wire::LongType::kRefuse, 77, pair.connection->local_id(), {},
                 wire::CloseFrame{StatusCode::kVersionMismatch, "another protocol version"});
  pair.worker_endpoint->HandleDatagram(pair.network().now(), pair.server_address, refuse, {});
  pair.worker_host->Pump();
  ASSERT_TRUE(pair.RunUntil([&] { return pair.worker.closed > 0; }, 1s));
  EXPECT_EQ(pair.worker.close_status.code(), StatusCode::kVersionMismatch);
  EXPECT_NE(pair.worker.close_status.message().find("there 77"), std::string::npos);
}

TEST(Connection, AFullServerRefusesByName) {
  ConnectionPair::Options options;
  options.max_connections = 0;
  ConnectionPair pair(options);
  pair.Connect();
  ASSERT_TRUE(pair.RunUntil([&] { return pair.worker.closed > 0; }, 1s));
  EXPECT_EQ(pair.worker.close_status.code(), StatusCode::kResourceExhausted);
}

// A host that answers an INIT may put anything into its reason, and the worker's terminal shows the reason.
TEST(Connection, ARefusalIsToldWithoutWhatCommandsATerminal) {
  ConnectionPair pair({});
  pair.Connect();
  std::vector<uint8_t> refuse =
      LongPacket(wire::LongType::kRefuse, wire::kVersion, pair.connection->local_id(), {},
                 wire::CloseFrame{StatusCode::kUnavailable, "\x1b[2Jno\nworker 7 joined"});
  pair.worker_endpoint->HandleDatagram(pair.network().now(), pair.server_address, refuse, {});
  pair.worker_host->Pump();
  ASSERT_TRUE(pair.RunUntil([&] { return pair.worker.closed > 0; }, 1s));
  EXPECT_EQ(pair.worker.close_status,
            Status(StatusCode::kUnavailable, "server 10.0.0.2:7700 refuses: \\x1b[2Jno\\x0aworker 7 joined"));
}

TEST(Connection, AReasonIsToldWithoutWhatCommandsATerminal) {
  ConnectionPair pair({});
  ASSERT_TRUE(pair.Establish());
  pair.connection->Close(Status(StatusCode::kAborted, "\x1b[2Jbye\n\u202erest"));
  pair.worker_host->Pump();
  ASSERT_TRUE(pair.RunUntil([&] { return pair.server.closed > 0; }, 1s));
  EXPECT_EQ(pair.server.close_status, Status(StatusCode::kAborted, "\\x1b[2Jbye\\x0a\\xe2\\x80\\xaerest"));
}

TEST(Connection, ControlDataArrivesInOrderExactlyOnceUnderLossAndReordering) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    ConnectionPair::Options options;
    options.seed = seed;
    options.link = "rate 50mbit delay 20ms 5ms jitter-reorders loss 20% duplicate 5%";
    ConnectionPair pair(options);
    ASSERT_TRUE(pair.Establish(20s));
    std::vector<uint8_t> sent(100'000);
    Random random(seed);
    for (uint8_t& b : sent) b = static_cast<uint8_t>(random.Next());
    for (size_t at = 0; at < sent.size(); at += 5000) {
      ASSERT_TRUE(pair.connection->SendControl(ByteSpan(sent).subspan(at, 5000)).ok());
    }
    pair.worker_host->Pump();
    ASSERT_TRUE(pair.RunUntil([&] { return pair.server.control.size() >= sent.size(); }, 60s));
    EXPECT_EQ(pair.server.control, sent);
    pair.ExpectNoTimeViolation();
  }
}

TEST(Connection, ControlBeyondTheBacklogIsRefusedAndSaysWhenThereIsRoomAgain) {
  ConnectionPair::Options options;
  options.worker.max_control_backlog = ByteCount(10'000);
  ConnectionPair pair(options);
  ASSERT_TRUE(pair.Establish());
  const std::vector<uint8_t> bytes(8'000, 1);
  EXPECT_TRUE(pair.connection->SendControl(bytes).ok());
  EXPECT_EQ(pair.connection->SendControl(bytes).code(), StatusCode::kResourceExhausted);
  pair.worker_host->Pump();
  ASSERT_TRUE(pair.RunUntil([&] { return pair.worker.writable > 0; }, 1s));
  EXPECT_TRUE(pair.connection->SendControl(bytes).ok());
}

TEST(Connection, AWindowOverACleanPathArrivesWholeWithoutRetransmission) {
  ConnectionPair pair({});
  ASSERT_TRUE(pair.Establish());
  const WindowKey key{1, 0};
  pair.SendWindow(key, 58, 232);
  ASSERT_TRUE(pair.RunUntil([&] { return pair.worker.outgoing.contains(key); }, 5s));
  pair.ExpectDelivered(pair.server, key, 58);
  EXPECT_EQ(pair.server.incoming[key].low.size(), 232u);
  EXPECT_EQ(pair.worker.outgoing.at(key).reason, wire::CloseReason::kComplete);
  EXPECT_EQ(pair.connection->stats().retransmissions, 0u);
  EXPECT_EQ(pair.connection->stats().packets_lost, 0u);
  EXPECT_EQ((pair.server.incoming[key].metadata), (std::vector<uint8_t>{1, 2, 3}));
  pair.ExpectNoTimeViolation();
}

TEST(Connection, HighArrivesExactlyOnceAndLowIsASubsetUnderAnyLoss) {
  for (const double loss : {0.01, 0.05, 0.10, 0.20, 0.30}) {
    for (uint64_t seed = 1; seed <= 8; ++seed) {
      SCOPED_TRACE("seed " + std::to_string(seed) + " loss " + std::to_string(loss));
      ConnectionPair::Options options;
      options.seed = seed;
      options.link = "rate 200mbit delay 25ms queue 50ms duplicate 1% loss " + std::to_string(loss * 100) +
                     "%" + (seed % 2 == 0 ? " burst 8" : "");
      ConnectionPair pair(options);
      ASSERT_TRUE(pair.Establish(30s));
      for (uint32_t id = 1; id <= 3; ++id) {
        const WindowKey key{id, 0};
        const auto symbol_bytes = static_cast<uint16_t>(pair.connection->MaxChunkBytes());
        pair.SendWindow(key, 60, 240, 20, symbol_bytes);
        ASSERT_TRUE(pair.RunUntil([&] { return pair.worker.outgoing.contains(key); }, 60s));
        pair.ExpectDelivered(pair.server, key, 60, symbol_bytes);
        const ChunkBitmap& bitmap = pair.worker.outgoing.at(key).receipt.low;
        EXPECT_EQ(bitmap.count(), pair.server.incoming[key].low.size());
        for (uint32_t i = 0; i < 240; ++i)
          EXPECT_EQ(bitmap.Test(i), pair.server.incoming[key].low.contains(i));
      }
      if (loss >= 0.05) {
        EXPECT_GT(pair.connection->stats().packets_lost, 0u);
      }
      pair.ExpectNoTimeViolation();
    }
  }
}

TEST(Connection, WhatTheReceiverRefusesIsNeverSentAgainAndTheReceiptIsExact) {
  for (const double loss : {0.0, 0.10, 0.30}) {
    for (uint64_t seed = 1; seed <= 4; ++seed) {
      SCOPED_TRACE("seed " + std::to_string(seed) + " loss " + std::to_string(loss));
      ConnectionPair::Options options;
      options.seed = seed;
      options.link = "rate 200mbit delay 25ms jitter 10ms queue 50ms duplicate 1% loss " +
                     std::to_string(loss * 100) + "%";
      ConnectionPair pair(options);
      ASSERT_TRUE(pair.Establish(30s));
      const auto refused = [](wire::ReliabilityClass reliability, uint32_t sequence) {
        return (sequence + (reliability == wire::ReliabilityClass::kHigh ? 1 : 0)) % 3 == 0;
      };
      pair.server.refuse_chunk = [&](WindowKey key, wire::ReliabilityClass reliability, uint32_t sequence) {
        return key.id == 2 && refused(reliability, sequence);
      };
      uint64_t refusals = 0;
      for (uint32_t id = 1; id <= 3; ++id) {
        const WindowKey key{id, 0};
        const auto symbol_bytes = static_cast<uint16_t>(pair.connection->MaxChunkBytes());
        pair.SendWindow(key, 60, 100, 20, symbol_bytes);
        ASSERT_TRUE(pair.RunUntil([&] { return pair.worker.outgoing.contains(key); }, 60s))
            << "it waits for ever";
        pair.ExpectDelivered(pair.server, key, 60, symbol_bytes);
        const WindowReceipt& receipt = pair.worker.outgoing.at(key).receipt;
        const Recorder::Incoming& in = pair.server.incoming.at(key);
        EXPECT_EQ(receipt.high_complete, id != 2);
        const auto taken = [&](wire::ReliabilityClass reliability, const auto& chunks, uint32_t i) {
          const bool no = id == 2 && refused(reliability, i);
          refusals += no && chunks.contains(i) ? 1 : 0;
          return chunks.contains(i) && !no;
        };
        for (uint32_t i = 0; i < 60; ++i)
          EXPECT_EQ(receipt.HighTaken(i), taken(wire::ReliabilityClass::kHigh, in.high, i)) << "high " << i;
        for (uint32_t i = 0; i < 100; ++i)
          EXPECT_EQ(receipt.LowTaken(i), taken(wire::ReliabilityClass::kLow, in.low, i)) << "low " << i;
      }
      EXPECT_GT(refusals, 20u);
      EXPECT_EQ(pair.server.connection->stats().chunks_refused, refusals);
      if (loss == 0) {
        EXPECT_EQ(pair.connection->stats().retransmissions, 0u);
      }
      pair.ExpectNoTimeViolation();
    }
  }
}

// The tail of a window is lost; nothing tells the sender before its probe timeout.
TEST(Connection, ANackBringsALostTailBeforeTheProbeTimeoutWould) {
  Duration took[2];
  for (const bool nack : {false, true}) {
    ConnectionPair pair({});  // 50 ms there and back
    ASSERT_TRUE(pair.Establish());
    pair.SendWindow({1, 0}, 40, 0, 0);
    ASSERT_TRUE(pair.RunUntil([&] { return pair.worker.outgoing.contains({1, 0}); }, 10s));
    const auto link = pair.network().Link(pair.worker_site(), pair.server_site()).options();
    pair.SendWindow({2, 0}, 400, 0, 0);
    const auto here = [&] { return pair.server.incoming[{2, 0}].high.size(); };
    ASSERT_TRUE(pair.RunUntil([&] { return pair.connection->backlog() < ByteCount(20 * 1392); }, 1s));
    wan::LinkOptions dark = link;
    dark.loss = 1;
    pair.network().SetLink(pair.worker_site(), pair.server_site(), dark);
    pair.RunFor(30ms);
    pair.network().SetLink(pair.worker_site(), pair.server_site(), link);
    ASSERT_GT(here(), 300u);
    ASSERT_LT(here(), 400u);
    const Instant asked = pair.now();
    if (nack) {
      pair.server.connection->RequestMissing({2, 0});
      pair.server.connection->RequestMissing({2, 0});
      pair.server_host->Pump();
    }
    ASSERT_TRUE(pair.RunUntil([&] { return here() == 400; }, 5s));
    took[nack ? 1 : 0] = pair.now() - asked;
    ASSERT_TRUE(pair.RunUntil([&] { return pair.worker.outgoing.contains({2, 0}); }, 5s));
    pair.ExpectDelivered(pair.server, {2, 0}, 400);
    EXPECT_EQ(pair.connection->stats().nacks_received, nack ? 1u : 0u);
    EXPECT_EQ(pair.connection->stats().nacks_ignored, 0u) << "two requests at once are one frame";
    pair.ExpectNoTimeViolation();
  }
  EXPECT_LT(took[1], 60ms) << "a round trip";
  EXPECT_GT(took[0], took[1]);
}

// A window of which nothing arrived: a probe brings it, before any answer says that it was lost.
TEST(Connection, ProbesCarryWhatIsInFlight) {
  ConnectionPair pair({});
  ASSERT_TRUE(pair.Establish());
  pair.SendWindow({1, 0}, 40, 0);
  ASSERT_TRUE(pair.RunUntil([&] { return pair.worker.outgoing.contains({1, 0}); }, 10s));
  pair.RunFor(500ms);
  const auto link = pair.network().Link(pair.worker_site(), pair.server_site()).options();
  wan::LinkOptions dark = link;
  dark.loss = 1;
  pair.network().SetLink(pair.worker_site(), pair.server_site(), dark);
  pair.SendWindow({2, 0}, 1, 0);
  pair.RunFor(20ms);
  pair.network().SetLink(pair.worker_site(), pair.server_site(), link);
  const ConnectionStats before = pair.connection->stats();
  ASSERT_TRUE(pair.RunUntil([&] { return pair.server.incoming[{2, 0}].high.size() == 1; }, 5s));
  EXPECT_EQ(pair.connection->stats().pto_fired, before.pto_fired + 1);
  EXPECT_EQ(pair.connection->stats().packets_lost, before.packets_lost) << "nobody has said so yet";
  ASSERT_TRUE(pair.RunUntil([&] { return pair.worker.outgoing.contains({2, 0}); }, 5s));
  pair.ExpectNoTimeViolation();
}

// A peer that asks with every datagram gets every missing chunk once a round trip, not more.
TEST(Connection, APeerThatAsksAllTheTimeIsHeardOncePerRoundTripAndWindow) {
  ConnectionPair pair({});
  ASSERT_TRUE(pair.Establish());
  pair.RunFor(500ms);
  pair.server.auto_close = false;
  const auto link = pair.network().Link(pair.worker_site(), pair.server_site()).options();
  wan::LinkOptions dark = link;
  pair.SendWindow({1, 0}, 30, 0, 0);
  pair.RunFor(26ms);  // something came, so that the server knows the window
  ASSERT_TRUE(pair.server.incoming.contains({1, 0}));
  dark.loss = 1;
  pair.network().SetLink(pair.worker_site(), pair.server_site(), dark);
  const uint64_t before = pair.connection->stats().retransmissions;
  for (int ms = 0; ms < 500; ++ms) {
    pair.server.connection->RequestMissing({1, 0});
    pair.server_host->Pump();
    pair.RunFor(1ms);
  }
  const ConnectionStats stats = pair.connection->stats();
  if (pair.server.incoming[{1, 0}].high.size() < 30) {
    EXPECT_GT(stats.nacks_received, 2u);
    EXPECT_LE(stats.nacks_received, 11u) << "500 ms are ten round trips";
    EXPECT_GT(stats.nacks_ignored, 300u);
    EXPECT_LE(stats.retransmissions - before, 30u * (stats.nacks_received + stats.pto_fired * 2));
  } else {
    ADD_FAILURE() << "nothing was missing";
  }
}

TEST(Connection, ANackForAWindowThatIsUnknownOrWholeChangesNothing) {
  ConnectionPair pair({});
  ASSERT_TRUE(pair.Establish());
  pair.SendWindow({1, 0}, 20, 0);
  ASSERT_TRUE(pair.RunUntil([&] { return pair.worker.outgoing.contains({1, 0}); }, 10s));
  pair.server.connection->RequestMissing({1, 0});  // closed
  pair.server.connection->RequestMissing({9, 3});  // never seen
  pair.server_host->Pump();
  pair.RunFor(200ms);
  EXPECT_EQ(pair.server.connection->stats().nacks_sent, 0u);
  EXPECT_EQ(pair.connection->stats().nacks_received, 0u);
}

TEST(Connection, FecRepairsHighChunksWithoutWaitingForRetransmission) {
  ConnectionPair::Options options;
  options.link = "rate 200mbit delay 50ms queue 50ms loss 5%";
  ConnectionPair pair(options);
  ASSERT_TRUE(pair.Establish());
  for (uint32_t id = 1; id <= 20; ++id) {
    pair.SendWindow({id, 0}, 60, 60);
    ASSERT_TRUE(pair.RunUntil([&] { return pair.worker.outgoing.contains({id, 0}); }, 30s));
    pair.ExpectDelivered(pair.server, {id, 0}, 60);
  }
  int repaired = 0;
  for (const auto& [key, in] : pair.server.incoming) repaired += in.repaired;
  EXPECT_GT(repaired, 10);
  EXPECT_GT(pair.connection->stats().repairs_sent, 20u);
}

TEST(Connection, BurstsDeepenTheInterleavingOfTheNextWindow) {
  ConnectionPair::Options options;
  options.link = "rate 200mbit delay 10ms queue 50ms loss 3% burst 10";
  ConnectionPair pair(options);
  ASSERT_TRUE(pair.Establish(30s));
  const auto send = [&](uint32_t id, uint8_t depth) {
    const WindowOptions window{
        .key = {id, 0}, .high_count = 400, .symbol_bytes = 256, .fec_depth = depth, .metadata = {}};
    EXPECT_TRUE(pair.connection->OpenWindow(window).ok());
    static const std::vector<uint8_t> body(256, 5);
    for (int i = 0; i < 400; ++i) {
      EXPECT_TRUE(pair.connection->SubmitChunk(window.key, wire::ReliabilityClass::kHigh, {}, body).ok());
    }
    EXPECT_TRUE(pair.RunUntil([&] { return pair.worker.outgoing.contains(window.key); }, 60s));
    return pair.server.incoming[window.key].open.fec_depth;
  };
  EXPECT_EQ(send(1, 0), kMinFecDepth) << "nothing is known of the path";
  for (uint32_t id = 2; id < 40; ++id) send(id, 0);
  const ConnectionStats stats = pair.connection->stats();
  EXPECT_NEAR(stats.mean_loss_burst, 10, 4);
  EXPECT_GT(stats.loss_correlation, 0.25);
  EXPECT_GT(stats.loss_for_fec, stats.loss);
  EXPECT_EQ(send(40, 0), stats.fec_depth);
  EXPECT_GE(stats.fec_depth, 20u);
  EXPECT_EQ(send(41, 7), 7) << "a depth that the caller chose";
}

TEST(Connection, BothDirectionsCarryWindowsAtOnce) {
  ConnectionPair pair({});
  ASSERT_TRUE(pair.Establish());
  pair.SendWindow({1, 0}, 100, 100);
  pair.SendWindowFrom(*pair.server.connection, {1, 0}, 200, 0, 20, 1392);
  pair.server_host->Pump();
  ASSERT_TRUE(pair.RunUntil(
      [&] {
        return pair.worker.outgoing.contains({1, 0}) && pair.server.outgoing.contains({1, 0});
      },
      5s));
  pair.ExpectDelivered(pair.server, {1, 0}, 100);
  pair.ExpectDelivered(pair.worker, {1, 0}, 200);
}

TEST(Connection, ARefusedWindowClosesAsExcluded) {
  ConnectionPair pair({});
  pair.server.refuse_windows = true;
  ASSERT_TRUE(pair.Establish());
  pair.SendWindow({1, 0}, 10, 10);
  ASSERT_TRUE(pair.RunUntil([&] { return pair.worker.outgoing.contains({1, 0}); }, 5s));
  EXPECT_EQ(pair.worker.outgoing.at({1, 0}).reason, wire::CloseReason::kExcluded);
  EXPECT_EQ(pair.worker.outgoing.at({1, 0}).receipt.low.count(), 0u);
}

TEST(Connection, AWindowThatThePeerNeverTakesIsToldFromOneThatHasToWait) {
  for (const uint32_t windows : {0u, 1u}) {
    ConnectionPair::Options options;
    options.server.max_window_bytes = ByteCount(1600);
    options.server.max_open_windows = windows;
    ConnectionPair pair(options);
    ASSERT_TRUE(pair.Establish());
    const auto open = [&](uint32_t id, uint32_t chunks) {
      return pair.connection
          ->OpenWindow({.key = {id, 0}, .low_count = chunks, .symbol_bytes = 16, .fec_k = 0, .metadata = {}})
          .code();
    };
    EXPECT_EQ(open(1, 101), StatusCode::kInvalidArgument);
    EXPECT_EQ(open(1, 100), windows == 0 ? StatusCode::kInvalidArgument : StatusCode::kOk);
    EXPECT_EQ(open(2, 1), windows == 0 ? StatusCode::kInvalidArgument : StatusCode::kResourceExhausted);
  }
}

TEST(Connection, AWindowKeyIsUsedOnce) {
  ConnectionPair pair({});
  ASSERT_TRUE(pair.Establish());
  pair.SendWindow({7, 0}, 10, 10);
  pair.connection->CancelWindow({7, 0});
  WindowOptions again{.key = {7, 0}, .low_count = 1, .symbol_bytes = 16, .fec_k = 0, .metadata = {}};
  EXPECT_EQ(pair.connection->OpenWindow(again).code(), StatusCode::kAlreadyExists);
  again.key.generation = 1;
  EXPECT_TRUE(pair.connection->OpenWindow(again).ok());
  pair.RunFor(1s);  // acknowledgements of the cancelled window mean nothing to the new one
  pair.ExpectNoTimeViolation();
}

// A server that may not send any more to an unproven address must not ask for its timer at once, again and
// again.
TEST(Connection, AnAmplificationLimitedServerDoesNotSpin) {
  ConnectionPair pair({});
  const auto init = [&](wire::PacketNumber number) {
    std::vector<uint8_t> bytes(1200);
    PacketBuilder builder(bytes);
    builder.StartLong(wire::LongType::kInit, wire::kVersion, {}, {42}, number);
    EXPECT_TRUE(builder.Add(wire::TransportParametersFrame{1452, 10'000, 1 << 20, 16, 1 << 30}));
    builder.PadTo(bytes.size());
    IntegrityTag tag;
    bytes.resize(builder.Seal(tag));
    return bytes;
  };
  const Address half_open = Address::V4(10, 0, 0, 77, 9);
  std::vector<uint8_t> buffer(65'535);
  Instant now = pair.network().now();
  std::vector<uint8_t> first = init(0), second = init(1);
  pair.server_endpoint->HandleDatagram(now, half_open, first, {});
  while (pair.server_endpoint->PollTransmit(now, buffer)) {
  }
  now += 1ms;
  pair.server_endpoint->HandleDatagram(now, half_open, second, {});
  int timeouts = 0;
  const Instant end = now + 6s;
  while (pair.server_endpoint->connection_count() > 0 && now < end) {
    while (pair.server_endpoint->PollTransmit(now, buffer)) {
    }
    now = std::max(now, pair.server_endpoint->NextTimeout());
    pair.server_endpoint->HandleTimeout(now);
    ASSERT_LT(++timeouts, 2000);
  }
  EXPECT_EQ(pair.server_endpoint->connection_count(), 0u);
}

TEST(Connection, LowIsNeverRetransmitted) {
  ConnectionPair::Options options;
  options.link += " loss 10%";
  ConnectionPair pair(options);
  ASSERT_TRUE(pair.Establish(20s));
  pair.server.auto_close = false;
  pair.SendWindow({1, 0}, 1, 1000);
  pair.RunFor(3s);
  EXPECT_NEAR(static_cast<double>(pair.server.incoming[{1, 0}].low.size()), 900, 40);
  const uint64_t sent = pair.connection->stats().chunk_bytes_sent / 1392;
  EXPECT_EQ(sent, 1001u);
  EXPECT_LE(pair.connection->stats().retransmissions, 3u);
}

TEST(Connection, SilenceOfThePeerEndsBothSidesWithinTheIdleTimeout) {
  ConnectionPair::Options options;
  options.worker.idle_timeout = options.server.idle_timeout = 4s;
  ConnectionPair pair(options);
  ASSERT_TRUE(pair.Establish());
  pair.RunFor(20s);  // keep-alives hold an idle connection
  EXPECT_EQ(pair.worker.closed + pair.server.closed, 0);
  pair.server_host->Kill();
  const Instant killed = pair.network().now();
  ASSERT_TRUE(pair.RunUntil([&] { return pair.worker.closed > 0; }, 5s));
  EXPECT_LE(pair.network().now() - killed, 4s + 26ms);  // what was under way still arrives
  EXPECT_EQ(pair.worker.close_status.code(), StatusCode::kPeerDead);
  EXPECT_NE(pair.worker.close_status.message().find("10.0.0.2:7700 was silent for 4.0 s"), std::string::npos)
      << pair.worker.close_status.ToString();
}

TEST(Connection, TimeInWhichTheHostsDidNotRunIsNotThePeersSilence) {
  bool dead = false;
  BarePair::Options options;
  options.worker.idle_timeout = options.server.idle_timeout = 3s;
  options.lost = [&dead](int, bool, MutableByteSpan) { return dead; };
  BarePair pair(options);
  ASSERT_TRUE(pair.RunUntil([&] { return pair.BothConnected(); }, 1s));
  pair.now += 5s;
  pair.Run(5s);
  EXPECT_EQ(pair.worker.closed + pair.server.closed, 0);
  EXPECT_EQ(pair.connection->stats().host_stalls, 1u);
  dead = true;
  pair.now += 5s;
  pair.Run(4s);  // a stall puts the end off, no more
  EXPECT_EQ(pair.worker.close_status.code(), StatusCode::kPeerDead);
}

// The socket takes nothing for seconds: deadlines stay behind, and the host stands by no means still.
TEST(Connection, AFullSocketIsNoStall) {
  bool dead = false;
  std::vector<uint8_t> last;
  BarePair::Options options;
  options.worker.idle_timeout = options.server.idle_timeout = 3s;
  options.lost = [&](int, bool from_worker, MutableByteSpan datagram) {
    if (dead && !from_worker) last.assign(datagram.begin(), datagram.end());
    return dead;
  };
  BarePair pair(options);
  ASSERT_TRUE(pair.RunUntil([&] { return pair.BothConnected(); }, 1s));
  pair.Run(1s);
  dead = true;
  ASSERT_TRUE(pair.server.connection->SendControl(std::vector<uint8_t>(10)).ok());
  pair.Poll(false);
  ASSERT_FALSE(last.empty());
  pair.worker_endpoint->HandleDatagram(pair.now, pair.server_address, last, {});  // wants an ACK
  for (int ms = 0; ms < 3100 && pair.worker.closed == 0; ++ms) {
    pair.now += 1ms;
    if (ms % 10 == 0 && pair.worker.closed == 0) {
      EXPECT_EQ(pair.connection->stats().host_stalls, 0u);
    }
    pair.worker_endpoint->HandleTimeout(pair.now);
  }
  EXPECT_EQ(pair.worker.close_status.code(), StatusCode::kPeerDead);
}

TEST(Connection, CloseReachesThePeerWithItsReasonAndBothForget) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    ConnectionPair::Options options;
    options.seed = seed;
    options.link += " loss 20%";
    ConnectionPair pair(options);
    ASSERT_TRUE(pair.Establish(30s));
    pair.connection->Close(Status(StatusCode::kAborted, "trainer gave up"));
    pair.worker_host->Pump();
    ASSERT_TRUE(pair.RunUntil([&] { return pair.worker.closed > 0; }, 3s));
    EXPECT_EQ(pair.worker.close_status, Status(StatusCode::kAborted, "trainer gave up"));
    pair.RunFor(11s);
    EXPECT_EQ(pair.server.closed, 1);
    if (pair.server.close_status.code() !=
        StatusCode::kPeerDead) {  // all three copies lost: the idle time-out
      EXPECT_EQ(pair.server.close_status, Status(StatusCode::kAborted, "trainer gave up"));
    }
    EXPECT_EQ(pair.worker_endpoint->connection_count(), 0u);
    EXPECT_EQ(pair.server_endpoint->connection_count(), 0u);
  }
}

TEST(Connection, CorruptedDatagramsAreDroppedAndCounted) {
  ConnectionPair::Options options;
  options.link += " corrupt 5%";
  ConnectionPair pair(options);
  ASSERT_TRUE(pair.Establish(20s));
  pair.SendWindow({1, 0}, 200, 200);
  ASSERT_TRUE(pair.RunUntil([&] { return pair.worker.outgoing.contains({1, 0}); }, 20s));
  pair.ExpectDelivered(pair.server, {1, 0}, 200);
  EXPECT_GT(pair.server.connection->stats().bad_tag_dropped +
                pair.server_endpoint->stats().unknown_connection_dropped +
                pair.server_endpoint->stats().malformed_dropped +
                pair.server_endpoint->stats().not_authentic_dropped,
            5u);
}

TEST(Connection, RandomDatagramsChangeNothing) {
  ConnectionPair pair({});
  ASSERT_TRUE(pair.Establish());
  Random random(5);
  for (int i = 0; i < 20'000; ++i) {
    std::vector<uint8_t> noise(random.Below(1500));
    for (uint8_t& b : noise) b = static_cast<uint8_t>(random.Next());
    if (noise.size() > 16 && random.Chance(0.5)) {  // half of them name the connection
      const uint64_t id = pair.server.connection->local_id().value;
      noise[0] &= 0x41;
      for (size_t b = 0; b < 8; ++b) noise[2 + b] = static_cast<uint8_t>(id >> (56 - 8 * b));
    }
    const Address from = random.Chance(0.5) ? pair.worker_address : Address::V4(10, 0, 0, 9, 1);
    pair.server_endpoint->HandleDatagram(pair.network().now(), from, noise, {});
  }
  EXPECT_EQ(pair.server_endpoint->connection_count(), 1u);
  pair.SendWindow({1, 0}, 20, 20);
  ASSERT_TRUE(pair.RunUntil([&] { return pair.worker.outgoing.contains({1, 0}); }, 2s));
  pair.ExpectDelivered(pair.server, {1, 0}, 20);
}

TEST(Connection, AnUnprovenAddressGetsAtMostThreeTimesWhatItSent) {
  ConnectionPair pair({});
  std::vector<uint8_t> init(1200);
  PacketBuilder builder(init);
  builder.StartLong(wire::LongType::kInit, wire::kVersion, {}, {42}, 0);
  ASSERT_TRUE(builder.Add(wire::TransportParametersFrame{1452, 10'000, 1 << 20, 16, 1 << 30}));
  builder.PadTo(init.size());
  IntegrityTag tag;
  init.resize(builder.Seal(tag));
  const Address spoofed = Address::V4(10, 0, 0, 77, 9);
  pair.server_endpoint->HandleDatagram(pair.network().now(), spoofed, init, {});
  size_t bytes = 0;
  std::vector<uint8_t> buffer(65'535);
  Instant now = pair.network().now();
  for (int i = 0; i < 2000; ++i) {
    now += 10ms;
    pair.server_endpoint->HandleTimeout(now);
    while (auto t = pair.server_endpoint->PollTransmit(now, buffer)) bytes += t->size;
  }
  EXPECT_GE(bytes, 1200u);
  EXPECT_LE(bytes, 3 * 1200u);
  EXPECT_EQ(pair.server_endpoint->connection_count(), 0u);  // and it is forgotten
}

TEST(Connection, TheSameSeedGivesTheSameEventLog) {
  const auto run = [](uint64_t seed) {
    ConnectionPair::Options options;
    options.seed = seed;
    options.link += " loss 5% duplicate 1%";
    ConnectionPair pair(options);
    EXPECT_TRUE(pair.Establish(20s));
    pair.SendWindow({1, 0}, 60, 240);
    pair.RunFor(2s);
    return pair.network().event_log_hash();
  };
  EXPECT_EQ(run(3), run(3));
  EXPECT_NE(run(3), run(4));
}

}  // namespace
}  // namespace longhaul::transport
