// The whole protocol without sockets: two endpoints in one thread, datagrams handed over in memory.

#include <benchmark/benchmark.h>

#include <memory>
#include <vector>

#include "base/check.h"
#include "bench/security_pair.h"
#include "codec/fec/fec.h"
#include "transport/core/endpoint/endpoint.h"

namespace longhaul::transport {
namespace {

struct Owner {
  // Takes everything.
  void Poll(Endpoint& endpoint) {
    while (const auto happened = endpoint.PollEvent()) {
      if (std::holds_alternative<event::Connected>(happened->event)) connection = happened->connection;
      if (std::holds_alternative<event::Closed>(happened->event)) connection = nullptr;
      if (std::holds_alternative<event::WindowClosed>(happened->event)) ++windows_closed;
      if (const auto* chunk = std::get_if<event::Chunk>(&happened->event)) bytes += chunk->bytes.size();
      const auto* state = std::get_if<event::WindowState>(&happened->event);
      if (state != nullptr && state->window.complete) {
        happened->connection->CloseWindow(state->key, wire::CloseReason::kComplete);
      }
    }
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
  Endpoint listener(options, Random(2));
  const Address a = Address::V4(10, 0, 0, 1, 1), b = Address::V4(10, 0, 0, 2, 2);
  std::vector<uint8_t> buffer(65'535);
  Instant now;
  const auto pump = [&] {
    now += std::chrono::microseconds(50);
    client.HandleTimeout(now);
    worker.Poll(client);
    listener.HandleTimeout(now);
    server.Poll(listener);
    const auto move = [&](Endpoint& from, Endpoint& to, Owner& owner, const Address& source) {
      while (auto t = from.PollTransmit(now, buffer)) {
        for (size_t at = 0; at < t->size; at += t->segment_bytes) {
          to.HandleDatagram(
              now, source, MutableByteSpan(buffer).subspan(at, std::min(t->segment_bytes, t->size - at)), {});
          owner.Poll(to);
        }
      }
    };
    move(client, listener, server, a);
    move(listener, client, worker, b);
  };
  client.Connect(now, b);
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
