// ConnectionImpl and its beginning: from the first INIT to the first short packet.

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "proto/version.h"
#include "transport/core/connection_impl.h"

namespace longhaul::transport {
namespace {

// Of one side's parameters in what the keys are made from; two of them and three numbers.
constexpr size_t kMaxContextBytes = 128;
// Header, cookie length, CLOSE with the longest reason, tag.
constexpr int64_t kMaxLongCloseBytes = 26 + 1 + 4 + 256 + 16;

}  // namespace

const PeerIdentity& ConnectionImpl::identity() const {
  static const PeerIdentity kNobody;
  return handshake_.complete() ? handshake_.crypto().peer() : kNobody;
}

void ConnectionImpl::HandleLong(Instant now, const wire::LongHeader& header, ByteSpan frames,
                                size_t datagram_bytes, bool proves_address) {
  now_ = now;
  if (!TakesLong()) return;
  const bool other = id_.is_client && id_.remote.value != 0 && header.source != id_.remote;
  if (other || (!id_.is_client && header.source != id_.remote)) {
    ++stats_.wrong_id_dropped;
    return;
  }
  ++stats_.packets_received;
  stats_.bytes_received += datagram_bytes;
  if (state_ == State::kConnected) {
    // A client that still sends its last flight has not heard from us.
    if (!id_.is_client && security_->IsSecure() && header.destination == id_.local) Confirm();
    return;
  }
  last_heard_ = now;
  handshake_.OnPacket(static_cast<int64_t>(datagram_bytes), proves_address);
  LearnFromLong(header, datagram_bytes);
  bool refusal = false;
  if (Status status = HandleLongFrames(now, frames, &refusal); !status.ok())
    return FailHandshake(std::move(status));
  if (refusal || state_ != State::kConnecting) return;
  if (std::exchange(refused_, std::nullopt)) {  // the server is there and goes on
    ++stats_.refusals_ignored;
    refused_at_ = Instant::Infinite();
  }
  if (id_.is_client) handshake_.OnAnswered(now);
  TakeRttSample(now);
  handshake_.OnPacketEnd(now);
  AdvanceHandshake();
}

void ConnectionImpl::LearnFromLong(const wire::LongHeader& header, size_t datagram_bytes) {
  const auto bytes = static_cast<int64_t>(datagram_bytes);
  if (id_.is_client) {
    id_.remote = header.source;
    // The first ACCEPT of a flight is as long as the INIT it answers, so this size went both ways; the
    // fallback may have been hasty.
    if (bytes < kBaseDatagram || bytes <= largest_accept_) return;
    largest_accept_ = bytes;
    datagram_bytes_ = std::min(bytes, options_.max_datagram.value());
  } else if (header.destination.value == 0) {
    // What arrived is proof of what this path carries; nothing larger has been shown.
    datagram_bytes_ = std::min(datagram_bytes_, bytes);
  }
}

Status ConnectionImpl::HandleLongFrames(Instant now, ByteSpan frames, bool* refusal) {
  ByteReader reader(frames);
  while (reader.ok() && !reader.AtEnd()) {
    Result<wire::Frame> frame = wire::DecodeFrame(reader);
    if (!frame.ok()) return frame.status();
    Status status;
    if (const auto* crypto = std::get_if<wire::CryptoFrame>(&*frame)) {
      status = handshake_.OnCrypto(now, *crypto);
    } else if (const auto* parameters = std::get_if<wire::TransportParametersFrame>(&*frame)) {
      status = HandleTransportParameters(*parameters);
    } else if (const auto* close = std::get_if<wire::CloseFrame>(&*frame)) {
      *refusal = true;
      const std::string who = id_.is_client ? "server " : "client ";
      Status why(close->code, who + id_.peer.ToString() + " refuses: " + ReasonOf(*close));
      if (id_.is_client) {
        Refused(now, std::move(why));
      } else if (handshake_.address_proved()) {
        CloseNow(std::move(why));
      }
      return Status::Ok();
    } else if (!std::holds_alternative<wire::PaddingFrame>(*frame)) {
      status = Status(StatusCode::kProtocolViolation,
                      std::string(wire::FrameName(*frame)) + " during the handshake");
    }
    if (!status.ok()) return status;
  }
  return Status::Ok();
}

void ConnectionImpl::TakeRttSample(Instant now) {
  const std::optional<Duration> sample = handshake_.TakeRttSample();
  if (!sample) return;
  rtt_.OnSample(*sample, Duration(0), now);
  acks_.SetSmoothedRtt(rtt_.smoothed_rtt());
}

// Keys, then the connection: a server's when the client has proved its address, a client's when nothing of
// its own is left to be delivered. Otherwise the first short packet tells.
void ConnectionImpl::AdvanceHandshake() {
  if (!handshake_.complete() || !peer_parameters_) return;
  if (!protection_) MakeKeys();
  if (!(id_.is_client ? handshake_.delivered() : handshake_.address_proved())) return;
  ping_due_ = id_.is_client;  // the server waits for a short packet
  BecomeConnected();
}

void ConnectionImpl::MakeKeys() {
  std::array<uint8_t, kMaxContextBytes> context{};
  ByteWriter out(context);
  out.U16(wire::kVersion);
  out.U64(id_.is_client ? id_.local.value : id_.remote.value);
  out.U64(id_.is_client ? id_.remote.value : id_.local.value);
  const wire::TransportParametersFrame ours = LocalParameters();
  LH_CHECK(wire::Encode(id_.is_client ? ours : *peer_parameters_, out));
  LH_CHECK(wire::Encode(id_.is_client ? *peer_parameters_ : ours, out));
  protection_ = handshake_.crypto().MakeProtection(out.written());
}

void ConnectionImpl::BecomeConnected() {
  state_ = State::kConnected;
  refused_at_ = Instant::Infinite();
  if (std::exchange(refused_, std::nullopt)) ++stats_.refusals_ignored;
  pacer_ = Pacer(ByteCount(datagram_bytes_));
  UpdatePacer(now_);
  if (!id_.is_client && security_->IsSecure()) Confirm();
  if (!id_.is_client && observer_ == nullptr && acceptor_) {
    observer_ = acceptor_(*this);
    if (observer_ == nullptr)
      return Close(Status(StatusCode::kUnavailable, "the server takes no connections now"));
  }
  StartPathSearch();
}

void ConnectionImpl::Confirm() { confirm_due_ = true; }

void ConnectionImpl::HandleRetry(Instant now, ByteSpan cookie) {
  now_ = now;
  const bool first_flight = state_ == State::kConnecting && id_.remote.value == 0;
  if (!first_flight || cookie.empty() || stats_.retries == kMaxRetries) return;
  ++stats_.retries;
  cookie_.assign(cookie.begin(), cookie.end());
  handshake_.OnRetry();
}

void ConnectionImpl::HandleRefuse(Instant now, const wire::LongHeader& header, ByteSpan frames) {
  now_ = now;
  if (state_ != State::kConnecting) return;
  ByteReader reader(frames);
  while (reader.ok() && !reader.AtEnd()) {
    Result<wire::Frame> frame = wire::DecodeFrame(reader);
    if (!frame.ok()) return;
    const auto* close = std::get_if<wire::CloseFrame>(&*frame);
    if (close == nullptr) continue;
    // Our own version refused: the INIT was damaged on its way, in the one field that is read before the tag.
    if (close->code == StatusCode::kVersionMismatch && header.version == wire::kVersion) return;
    std::string text = "server " + id_.peer.ToString() + " refuses: " + ReasonOf(*close);
    if (close->code == StatusCode::kVersionMismatch) {
      text += " (protocol version here " + std::to_string(wire::kVersion) + ", there " +
              std::to_string(header.version) + ")";
    }
    return Refused(now, Status(close->code, std::move(text)));
  }
}

// With keys the refusal waits: whoever can see our INIT can make one up, and only what follows tells.
void ConnectionImpl::Refused(Instant now, Status why) {
  ++stats_.refusals;
  // However the server puts it, nobody takes it for the job's orderly end.
  if (why.ok()) why = Status(StatusCode::kUnavailable, "server " + id_.peer.ToString() + " refuses");
  if (!security_->IsSecure()) return CloseNow(std::move(why));
  if (refused_at_ < Instant::Infinite()) return;
  refused_ = std::move(why);
  refused_at_ = now + kRefusalGrace;
}

void ConnectionImpl::FailHandshake(Status why) {
  ++stats_.malformed_dropped;
  if (!id_.is_client) {
    handshake_failure_ = why;
    return Close(why);
  }
  // The server knows who it is, and need not wait for its time-out. Once is enough for a courtesy.
  closing_why_ = why;
  if (id_.remote.value != 0) {
    final_datagram_.resize(static_cast<size_t>(kBaseDatagram));
    final_datagram_.resize(BuildClose(final_datagram_));
  }
  CloseNow(Status(why.code(), "server " + id_.peer.ToString() + ": " + why.message()));
}

size_t ConnectionImpl::BuildLong(Instant now, MutableByteSpan out) {
  if (!handshake_.WantsToSend()) return 0;
  // A client's packets are padded and carry its parameters until it needs nothing more from the server's
  // flight.
  const bool whole = id_.is_client && !protection_;
  if (whole && handshake_.repeats() >= kInitsBeforeFallback) {
    datagram_bytes_ = std::min(datagram_bytes_, kBaseDatagram);
  }
  const auto size = static_cast<size_t>(datagram_bytes_);
  if (out.size() < size || !handshake_.MaySend(datagram_bytes_)) return 0;
  const bool padded = whole || (!id_.is_client && handshake_.AtFlightStart());
  PacketBuilder builder(out.first(size));
  builder.StartLong(id_.is_client ? wire::LongType::kInit : wire::LongType::kAccept, wire::kVersion,
                    id_.remote, id_.local, handshake_.NextNumber(),
                    id_.is_client ? ByteSpan(cookie_) : ByteSpan());
  if (whole || !id_.is_client) LH_CHECK(builder.Add(LocalParameters()));
  size_t data = 0;
  if (const std::optional<wire::CryptoFrame> frame = handshake_.NextFrame(builder.room())) {
    LH_CHECK(builder.Add(*frame));
    data = frame->data.size();
  }
  if (padded) builder.PadTo(size);
  const size_t bytes = builder.Seal(security_->long_protection());
  handshake_.OnSent(now, data, static_cast<int64_t>(bytes));
  ++stats_.packets_sent;
  stats_.bytes_sent += bytes;
  return bytes;
}

size_t ConnectionImpl::BuildClose(MutableByteSpan out) {
  if (!protection_ && !handshake_.MaySend(kMaxLongCloseBytes)) return 0;
  PacketBuilder builder(out.first(std::min(out.size(), static_cast<size_t>(kBaseDatagram))));
  if (protection_) {
    builder.StartShort(id_.remote, next_number_++, protection_->key_phase());
  } else {
    builder.StartLong(id_.is_client ? wire::LongType::kInit : wire::LongType::kAccept, wire::kVersion,
                      id_.remote, id_.local, handshake_.NextNumber());
  }
  const std::string& message = closing_why_->message();
  builder.Add(wire::CloseFrame{closing_why_->code(),
                               std::string_view(message).substr(0, wire::kMaxCloseReasonBytes)});
  const size_t size = builder.Seal(protection_ ? *protection_ : security_->long_protection());
  if (!protection_) handshake_.OnSentAside(static_cast<int64_t>(size));
  ++stats_.packets_sent;
  stats_.bytes_sent += size;
  return size;
}

}  // namespace longhaul::transport
