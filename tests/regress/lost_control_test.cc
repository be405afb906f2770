// Found by the cluster simulation (tests/sim): small messages whose loss was noticed too late.

#include "tests/transport/connection_pair.h"

namespace longhaul::transport {
namespace {

using namespace std::chrono_literals;

// WINDOW_STATUS overtook a lost WINDOW_OPEN, was dropped as that of an unknown window, but acknowledged; with
// the window's last chunk lost too, the receiver waited for ever for the sender to finish.
TEST(LostControl, AWindowWhoseOpenArrivesAfterItsStatusCloses) {
  for (uint64_t seed = 1; seed <= 60; ++seed) {
    ConnectionPair::Options options;
    options.seed = seed;
    options.link = "rate 200mbit delay 25ms queue 50ms loss 30%";
    ConnectionPair pair(options);
    ASSERT_TRUE(pair.Establish()) << "seed " << seed;
    pair.SendWindow({1, 0}, 0, 5);
    EXPECT_TRUE(pair.RunUntil(
        [&] {
          return pair.worker.outgoing.contains({1, 0});
        },
        8s))
        << "seed " << seed << ": the window is still open";
  }
}

// A lone control message at the end of a burst was only sent again once a later packet was acknowledged: the
// probes of the timeout were empty.
TEST(LostControl, AProbeTimeoutBringsALostControlMessageAlong) {
  ConnectionPair pair({});
  ASSERT_TRUE(pair.Establish());
  pair.RunFor(500ms);
  wan::LinkOptions link = pair.network().Link(pair.worker_site(), pair.server_site()).options();
  wan::LinkOptions dark = link;
  dark.loss = 1;
  pair.network().SetLink(pair.worker_site(), pair.server_site(), dark);
  const std::vector<uint8_t> message = {1, 2, 3};
  ASSERT_TRUE(pair.connection->SendControl(message).ok());
  pair.worker_host->Pump();
  pair.RunFor(1ms);
  pair.network().SetLink(pair.worker_site(), pair.server_site(), link);
  const uint64_t probes = pair.connection->stats().pto_fired;
  ASSERT_TRUE(pair.RunUntil([&] { return pair.connection->stats().pto_fired > probes; }, 2s));
  // One way of 25 ms is enough: no round trip to find out about the loss.
  EXPECT_TRUE(pair.RunUntil([&] { return !pair.server.control.empty(); }, 27ms));
  pair.RunFor(1s);
  EXPECT_EQ(pair.server.control, message) << "repeated bytes must not be delivered twice";
}

// Keepalives, which carried nothing, put the probe timeout off again and again once its back-off was longer
// than their interval.
TEST(LostControl, KeepalivesDoNotHoldUpALostControlMessage) {
  ConnectionPair::Options options;
  options.link = "rate 200mbit delay 400ms queue 50ms";
  options.worker.keepalive = 1s;
  ConnectionPair pair(options);
  ASSERT_TRUE(pair.Establish());
  pair.RunFor(3s);
  const wan::LinkOptions link = pair.network().Link(pair.worker_site(), pair.server_site()).options();
  wan::LinkOptions dark = link;
  dark.loss = 1;
  pair.network().SetLink(pair.worker_site(), pair.server_site(), dark);
  const std::vector<uint8_t> message(40, 7);
  const uint64_t sent_before = pair.connection->stats().bytes_sent;
  ASSERT_TRUE(pair.connection->SendControl(message).ok());
  pair.worker_host->Pump();
  pair.RunFor(4500ms);
  pair.network().SetLink(pair.worker_site(), pair.server_site(), link);
  // What is repeated does not grow with every repetition.
  const uint64_t sent = pair.connection->stats().bytes_sent;
  EXPECT_LT((sent - sent_before), 600u);
  // The next keepalive brings it along.
  EXPECT_TRUE(pair.RunUntil([&] { return !pair.server.control.empty(); }, 1410ms));
}

}  // namespace
}  // namespace longhaul::transport
