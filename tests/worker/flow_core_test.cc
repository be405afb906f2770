// A load generator against a real server core, in virtual time:
//
//   generator 10.0.0.1 ----- LinkModel each way ----- server 10.0.0.2:7700
#include "bench/load/flow_core.h"
#include "bench/load/sink.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>

#include "server/server_core.h"
#include "tests/sim/reference_coder.h"
#include "tests/sim/simulated_host.h"
#include "tests/sim/virtual_network.h"

namespace longhaul::load {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::HasSubstr;

const Address kServer = Address::V4(10, 0, 0, 2, 7700);
const Address kGenerator = Address::V4(10, 0, 0, 1, 40000);

class FlowTest : public testing::Test {
 protected:
  void Up(const std::string& link, server::ServerSettings settings = {}, FlowOptions flow = {}) {
    wan::VirtualNetwork::Options options;
    options.link = wan::ParseLinkOptions(link).value();
    network_ = std::make_unique<wan::VirtualNetwork>(options);
    const auto here = network_->AddSite("B");
    const auto there = network_->AddSite("A");
    server::ServerCoreOptions server_options;
    server_options.settings = settings;
    if (with_sink_) server_options.guests = &sink_;
    server_ = std::make_unique<server::ServerCore>(server_options, &coder_, Random(3));
    flow_ = std::make_unique<FlowCore>(flow, &coder_, Random(4));
    server_host_ = std::make_unique<sim::SimulatedHost>(network_.get(), kServer, there, server_.get());
    host_ = std::make_unique<sim::SimulatedHost>(network_.get(), kGenerator, here, flow_.get());
    flow_->Start(network_->now(), kServer);
    host_->Pump();
  }
  void RunFor(Duration time) { network_->RunFor(time); }
  void RunToTheEnd() {
    for (int i = 0; i < 600 && !flow_->finished(); ++i) network_->RunFor(milliseconds(100));
    ASSERT_TRUE(flow_->finished());
    EXPECT_EQ(host_->violation(), "");
    EXPECT_EQ(server_host_->violation(), "");
  }
  // Chunk bytes that left the link towards the server can be no more than its packets: an oracle for goodput.
  uint64_t DeliveredPackets() { return network_->Link(0, 1).counters().packets_delivered; }

  codec::ReferenceCoder coder_;
  load::Sink sink_{{}, {}};
  bool with_sink_ = true;
  std::unique_ptr<wan::VirtualNetwork> network_;
  std::unique_ptr<server::ServerCore> server_;
  std::unique_ptr<FlowCore> flow_;
  std::unique_ptr<sim::SimulatedHost> server_host_, host_;
};

TEST_F(FlowTest, FillsACleanLinkAndTheServersCountIsTheGoodput) {
  Up("rate 20mbit delay 10ms queue 50ms", {}, {.window_bytes = ByteCount(1 << 20), .length = seconds(4)});
  RunToTheEnd();
  EXPECT_TRUE(flow_->outcome().ok()) << flow_->outcome().ToString();
  const FlowReport report = flow_->report();
  EXPECT_GT(report.goodput_mbps(), 20 * 0.94 * 0.85);
  EXPECT_LT(report.goodput_mbps(), 20 * 0.95) << "more than the payload share of the link";
  EXPECT_EQ(report.loss(), 0);
  EXPECT_EQ(report.symbol_bytes, 1392);
  EXPECT_GE(report.rtt_ms.Quantile(0.5), 20);
  EXPECT_NEAR(report.rtt_ms.Quantile(0.5) - report.queue_ms.Quantile(0.5), 20, 3);
  EXPECT_GT(report.windows, 4u);
  Duration limited{0};
  for (const Duration d : report.connection.limited) limited += d;
  EXPECT_GT(limited, seconds(3));
  const auto app = static_cast<size_t>(transport::RateLimiter::kApp);
  EXPECT_LT(report.connection.limited[app], milliseconds(100)) << "there is always something to send";
  EXPECT_GE(DeliveredPackets() * 1392, report.bytes);
  EXPECT_EQ(server_->stats().bench_served, 1u);
  EXPECT_GE(server_->stats().bench_bytes, report.bytes);
}

TEST_F(FlowTest, WarmupIsNotMeasured) {
  Up("rate 20mbit delay 10ms", {},
     {.window_bytes = ByteCount(1 << 20), .length = seconds(3), .warmup = milliseconds(2500)});
  RunToTheEnd();
  const FlowReport report = flow_->report();
  EXPECT_LE(report.time, milliseconds(550));
  EXPECT_GE(report.time, milliseconds(300));
  EXPECT_LT(report.bytes, 20'000'000 / 8 * 0.6);
  EXPECT_LT(report.connection.packets_sent, 1200u);
}

TEST_F(FlowTest, EverythingHighArrivesOverALossyLinkAndLossIsWhatTheLinkLost) {
  Up("rate 20mbit delay 10ms loss 5%", {}, {.window_bytes = ByteCount(1 << 20), .length = seconds(4)});
  RunToTheEnd();
  const FlowReport report = flow_->report();
  const wan::LinkCounters& link = network_->Link(0, 1).counters();
  const double lost = static_cast<double>(link.dropped()) / static_cast<double>(link.packets_in);
  EXPECT_NEAR(report.loss(), lost, 0.01);
  EXPECT_GT(report.connection.retransmissions + report.repaired, 100u);
  // The model drops before the bottleneck: what is lost there costs it nothing.
  EXPECT_LT(report.goodput_mbps(), 20 * 1392.0 / 1480);
  EXPECT_GT(report.goodput_mbps(), 5);
}

TEST_F(FlowTest, LowClassIsNeitherRepairedNorSentAgain) {
  Up("rate 20mbit delay 10ms loss 5%", {},
     {.reliability = wire::ReliabilityClass::kLow,
      .window_bytes = ByteCount(256 << 10),
      .length = seconds(2)});
  RunToTheEnd();
  const FlowReport report = flow_->report();
  EXPECT_EQ(report.connection.retransmissions, 0u);
  EXPECT_EQ(report.connection.repairs_sent, 0u);
  EXPECT_GT(report.connection.low_chunks_lost, 0u);
  EXPECT_GT(report.bytes, 1'000'000u);
}

TEST_F(FlowTest, AFixedNumberOfWindowsEndsTheRunWhenTheLastIsClosed) {
  Up("rate 20mbit delay 10ms", {},
     {.window_bytes = ByteCount(1'000'000), .length = seconds(30), .max_windows = 2});
  RunToTheEnd();
  const FlowReport report = flow_->report();
  EXPECT_EQ(report.windows, 2u);
  EXPECT_EQ(report.connection.windows_opened, 2u);
  // 2 MB at 20 Mbit/s take 0.85 s with headers; start-up and the round trips come on top.
  EXPECT_GT(report.window_ms.Quantile(1), 800);
  EXPECT_LT(report.window_ms.Quantile(1), 1600);
}

TEST_F(FlowTest, TimeSeriesCoversTheRun) {
  Up("rate 20mbit delay 10ms", {},
     {.window_bytes = ByteCount(1 << 20), .length = seconds(2), .series_interval = milliseconds(100)});
  RunToTheEnd();
  ASSERT_GE(flow_->series().size(), 18u);
  EXPECT_LE(flow_->series().size(), 20u);
  for (size_t i = 1; i < flow_->series().size(); ++i) {
    EXPECT_GT(flow_->series()[i].at, flow_->series()[i - 1].at);
    EXPECT_GE(flow_->series()[i].bytes, flow_->series()[i - 1].bytes);
  }
}

TEST_F(FlowTest, StopEndsTheRunInOrderWithWhatWasMeasured) {
  Up("rate 20mbit delay 10ms", {}, {.window_bytes = ByteCount(1 << 20), .length = seconds(60)});
  RunFor(seconds(2));
  flow_->Stop(network_->now());
  host_->Pump();
  RunToTheEnd();
  EXPECT_TRUE(flow_->outcome().ok());
  EXPECT_GT(flow_->report().goodput_mbps(), 10);
  EXPECT_EQ(server_->stats().bench_connections, 0u);
}

TEST_F(FlowTest, ServerThatTakesNoneRefusesInWords) {
  with_sink_ = false;
  Up("delay 10ms");
  RunToTheEnd();
  EXPECT_EQ(flow_->outcome().code(), StatusCode::kUnavailable);
  EXPECT_THAT(flow_->outcome().message(), HasSubstr("--max-load-generators 0"));
  EXPECT_FALSE(flow_->welcomed());
}

TEST_F(FlowTest, NobodyThereIsSaidWithinTheConnectTimeout) {
  Up("delay 10ms", {}, {.connect_timeout = seconds(2)});
  server_host_->Kill();
  RunFor(milliseconds(2100));
  EXPECT_EQ(flow_->state(), FlowCore::State::kEnded);
  EXPECT_EQ(flow_->outcome().code(), StatusCode::kUnavailable);
  EXPECT_THAT(flow_->outcome().message(), HasSubstr("no answer from server 10.0.0.2:7700 within 2.0 s"));
}

TEST_F(FlowTest, ServerThatDiesIsNamedAndWhatWasMeasuredStays) {
  FlowOptions flow{.window_bytes = ByteCount(1 << 20), .length = seconds(60)};
  flow.connection.idle_timeout = seconds(1);
  Up("rate 20mbit delay 10ms", {}, flow);
  RunFor(seconds(2));
  server_host_->Kill();
  RunToTheEnd();
  EXPECT_EQ(flow_->outcome().code(), StatusCode::kPeerDead);
  EXPECT_THAT(flow_->outcome().message(), HasSubstr("10.0.0.2:7700 was silent for 1.0 s"));
  EXPECT_GT(flow_->report().bytes, 1'000'000u);
}

TEST_F(FlowTest, ServerThatShutsDownSaysSo) {
  Up("rate 20mbit delay 10ms", {}, {.window_bytes = ByteCount(1 << 20), .length = seconds(60)});
  RunFor(seconds(1));
  server_->Shutdown(network_->now(), Status(StatusCode::kCancelled, "the server is shutting down"));
  server_host_->Pump();
  RunToTheEnd();
  EXPECT_EQ(flow_->outcome().code(), StatusCode::kAborted);
  EXPECT_THAT(flow_->outcome().message(), HasSubstr("the server is shutting down"));
}

TEST(ThinnedSamples, KeepsQuantilesOfALongStreamInBoundedMemory) {
  ThinnedSamples samples;
  EXPECT_EQ(samples.Quantile(0.5), 0);
  for (int i = 0; i < 1'000'000; ++i) samples.Add(i % 1000);
  EXPECT_EQ(samples.count(), 1'000'000u);
  EXPECT_NEAR(samples.Quantile(0.5), 500, 15);
  EXPECT_NEAR(samples.Quantile(0.99), 990, 15);
  EXPECT_NEAR(samples.Quantile(0), 0, 1);
}

}  // namespace
}  // namespace longhaul::load
