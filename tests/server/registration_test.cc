// A server's connection to the first one of its job, in virtual time; a datagram takes 10 ms.
//
//   RegistrationCore ── 10 ms ── the first server, which dies and comes back
#include "server/registration_core.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "server/server_core.h"
#include "tests/sim/reference_coder.h"
#include "tests/sim/simulated_host.h"
#include "tests/transport/fake_security.h"
#include "wan/link_options.h"

namespace longhaul::server {
namespace {

using std::chrono::seconds;
using testing::HasSubstr;

class RegistrationTest : public testing::Test {
 protected:
  struct Other {
    std::optional<RegistrationCore> core;
    std::optional<sim::SimulatedHost> host;
  };

  void StartFirst(uint32_t servers = 2, uint32_t workers = 1) {
    ServerCoreOptions options;
    options.settings.place = {.servers = servers, .map_epoch = servers > 1 ? 1u : 0u};
    options.settings.world_size = options.settings.min_workers = workers;
    options.settings.idle_timeout = seconds(3);
    options.security = security;
    first_.emplace(options, &coder_, Random(++starts_));
    first_host_.emplace(&network_, kFirst, site_, &*first_);
  }
  void KillFirst() {
    first_host_.reset();
    first_.reset();
  }
  // number: 1 or 2, which one of the others.
  void StartOther(uint8_t number = 1) {
    RegistrationOptions options;
    options.join.set_job("default");
    options.join.set_address(":770" + std::to_string(number));
    options.first_server = "ams.example:7700";
    options.timeout = seconds(60);
    options.security = security;
    options.say = [this](const Status& status) { said.push_back(status.ToString()); };
    options.answer = [this](const Result<control::ServerWelcome>& answer) {
      answers.push_back(answer.ok() ? "server " + std::to_string(answer->server())
                                    : answer.status().ToString());
    };
    Other& other = others_[number];
    other.core.emplace(std::move(options), Random(100 + number));
    Reconnect(number);
    other.core->Start(network_.now(), kFirst);
    other.host->Pump();
  }
  void CutOff(uint8_t number) { others_[number].host.reset(); }
  void Reconnect(uint8_t number) {
    Other& other = others_[number];
    other.host.emplace(&network_, Address::V4(10, 0, 0, 1 + number, 2000), site_, &*other.core);
    other.host->Pump();
  }
  void RunFor(Duration time) {
    network_.RunFor(time);
    for (const auto& [number, other] : others_) {
      EXPECT_EQ(other.host ? other.host->violation() : "", "") << number;
    }
  }

  std::vector<std::string> said, answers;
  transport::Security* security = nullptr;  // of all

 private:
  const Address kFirst = Address::V4(10, 0, 0, 1, 7700);
  uint64_t starts_ = 0;
  codec::ReferenceCoder coder_;
  wan::VirtualNetwork network_{{.local_link = *wan::ParseLinkOptions("delay 10ms")}};
  wan::VirtualNetwork::SiteId site_ = network_.AddSite("all");
  std::optional<ServerCore> first_;
  std::optional<sim::SimulatedHost> first_host_;
  std::map<int, Other> others_;
};

TEST_F(RegistrationTest, GetsAPlaceAndKeepsTheConnection) {
  StartFirst();
  StartOther();
  RunFor(seconds(1));
  ASSERT_EQ(answers, std::vector<std::string>{"server 1"});
  RunFor(seconds(300));
  EXPECT_EQ(answers.size(), 1u);
  EXPECT_TRUE(said.empty()) << said.front();
}

TEST_F(RegistrationTest, WaitsForAFirstServerThatComesLater) {
  StartOther();
  RunFor(seconds(30));
  EXPECT_TRUE(answers.empty());
  StartFirst();
  RunFor(seconds(15));
  EXPECT_EQ(answers, std::vector<std::string>{"server 1"});
}

TEST_F(RegistrationTest, GivesUpByNameWhenNoneComes) {
  StartOther();
  RunFor(seconds(61));
  ASSERT_EQ(answers.size(), 1u);
  EXPECT_THAT(
      answers[0],
      HasSubstr("Unavailable: the first server, ams.example:7700, has not let this one in within 60.0 s"));
  StartFirst();
  RunFor(seconds(60));
  EXPECT_EQ(answers.size(), 1u) << "the end is the end";
}

TEST_F(RegistrationTest, ComesBackToItsPlaceWhenTheFirstDoes) {
  StartFirst();
  StartOther();
  RunFor(seconds(1));
  KillFirst();
  RunFor(seconds(60));
  ASSERT_EQ(said.size(), 1u) << "said once, however long it lasts";
  EXPECT_THAT(said[0], HasSubstr("PeerDead"));
  StartFirst();
  RunFor(seconds(15));
  EXPECT_EQ(said.back(), "Ok");
  EXPECT_EQ(answers.size(), 1u);
}

// Until then it lets no worker in.
TEST_F(RegistrationTest, AFirstServerThatWasStartedAgainHasTheOthersWithinHalfASecond) {
  transport::FakeSecurity key({});
  security = &key;
  for (const int down : {100, 500, 900, 2000}) {
    SCOPED_TRACE(down);
    said.clear();
    StartFirst();
    StartOther();
    RunFor(seconds(1));
    KillFirst();
    RunFor(std::chrono::milliseconds(down));
    StartFirst();
    RunFor(std::chrono::milliseconds(500));
    ASSERT_EQ(said.size(), 2u);
    EXPECT_EQ(said.back(), "Ok");
    CutOff(1);
  }
}

// The first knows nothing of them when it is back, and they come in the other order.
TEST_F(RegistrationTest, TwoComeBackToTheirPlacesInTheOtherOrder) {
  StartFirst(3);
  StartOther(1);
  StartOther(2);
  RunFor(seconds(2));
  ASSERT_THAT(answers, testing::UnorderedElementsAre("server 1", "server 2"));
  said.clear();
  KillFirst();
  RunFor(seconds(10));
  EXPECT_EQ(said.size(), 2u);
  // The second is there again before the first one is.
  CutOff(1);
  StartFirst(3);
  RunFor(seconds(15));
  EXPECT_EQ(std::ranges::count(said, "Ok"), 1);
  Reconnect(1);
  RunFor(seconds(15));
  EXPECT_EQ(std::ranges::count(said, "Ok"), 2);
  EXPECT_EQ(answers.size(), 2u) << answers.back();
}

TEST_F(RegistrationTest, EndsWhenTheFirstIsBackWithOtherSettings) {
  StartFirst();
  StartOther();
  RunFor(seconds(1));
  KillFirst();
  StartFirst(2, 5);
  RunFor(seconds(30));
  ASSERT_EQ(answers.size(), 2u);
  EXPECT_THAT(answers[1],
              HasSubstr("SettingsMismatch: the first server, ams.example:7700, is back with other settings"));
}

TEST_F(RegistrationTest, EndsAtOnceWhereItHasNoPlace) {
  StartFirst(1);
  StartOther();
  RunFor(seconds(2));
  ASSERT_EQ(answers.size(), 1u);
  EXPECT_THAT(answers[0], HasSubstr("FailedPrecondition: the first server, ams.example:7700, refuses this "
                                    "one: this server is the only one"));
}

}  // namespace
}  // namespace longhaul::server
