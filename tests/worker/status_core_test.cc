// One question to a server that answers as the test says, in virtual time:
//
//   asking tool 10.0.0.1 ----- LinkModel each way ----- server 10.0.0.2:7700
#include "worker/client/status_core.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>

#include "tests/sim/simulated_host.h"
#include "tests/sim/virtual_network.h"
#include "tests/transport/application.h"

namespace longhaul::worker {
namespace {

using control::ControlMessage;
using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::HasSubstr;
using Answer = std::function<void(transport::Connection&, const ControlMessage&)>;

const Address kServer = Address::V4(10, 0, 0, 2, 7700);
const Address kTool = Address::V4(10, 0, 0, 1, 40000);

// Accepts every peer, and hands every control message to the test.
class Answerer final : public transport::Application {
 public:
  explicit Answerer(Answer answer) : answer_(std::move(answer)) {}

  int requests = 0;
  int closed = 0;
  Status goodbye;  // of the last that closed

 private:
  void OnClosed(transport::Connection&, const Status& why) override {
    ++closed;
    goodbye = why;
  }
  void OnControlData(transport::Connection& connection, ByteSpan bytes) override {
    const auto messages = reader_.Append(bytes);
    ASSERT_TRUE(messages.ok());
    for (const ControlMessage& message : *messages) {
      ++requests;
      if (answer_) answer_(connection, message);
    }
  }
  Status OnWindowOpened(transport::Connection&, transport::WindowKey, const wire::WindowOpenFrame&) override {
    return Status(StatusCode::kProtocolViolation, "no windows here");
  }

  Answer answer_;
  wire::ControlReader reader_;
};

void Send(transport::Connection& connection, const ControlMessage& message) {
  (void)connection.SendControl(wire::EncodeControlMessage(message));
}

class StatusCoreTest : public testing::Test {
 protected:
  static constexpr auto kTimeout = seconds(5);

  void Ask(Answer answer, const std::string& link = "rate 20mbit delay 10ms", Duration timeout = kTimeout,
           std::optional<uint32_t> kick = {}, std::optional<Duration> hand_over = {}) {
    wan::VirtualNetwork::Options options;
    options.link = wan::ParseLinkOptions(link).value();
    network_ = std::make_unique<wan::VirtualNetwork>(options);
    const auto here = network_->AddSite("B");
    const auto there = network_->AddSite("A");
    server_ = std::make_unique<Answerer>(std::move(answer));
    transport::EndpointOptions accepts;
    accepts.accepts = true;
    server_endpoint_ = std::make_unique<transport::PumpedEndpoint>(
        accepts, Random(3), [this](transport::Connection&) { return server_.get(); });
    core_ =
        std::make_unique<StatusCore>(StatusOptions{.timeout = timeout, .kick = kick, .hand_over = hand_over},
                                     Random(4), [this] { ++ends_; });
    server_host_ =
        std::make_unique<sim::SimulatedHost>(network_.get(), kServer, there, server_endpoint_.get());
    host_ = std::make_unique<sim::SimulatedHost>(network_.get(), kTool, here, core_.get());
    begin_ = network_->now();
    core_->Ask(begin_, kServer);
    host_->Pump();
  }
  void RunToTheEnd() {
    for (int i = 0; i < 600 && !core_->outcome(); ++i) network_->RunFor(milliseconds(100));
    ASSERT_TRUE(core_->outcome());
    took_ = network_->now() - begin_;
    network_->RunFor(seconds(30));  // its goodbye, and nothing after it
    EXPECT_EQ(ends_, 1);
    EXPECT_EQ(host_->violation(), "");
    EXPECT_EQ(server_host_->violation(), "");
  }
  void ExpectFailure(StatusCode code, const std::string& words) {
    RunToTheEnd();
    ASSERT_FALSE(core_->outcome()->ok());
    EXPECT_EQ(core_->outcome()->status().code(), code) << core_->outcome()->status().ToString();
    EXPECT_THAT(core_->outcome()->status().message(), HasSubstr(words));
    EXPECT_THAT(core_->outcome()->status().message(), HasSubstr("10.0.0.2:7700"));
  }

  std::unique_ptr<wan::VirtualNetwork> network_;
  std::unique_ptr<Answerer> server_;
  std::unique_ptr<transport::PumpedEndpoint> server_endpoint_;
  std::unique_ptr<StatusCore> core_;
  std::unique_ptr<sim::SimulatedHost> server_host_, host_;
  Instant begin_;
  Duration took_{0};  // to within 100 ms
  int ends_ = 0;
};

void Reply(transport::Connection& connection, const ControlMessage& question) {
  ControlMessage answer;
  answer.mutable_status_reply()->set_request(question.status_request().request());
  answer.mutable_status_reply()->set_json("{\"job\":\"resnet\"}");
  Send(connection, answer);
}

TEST_F(StatusCoreTest, AKickIsAnsweredByTheWorkersDescription) {
  const Answer kicks = [](transport::Connection& connection, const ControlMessage& order) {
    EXPECT_EQ(order.kick_request().rank(), 3u);
    ControlMessage answer;
    answer.mutable_kicked()->set_who("worker rank 3 (nyc)");
    Send(connection, answer);
  };
  Ask(kicks, "rate 20mbit delay 10ms", kTimeout, 3);
  RunToTheEnd();
  ASSERT_TRUE(core_->outcome()->ok()) << core_->outcome()->status().ToString();
  EXPECT_EQ(**core_->outcome(), "worker rank 3 (nyc)");
}

TEST_F(StatusCoreTest, AHandOverIsAnsweredWhenTheServersEnd) {
  const Answer ends = [](transport::Connection& connection, const ControlMessage& order) {
    EXPECT_EQ(order.hand_over_request().timeout(), 3'000'000'000u);
    ControlMessage answer;
    answer.mutable_handed_over()->set_what("after round 9");
    Send(connection, answer);
  };
  Ask(ends, "rate 20mbit delay 10ms", kTimeout, {}, seconds(3));
  RunToTheEnd();
  ASSERT_TRUE(core_->outcome()->ok()) << core_->outcome()->status().ToString();
  EXPECT_EQ(**core_->outcome(), "after round 9");
}

TEST_F(StatusCoreTest, AnAnswerToAnotherOrderIsNone) {
  const Answer json = [](transport::Connection& connection, const ControlMessage&) {
    ControlMessage answer;
    answer.mutable_status_reply()->set_json("{}");
    Send(connection, answer);
  };
  Ask(json, "rate 20mbit delay 10ms", kTimeout, {}, seconds(3));
  ExpectFailure(StatusCode::kProtocolViolation, "unexpected message");
}

TEST_F(StatusCoreTest, AnAnswerIsTheServersJsonAndEndsTheConnection) {
  Ask(Reply);
  RunToTheEnd();
  ASSERT_TRUE(core_->outcome()->ok()) << core_->outcome()->status().ToString();
  EXPECT_EQ(**core_->outcome(), "{\"job\":\"resnet\"}");
  EXPECT_LE(took_, milliseconds(200)) << "two round trips";
  EXPECT_EQ(server_->requests, 1);
  EXPECT_EQ(server_->closed, 1) << "the server need not wait for its silence";
  EXPECT_TRUE(server_->goodbye.ok()) << server_->goodbye.ToString();
}

TEST_F(StatusCoreTest, ALossyLinkOnlyTakesLonger) {
  Ask(Reply, "rate 20mbit delay 10ms loss 30%", seconds(30));
  RunToTheEnd();
  EXPECT_TRUE(core_->outcome()->ok()) << core_->outcome()->status().ToString();
}

TEST_F(StatusCoreTest, ARefusalIsToldWithItsCode) {
  Ask([](transport::Connection& connection, const ControlMessage&) {
    ControlMessage answer;
    answer.mutable_refused()->set_code(static_cast<uint32_t>(StatusCode::kPermissionDenied));
    answer.mutable_refused()->set_message("not on the list");
    Send(connection, answer);
  });
  ExpectFailure(StatusCode::kPermissionDenied, "refuses to say: not on the list");
}

TEST_F(StatusCoreTest, AServerThatEndsSaysSo) {
  Ask([](transport::Connection& connection, const ControlMessage&) {
    ControlMessage answer;
    answer.mutable_leave()->set_code(static_cast<uint32_t>(StatusCode::kCancelled));
    answer.mutable_leave()->set_message("shutting down");
    Send(connection, answer);
  });
  ExpectFailure(StatusCode::kAborted, "ends: shutting down");
}

TEST_F(StatusCoreTest, AnotherMessageIsNoAnswer) {
  Ask([](transport::Connection& connection, const ControlMessage&) {
    ControlMessage answer;
    answer.mutable_status_request()->set_request(1);
    Send(connection, answer);
  });
  ExpectFailure(StatusCode::kProtocolViolation, "unexpected message");
}

TEST_F(StatusCoreTest, OnlyTheFirstAnswerCounts) {
  Ask([](transport::Connection& connection, const ControlMessage& question) {
    Reply(connection, question);
    ControlMessage second;
    second.mutable_status_request()->set_request(1);
    Send(connection, second);
  });
  RunToTheEnd();
  EXPECT_TRUE(core_->outcome()->ok());
}

TEST_F(StatusCoreTest, ASilentServerIsWaitedForAsLongAsAsked) {
  Ask({});
  ExpectFailure(StatusCode::kUnavailable, "did not say within 5.0 s");
  EXPECT_EQ(server_->requests, 1);
  EXPECT_NEAR(std::chrono::duration<double>(took_).count(), 5, 0.11);
}

TEST_F(StatusCoreTest, WhereNobodyIsTheReasonsAreNamed) {
  Ask(Reply);
  server_host_->Kill();
  ExpectFailure(StatusCode::kUnavailable, "nothing comes back");
  EXPECT_NEAR(std::chrono::duration<double>(took_).count(), 5, 0.11);
}

TEST_F(StatusCoreTest, AConnectionThatTheServerClosesIsNoAnswer) {
  Ask([](transport::Connection& connection, const ControlMessage&) { connection.Close(Status::Ok()); });
  ExpectFailure(StatusCode::kAborted, "closed the connection");
}

TEST_F(StatusCoreTest, AServerThatDiesIsFoundOutBeforeALongTimeout) {
  Ask(
      [this](transport::Connection&, const ControlMessage&) {
        (void)network_->Schedule(network_->now(), [this] { server_host_->Kill(); });
      },
      "rate 20mbit delay 10ms", seconds(55));
  RunToTheEnd();
  ASSERT_FALSE(core_->outcome()->ok());
  EXPECT_EQ(core_->outcome()->status().code(), StatusCode::kPeerDead);
  EXPECT_LT(took_, seconds(30));
}

}  // namespace
}  // namespace longhaul::worker
