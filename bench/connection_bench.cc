// The whole protocol without sockets: two endpoints in one thread, datagrams handed over in memory.

#include <benchmark/benchmark.h>

#include <memory>
#include <vector>

#include "base/check.h"
#include "bench/security_pair.h"
#include "codec/fec.h"
#include "transport/core/endpoint.h"

namespace longhaul::transport {
namespace {

class Owner final : public ConnectionObserver {
 public:
  void OnConnected(Connection& c) override { connection = &c; }
  void OnClosed(Connection&, const Status&) override { connection = nullptr; }
  void OnControlData(Connection&, ByteSpan) override {}
  Status OnWindowOpened(Connection&, WindowKey, const wire::WindowOpenFrame&) override {
    return Status::Ok();
  }
  ChunkVerdict OnChunk(Connection&, WindowKey, wire::ReliabilityClass, uint32_t, ByteSpan chunk,
                       bool) override {
    bytes += chunk.size();
    return ChunkVerdict::kTaken;
  }
  void OnWindowProgress(Connection& c, WindowKey key) override {
    if (c.incoming(key)->complete) c.CloseWindow(key, wire::CloseReason::kComplete);
  }
  void OnWindowClosed(Connection&, WindowKey, wire::CloseReason, const WindowReceipt&,
                      const WindowTxStats&) override {
    ++windows_closed;
  }
  Connection* connection = nullptr;
  uint64_t bytes = 0;
  int windows_closed = 0;
};

// One window of `chunks` chunks of 1392 bytes, a fifth of them high with FEC, per iteration; no loss, no
// delay. Second argument: SecurityKind.
void BM_ConnectionLoop(benchmark::State& state) {
  const auto chunks = static_cast<uint32_t>(state.range(0));
  auto coder = codec::ErasureCodeLibrary::Create();
  LH_CHECK(coder.ok());
  Owner worker, server;
  const bench::SecurityPair security = bench::MakeSecurityPair(state.range(1));
  state.SetLabel(security.name);
  EndpointOptions options;
  options.security = security.client.get();
  options.coder = coder->get();
  options.connection.rate.initial = Bandwidth::Mbps(10'000);
  options.connection.rate.floor = Bandwidth::Mbps(10'000);
  Endpoint client(options, Random(1));
  options.security = security.server.get();
  options.accepts = true;
  options.on_accept = [&](Connection&) { return &server; };
  Endpoint listener(options, Random(2));
  const Address a = Address::V4(10, 0, 0, 1, 1), b = Address::V4(10, 0, 0, 2, 2);
  std::vector<uint8_t> buffer(65'535);
  Instant now;
  const auto pump = [&] {
    now += std::chrono::microseconds(50);
    client.HandleTimeout(now);
    listener.HandleTimeout(now);
    const auto move = [&](Endpoint& from, Endpoint& to, const Address& source) {
      while (auto t = from.PollTransmit(now, buffer)) {
        for (size_t at = 0; at < t->size; at += t->segment_bytes) {
          to.HandleDatagram(
              now, source, MutableByteSpan(buffer).subspan(at, std::min(t->segment_bytes, t->size - at)), {});
        }
      }
    };
    move(client, listener, a);
    move(listener, client, b);
  };
  client.Connect(now, b, &worker);
  while (worker.connection == nullptr || server.connection == nullptr) pump();
  const std::vector<uint8_t> body(1380, 7);
  const std::vector<uint8_t> header(12, 1);
  uint32_t id = 0;
  for (auto _ : state) {
    WindowOptions w;
    w.key = {++id, 0};
    w.high_count = chunks / 5;
    w.low_count = chunks - w.high_count;
    w.symbol_bytes = 1392;
    LH_CHECK(worker.connection->OpenWindow(w).ok());
    for (uint32_t i = 0; i < chunks; ++i) {
      const auto reliability =
          i < w.high_count ? wire::ReliabilityClass::kHigh : wire::ReliabilityClass::kLow;
      LH_CHECK(worker.connection->SubmitChunk(w.key, reliability, header, body).ok());
    }
    const int before = worker.windows_closed;
    while (worker.windows_closed == before) pump();
  }
  state.SetBytesProcessed(static_cast<int64_t>(server.bytes));
  state.counters["packets_per_second"] =
      benchmark::Counter(static_cast<double>(state.iterations()) * chunks, benchmark::Counter::kIsRate);
}
BENCHMARK(BM_ConnectionLoop)
    ->ArgNames({"chunks", "security"})
    ->Args({300, bench::kIntegrityTag})
    ->Args({3000, bench::kIntegrityTag})
    ->Args({3000, bench::kAes128Gcm})
    ->Args({3000, bench::kAes256Gcm})
    ->Args({3000, bench::kChaCha20Poly1305});

}  // namespace
}  // namespace longhaul::transport
