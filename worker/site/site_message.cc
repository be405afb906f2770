#include "worker/site/site_message.h"

#include <bit>
#include <cmath>

#include "proto/control_codec.h"
#include "proto/utf8.h"

namespace longhaul::site {
namespace {

constexpr uint32_t kMagic = 0x4c485331;  // "LHS1"
constexpr uint8_t kMaxRank = 63;
// What no body is larger than: a seg's (8192 bytes at most).
constexpr size_t kMaxBodyBytes = 8192;

bool IsRequest(SiteKind kind) { return kind >= SiteKind::kHello && kind <= SiteKind::kRefused; }

bool IsKind(SiteKind kind) {
  return IsRequest(kind) || (kind >= SiteKind::kWelcome && kind <= SiteKind::kOver);
}

// A vector to write into, and to cut to what was written.
class Builder {
 public:
  explicit Builder(size_t most) : bytes_(most), writer_(bytes_) {}
  ByteWriter& operator*() { return writer_; }
  ByteWriter* operator->() { return &writer_; }
  void F64(double value) { writer_.U64(std::bit_cast<uint64_t>(value)); }
  void Text(std::string_view text) {
    writer_.U16(static_cast<uint16_t>(text.size()));
    writer_.Bytes({reinterpret_cast<const uint8_t*>(text.data()), text.size()});
  }
  std::vector<uint8_t> Take() {
    bytes_.resize(writer_.size());
    return std::move(bytes_);
  }

 private:
  std::vector<uint8_t> bytes_;
  ByteWriter writer_;
};

double F64(ByteReader& in) { return std::bit_cast<double>(in.U64()); }

std::string Text(ByteReader& in, size_t most) {
  const uint16_t size = in.U16();
  if (size > most) in.Fail();
  const ByteSpan bytes = in.Bytes(in.ok() ? size : 0);
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

}  // namespace

std::vector<uint8_t> Encode(const SiteMessage& m) {
  const std::string_view text = std::string_view(m.text).substr(0, kMaxTextBytes);
  Builder out(kHeaderBytes + text.size() + m.body.size());
  out->U32(kMagic);
  out->U8(kSiteVersion);
  out->U8(static_cast<uint8_t>(m.kind));
  out->U8(m.rank);
  out->U8(static_cast<uint8_t>(m.code));
  out->U64(m.session);
  out->U64(m.leader);
  out->U64(m.seq);
  out->U64(m.open_from);
  out->U32(m.tensor);
  out->U32(m.mid);
  out->U64(m.ranks);
  out->U64(m.value);
  out->U32(static_cast<uint32_t>(m.body.size()));
  out.Text(text);
  out->Bytes(m.body);
  return out.Take();
}

std::optional<SiteMessage> Decode(ByteSpan bytes) {
  ByteReader in(bytes);
  SiteMessage m;
  const bool ours = in.U32() == kMagic && in.U8() == kSiteVersion;
  m.kind = static_cast<SiteKind>(in.U8());
  m.rank = in.U8();
  m.code = static_cast<StatusCode>(in.U8());
  m.session = in.U64();
  m.leader = in.U64();
  m.seq = in.U64();
  m.open_from = in.U64();
  m.tensor = in.U32();
  m.mid = in.U32();
  m.ranks = in.U64();
  m.value = in.U64();
  const uint32_t body = in.U32();
  m.text = Text(in, kMaxTextBytes);
  if (!ours || !in.ok() || body != in.remaining() || body > kMaxBodyBytes) return std::nullopt;
  if (!IsKind(m.kind) || m.rank > kMaxRank || StatusCodeName(m.code) == "Unknown") return std::nullopt;
  if (!wire::IsPrintable(m.text)) m.text = wire::Printable(m.text, kMaxTextBytes);
  const ByteSpan rest = in.Rest();
  m.body.assign(rest.begin(), rest.end());
  return m;
}

bool MaySay(Place sender, const SiteShape& shape, const SiteMessage& m) {
  if (sender.node >= shape.nodes || sender.slot > shape.relay_slot()) return false;
  const bool relay = sender.slot == shape.relay_slot();
  if (IsRequest(m.kind)) return !relay && m.rank == shape.IndexOf(sender);
  if (!relay || NodeOfLeader(m.leader) >= shape.nodes || m.leader >> 4 > kMostClaims) return false;
  switch (m.kind) {
    case SiteKind::kMoved:  // by the relay of the rank's node
      return shape.PlaceOf(m.rank).node == sender.node;
    case SiteKind::kBeat:
      return m.rank == sender.node && (m.ranks & ~shape.RanksOf(sender.node)) == 0 &&
             m.value <= kMostIncarnation;
    case SiteKind::kOver:
      return m.rank == sender.node && NodeOfLeader(m.leader) == sender.node;
    default:
      return NodeOfLeader(m.leader) == sender.node;
  }
}

std::vector<uint8_t> EncodeOptions(const TensorOptions& o) {
  Builder out(72 + o.optimizer.size() + 16 * o.high_ranges.size());
  out->U8(static_cast<uint8_t>(o.dtype));
  out->U8(static_cast<uint8_t>(o.wire_dtype));
  out->U8(static_cast<uint8_t>(o.result_dtype));
  out->U8(static_cast<uint8_t>((o.high_share ? 1 : 0) | (o.high_energy ? 2 : 0) | (o.staleness ? 4 : 0) |
                               (o.quorum ? 8 : 0) | (o.topk_share ? 16 : 0)));
  out->U32(static_cast<uint32_t>(o.priority));
  out.F64(o.high_share.value_or(0));
  out.F64(o.high_energy.value_or(0));
  out->U32(static_cast<uint32_t>(o.staleness.value_or(0)));
  out->U32(o.quorum.value_or(0));
  out.F64(o.topk_share.value_or(0));
  out->U64(o.count);
  out.Text(o.optimizer);
  for (const TensorOptions::Range& range : o.high_ranges) {
    out->U64(range.first);
    out->U64(range.count);
  }
  return out.Take();
}

std::optional<TensorOptions> DecodeOptions(ByteSpan bytes) {
  ByteReader in(bytes);
  TensorOptions o;
  o.dtype = static_cast<DType>(in.U8());
  o.wire_dtype = static_cast<DType>(in.U8());
  o.result_dtype = static_cast<DType>(in.U8());
  const uint8_t given = in.U8();
  o.priority = static_cast<int32_t>(in.U32());
  const double share = F64(in), energy = F64(in);
  if ((given & 1) != 0) o.high_share = share;
  if ((given & 2) != 0) o.high_energy = energy;
  const auto staleness = static_cast<int32_t>(in.U32());
  const uint32_t quorum = in.U32();
  const double topk_share = F64(in);
  if ((given & 4) != 0) o.staleness = staleness;
  if ((given & 8) != 0) o.quorum = quorum;
  if ((given & 16) != 0) o.topk_share = topk_share;
  o.count = in.U64();
  o.optimizer = Text(in, kMaxBodyBytes);
  while (in.ok() && in.remaining() > 0) {
    const uint64_t first = in.U64();
    o.high_ranges.push_back({first, in.U64()});
  }
  const bool types = DTypeBits(o.dtype) > 0 && DTypeBits(o.wire_dtype) > 0 && DTypeBits(o.result_dtype) > 0;
  const bool counts = o.count > 0 && o.count <= wire::kMaxElements;
  if (!in.ok() || given > 31 || !types || !counts || std::isnan(share) || std::isnan(energy) ||
      std::isnan(topk_share))
    return std::nullopt;
  return o;
}

std::vector<uint8_t> EncodeStats(const OperationStats& s) {
  Builder out(256);
  out->U64(s.round);
  out->U64(static_cast<uint64_t>(s.bytes.value()));
  out->U64(static_cast<uint64_t>(s.wire_bytes.value()));
  for (const uint32_t count : {s.chunks_sent, s.chunks_received, s.retransmissions, s.repairs_sent,
                               s.repaired_chunks, s.lost_chunks, s.lost_result_chunks}) {
    out->U32(count);
  }
  out->U64(static_cast<uint64_t>(s.rtt.count()));
  out.F64(s.seconds);
  if (!s.round_info) return out.Take();
  const OperationStats::RoundInfo& r = *s.round_info;
  for (const uint32_t count :
       {r.last_rank, r.contributors, r.repaired_chunks, r.filled_chunks, r.tolerated_chunks,
        r.rejected_chunks, r.excluded, r.low_chunks, r.low_lost, r.lost_chunks}) {
    out->U32(count);
  }
  out.F64(r.loss);
  out.Text(std::string_view(r.fill_reason).substr(0, 64));
  return out.Take();
}

std::optional<OperationStats> DecodeStats(ByteSpan bytes) {
  ByteReader in(bytes);
  OperationStats s;
  s.round = in.U64();
  s.bytes = ByteCount(static_cast<int64_t>(in.U64()));
  s.wire_bytes = ByteCount(static_cast<int64_t>(in.U64()));
  for (uint32_t* const count : {&s.chunks_sent, &s.chunks_received, &s.retransmissions, &s.repairs_sent,
                                &s.repaired_chunks, &s.lost_chunks, &s.lost_result_chunks}) {
    *count = in.U32();
  }
  s.rtt = Duration(static_cast<int64_t>(in.U64()));
  s.seconds = F64(in);
  if (in.AtEnd()) return s;
  s.round_info = OperationStats::RoundInfo{};
  OperationStats::RoundInfo& r = *s.round_info;
  for (uint32_t* const count :
       {&r.last_rank, &r.contributors, &r.repaired_chunks, &r.filled_chunks, &r.tolerated_chunks,
        &r.rejected_chunks, &r.excluded, &r.low_chunks, &r.low_lost, &r.lost_chunks}) {
    *count = in.U32();
  }
  r.loss = F64(in);
  r.fill_reason = wire::Printable(Text(in, 64), 64);
  if (!in.AtEnd()) return std::nullopt;
  return s;
}

std::vector<uint8_t> EncodeJob(const JobSpec& spec) {
  control::JobSpec message;
  wire::EncodeJobSpec(spec, &message);
  std::vector<uint8_t> bytes(message.ByteSizeLong());
  message.SerializeToArray(bytes.data(), static_cast<int>(bytes.size()));
  return bytes;
}

std::optional<JobSpec> DecodeJob(ByteSpan bytes) {
  control::JobSpec message;
  if (bytes.size() > kMaxBodyBytes || !message.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) {
    return std::nullopt;
  }
  const Result<JobSpec> spec = wire::DecodeJobSpec(message);
  return spec.ok() ? std::optional(*spec) : std::nullopt;
}

std::vector<uint8_t> EncodePlace(const ResultPlace& place) {
  Builder out(20);
  out->U32(place.arena);
  out->U64(place.arena_bytes);
  out->U64(place.offset);
  return out.Take();
}

std::optional<ResultPlace> DecodePlace(ByteSpan bytes) {
  ByteReader in(bytes);
  ResultPlace place;
  place.arena = in.U32();
  place.arena_bytes = in.U64();
  place.offset = in.U64();
  if (!in.AtEnd() || place.offset > place.arena_bytes) return std::nullopt;
  return place;
}

std::string NamesOf(uint64_t ranks) {
  std::string names = std::popcount(ranks) == 1 ? "rank " : "ranks ";
  const char* separator = "";
  for (; ranks != 0; ranks &= ranks - 1) {
    names += separator + std::to_string(std::countr_zero(ranks));
    separator = ", ";
  }
  return names + " of the site";
}

}  // namespace longhaul::site
