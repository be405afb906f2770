#include "transport/core/connection/handshaking.h"

#include <algorithm>
#include <string>

#include "base/check.h"
#include "base/reached.h"
#include "proto/version.h"
#include "transport/core/connection/closing.h"
#include "transport/core/connection/connection.h"
#include "transport/core/connection/packet_builder.h"

namespace longhaul::transport {
namespace {

// Of one side's parameters in what the keys are made from; two of them and three numbers.
constexpr size_t kMaxContextBytes = 128;
// Header, cookie length, CLOSE with the longest reason, tag.
constexpr int64_t kMaxLongCloseBytes = 26 + 1 + 4 + 256 + 16;

}  // namespace

// What a long packet carries; the CRYPTO frames borrow from it. Nothing behind a CLOSE counts.
struct Handshaking::Content {
  std::vector<wire::CryptoFrame> crypto;
  std::optional<wire::TransportParametersFrame> parameters;
  std::optional<wire::CloseFrame> close;

  static Result<Content> Of(ByteSpan frames) {
    Content content;
    ByteReader reader(frames);
    while (reader.ok() && !reader.AtEnd() && !content.close) {
      const Result<wire::Frame> frame = wire::DecodeFrame(reader);
      if (!frame.ok()) return frame.status();
      if (const auto* crypto = std::get_if<wire::CryptoFrame>(&*frame)) {
        content.crypto.push_back(*crypto);
      } else if (const auto* parameters = std::get_if<wire::TransportParametersFrame>(&*frame)) {
        content.parameters = *parameters;
      } else if (const auto* close = std::get_if<wire::CloseFrame>(&*frame)) {
        content.close = *close;
      } else if (!std::holds_alternative<wire::PaddingFrame>(*frame)) {
        return Status(StatusCode::kProtocolViolation,
                      std::string(wire::FrameName(*frame)) + " during the handshake");
      }
    }
    return content;
  }
  Status Tell(Instant now, Handshake* handshake) const {
    for (const wire::CryptoFrame& frame : crypto) {
      if (Status status = handshake->OnCrypto(now, frame); !status.ok()) return status;
    }
    return Status::Ok();
  }
};

Handshaking::Handshaking(const Options& options, Security* security, Path* path, ConnectionStats* stats)
    : options_(options),
      security_(security),
      path_(path),
      stats_(stats),
      public_key_(options.is_client && security->IsSecure() && !security->long_protection().IsSecure()),
      open_(public_key_),
      handshake_(std::make_unique<Handshake>(options.is_client, security->NewSession(options.is_client))) {}

wire::TransportParametersFrame Handshaking::ParametersOf(const ConnectionOptions& options) {
  wire::TransportParametersFrame p;
  p.max_datagram_bytes = static_cast<uint32_t>(options.max_datagram.value());
  p.idle_timeout_ms = static_cast<uint64_t>(
      std::chrono::duration_cast<std::chrono::milliseconds>(options.idle_timeout).count());
  p.receive_window_bytes = static_cast<uint64_t>(options.receive_window.value());
  p.max_open_windows = options.max_open_windows;
  p.max_window_bytes = static_cast<uint64_t>(options.max_window_bytes.value());
  return p;
}

bool Handshaking::Accepts(const wire::LongHeader& header) {
  const bool first_answer = is_client() && options_.remote.value == 0;
  if (first_answer || header.source == options_.remote) return true;
  LH_REACHED("a long packet of another connection");
  ++stats_->wrong_id_dropped;
  return false;
}

Handshaking::Outcome Handshaking::HandleLong(Instant now, const wire::LongHeader& header, ByteSpan frames,
                                             size_t datagram_bytes, bool proves_address) {
  const Result<Content> content = Content::Of(frames);
  if (open_) return HandleAnswer(now, header, content, datagram_bytes);
  handshake_->OnPacket(static_cast<int64_t>(datagram_bytes), proves_address);
  LearnFrom(header, datagram_bytes);
  if (content.ok() && content->close) return OnClose(now, *content->close);
  if (Status status = content.ok() ? HandleContent(now, *content) : content.status(); !status.ok()) {
    ++stats_->malformed_dropped;
    // Any host can have sent it, but for what TLS has opened: the server's alert.
    if (public_key_ && status.code() != StatusCode::kPermissionDenied) return {};
    return {Outcome::Next::kFailed, std::move(status)};
  }
  DropRefusal();  // the server is there and goes on
  if (is_client()) handshake_->OnAnswered(now);
  handshake_->OnPacketEnd(now);
  return Conclude();
}

Handshaking::Outcome Handshaking::Conclude() {
  if (!handshake_->complete() || !peer_parameters_) return {};
  if (!protection_) MakeKeys();
  if (!(is_client() ? handshake_->delivered() : handshake_->address_proved())) return {};
  return {Outcome::Next::kConnected, {}};
}

// --- Answers that any host can make ---

namespace {

bool InRange(const wire::TransportParametersFrame& parameters) {
  return parameters.max_datagram_bytes >= Path::kBaseDatagram && parameters.idle_timeout_ms > 0;
}

}  // namespace

Handshaking::Outcome Handshaking::HandleAnswer(Instant now, const wire::LongHeader& header,
                                               const Result<Content>& content, size_t datagram_bytes) {
  if (content.ok() && content->close) return OnClose(now, *content->close);
  if (!content.ok() || !content->parameters || !InRange(*content->parameters)) {
    ++stats_->malformed_dropped;
    return OnDoubt(now, header.source,
                   content.ok() ? Status(StatusCode::kProtocolViolation, "transport parameters out of range")
                                : content.status());
  }
  // Another has answered: that refuses nothing, and one of the two is no server of ours.
  contested_ = contested_ || (doubt_ && !(doubtful_ == header.source));
  if (contested_ || !refused_by_doubt_) DropRefusal();
  if (answers_.empty()) handshake_->Rest(now);
  ServerAnswers::Answer* answer = answers_.Of(now, *handshake_, header.source, *content->parameters);
  if (answer == nullptr) return {};
  if (Status status = HearAnswer(now, answer, *content, datagram_bytes); !status.ok()) {
    answers_.Drop(answer);
    return OnDoubt(now, header.source, std::move(status));
  }
  if (!answer->handshake->complete()) return {};
  Choose(answer);
  return Conclude();
}

Status Handshaking::HearAnswer(Instant now, ServerAnswers::Answer* answer, const Content& content,
                               size_t datagram_bytes) {
  const auto bytes = static_cast<int64_t>(datagram_bytes);
  answer->largest_datagram = std::max(answer->largest_datagram, bytes);
  answer->handshake->OnPacket(bytes, true);
  if (Status status = content.Tell(now, answer->handshake.get()); !status.ok()) return status;
  answer->handshake->OnAnswered(now);
  answer->handshake->OnPacketEnd(now);
  return Status::Ok();
}

void Handshaking::Choose(ServerAnswers::Answer* answer) {
  ServerAnswers::Answer server = answers_.Choose(answer);
  open_ = false;
  options_.remote = server.remote;
  peer_parameters_ = server.parameters;
  handshake_ = std::move(server.handshake);
  path_->OnEcho(server.largest_datagram);
  path_->LimitTo(server.parameters.max_datagram_bytes);
  DropRefusal();
}

Handshaking::Outcome Handshaking::OnDoubt(Instant now, wire::ConnectionId remote, Status why) {
  ++stats_->answers_failed;
  contested_ = contested_ || (doubt_ && !(doubtful_ == remote));
  doubt_ = why;
  doubtful_ = remote;
  if (contested_) {
    if (refused_by_doubt_) DropRefusal();
  } else if (refused_at_.IsInfinite()) {
    refused_ = std::move(why);
    refused_at_ = now + kDoubtGrace;
    refused_by_doubt_ = true;
  }
  return {};
}

void Handshaking::HandleLateLong(const wire::LongHeader& header) {
  if (!is_client() && security_->IsSecure() && header.destination == options_.local) confirm_due_ = true;
}

void Handshaking::LearnFrom(const wire::LongHeader& header, size_t datagram_bytes) {
  const auto bytes = static_cast<int64_t>(datagram_bytes);
  if (is_client()) {
    options_.remote = header.source;
    // The first ACCEPT of a flight is as long as the INIT that it answers.
    path_->OnEcho(bytes);
  } else if (header.destination.value == 0) {
    path_->LimitTo(bytes);  // larger INITs may have been lost for their size
  }
}

Status Handshaking::HandleContent(Instant now, const Content& content) {
  if (content.parameters) {
    if (Status status = OnParameters(*content.parameters); !status.ok()) return status;
  }
  return content.Tell(now, handshake_.get());
}

Handshaking::Outcome Handshaking::OnClose(Instant now, const wire::CloseFrame& close) {
  const std::string who = is_client() ? "server " : "client ";
  Status why(close.code, who + path_->peer().ToString() + " refuses: " + Closing::ReasonOf(close));
  if (is_client()) return OnRefusal(now, std::move(why));
  if (!handshake_->address_proved()) return {};
  return {Outcome::Next::kOver, std::move(why)};
}

Status Handshaking::OnParameters(const wire::TransportParametersFrame& parameters) {
  if (peer_parameters_) return Status::Ok();  // repeated
  if (!InRange(parameters)) {
    return Status(StatusCode::kProtocolViolation, "transport parameters out of range");
  }
  peer_parameters_ = parameters;
  path_->LimitTo(parameters.max_datagram_bytes);
  return Status::Ok();
}

void Handshaking::MakeKeys() {
  std::array<uint8_t, kMaxContextBytes> context{};
  ByteWriter out(context);
  out.U16(wire::kVersion);
  out.U64(is_client() ? options_.local.value : options_.remote.value);
  out.U64(is_client() ? options_.remote.value : options_.local.value);
  LH_CHECK(wire::Encode(is_client() ? options_.parameters : *peer_parameters_, out));
  LH_CHECK(wire::Encode(is_client() ? *peer_parameters_ : options_.parameters, out));
  protection_ = handshake_->crypto().MakeProtection(out.written());
  identity_ = handshake_->crypto().peer();
}

void Handshaking::OnShort(Instant now, bool connecting) {
  heard_short_ = true;
  if (connecting) handshake_->OnAnswered(now);
}

void Handshaking::OnConnected() {
  DropRefusal();
  handshake_->Release();
  if (!is_client() && security_->IsSecure()) confirm_due_ = true;
}

void Handshaking::DropRefusal() {
  if (std::exchange(refused_, std::nullopt)) ++stats_->refusals_ignored;
  refused_at_ = Instant::Infinite();
  refused_by_doubt_ = false;
}

void Handshaking::HandleRetry(ByteSpan cookie) {
  const bool first_flight = options_.remote.value == 0;
  if (!first_flight || cookie.empty() || retries_followed_ == kMaxRetries) return;
  LH_REACHED("RETRY is followed");
  ++retries_followed_;
  ++stats_->retries;
  cookie_.assign(cookie.begin(), cookie.end());
  handshake_->OnRetry();
}

Handshaking::Outcome Handshaking::HandleRefuse(Instant now, const wire::LongHeader& header, ByteSpan frames) {
  const Result<Content> content = Content::Of(frames);
  if (!content.ok() || !content->close) return {};
  const wire::CloseFrame& close = *content->close;
  // Our own version refused: the INIT was damaged on its way, in the one field that is read before the tag.
  if (close.code == StatusCode::kVersionMismatch && header.version == wire::kVersion) return {};
  // The INIT did not open: by another key, or because it was damaged. The next one may.
  if (close.code == StatusCode::kPermissionDenied) {
    ++stats_->key_refusals;
    return {};
  }
  std::string text = "server " + path_->peer().ToString() + " refuses: " + Closing::ReasonOf(close);
  if (close.code == StatusCode::kVersionMismatch) {
    text += " (protocol version here " + std::to_string(wire::kVersion) + ", there " +
            std::to_string(header.version) + ")";
  }
  return OnRefusal(now, Status(close.code, std::move(text)));
}

// With keys the refusal waits: any host that sees the INIT can forge one.
Handshaking::Outcome Handshaking::OnRefusal(Instant now, Status why) {
  LH_REACHED("REFUSE is heard");
  ++stats_->refusals;
  // A refusal is never the orderly end of a job, whatever its code.
  if (why.ok()) why = Status(StatusCode::kUnavailable, "server " + path_->peer().ToString() + " refuses");
  if (!security_->IsSecure()) return {Outcome::Next::kOver, std::move(why)};
  if (refused_at_.IsInfinite()) {
    refused_ = std::move(why);
    refused_at_ = now + kRefusalGrace;
  }
  return {};
}

Handshaking::Outcome Handshaking::OnTimeout(Instant now) {
  if (refused_at_ <= now) {
    if (!refused_by_doubt_) return {Outcome::Next::kOver, *refused_};
    options_.remote = doubtful_;  // the answer's sender learns why
    return {Outcome::Next::kFailed, *refused_};
  }
  if (handshake_->Deadline() <= now) retries_followed_ = 0;
  handshake_->OnTimeout(now);
  answers_.OnTimeout(now);
  return {};
}

size_t Handshaking::BuildLong(Instant now, MutableByteSpan out) {
  ServerAnswers::Answer* answer = answers_.Sender();
  Handshake& from = answer == nullptr ? *handshake_ : *answer->handshake;
  if (!from.WantsToSend()) return 0;
  // A client's packets are padded and carry its parameters until it needs nothing more from the server's
  // flight.
  const bool whole = is_client() && !protection_;
  if (whole && from.repeats() >= kInitsBeforeFallback) path_->LimitTo(Path::kBaseDatagram);
  const auto size = static_cast<size_t>(path_->datagram_bytes());
  if (out.size() < size || !from.MaySend(path_->datagram_bytes())) return 0;
  const bool padded = whole || (!is_client() && from.AtFlightStart());
  PacketBuilder builder(out.first(size));
  builder.StartLong(is_client() ? wire::LongType::kInit : wire::LongType::kAccept, wire::kVersion,
                    answer == nullptr ? options_.remote : answer->remote, options_.local, from.NextNumber(),
                    is_client() ? ByteSpan(cookie_) : ByteSpan());
  if (whole || !is_client()) LH_CHECK(builder.Add(options_.parameters));
  size_t data = 0;
  if (const std::optional<wire::CryptoFrame> frame = from.NextFrame(builder.room())) {
    LH_CHECK(builder.Add(*frame));
    data = frame->data.size();
  }
  if (padded) builder.PadTo(size);
  const size_t bytes = builder.Seal(security_->long_protection());
  from.OnSent(now, data, static_cast<int64_t>(bytes));
  return bytes;
}

size_t Handshaking::BuildClose(const wire::CloseFrame& close, MutableByteSpan out) {
  if (!handshake_->MaySend(kMaxLongCloseBytes)) return 0;
  PacketBuilder builder(out);
  builder.StartLong(is_client() ? wire::LongType::kInit : wire::LongType::kAccept, wire::kVersion,
                    options_.remote, options_.local, handshake_->NextNumber());
  builder.Add(close);
  const size_t bytes = builder.Seal(security_->long_protection());
  handshake_->OnSentAside(static_cast<int64_t>(bytes));
  return bytes;
}

Status Handshaking::OnConfirmation(const wire::NewCidFrame& frame) {
  if (!is_client()) return Status(StatusCode::kProtocolViolation, "NEW_CID from a client");
  reset_token_ = frame.reset_token;
  return Status::Ok();
}

bool Handshaking::IsReset(ByteSpan datagram) const {
  // Without keys it needs no frame: the server's id makes it.
  const bool known = is_client() && !security_->IsSecure() && options_.remote.value != 0;
  const auto token = known ? std::optional(security_->ResetToken(options_.remote)) : reset_token_;
  if (!token || datagram.size() < kMinResetBytes) return false;
  // In constant time: the time must not tell how far a guess was right.
  const ByteSpan end = datagram.last(token->size());
  int difference = 0;
  for (size_t i = 0; i < end.size(); ++i) difference |= end[i] ^ (*token)[i];
  return difference == 0;
}

}  // namespace longhaul::transport
