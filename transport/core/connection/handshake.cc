#include "transport/core/connection/handshake.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace longhaul::transport {
namespace {

// Type, offset, received and length of a CRYPTO frame: 1 + 4 + 4 + 4 bytes at most (64 KiB).
constexpr size_t kFrameOverhead = 13;

}  // namespace

Handshake::Handshake(bool is_client, std::unique_ptr<HandshakeCrypto> crypto)
    : is_client_(is_client), crypto_(std::move(crypto)), address_proved_(is_client) {
  if (!is_client_) return;
  // A first flight that is too long is our own configuration's fault, and fails at the server by its length.
  (void)Pull();
  StartFlight();
}

std::unique_ptr<Handshake> Handshake::Again(bool in_order) const {
  std::unique_ptr<HandshakeCrypto> crypto = crypto_->Again();
  if (crypto == nullptr || crypto->TakeData() != out_.stream) return nullptr;
  auto again = std::make_unique<Handshake>(is_client_, std::move(crypto));
  again->one_of_several_ = true;
  again->in_order_ = in_order;
  again->out_ = out_;
  again->out_.in_flight = false;
  return again;
}

void Handshake::OnPacket(int64_t bytes, bool proves_address) {
  bytes_received_ += bytes;
  address_proved_ = address_proved_ || proves_address;
  new_data_ = progress_ = false;
}

Status Handshake::OnCrypto(Instant now, const wire::CryptoFrame& frame) {
  if (frame.received > out_.stream.size()) {
    return Status(StatusCode::kProtocolViolation, "the peer has handshake bytes that were never sent");
  }
  if (frame.received > peer_received_) {
    peer_received_ = frame.received;
    out_.flight_next = std::max(out_.flight_next, peer_received_);
    progress_ = true;
  }
  const uint64_t before = received_;
  if (Status status = Deliver(frame.offset, frame.data); !status.ok()) return status;
  progress_ = progress_ || received_ > before;
  if (progress_) OnAnswered(now);
  Result<bool> pulled = Pull();
  if (!pulled.ok()) return pulled.status();
  new_data_ = new_data_ || *pulled;
  return Status::Ok();
}

Status Handshake::Deliver(uint64_t offset, ByteSpan data) {
  if (released()) return Status::Ok();
  if (offset > received_) {
    const bool room =
        !in_order_ && waiting_.size() < kMaxPieces && waiting_bytes_ + data.size() <= kMaxWaitingBytes;
    if (room && !data.empty() && waiting_.try_emplace(offset, data.begin(), data.end()).second) {
      waiting_bytes_ += data.size();
    }
    return Status::Ok();
  }
  const auto take = [this](uint64_t at, ByteSpan bytes) {
    if (at + bytes.size() <= received_) return Status::Ok();
    const ByteSpan fresh = bytes.subspan(static_cast<size_t>(received_ - at));
    received_ += fresh.size();
    return crypto_->HandleData(fresh);
  };
  if (Status status = take(offset, data); !status.ok()) return status;
  while (!waiting_.empty() && waiting_.begin()->first <= received_) {
    const auto piece = waiting_.extract(waiting_.begin());
    waiting_bytes_ -= piece.mapped().size();
    if (Status status = take(piece.key(), piece.mapped()); !status.ok()) return status;
  }
  return Status::Ok();
}

Result<bool> Handshake::Pull() {
  if (released()) return false;
  const std::vector<uint8_t> data = crypto_->TakeData();
  if (out_.stream.size() + data.size() > wire::kMaxHandshakeBytes) {
    return Status(StatusCode::kResourceExhausted,
                  "the handshake is longer than 64 KiB (too many certificates?)");
  }
  out_.stream.insert(out_.stream.end(), data.begin(), data.end());
  return !data.empty();
}

void Handshake::OnPacketEnd(Instant now) {
  const bool first = !std::exchange(answered_, true);
  if (progress_ || first) out_.repeats = 0;
  if (new_data_ || first) return StartFlight();
  if (out_.in_flight) return;
  if (progress_) {
    out_.deadline = now + kFirstInterval;
  } else if (now - out_.last_flight >= kMinRepeatGap) {
    // It repeats itself, so it lacks what we have sent.
    StartFlight();
  }
}

void Handshake::OnRetry() {
  if (out_.flights == 1) out_.flights = 0;  // the flight with the cookie may serve for a sample
  out_.repeats = 0;
  StartFlight();
}

void Handshake::OnAnswered(Instant now) {
  if (out_.flights == 0 || !std::exchange(out_.karn, false)) return;
  if (out_.flights == 1 && !out_.in_flight && out_.flight_at_once) rtt_sample_ = now - out_.flight_began;
}

std::optional<Duration> Handshake::TakeRttSample() { return std::exchange(rtt_sample_, std::nullopt); }

void Handshake::OnTimeout(Instant now) {
  if (out_.deadline > now) return;
  out_.deadline = Instant::Infinite();
  StartFlight();
}

void Handshake::StartFlight() {
  out_.in_flight = out_.flight_start = true;
  out_.flight_next = peer_received_;
  out_.deadline = Instant::Infinite();
}

std::optional<wire::CryptoFrame> Handshake::NextFrame(size_t room) const {
  if (out_.stream.empty() && received_ == 0) return std::nullopt;
  const size_t left = out_.stream.size() - static_cast<size_t>(out_.flight_next);
  const size_t bytes = std::min(left, room > kFrameOverhead ? room - kFrameOverhead : 0);
  return wire::CryptoFrame{out_.flight_next, one_of_several_ && !complete() ? 0 : received_,
                           ByteSpan(out_.stream).subspan(static_cast<size_t>(out_.flight_next), bytes)};
}

void Handshake::OnSent(Instant now, size_t data, int64_t bytes) {
  LH_CHECK(out_.in_flight);
  if (std::exchange(out_.flight_start, false)) {
    ++out_.flights;
    ++out_.repeats;
    out_.flight_began = now;
    out_.flight_at_once = true;
  }
  out_.flight_at_once = out_.flight_at_once && now == out_.flight_began;
  out_.bytes += bytes;
  out_.flight_next += data;
  out_.last_flight = now;
  if (out_.flight_next < out_.stream.size()) return;
  out_.in_flight = false;
  // Progress in the middle of a flight makes it the first again.
  out_.deadline =
      now + std::min(kFirstInterval * (1 << std::clamp(out_.repeats - 1, 0, 4)), kLongestInterval);
}

}  // namespace longhaul::transport
