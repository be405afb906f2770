// ConnectionImpl and the path: how large datagrams may be, from the handshake to the end.

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "transport/core/connection_impl.h"

namespace longhaul::transport {
namespace {

constexpr int64_t kOverhead = wire::kDataOverheadBytes;

}  // namespace

void ConnectionImpl::StartPathSearch() {
  const int64_t allowed =
      std::min<int64_t>(options_.max_datagram.value(), peer_parameters_->max_datagram_bytes);
  const int64_t max = std::max(allowed, kBaseDatagram);
  pmtu_.Start(now_, std::clamp(datagram_bytes_, kBaseDatagram, max), max);
  if (refused_bytes_ > 0) pmtu_.OnRefused(refused_bytes_, now_);
  announce_by_ = now_ + kMaxSettleTime;
  FollowPathMtu();
}

std::optional<Transmit> ConnectionImpl::PollMtuProbe(Instant now, MutableByteSpan buffer) {
  mtu_probe_waits_ = false;
  const std::optional<int64_t> bytes = pmtu_.NextProbe();
  if (state_ != State::kConnected || !bytes || probes_due_ > 0) return std::nullopt;
  const auto size = static_cast<size_t>(*bytes);
  if (buffer.size() < size || !WindowAllows(size)) return std::nullopt;
  mtu_probe_waits_ = pacer_.Credit(now) <= ByteCount(0);
  if (mtu_probe_waits_) return std::nullopt;
  PacketBuilder builder(buffer.first(size));
  builder.StartShort(id_.remote, next_number_, protection_->key_phase());
  LH_CHECK(builder.Add(wire::PingFrame{}));
  builder.PadTo(size);
  pmtu_.OnProbeSent(next_number_);
  ++stats_.mtu_probes_sent;
  LH_CHECK_OP(Finish(now, &builder, true), ==, size);
  // With a small packet behind it a lost probe is known after a round trip instead of a probe timeout.
  ping_due_ = true;
  return Transmit{id_.peer, size, size, batch_ect0_};
}

void ConnectionImpl::FollowPathMtu() {
  if (state_ != State::kConnected) return;
  if (black_hole_.found(std::max(rtt_.smoothed_rtt(), rtt_.latest_rtt()))) {
    ++stats_.black_holes;
    black_hole_.Reset(next_number_);
    pmtu_.OnBlackHole();
  }
  if (pmtu_.plpmtu() != datagram_bytes_) {
    datagram_bytes_ = pmtu_.plpmtu();
    pacer_.SetMaxDatagram(ByteCount(datagram_bytes_));
  }
  largest_datagram_ = std::max(largest_datagram_, datagram_bytes_);
  outgoing_.SetMaxChunk(MaxChunkBytes());
  const auto held =
      static_cast<int64_t>(datagram_bytes_ < largest_datagram_ ? outgoing_.HeldChunkBytes() : 0);
  const int64_t needed = held > 0 ? held + kOverhead : 0;
  pmtu_.SetNeeded(needed);
  if (needed > 0 && pmtu_.Refuted(needed)) return Close(PathTooSmall(needed));
  if (pmtu_.failed()) return Close(PathTooSmall(kBaseDatagram));
  if (pmtu_.settled()) Announce();
}

Status ConnectionImpl::CheckChunkLength(size_t bytes) {
  if (bytes <= MaxChunkBytes()) return Status::Ok();
  const auto needed = static_cast<int64_t>(bytes) + kOverhead;
  if (needed <= largest_datagram_) {
    if (!pmtu_.Refuted(needed)) return Status::Ok();  // waits until it is known
    Status why = PathTooSmall(needed);
    Close(why);
    return why;
  }
  return Status(StatusCode::kInvalidArgument, "chunks of " + std::to_string(bytes) +
                                                  " bytes do not fit datagrams of " +
                                                  std::to_string(datagram_bytes_));
}

Status ConnectionImpl::PathTooSmall(int64_t needed) const {
  const std::string carries = pmtu_.failed() ? "less than " : "at most ";
  return Status(StatusCode::kUnavailable,
                "the path to " + id_.peer.ToString() + " has shrunk: it carries datagrams of " + carries +
                    std::to_string(datagram_bytes_) + " bytes, " + std::to_string(needed) + " are needed");
}

void ConnectionImpl::Announce() {
  if (announced_ || state_ != State::kConnected) return;
  announced_ = true;
  announce_by_ = Instant::Infinite();
  if (observer_ == nullptr) return;
  observer_->OnConnected(*this);
  if (state_ != State::kConnected || early_control_.empty()) return;
  const std::vector<uint8_t> early = std::exchange(early_control_, {});
  TellControlData(early);
}

}  // namespace longhaul::transport
