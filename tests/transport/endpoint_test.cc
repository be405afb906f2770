// The set of connections behind one address: how their ends are reported.
#include "transport/core/endpoint/endpoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <vector>

#include "tests/transport/bare_pair.h"

namespace longhaul::transport {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

// Connections of one client, which no server ever answers; all ends in one list.
struct EndpointEnds : testing::Test {
  struct Owner : BarePair::Application {
    void OnClosed(Connection&, const Status&) override {
      all->ended.push_back(number);
      connection = nullptr;
      if (then_closes != nullptr) then_closes->connection->Close(Status::Ok());
    }

    EndpointEnds* all = nullptr;
    int number = 0;
    Owner* then_closes = nullptr;
  };

  EndpointEnds() {
    for (size_t i = 0; i < owners.size(); ++i) {
      owners[i].all = this;
      owners[i].number = static_cast<int>(i);
      owners[i].connection = endpoint.Connect(now, Address::V4(10, 0, 0, 2, 7700), &owners[i]);
    }
  }
  void Close(size_t i) { owners[i].connection->Close(Status::Ok()); }
  void StrayDatagram() {
    std::vector<uint8_t> nothing(40, 0);
    endpoint.HandleDatagram(now, Address::V4(9, 9, 9, 9, 9), nothing, {});
  }

  Instant now = Instant::FromNanoseconds(1'000'000'000);
  std::vector<int> ended;
  std::array<Owner, 5> owners;
  PumpedEndpoint endpoint{{}, Random(1)};
};

// What has ended is known without a look at what has not: an event costs the same however many connections
// there are.
TEST_F(EndpointEnds, EndsAreToldOnceInTheOrderInWhichTheyCame) {
  StrayDatagram();
  EXPECT_THAT(ended, IsEmpty());
  Close(3);
  Close(0);
  Close(2);
  EXPECT_THAT(ended, IsEmpty()) << "an owner is not called back from within its own call";
  StrayDatagram();
  EXPECT_THAT(ended, ElementsAre(3, 0, 2));
  StrayDatagram();
  EXPECT_EQ(ended.size(), 3u);
  EXPECT_EQ(endpoint.connection_count(), 2u);
}

TEST_F(EndpointEnds, WhoIsToldOfAnEndMayCauseTheNext) {
  owners[1].then_closes = &owners[4];
  owners[4].then_closes = &owners[0];
  Close(1);
  StrayDatagram();
  StrayDatagram();
  StrayDatagram();
  EXPECT_THAT(ended, ElementsAre(1, 4, 0));
}

TEST_F(EndpointEnds, TimeoutsEndAllOfThem) {
  now = endpoint.NextTimeout();
  while (!now.IsInfinite()) {
    endpoint.HandleTimeout(now);
    std::vector<uint8_t> buffer(65'535);
    while (endpoint.PollTransmit(now, buffer)) {
    }
    now = endpoint.NextTimeout();
  }
  EXPECT_THAT(ended, ElementsAre(0, 1, 2, 3, 4));
  EXPECT_EQ(endpoint.connection_count(), 0u);
}

}  // namespace
}  // namespace longhaul::transport
