#include "transport/core/endpoint/stateless_answers.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/reached.h"
#include "proto/version.h"
#include "transport/core/connection/handshaking.h"
#include "transport/core/connection/packet_builder.h"
#include "transport/core/security/integrity_tag.h"

namespace longhaul::transport {
namespace {

// Long header, CLOSE with the longest reason, tag.
constexpr size_t kMaxRefuseBytes = wire::kLongHeaderBytes + 4 + wire::kMaxCloseReasonBytes + wire::kTagBytes;
static_assert(kMaxRefuseBytes < kMinInitBytes);
constexpr size_t kMaxRetryBytes = wire::kLongHeaderBytes + 1 + kCookieBytes + wire::kTagBytes;
static_assert(kMaxRetryBytes < kMinInitBytes);
// A stateless reset is up to this much longer than the shortest.
constexpr uint64_t kResetSpread = 24;
constexpr size_t kMinResetBytes = Handshaking::kMinResetBytes;
// Packet numbers of long packets stay below (proto/packet_header.h).
constexpr uint64_t kLongNumbers = uint64_t{1} << 30;

}  // namespace

void StatelessAnswers::Refuse(Instant now, const Address& to, const wire::LongHeader& init, StatusCode code,
                              std::string_view reason) {
  if (!admission_->MayRefuse(now, code != StatusCode::kPermissionDenied)) {
    return void(++stats_->refusals_limited);
  }
  std::vector<uint8_t> bytes(kMaxRefuseBytes);
  PacketBuilder builder(bytes);
  builder.StartLong(wire::LongType::kRefuse, wire::kVersion, init.source, {}, 0);
  builder.Add(wire::CloseFrame{code, reason.substr(0, wire::kMaxCloseReasonBytes)});
  IntegrityTag tag;  // of every version, so that any version can be refused
  bytes.resize(builder.Seal(tag));
  LH_REACHED("REFUSE is sent");
  ++stats_->refusals_sent;
  Send(to, std::move(bytes));
}

bool StatelessAnswers::Retry(Instant now, const Address& to, const wire::LongHeader& init, Security* opened) {
  for (const auto& key : *keys_) {
    if (opened != nullptr && key.get() != opened) continue;
    const std::optional<Cookie> cookie = key->MakeCookie(now, to, init.source);
    if (!cookie) return false;
    if (!admission_->MayRetry(now, opened != nullptr)) {
      ++stats_->retries_limited;
      return true;
    }
    SendRetry(*key, init, *cookie, to);
  }
  return true;
}

void StatelessAnswers::SendRetry(Security& key, const wire::LongHeader& init, const Cookie& cookie,
                                 const Address& to) {
  std::vector<uint8_t> bytes(kMaxRetryBytes);
  PacketBuilder builder(bytes);
  // Nothing is remembered: source and number are random, so that no two RETRYs look the same.
  const wire::ConnectionId source{Unpredictable()};
  builder.StartLong(wire::LongType::kRetry, wire::kVersion, init.source, source,
                    Unpredictable() % kLongNumbers, cookie);
  bytes.resize(builder.Seal(key.long_protection()));
  LH_REACHED("RETRY is sent");
  ++stats_->retries_sent;
  Send(to, std::move(bytes));
}

void StatelessAnswers::Reset(Instant now, const Address& to, wire::ConnectionId id, size_t packet_bytes) {
  if (packet_bytes <= kMinResetBytes) return;
  if (!admission_->MayReset(now)) return void(++stats_->resets_limited);
  // Shorter than what it answers, so that two of us do not talk for ever.
  const size_t longest = std::min<size_t>(packet_bytes - 1, kMinResetBytes + kResetSpread);
  std::vector<uint8_t> bytes(kMinResetBytes + Unpredictable() % (longest - kMinResetBytes + 1));
  for (size_t at = 0; at < bytes.size(); at += sizeof(uint64_t)) {
    const uint64_t filler = Unpredictable();
    std::memcpy(bytes.data() + at, &filler, std::min(sizeof filler, bytes.size() - at));
  }
  bytes[0] = 0;
  const auto token = first().ResetToken(id);
  std::copy(token.begin(), token.end(), bytes.end() - token.size());
  LH_REACHED("a stateless reset is sent");
  ++stats_->resets_sent;
  Send(to, std::move(bytes));
}

void StatelessAnswers::Send(const Address& to, std::vector<uint8_t> bytes) {
  if (waiting_.size() >= kMaxWaiting) return void(++stats_->stateless_dropped);
  waiting_.push_back({to, std::move(bytes)});
}

std::optional<Transmit> StatelessAnswers::Poll(MutableByteSpan buffer) {
  if (waiting_.empty() || waiting_.front().bytes.size() > buffer.size()) return std::nullopt;
  const Datagram& d = waiting_.front();
  std::memcpy(buffer.data(), d.bytes.data(), d.bytes.size());
  const Transmit transmit{d.to, d.bytes.size(), d.bytes.size()};
  waiting_.pop_front();
  return transmit;
}

}  // namespace longhaul::transport
