#include "tests/golden/samples.h"

#include <sstream>
#include <type_traits>

#include "transport/core/security/integrity_tag.h"

namespace longhaul::wire {
namespace {

// Byte strings that outlive every sample: 0, 1, 2, ...
ByteSpan Counting(size_t bytes) {
  static const std::vector<uint8_t> table = [] {
    std::vector<uint8_t> t(1024);
    for (size_t i = 0; i < t.size(); ++i) t[i] = static_cast<uint8_t>(i);
    return t;
  }();
  return ByteSpan(table).first(bytes);
}

ByteSpan Bitmap11() {  // 11 chunks; 3 and 10 are missing
  static const std::vector<uint8_t> bits = {0xf7, 0x03};
  return bits;
}

AckFrame ManyRanges() {
  AckFrame ack{.ranges = {},
               .ack_delay_us = 70'000,
               .ecn_ect0 = 1u << 20,
               .ecn_ce = 1,
               .host_drops = uint64_t{1} << 32};
  for (uint64_t i = 0; i < kMaxAckRanges; ++i) {
    const PacketNumber largest = kMaxPacketNumber - 100'000 * i;
    ack.ranges.push_back({largest - i * i, largest});
  }
  return ack;
}

std::vector<GoldenSample> MakeSamples() {
  std::vector<GoldenSample> s;
  s.push_back({"long_header/init", LongHeader{.type = LongType::kInit,
                                              .version = 4,
                                              .destination = {0},
                                              .source = {0x0001a1b2c3d4e5f6},
                                              .packet_number = 0}});
  s.push_back({"long_header/accept", LongHeader{.type = LongType::kAccept,
                                                .version = 4,
                                                .destination = {0x0001a1b2c3d4e5f6},
                                                .source = {0xfffe000000000001},
                                                .packet_number = kMaxPacketNumber}});
  s.push_back({"long_header/refuse", LongHeader{.type = LongType::kRefuse,
                                                .version = 4,
                                                .destination = {0x0001a1b2c3d4e5f6},
                                                .source = {0},
                                                .packet_number = 0}});
  s.push_back({"long_header/retry", LongHeader{.type = LongType::kRetry,
                                               .version = 4,
                                               .destination = {0x0001a1b2c3d4e5f6},
                                               .source = {0x7777000011112222},
                                               .packet_number = 0x3fffffff}});
  s.push_back({"long_header/other_version", LongHeader{.type = LongType::kInit,
                                                       .version = 0xbeef,
                                                       .destination = {0},
                                                       .source = {7},
                                                       .packet_number = 1}});
  s.push_back({"short_header/frames", ShortHeader{.destination = {0x1122334455667788}, .packet_number = 1}});
  s.push_back({"short_header/data", ShortHeader{.has_data = true,
                                                .key_phase = true,
                                                .path = 2,
                                                .destination = {0x1122334455667788},
                                                .packet_number = 0xa1a2a3a4a5a6}});
  s.push_back({"data_header/high", DataHeader{.window_id = 1, .index = 0}});
  s.push_back({"data_header/low_last_again", DataHeader{.window_id = 0xfffffffe,
                                                        .index = 0x01020304,
                                                        .reliability = ReliabilityClass::kLow,
                                                        .repair = false,
                                                        .last_of_window = true,
                                                        .retransmission = true,
                                                        .generation = 255,
                                                        .frames_length = 0x0506,
                                                        .timestamp_us = 0xf0e0d0c0}});
  s.push_back({"data_header/repair", DataHeader{.window_id = 9,
                                                .index = DataHeader::RepairIndex(0xabcd, 3),
                                                .reliability = ReliabilityClass::kHigh,
                                                .repair = true,
                                                .last_of_window = false,
                                                .retransmission = false,
                                                .generation = 1,
                                                .frames_length = 0,
                                                .timestamp_us = 123'456}});
  s.push_back({"data_header/part", DataHeader{.window_id = 70'000,
                                              .index = 0x00010002,
                                              .last_of_window = true,
                                              .retransmission = true,
                                              .part = true,
                                              .generation = 3,
                                              .timestamp_us = 7}});
  const auto frame = [&s](const std::string& name, Frame f) { s.push_back({"frame/" + name, std::move(f)}); };
  frame("padding", PaddingFrame{5});
  frame("ping", PingFrame{});
  frame("ack_one",
        AckFrame{.ranges = {{0, 0}}, .ack_delay_us = 0, .ecn_ect0 = 0, .ecn_ce = 0, .host_drops = 0});
  frame("ack_gaps", AckFrame{.ranges = {{995, 1000}, {900, 993}, {0, 63}},
                             .ack_delay_us = 4999,
                             .ecn_ect0 = 900,
                             .ecn_ce = 12,
                             .host_drops = 345});
  frame("ack_full", ManyRanges());
  frame("control_first", ControlFrame{.offset = 0, .data = Counting(10)});
  frame("control_empty", ControlFrame{.offset = 16384, .data = {}});
  frame("control_far", ControlFrame{.offset = kMaxVarint - 300, .data = Counting(300)});
  frame("window_open", WindowOpenFrame{.window_id = 70'000,
                                       .generation = 2,
                                       .high_count = 200,
                                       .low_count = 800,
                                       .symbol_bytes = 1408,
                                       .fec_k = 20,
                                       .fec_depth = 4,
                                       .metadata = Counting(40)});
  frame("window_open_largest", WindowOpenFrame{.window_id = 0xffffffff,
                                               .generation = 255,
                                               .high_count = kMaxWindowChunks,
                                               .low_count = 0,
                                               .symbol_bytes = 0xffff,
                                               .fec_k = 24,
                                               .fec_depth = 255,
                                               .metadata = Counting(kMaxWindowMetadataBytes)});
  frame("window_open_no_fec", WindowOpenFrame{.window_id = 0,
                                              .generation = 0,
                                              .high_count = 0,
                                              .low_count = 1,
                                              .symbol_bytes = 16,
                                              .fec_k = 0,
                                              .fec_depth = 1,
                                              .metadata = {}});
  frame("window_status", WindowStatusFrame{7, 1, 200, 300, false});
  frame("window_status_finished", WindowStatusFrame{7, 1, 200, 800, true});
  frame("window_close", WindowCloseFrame{.window_id = 7,
                                         .generation = 1,
                                         .reason = CloseReason::kRatio,
                                         .high_complete = true,
                                         .bits = 11,
                                         .first = 0,
                                         .bitmap = Bitmap11()});
  frame("window_close_segment", WindowCloseFrame{.window_id = 7,
                                                 .generation = 0,
                                                 .reason = CloseReason::kHard,
                                                 .high_complete = false,
                                                 .bits = 100'000,
                                                 .first = 8192,
                                                 .bitmap = Counting(kMaxCloseBitmapBytes)});
  frame("window_close_nothing", WindowCloseFrame{.window_id = 7,
                                                 .generation = 0,
                                                 .reason = CloseReason::kExcluded,
                                                 .high_complete = false,
                                                 .bits = 1000,
                                                 .first = 0,
                                                 .bitmap = {}});
  frame("window_close_complete", WindowCloseFrame{.window_id = 7,
                                                  .generation = 0,
                                                  .reason = CloseReason::kComplete,
                                                  .high_complete = true,
                                                  .bits = 0,
                                                  .first = 0,
                                                  .bitmap = {}});
  frame("window_nack", WindowNackFrame{.window_id = 7, .generation = 1, .first = 16, .bitmap = Bitmap11()});
  frame("window_nack_last", WindowNackFrame{.window_id = 70'000,
                                            .generation = 255,
                                            .first = kMaxWindowChunks - 8 * kMaxNackBitmapBytes,
                                            .bitmap = Counting(kMaxNackBitmapBytes)});
  frame("grant", GrantFrame{.receive_window_bytes = 64u << 20, .rate_bytes_per_second = 25'000'000});
  frame("grant_unbounded", GrantFrame{.receive_window_bytes = kMaxVarint, .rate_bytes_per_second = 0});
  frame("close", CloseFrame{.code = StatusCode::kVersionMismatch, .reason = "version 3, not 2"});
  frame("close_text",
        CloseFrame{.code = StatusCode::kSettingsMismatch, .reason = "tensor \"w\u00e4rme\" \u2260"});
  frame("close_ok", CloseFrame{.code = StatusCode::kOk, .reason = ""});
  frame("transport_parameters", TransportParametersFrame{.max_datagram_bytes = 1452,
                                                         .idle_timeout_ms = 10'000,
                                                         .receive_window_bytes = 64u << 20,
                                                         .max_open_windows = 64,
                                                         .max_window_bytes = 1u << 30});
  frame("crypto_first", CryptoFrame{.offset = 0, .received = 0, .data = Counting(70)});
  frame("crypto_nothing_new", CryptoFrame{.offset = 300, .received = 16384, .data = {}});
  frame("crypto_end",
        CryptoFrame{.offset = kMaxHandshakeBytes - 3, .received = kMaxHandshakeBytes, .data = Counting(3)});
  KeyUpdateFrame update{.phase = 1, .answer = false};
  for (size_t i = 0; i < update.share.size(); ++i) update.share[i] = static_cast<uint8_t>(i);
  frame("key_update_offer", update);
  frame("key_update_answer", KeyUpdateFrame{.phase = 70'000, .answer = true, .share = update.share});
  frame("new_cid", NewCidFrame{.reset_token = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 255}});
  frame("path_challenge", PathChallengeFrame{.data = 0x0102030405060708});
  frame("path_response", PathResponseFrame{.data = 0xfffefdfcfbfaf9f8});
  s.push_back(
      {"datagram/init",
       GoldenDatagram{.header = LongHeader{.version = 4, .source = {0x0001a1b2c3d4e5f6}},
                      .frames = {TransportParametersFrame{.max_datagram_bytes = 1200}, PaddingFrame{30}}}});
  s.push_back({"datagram/init_with_cookie",
               GoldenDatagram{.header = LongHeader{.version = 4, .source = {7}, .packet_number = 1},
                              .cookie = Counting(16),
                              .frames = {CryptoFrame{.data = Counting(5)}, PaddingFrame{3}}}});
  s.push_back({"datagram/retry", GoldenDatagram{.header = LongHeader{.type = LongType::kRetry,
                                                                     .version = 4,
                                                                     .destination = {7},
                                                                     .source = {0xffff000000000009},
                                                                     .packet_number = 5},
                                                .cookie = Counting(16)}});
  s.push_back(
      {"datagram/accept",
       GoldenDatagram{.header = LongHeader{.type = LongType::kAccept,
                                           .version = 4,
                                           .destination = {7},
                                           .source = {8},
                                           .packet_number = 2},
                      .frames = {CryptoFrame{.offset = 1300, .received = 312, .data = Counting(40)}}}});
  s.push_back(
      {"datagram/refuse",
       GoldenDatagram{.header = LongHeader{.type = LongType::kRefuse, .version = 4, .destination = {7}},
                      .frames = {CloseFrame{StatusCode::kVersionMismatch, "another protocol version"}}}});
  s.push_back(
      {"datagram/frames", GoldenDatagram{.header = ShortHeader{.destination = {7}, .packet_number = 70'000},
                                         .frames = {AckFrame{.ranges = {{3, 9}}}, PingFrame{}}}});
  s.push_back({"datagram/data",
               GoldenDatagram{.header = ShortHeader{.has_data = true, .destination = {7}, .packet_number = 1},
                              .data = DataHeader{.window_id = 5, .index = 2},
                              .chunk = Counting(64)}});
  // Frames come before the chunk.
  s.push_back({"datagram/data_and_frames",
               GoldenDatagram{.header = ShortHeader{.has_data = true, .destination = {7}, .packet_number = 2},
                              .data = DataHeader{.window_id = 5,
                                                 .index = 3,
                                                 .reliability = ReliabilityClass::kLow,
                                                 .frames_length = 3},
                              .frames = {GrantFrame{9, 8}},
                              .chunk = Counting(16)}});
  // The end of a chunk of 1392 bytes that was cut.
  s.push_back(
      {"datagram/part",
       GoldenDatagram{.header = ShortHeader{.has_data = true, .destination = {7}, .packet_number = 3},
                      .data = DataHeader{.window_id = 5, .index = 4, .part = true, .frames_length = 1},
                      .frames = {PingFrame{}},
                      .part = PartHeader{.offset = 1304, .total = 1392},
                      .chunk = Counting(88)}});
  const std::vector<float> few = {1.0f, -2.0f, 0.5f};
  std::vector<float> sparse(37, 0.0f);
  sparse[0] = 3.5f;
  sparse[31] = -1.0f;
  sparse[36] = 0.25f;
  s.push_back({"chunk/float32", GoldenChunk{.index = 0x01020304, .log_energy = 130, .values = few}});
  s.push_back({"chunk/float32_sparse", GoldenChunk{.index = 1, .log_energy = 135, .values = sparse}});
  s.push_back({"chunk/bfloat16", GoldenChunk{2, DType::kBFloat16, 130, few}});
  s.push_back({"chunk/bfloat16_sparse", GoldenChunk{3, DType::kBFloat16, 135, sparse}});
  s.push_back({"chunk/float16", GoldenChunk{4, DType::kFloat16, 0, {0x1p-24f, -0x1p-15f, 65504.0f}}});
  s.push_back({"chunk/float16_sparse", GoldenChunk{5, DType::kFloat16, 135, sparse}});
  s.push_back({"chunk/int8", GoldenChunk{6, DType::kInt8, 200, {254.0f, -254.0f, 2.0f, 0.0f}}});
  s.push_back({"chunk/int4", GoldenChunk{8, DType::kInt4, 200, {14.0f, -14.0f, 2.0f, 0.0f, -6.0f}}});
  s.push_back({"chunk/int2", GoldenChunk{9, DType::kInt2, 200, {9.0f, -9.0f, 1.125f, -1.125f, 9.0f}}});
  std::vector<float> many(32, 0.0f);
  for (size_t i = 1; i < many.size(); i += 2) many[i] = 254.0f;
  s.push_back({"chunk/int8_bitmap", GoldenChunk{10, DType::kInt8, 201, many}});
  for (float& v : sparse) v *= 0x1p-2f * 127;
  s.push_back(
      {"chunk/int8_sparse", GoldenChunk{7, DType::kInt8, 190, {sparse.begin(), sparse.begin() + 30}}});
  sparse[0] = 9.0f;
  sparse[31] = -9.0f;
  sparse[36] = -1.125f;
  s.push_back({"chunk/int2_sparse", GoldenChunk{11, DType::kInt2, 190, sparse}});
  return s;
}

std::vector<uint8_t> EncodeChunk(const GoldenChunk& c) {
  std::vector<uint8_t> body;
  const auto header =
      codec::EncodeChunk(c.index, c.values, {.dtype = c.dtype, .log_energy = c.log_energy}, &body);
  std::vector<uint8_t> bytes(header.size() + body.size());
  std::copy(body.begin(), body.end(), std::copy(header.begin(), header.end(), bytes.begin()));
  return bytes;
}

std::vector<uint8_t> EncodeDatagram(const GoldenDatagram& d) {
  std::vector<uint8_t> bytes(2048);
  ByteWriter out(bytes);
  PacketNumber number = 0;
  std::visit(
      [&](const auto& header) {
        number = header.packet_number;
        Encode(header, out);
      },
      d.header);
  if (d.data) Encode(*d.data, out);
  if (const auto* init = std::get_if<LongHeader>(&d.header); init != nullptr && HasCookie(init->type)) {
    EncodeCookie(d.cookie, out);
  }
  const size_t header_bytes = out.size();
  for (const Frame& frame : d.frames) Encode(frame, out);
  if (d.part) Encode(*d.part, out);
  out.Bytes(d.chunk);
  const MutableByteSpan all = MutableByteSpan(bytes).first(out.size() + kTagBytes);
  transport::IntegrityTag().Seal(number, 0, all.first(header_bytes),
                                 all.subspan(header_bytes, out.size() - header_bytes), all.last(kTagBytes));
  bytes.resize(all.size());
  return bytes;
}

std::string Quoted(std::string_view text) {
  std::string out = "\"";
  for (char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    out += c;
  }
  return out + "\"";
}

// Writes {"name": value, ...} in the order of the calls.
class JsonLine {
 public:
  JsonLine& Field(std::string_view name, uint64_t v) { return Raw(name, std::to_string(v)); }
  JsonLine& Field(std::string_view name, bool v) { return Raw(name, v ? "true" : "false"); }
  JsonLine& Field(std::string_view name, std::string_view v) { return Raw(name, Quoted(v)); }
  JsonLine& Field(std::string_view name, ByteSpan v) { return Raw(name, "\"" + ToHex(v) + "\""); }
  JsonLine& Raw(std::string_view name, const std::string& json) {
    text_ += (text_.empty() ? "" : ", ") + Quoted(name) + ": " + json;
    return *this;
  }
  std::string Done() const { return "{" + text_ + "}"; }

 private:
  std::string text_;
};

uint64_t N(auto v) { return static_cast<uint64_t>(v); }

void Fields(const LongHeader& h, JsonLine& out) {
  out.Field("type", N(h.type)).Field("version", N(h.version)).Field("destination", h.destination.value);
  out.Field("source", h.source.value).Field("packet_number", h.packet_number);
}
void Fields(const ShortHeader& h, JsonLine& out) {
  out.Field("has_data", h.has_data).Field("key_phase", h.key_phase).Field("path", N(h.path));
  out.Field("destination", h.destination.value).Field("packet_number", h.packet_number);
}
void Fields(const DataHeader& h, JsonLine& out) {
  out.Field("window_id", N(h.window_id)).Field("index", N(h.index)).Field("low", N(h.reliability) == 1);
  out.Field("repair", h.repair).Field("last_of_window", h.last_of_window);
  out.Field("retransmission", h.retransmission).Field("part", h.part).Field("generation", N(h.generation));
  out.Field("frames_length", N(h.frames_length)).Field("timestamp_us", N(h.timestamp_us));
}
void Fields(const PaddingFrame& f, JsonLine& out) { out.Field("length", N(f.length)); }
void Fields(const PingFrame&, JsonLine&) {}
void Fields(const AckFrame& f, JsonLine& out) {
  std::string ranges;
  for (const AckRange& r : f.ranges) {
    ranges += (ranges.empty() ? "" : ", ");
    ranges += "[" + std::to_string(r.smallest) + ", " + std::to_string(r.largest) + "]";
  }
  out.Raw("ranges", "[" + ranges + "]").Field("ack_delay_us", f.ack_delay_us);
  out.Field("ecn_ect0", f.ecn_ect0).Field("ecn_ce", f.ecn_ce).Field("host_drops", f.host_drops);
}
void Fields(const ControlFrame& f, JsonLine& out) { out.Field("offset", f.offset).Field("data", f.data); }
void Fields(const WindowOpenFrame& f, JsonLine& out) {
  out.Field("window_id", N(f.window_id))
      .Field("generation", N(f.generation))
      .Field("high_count", N(f.high_count));
  out.Field("low_count", N(f.low_count)).Field("symbol_bytes", N(f.symbol_bytes)).Field("fec_k", N(f.fec_k));
  out.Field("fec_depth", N(f.fec_depth)).Field("metadata", f.metadata);
}
void Fields(const WindowStatusFrame& f, JsonLine& out) {
  out.Field("window_id", N(f.window_id)).Field("generation", N(f.generation)).Field("finished", f.finished);
  out.Field("high_sent", N(f.high_sent)).Field("low_sent", N(f.low_sent));
}
void Fields(const WindowCloseFrame& f, JsonLine& out) {
  out.Field("window_id", N(f.window_id)).Field("generation", N(f.generation)).Field("reason", N(f.reason));
  out.Field("high_complete", f.high_complete).Field("bits", N(f.bits)).Field("first", N(f.first));
  out.Field("bitmap", f.bitmap);
}
void Fields(const WindowNackFrame& f, JsonLine& out) {
  out.Field("window_id", N(f.window_id)).Field("generation", N(f.generation)).Field("first", N(f.first));
  out.Field("bitmap", f.bitmap);
}
void Fields(const GrantFrame& f, JsonLine& out) {
  out.Field("receive_window_bytes", f.receive_window_bytes)
      .Field("rate_bytes_per_second", f.rate_bytes_per_second);
}
void Fields(const CloseFrame& f, JsonLine& out) { out.Field("code", N(f.code)).Field("reason", f.reason); }
void Fields(const TransportParametersFrame& f, JsonLine& out) {
  out.Field("max_datagram_bytes", N(f.max_datagram_bytes)).Field("idle_timeout_ms", f.idle_timeout_ms);
  out.Field("receive_window_bytes", f.receive_window_bytes).Field("max_open_windows", N(f.max_open_windows));
  out.Field("max_window_bytes", f.max_window_bytes);
}
void Fields(const PathChallengeFrame& f, JsonLine& out) { out.Field("data", f.data); }
void Fields(const PathResponseFrame& f, JsonLine& out) { out.Field("data", f.data); }
void Fields(const CryptoFrame& f, JsonLine& out) {
  out.Field("offset", f.offset).Field("received", f.received).Field("data", f.data);
}
void Fields(const KeyUpdateFrame& f, JsonLine& out) {
  out.Field("phase", f.phase).Field("answer", f.answer).Field("share", ByteSpan(f.share));
}
void Fields(const NewCidFrame& f, JsonLine& out) { out.Field("reset_token", ByteSpan(f.reset_token)); }
void Fields(const Frame& frame, JsonLine& out) {
  out.Field("frame", FrameName(frame));
  std::visit([&out](const auto& f) { Fields(f, out); }, frame);
}
template <typename T>
std::string Object(const T& value) {
  JsonLine line;
  Fields(value, line);
  return line.Done();
}
void Fields(const GoldenDatagram& d, JsonLine& out) {
  out.Raw("header", std::visit([](const auto& header) { return Object(header); }, d.header));
  if (d.data) out.Raw("data", Object(*d.data));
  if (const auto* init = std::get_if<LongHeader>(&d.header); init != nullptr && HasCookie(init->type)) {
    out.Field("cookie", d.cookie);
  }
  std::string frames;
  for (const Frame& frame : d.frames) frames += (frames.empty() ? "" : ", ") + Object(frame);
  out.Raw("frames", "[" + frames + "]");
  if (d.part) out.Field("part_offset", N(d.part->offset)).Field("part_total", N(d.part->total));
  if (d.data) out.Field("chunk", d.chunk);
}

void Fields(const GoldenChunk& c, JsonLine& out) {
  const std::vector<uint8_t> bytes = EncodeChunk(c);
  const auto chunk = *codec::ParseChunk(bytes);
  out.Field("index", N(chunk.index)).Field("count", N(chunk.count)).Field("nonzero", N(chunk.nonzero));
  out.Field("element_type", N(chunk.dtype)).Field("encoding", N(chunk.encoding));
  out.Field("log_energy", N(chunk.log_energy)).Field("scale", N(chunk.scale));
  std::vector<uint8_t> values(c.values.size() * sizeof(float));
  ByteWriter writer(values);
  for (const float v : c.values) writer.F32(v);
  out.Field("values", ByteSpan(values));
}

}  // namespace

const std::vector<GoldenSample>& GoldenSamples() {
  static const std::vector<GoldenSample> samples = MakeSamples();
  return samples;
}

std::vector<uint8_t> EncodeGolden(const GoldenValue& value) {
  if (const auto* datagram = std::get_if<GoldenDatagram>(&value)) return EncodeDatagram(*datagram);
  if (const auto* chunk = std::get_if<GoldenChunk>(&value)) return EncodeChunk(*chunk);
  std::vector<uint8_t> bytes(4096);
  ByteWriter out(bytes);
  std::visit(
      [&out](const auto& v) {
        if constexpr (requires { Encode(v, out); }) Encode(v, out);
      },
      value);
  bytes.resize(out.size());
  return bytes;
}

std::string GoldenText(const GoldenSample& sample) {
  JsonLine out;
  out.Field("name", std::string_view(sample.name));
  std::visit([&out](const auto& v) { Fields(v, out); }, sample.value);
  return out.Done();
}

std::string ToHex(ByteSpan bytes) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string hex;
  for (uint8_t byte : bytes) {
    hex += kDigits[byte >> 4];
    hex += kDigits[byte & 15];
  }
  return hex;
}

std::vector<uint8_t> FromHex(const std::string& hex) {
  std::vector<uint8_t> bytes;
  for (size_t i = 0; i + 1 < hex.size(); i += 2) {
    bytes.push_back(static_cast<uint8_t>(std::stoul(hex.substr(i, 2), nullptr, 16)));
  }
  return bytes;
}

}  // namespace longhaul::wire
