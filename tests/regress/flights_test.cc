// Found by fuzzing (tests/fuzz): orders of events that no other test came by.
#include <gtest/gtest.h>

#include "tests/transport/fake_security.h"
#include "transport/core/connection/handshake.h"

namespace longhaul::transport {
namespace {

// Progress in the middle of a flight makes it the first again: its timer was then computed with a shift by
// -1, which is undefined and on most machines set it hundreds of years back.
TEST(Flights, ProgressInTheMiddleOfAFlightLeavesItsTimerAhead) {
  FakeSecurity::Options options;
  options.client_first = 5000;
  FakeSecurity security(options);
  Handshake handshake(true, security.NewSession(true));
  const Instant now = Instant::FromNanoseconds(1'000'000'000);
  const auto send = [&] {
    const auto frame = handshake.NextFrame(1000);
    ASSERT_TRUE(frame.has_value());
    handshake.OnSent(now, frame->data.size(), 1200);
  };
  const auto hear = [&](uint64_t received) {
    handshake.OnPacket(1200, true);
    ASSERT_TRUE(handshake.OnCrypto(now, {0, received, {}}).ok());
    handshake.OnPacketEnd(now);
  };
  send();
  hear(10);  // the peer's first packet begins a flight of its own
  send();
  ASSERT_TRUE(handshake.WantsToSend()) << "in the middle of a flight";
  hear(20);
  ASSERT_EQ(handshake.repeats(), 0);
  while (handshake.WantsToSend()) send();
  EXPECT_EQ(handshake.Deadline(), now + Handshake::kFirstInterval);
}

}  // namespace
}  // namespace longhaul::transport
