// Two endpoints in two threads, with real sockets between them:
//
//   worker (this thread) ----- [fault injector] ----- 127.0.0.1 ----- server (its own thread)

#include <gtest/gtest.h>

#include <future>
#include <map>
#include <set>
#include <thread>

#include "socket_test_util.h"
#include "tests/sim/reference_coder.h"
#include "tests/transport/application.h"
#include "transport/core/endpoint/endpoint.h"
#include "transport/udp/event_loop.h"

namespace longhaul::udp {
namespace {

using namespace std::chrono_literals;
using transport::ChunkBitmap;
using transport::Connection;
using transport::EndpointOptions;
using transport::PumpedEndpoint;
using transport::WindowKey;
using wire::ReliabilityClass;

constexpr uint32_t kHigh = 200;
constexpr uint32_t kLow = 800;
constexpr uint16_t kChunkBytes = 1392;
constexpr WindowKey kWindow{7, 0};

std::vector<uint8_t> ChunkBytes(ReliabilityClass reliability, uint32_t sequence) {
  Random random(sequence * 2 + (reliability == ReliabilityClass::kHigh ? 1 : 0));
  std::vector<uint8_t> bytes(kChunkBytes);
  for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(random.Next());
  return bytes;
}

const std::string kHello(20'000, 'h');  // longer than a datagram

// Takes a window and sends the control data back.
class Server : public transport::Application {
 public:
  void OnClosed(Connection&, const Status& why) override { closed.set_value(why); }
  void OnControlData(Connection& connection, ByteSpan bytes) override {
    control_bytes += bytes.size();
    EXPECT_TRUE(connection.SendControl(bytes).ok());
  }
  Status OnWindowOpened(Connection&, WindowKey key, const wire::WindowOpenFrame&) override {
    EXPECT_EQ(key, kWindow);
    return Status::Ok();
  }
  transport::ChunkVerdict OnChunk(Connection&, const transport::event::Chunk& chunk) override {
    const auto expected = ChunkBytes(chunk.reliability, chunk.sequence);
    EXPECT_TRUE(std::equal(chunk.bytes.begin(), chunk.bytes.end(), expected.begin(), expected.end()));
    EXPECT_TRUE(chunks[chunk.reliability].insert(chunk.sequence).second) << "twice: " << chunk.sequence;
    return transport::ChunkVerdict::kTaken;
  }
  void OnWindowState(Connection& connection, const transport::event::WindowState& state) override {
    if (state.window.complete) {
      connection.CloseWindow(state.key, wire::CloseReason::kComplete);
    } else if (state.window.high_complete && state.window.sender_finished) {
      connection.CloseWindow(state.key, wire::CloseReason::kSoft);
    }
  }

  std::promise<Status> closed;
  size_t control_bytes = 0;
  std::map<ReliabilityClass, std::set<uint32_t>> chunks;
};

// Sends control data and one window; closes when both are answered, and is done when that is over.
class Worker : public transport::Application {
 public:
  explicit Worker(std::function<void()> done) : done_(std::move(done)) {
    for (uint32_t i = 0; i < kHigh; ++i) high_.push_back(ChunkBytes(ReliabilityClass::kHigh, i));
    for (uint32_t i = 0; i < kLow; ++i) low_.push_back(ChunkBytes(ReliabilityClass::kLow, i));
  }
  void OnConnected(Connection& connection) override {
    EXPECT_TRUE(connection.SendControl(ToBytes(kHello)).ok());
    transport::WindowOptions options;
    options.key = kWindow;
    options.high_count = kHigh;
    options.low_count = kLow;
    options.symbol_bytes = kChunkBytes;
    const Status opened = connection.OpenWindow(options);
    EXPECT_TRUE(opened.ok()) << opened.ToString();
    for (const auto& chunk : high_) Submit(connection, ReliabilityClass::kHigh, chunk);
    for (const auto& chunk : low_) Submit(connection, ReliabilityClass::kLow, chunk);
  }
  void OnClosed(Connection&, const Status& why) override {
    close_status = why;
    done_();
  }
  void OnControlData(Connection& connection, ByteSpan bytes) override {
    answer.append(bytes.begin(), bytes.end());
    CheckDone(connection);
  }
  Status OnWindowOpened(Connection&, WindowKey, const wire::WindowOpenFrame&) override {
    return Status(StatusCode::kUnavailable, "none wanted");
  }
  void OnWindowClosed(Connection& connection, const transport::event::WindowClosed& window) override {
    const auto& [key, reason, receipt_at, stats] = window;
    const transport::WindowReceipt& receipt = *receipt_at;
    EXPECT_EQ(key, kWindow);
    EXPECT_TRUE(receipt.high_complete);
    low_delivered = receipt.low.count();
    ++windows_closed;
    CheckDone(connection);
  }

  std::string answer;
  uint32_t low_delivered = 0;
  int windows_closed = 0;
  Status close_status;

 private:
  static ByteSpan ToBytes(const std::string& text) {
    return {reinterpret_cast<const uint8_t*>(text.data()), text.size()};
  }
  static void Submit(Connection& connection, ReliabilityClass reliability, ByteSpan chunk) {
    const Status status = connection.SubmitChunk(kWindow, reliability, chunk.first(12), chunk.subspan(12));
    EXPECT_TRUE(status.ok()) << status.ToString();
  }
  void CheckDone(Connection& connection) {
    if (windows_closed == 0 || answer.size() < kHello.size()) return;
    connection.Close(Status::Ok());
  }

  std::function<void()> done_;
  std::vector<std::vector<uint8_t>> high_, low_;
};

// One exchange; `faults` stand before the worker's socket.
void Exchange(FaultInjector* faults, uint32_t min_low_delivered) {
  codec::ReferenceCoder server_coder, worker_coder;
  Server server;
  EndpointOptions options;
  options.connection.idle_timeout = 3s;
  options.accepts = true;
  options.coder = &server_coder;
  PumpedEndpoint server_endpoint(options, Random(1), [&](Connection&) { return &server; });
  UdpSocket server_socket = OpenOrDie();
  const Address address = server_socket.local_address();
  auto server_loop = EventLoop::Create(&server_endpoint, std::move(server_socket));
  ASSERT_TRUE(server_loop.ok());

  EventLoop* stop = nullptr;
  Worker worker([&] { stop->Stop(); });
  options.accepts = false;
  options.coder = &worker_coder;
  PumpedEndpoint worker_endpoint(options, Random(2));
  auto worker_loop = EventLoop::Create(&worker_endpoint, OpenOrDie(), faults);
  ASSERT_TRUE(worker_loop.ok());
  stop = worker_loop->get();

  std::thread thread([&] { (*server_loop)->Run(); });
  std::promise<void> over;
  std::thread watchdog([&] {
    if (over.get_future().wait_for(30s) == std::future_status::ready) return;
    ADD_FAILURE() << "the exchange took more than thirty seconds";
    stop->Stop();
  });
  worker_endpoint.Connect(Now(), address, &worker);
  (*worker_loop)->Run();
  over.set_value();
  watchdog.join();
  auto closed = server.closed.get_future();
  EXPECT_EQ(closed.wait_for(10s), std::future_status::ready) << "the server never heard the end";
  (*server_loop)->Stop();
  thread.join();

  EXPECT_TRUE(worker.close_status.ok()) << worker.close_status.ToString();
  EXPECT_EQ(worker.answer, kHello);
  EXPECT_EQ(worker.windows_closed, 1);
  EXPECT_EQ(server.control_bytes, kHello.size());
  EXPECT_EQ(server.chunks[ReliabilityClass::kHigh].size(), kHigh);
  EXPECT_GE(server.chunks[ReliabilityClass::kLow].size(), min_low_delivered);
  EXPECT_EQ(server.chunks[ReliabilityClass::kLow].size(), worker.low_delivered);
}

TEST(EndpointLoopback, WindowAndControlDataArriveWhole) { Exchange(nullptr, kLow * 99 / 100); }

TEST(EndpointLoopback, HighChunksAndControlDataSurviveFivePercentLoss) {
  FaultInjector faults(*ParseFaults("drop=0.05,delay=5ms,seed=3"));
  Exchange(&faults, kLow * 85 / 100);
  const wan::LinkCounters& out = faults.outgoing()->counters();
  EXPECT_GT(out.dropped_loss, out.packets_in / 40) << "the loss really happened";
}

TEST(EndpointLoopback, DamagedDuplicatedAndReorderedDatagramsDoNoHarm) {
  FaultInjector faults(
      *ParseFaults("drop=0.02,corrupt=0.02,dup=0.02,reorder=0.02,delay=5ms,jitter=1ms,seed=4"));
  Exchange(&faults, kLow * 85 / 100);
  EXPECT_GT(faults.outgoing()->counters().corrupted, 0u);
}

}  // namespace
}  // namespace longhaul::udp
