// Which of an endpoint's connections are asked for what they have to send, and whose time-out is next.
#include "transport/core/endpoint/connection_set.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <vector>

#include "transport/core/security/integrity_tag.h"

namespace longhaul::transport {
namespace {

using std::chrono::milliseconds;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

// Clients that no server answers.
struct ConnectionSetTest : testing::Test {
  ConnectionImpl* Add() {
    const Address server = Address::V4(10, 0, 0, 2, static_cast<uint16_t>(7700 + number++));
    return clients.emplace_back(set.Add(now, true, {}, server, {}, security, /*coder=*/nullptr, &random));
  }
  void Add(int count) {
    for (int i = 0; i < count; ++i) Add();
  }
  // What leaves now, by the number of its sender.
  std::vector<int> Drain() {
    std::vector<int> senders;
    while (const auto transmit = set.PollTransmit(now, buffer))
      senders.push_back(transmit->destination.port - 7700);
    return senders;
  }
  // Whom the calls at this instant have asked.
  std::vector<int> Asked() const {
    std::vector<int> asked;
    for (ConnectionImpl* client : clients) {
      if (client->turn().polled == now) asked.push_back(client->peer().port - 7700);
    }
    return asked;
  }
  void Wait(Duration time) { now = now + time; }

  Instant now = Instant::FromNanoseconds(1'000'000'000);
  Random random{1};
  std::shared_ptr<Security> security = std::make_shared<NullSecurity>();
  std::vector<uint8_t> buffer = std::vector<uint8_t>(65'536);
  uint16_t number = 0;
  ConnectionSet set;
  std::vector<ConnectionImpl*> clients;
};

TEST_F(ConnectionSetTest, AllHaveTheirTurnInTheOrderInWhichTheyCame) {
  Add(3);
  EXPECT_THAT(Drain(), ElementsAre(0, 1, 2));
}

// Of a thousand, a datagram concerns one.
TEST_F(ConnectionSetTest, AnEventAsksOnlyTheConnectionThatItConcerns) {
  Add(1000);
  Drain();
  Wait(milliseconds(1));
  EXPECT_THAT(Drain(), IsEmpty());
  EXPECT_THAT(Asked(), IsEmpty());
  clients[617]->HandleSendRefused(1400);
  Drain();
  EXPECT_THAT(Asked(), ElementsAre(617));
}

TEST_F(ConnectionSetTest, EveryRequestHasItsConnectionAsked) {
  const std::vector<std::function<void(ConnectionImpl&)>> requests = {
      [](ConnectionImpl& c) { c.Grant(Bandwidth::Mbps(1), ByteCount(100'000)); },
      [](ConnectionImpl& c) { c.CancelWindow({}); },
      [](ConnectionImpl& c) { c.CloseWindow({}, wire::CloseReason::kComplete); },
      [](ConnectionImpl& c) { c.RefuseChunk({}, wire::ReliabilityClass::kHigh, 0); },
      [](ConnectionImpl& c) { c.RequestMissing({}); },
      [](ConnectionImpl& c) { (void)c.SubmitChunk({}, wire::ReliabilityClass::kHigh, {}, {}); },
      [](ConnectionImpl& c) { c.SetRateBounds({}, Bandwidth::Mbps(1)); },
      [](ConnectionImpl& c) { c.SetLossLimits({}); },
      [](ConnectionImpl& c) { (void)c.PollEvent(); },
      [](ConnectionImpl& c) { c.Close(Status::Ok()); },
  };
  Add(static_cast<int>(requests.size()));
  Drain();
  for (size_t i = 0; i < requests.size(); ++i) {
    Wait(milliseconds(1));
    requests[i](*clients[i]);
    Drain();
    EXPECT_THAT(Asked(), ElementsAre(static_cast<int>(i)));
  }
}

// Whether or not HandleTimeout was called: what waits for the pacer need not wait for the event loop's turn
// to end. Once: more would not help before HandleTimeout.
TEST_F(ConnectionSetTest, AConnectionWhoseTimeHasComeIsAskedOnce) {
  Add(2);
  Drain();
  Wait(milliseconds(1));
  Add();
  Drain();
  now = clients[0]->NextTimeout();
  ASSERT_EQ(clients[1]->NextTimeout(), now);
  ASSERT_GT(clients[2]->NextTimeout(), now);
  Drain();
  EXPECT_THAT(Asked(), ElementsAre(0, 1));
  Wait(Duration(1));
  Drain();
  EXPECT_THAT(Asked(), IsEmpty());
  EXPECT_THAT(set.Due(now), ElementsAre(clients[0], clients[1]));
}

// Its owner may still ask for something until it hears that it is over.
TEST_F(ConnectionSetTest, OneThatWasTakenOutIsNotAskedAgain) {
  Add(3);
  Drain();
  const std::unique_ptr<ConnectionImpl> out = set.Remove(clients[1]->local_id());
  Wait(milliseconds(1));
  out->Grant(Bandwidth::Mbps(1), ByteCount(100'000));
  EXPECT_THAT(Drain(), IsEmpty());
  EXPECT_THAT(Asked(), IsEmpty());
  Wait(std::chrono::hours(1));
  EXPECT_THAT(set.Due(now), ElementsAre(clients[0], clients[2]));
}

// Against a look at all of them.
TEST_F(ConnectionSetTest, KnowsAfterAnyOperationsWhatALookAtAllWouldSay) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Random chance(seed);
    for (int step = 0; step < 300; ++step) {
      const size_t which = clients.empty() ? 0 : chance.Below(clients.size());
      switch (chance.Below(6)) {
        case 0:
          if (clients.size() < 40) Add();
          break;
        case 1:
          if (clients.empty() || chance.Chance(0.5)) break;
          set.Remove(clients[which]->local_id());
          clients.erase(clients.begin() + static_cast<ptrdiff_t>(which));
          break;
        case 2:
          Wait(milliseconds(chance.Below(400)));
          break;
        case 3:
          for (ConnectionImpl* due : set.Due(now)) due->HandleTimeout(now);
          break;
        case 4:
          if (!clients.empty()) clients[which]->HandleSendRefused(1400);
          break;
        case 5:
          Drain();
          for (ConnectionImpl* client : clients) {
            // What a time-out lets go, HandleTimeout does.
            if (client->NextTimeout() > now) {
              ASSERT_FALSE(client->PollTransmit(now, buffer));
            }
          }
          break;
      }
      Instant next = Instant::Infinite();
      std::vector<ConnectionImpl*> due;
      for (ConnectionImpl* client : clients) {
        next = std::min(next, client->NextTimeout());
        if (client->NextTimeout() <= now) due.push_back(client);
      }
      ASSERT_EQ(set.NextTimeout(), next);
      ASSERT_THAT(set.Due(now), ::testing::UnorderedElementsAreArray(due));
    }
  }
}

}  // namespace
}  // namespace longhaul::transport
