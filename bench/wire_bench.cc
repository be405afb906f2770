// The wire's cost per packet: headers and sealing.

#include <benchmark/benchmark.h>

#include <array>
#include <vector>

#include "proto/frames.h"
#include "proto/packet_header.h"
#include "transport/core/security/integrity_tag.h"

namespace longhaul {
namespace {

void BM_EncodeDataPacketHeader(benchmark::State& state) {
  std::array<uint8_t, 64> out{};
  wire::ShortHeader header;
  header.has_data = true;
  header.destination.value = 0x1234567890abcdef;
  wire::DataHeader data;
  data.window_id = 7;
  for (auto _ : state) {
    ByteWriter writer(out);
    ++header.packet_number;
    ++data.index;
    wire::Encode(header, writer);
    wire::Encode(data, writer);
    benchmark::DoNotOptimize(out);
  }
}
BENCHMARK(BM_EncodeDataPacketHeader);

void BM_DecodeDataPacketHeader(benchmark::State& state) {
  std::array<uint8_t, 64> packet{};
  ByteWriter writer(packet);
  wire::ShortHeader header;
  header.has_data = true;
  wire::Encode(header, writer);
  wire::Encode(wire::DataHeader{}, writer);
  for (auto _ : state) {
    ByteReader reader(packet);
    benchmark::DoNotOptimize(wire::DecodeShortHeader(reader));
    benchmark::DoNotOptimize(wire::DecodeDataHeader(reader));
  }
}
BENCHMARK(BM_DecodeDataPacketHeader);

// An ACK of `ranges` ranges: what 2 % loss leaves behind at 64.
void BM_AckFrameRoundTrip(benchmark::State& state) {
  wire::AckFrame ack;
  for (int64_t i = state.range(0); i > 0; --i) {
    const auto base = static_cast<uint64_t>(i) * 50;
    ack.ranges.push_back({base, base + 47});
  }
  std::vector<uint8_t> buffer(1400);
  for (auto _ : state) {
    ByteWriter writer(buffer);
    wire::Encode(ack, writer);
    ByteReader reader(writer.written());
    benchmark::DoNotOptimize(wire::DecodeFrame(reader));
  }
}
BENCHMARK(BM_AckFrameRoundTrip)->Arg(1)->Arg(64);

void BM_SealAndOpen(benchmark::State& state) {
  transport::IntegrityTag tag;
  std::vector<uint8_t> packet(1452, 0x5a);
  const MutableByteSpan all(packet);
  const MutableByteSpan header = all.first(32), body = all.subspan(32, packet.size() - 48),
                        end = all.last(16);
  uint64_t number = 0;
  for (auto _ : state) {
    tag.Seal(number, 0, header, body, end);
    benchmark::DoNotOptimize(tag.Open(number, 0, header, body, end));
    ++number;
  }
  state.SetBytesProcessed(static_cast<int64_t>(state.iterations() * packet.size() * 2));
}
BENCHMARK(BM_SealAndOpen);

}  // namespace
}  // namespace longhaul
