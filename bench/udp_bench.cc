// The whole protocol over real sockets on the loopback: a worker's thread sends windows to a server's thread.
// Not measured: how fast a network card is, what encryption costs, or what happens at a distance.

#include <benchmark/benchmark.h>

#include <cstdio>
#include <future>
#include <thread>

#include "base/check.h"
#include "bench/security_pair.h"
#include "codec/fec/fec.h"
#include "tests/transport/application.h"
#include "transport/udp/clock.h"
#include "transport/udp/event_loop.h"

namespace longhaul::udp {
namespace {

using transport::ChunkBitmap;
using transport::Connection;
using transport::EndpointOptions;
using transport::PumpedEndpoint;
using transport::Transmit;
using transport::WindowKey;
using wire::ReliabilityClass;

constexpr Address kNoAddress{};

UdpSocket OpenLoopback(bool offload) {
  SocketOptions options;
  options.segmentation_offload = offload;
  Result<UdpSocket> socket = UdpSocket::Open(Address::V4(127, 0, 0, 1, 0), options);
  LH_CHECK(socket.ok());
  return std::move(socket).value();
}

std::unique_ptr<EventLoop> MakeLoop(transport::DatagramCore* core, UdpSocket socket) {
  auto loop = EventLoop::Create(core, std::move(socket));
  LH_CHECK(loop.ok());
  return std::move(loop).value();
}

// Sends batches without a protocol, and waits for one datagram back per `kBatchesInFlight / 2` of them.
constexpr uint64_t kSegment = 1452;
constexpr uint64_t kPerBatch = 45;
constexpr uint64_t kReportEvery = kPerBatch * 16;

class Flood : public transport::DatagramCore {
 public:
  explicit Flood(Address to) : to_(to) {}
  void HandleDatagram(Instant, const Address& from, MutableByteSpan, const transport::ReceiveInfo&) override {
    ++received;
    if (to_ == kNoAddress && received % kReportEvery == 0) report_to_ = from;
    if (to_ != kNoAddress) in_flight_ -= std::min(in_flight_, kReportEvery);
  }
  void HandleTimeout(Instant now) override {
    // A drop at the receiver's buffer ate a report: go on.
    in_flight_ = 0;
    deadline_ = now + std::chrono::milliseconds(20);
  }
  void HandleSendRefused(Instant, const Address&, size_t) override { LH_CHECK(false); }
  std::optional<Transmit> PollTransmit(Instant now, MutableByteSpan) override {
    if (report_to_) return Transmit{*std::exchange(report_to_, std::nullopt), 16, 16};
    if (to_ == kNoAddress || in_flight_ >= 2 * kReportEvery) return std::nullopt;
    deadline_ = now + std::chrono::milliseconds(20);
    in_flight_ += kPerBatch;
    return Transmit{to_, kPerBatch * kSegment, kSegment};
  }
  Instant NextTimeout() const override { return deadline_; }

  std::atomic<uint64_t> received{0};

 private:
  Address to_;
  uint64_t in_flight_ = 0;
  std::optional<Address> report_to_;
  Instant deadline_ = Instant::Infinite();
};

// Sockets and event loops alone: the ceiling of what follows. Argument: segmentation offload.
void BM_SocketPair(benchmark::State& state) {
  const bool offload = state.range(0) != 0;
  UdpSocket sink_socket = OpenLoopback(offload);
  Flood source(sink_socket.local_address()), sink(kNoAddress);
  const auto sink_loop = MakeLoop(&sink, std::move(sink_socket));
  const auto source_loop = MakeLoop(&source, OpenLoopback(offload));
  std::thread sink_thread([&] { sink_loop->Run(); });
  std::thread source_thread([&] { source_loop->Run(); });
  const uint64_t first = sink.received;
  for (auto _ : state) {
    const uint64_t target = sink.received + 20'000;
    while (sink.received < target) std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
  state.SetBytesProcessed(static_cast<int64_t>((sink.received - first) * kSegment));
  source_loop->Stop();
  source_thread.join();
  sink_loop->Stop();
  sink_thread.join();
}
BENCHMARK(BM_SocketPair)->Arg(0)->Arg(1)->UseRealTime()->Unit(benchmark::kMillisecond);

class ServerOwner final : public transport::Application {
 public:
  transport::ChunkVerdict OnChunk(Connection&, const transport::event::Chunk& chunk) override {
    bytes += chunk.bytes.size();
    return transport::ChunkVerdict::kTaken;
  }
  void OnWindowState(Connection& connection, const transport::event::WindowState& state) override {
    if (state.window.complete)
      connection.CloseWindow(state.key, wire::CloseReason::kComplete);
    else if (state.window.high_complete && state.window.sender_finished)
      connection.CloseWindow(state.key, wire::CloseReason::kSoft);
  }
  std::atomic<uint64_t> bytes{0};
};

class WorkerOwner final : public transport::Application {
 public:
  void OnConnected(Connection& c) override {
    connection = &c;
    connected.set_value();
  }
  void OnClosed(Connection&, const Status& why) override {
    std::fprintf(stderr, "connection closed: %s\n", why.ToString().c_str());
    connection = nullptr;
  }
  void OnWindowClosed(Connection&, const transport::event::WindowClosed& closed) override {
    lost += closed.stats.lost;
    window_closed->set_value();
  }
  Connection* connection = nullptr;
  std::promise<void> connected;
  std::promise<void>* window_closed = nullptr;
  uint64_t lost = 0;
};

// One window per iteration. Arguments: chunks of 1392 bytes, percent of them in the high class, SecurityKind.
void BM_UdpConnectionLoop(benchmark::State& state) {
  const auto chunks = static_cast<uint32_t>(state.range(0));
  const auto high = static_cast<uint32_t>(chunks * state.range(1) / 100);
  auto server_coder = codec::ErasureCodeLibrary::Create();
  auto worker_coder = codec::ErasureCodeLibrary::Create();
  LH_CHECK(server_coder.ok() && worker_coder.ok());
  ServerOwner server;
  WorkerOwner worker;
  const bench::SecurityPair security = bench::MakeSecurityPair(state.range(2));
  state.SetLabel(security.name);
  EndpointOptions options;
  options.security = security.server.get();
  options.coder = server_coder->get();
  options.accepts = true;
  PumpedEndpoint server_endpoint(options, Random(1), [&](Connection&) { return &server; });
  options.coder = worker_coder->get();
  options.security = security.client.get();
  options.accepts = false;
  PumpedEndpoint worker_endpoint(options, Random(2));
  UdpSocket server_socket = OpenLoopback(true);
  const Address address = server_socket.local_address();
  const auto server_loop = MakeLoop(&server_endpoint, std::move(server_socket));
  const auto worker_loop = MakeLoop(&worker_endpoint, OpenLoopback(true));
  worker_endpoint.Connect(Now(), address, &worker);
  std::thread server_thread([&] { server_loop->Run(); });
  std::thread worker_thread([&] { worker_loop->Run(); });
  worker.connected.get_future().wait();

  const std::vector<uint8_t> header(12, 1), body(1380, 7);
  uint32_t id = 0;
  const uint64_t first = server.bytes;
  for (auto _ : state) {
    std::promise<void> closed;
    const Status posted = worker_loop->Post([&] {
      transport::WindowOptions window;
      window.key = {++id, 0};
      window.high_count = high;
      window.low_count = chunks - high;
      window.symbol_bytes = 1392;
      worker.window_closed = &closed;
      LH_CHECK(worker.connection->OpenWindow(window).ok());
      for (uint32_t i = 0; i < chunks; ++i) {
        const auto reliability = i < high ? ReliabilityClass::kHigh : ReliabilityClass::kLow;
        LH_CHECK(worker.connection->SubmitChunk(window.key, reliability, header, body).ok());
      }
    });
    LH_CHECK(posted.ok());
    closed.get_future().wait();
  }
  state.SetBytesProcessed(static_cast<int64_t>(server.bytes - first));
  worker_loop->Stop();
  worker_thread.join();
  server_loop->Stop();
  server_thread.join();
  state.counters["lost"] = static_cast<double>(worker.lost);
}
BENCHMARK(BM_UdpConnectionLoop)
    ->ArgNames({"chunks", "high", "security"})
    ->Args({720, 0, bench::kIntegrityTag})
    ->Args({12'000, 0, bench::kIntegrityTag})
    ->Args({12'000, 0, bench::kAes128Gcm})
    ->Args({12'000, 20, bench::kIntegrityTag})
    ->Args({12'000, 20, bench::kAes128Gcm})
    ->Args({12'000, 100, bench::kIntegrityTag})
    ->Args({12'000, 100, bench::kAes128Gcm})
    ->UseRealTime()
    ->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace longhaul::udp
