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
  if (crypto == nullptr || crypto->TakeData() != sent_) return nullptr;
  auto again = std::make_unique<Handshake>(is_client_, std::move(crypto));
  again->one_of_several_ = true;
  again->in_order_ = in_order;
  again->sent_ = sent_;
  again->in_flight_ = false;
  again->deadline_ = deadline_;
  again->repeats_ = repeats_;
  again->flights_ = flights_;
  again->last_flight_ = last_flight_;
  again->flight_began_ = flight_began_;
  again->flight_at_once_ = flight_at_once_;
  again->karn_ = karn_;
  again->next_number_ = next_number_;
  again->bytes_sent_ = bytes_sent_;
  return again;
}

void Handshake::OnPacket(int64_t bytes, bool proves_address) {
  bytes_received_ += bytes;
  address_proved_ = address_proved_ || proves_address;
  new_data_ = progress_ = false;
}

Status Handshake::OnCrypto(Instant now, const wire::CryptoFrame& frame) {
  if (frame.received > sent_.size()) {
    return Status(StatusCode::kProtocolViolation, "the peer has handshake bytes that were never sent");
  }
  if (frame.received > peer_received_) {
    peer_received_ = frame.received;
    flight_next_ = std::max(flight_next_, peer_received_);
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
  if (sent_.size() + data.size() > wire::kMaxHandshakeBytes) {
    return Status(StatusCode::kResourceExhausted,
                  "the handshake is longer than 64 KiB (too many certificates?)");
  }
  sent_.insert(sent_.end(), data.begin(), data.end());
  return !data.empty();
}

void Handshake::OnPacketEnd(Instant now) {
  const bool first = !std::exchange(answered_, true);
  if (progress_ || first) repeats_ = 0;
  if (new_data_ || first) return StartFlight();
  if (in_flight_) return;
  if (progress_) {
    deadline_ = now + kFirstInterval;
  } else if (now - last_flight_ >= kMinRepeatGap) {
    // It repeats itself, so it lacks what we have sent.
    StartFlight();
  }
}

void Handshake::OnRetry() {
  if (flights_ == 1) flights_ = 0;  // the flight with the cookie may serve for a sample
  repeats_ = 0;
  StartFlight();
}

void Handshake::OnAnswered(Instant now) {
  if (flights_ == 0 || !std::exchange(karn_, false)) return;
  if (flights_ == 1 && !in_flight_ && flight_at_once_) rtt_sample_ = now - flight_began_;
}

std::optional<Duration> Handshake::TakeRttSample() { return std::exchange(rtt_sample_, std::nullopt); }

void Handshake::OnTimeout(Instant now) {
  if (deadline_ > now) return;
  deadline_ = Instant::Infinite();
  StartFlight();
}

void Handshake::StartFlight() {
  in_flight_ = flight_start_ = true;
  flight_next_ = peer_received_;
  deadline_ = Instant::Infinite();
}

std::optional<wire::CryptoFrame> Handshake::NextFrame(size_t room) const {
  if (sent_.empty() && received_ == 0) return std::nullopt;
  const size_t left = sent_.size() - static_cast<size_t>(flight_next_);
  const size_t bytes = std::min(left, room > kFrameOverhead ? room - kFrameOverhead : 0);
  return wire::CryptoFrame{flight_next_, one_of_several_ && !complete() ? 0 : received_,
                           ByteSpan(sent_).subspan(static_cast<size_t>(flight_next_), bytes)};
}

void Handshake::OnSent(Instant now, size_t data, int64_t bytes) {
  LH_CHECK(in_flight_);
  if (std::exchange(flight_start_, false)) {
    ++flights_;
    ++repeats_;
    flight_began_ = now;
    flight_at_once_ = true;
  }
  flight_at_once_ = flight_at_once_ && now == flight_began_;
  bytes_sent_ += bytes;
  flight_next_ += data;
  last_flight_ = now;
  if (flight_next_ < sent_.size()) return;
  in_flight_ = false;
  // Progress in the middle of a flight makes it the first again.
  deadline_ = now + std::min(kFirstInterval * (1 << std::clamp(repeats_ - 1, 0, 4)), kLongestInterval);
}

}  // namespace longhaul::transport
