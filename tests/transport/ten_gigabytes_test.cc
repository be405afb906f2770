// Ten gigabytes through one connection, in datagrams as large as UDP allows: nothing on the way (numbers,
// byte counters, samplers, pacing, key updates) may care that 2^32 bytes go by. What it does not show: packet
// numbers beyond 2^32, which have 64 bits everywhere as well.
#include <gtest/gtest.h>

#include "tests/transport/bare_pair.h"
#include "tests/transport/fake_security.h"

namespace longhaul::transport {
namespace {

using namespace std::chrono_literals;

TEST(TenGigabytes, GoByWithoutAnybodyNoticing) {
  constexpr uint64_t kGigabytes = LONGHAUL_SLOWNESS > 1 ? 5 : 10;  // the line is at 4.3
  constexpr uint32_t kChunks = 1000;
  constexpr uint16_t kSymbol = 64'992;
  constexpr uint64_t kWindow = uint64_t{kChunks} * kSymbol;
  FakeSecurity::Options fake;
  fake.bodies = false;
  FakeSecurity worker(fake, 1), server(fake, 2);
  BarePair::Options o;
  o.worker_security = &worker;
  o.server_security = &server;
  o.delay = 1ms;
  o.worker.max_datagram = o.server.max_datagram = ByteCount(65'507);
  o.worker.key_update = {.bytes = 1'000'000'000, .spacing = Duration(0)};
  o.server.key_update.spacing = Duration(0);
  // 32 Gbit/s: what is being sent at once stays small.
  o.server.receive_window = ByteCount(8 << 20);
  BarePair pair(o);
  ASSERT_TRUE(
      pair.RunUntil([&] { return pair.BothConnected() && pair.connection->MaxChunkBytes() >= kSymbol; }, 5s));
  const std::vector<uint8_t> body(kSymbol, 0x5a);
  std::vector<Instant> times;
  uint32_t id = 0;
  for (uint64_t gigabyte = 1; gigabyte <= kGigabytes; ++gigabyte) {
    while (id * kWindow < gigabyte * 1'000'000'000) {
      const WindowOptions w{
          .key = {++id, 0}, .high_count = kChunks, .symbol_bytes = kSymbol, .fec_k = 0, .metadata = {}};
      ASSERT_TRUE(pair.connection->OpenWindow(w).ok());
      for (uint32_t i = 0; i < kChunks; ++i) {
        ASSERT_TRUE(pair.connection
                        ->SubmitChunk(w.key, wire::ReliabilityClass::kHigh, ByteSpan(body).first(12),
                                      ByteSpan(body).subspan(12))
                        .ok());
      }
      pair.Poll(true);
      ASSERT_TRUE(pair.RunUntil([&] { return pair.worker.windows_done == static_cast<int>(id); }, 10s)) << id;
    }
    times.push_back(pair.now);
  }
  pair.Run(100ms);  // the last acknowledgements
  const ConnectionStats sent = pair.connection->stats(), got = pair.server.connection->stats();
  EXPECT_EQ(pair.server.chunk_bytes, id * kWindow);
  EXPECT_EQ(got.chunk_bytes_received, id * kWindow);
  EXPECT_GT(sent.bytes_sent, kGigabytes * 1'000'000'000);
  EXPECT_GT(got.bytes_received, kGigabytes * 1'000'000'000);
  EXPECT_GE(sent.key_updates, kGigabytes - 1);
  EXPECT_EQ(got.bad_tag_dropped, 0u);
  EXPECT_EQ(sent.packets_lost, 0u);
  EXPECT_EQ(sent.bytes_in_flight, ByteCount(0));
  // The last gigabyte is as fast as the second.
  const Duration second = times[1] - times[0], last = times.back() - times[times.size() - 2];
  EXPECT_LE(last, second * 3 / 2);
  EXPECT_GT(sent.rate.bandwidth, Bandwidth::Mbps(1000));
}

}  // namespace
}  // namespace longhaul::transport
