#include "offload/engine/ordinary.h"

#include <bit>
#include <cstring>

namespace longhaul::offload {

Ordinary::Ordinary(const EngineOptions& options, Messages* messages, OffloadStats* stats)
    : options_(options), messages_(messages), stats_(stats), receives_(kMaxRanks) {}

void Ordinary::Post(Instant now, uint8_t rank, const WorkRequest& request) {
  const bool sends = request.opcode == Opcode::kSend;
  Pending pending{request, rank, {}, now};
  const auto bytes = messages_->memory().Find(rank, sends ? request.send : request.receive, request.length);
  if (!bytes) return Complete(now, pending, WorkStatus::kProtectionError, 0);
  pending.bytes = *bytes;
  if (!sends) return Queue(receives_[rank], pending);
  if (request.length > options_.seg_bytes) return Complete(now, pending, WorkStatus::kLengthMismatch, 0);
  if (request.root_node >= kMaxNodes || (options_.nodes >> request.root_node & 1) == 0) {
    return Complete(now, pending, WorkStatus::kBadNode, 0);
  }
  if (request.root_rank >= kMaxRanks) return Complete(now, pending, WorkStatus::kBadRank, 0);
  if (request.root_node != options_.node) return Queue(sends_, pending);
  ++stats_->ordinary_sent;
  Complete(now, pending, WorkStatus::kSuccess, request.length);
  Deliver(now, request.root_rank, pending.bytes, {options_.node, rank});
}

void Ordinary::Queue(std::deque<Pending>& queue, const Pending& pending) {
  messages_->memory().Use(pending.key(), true);
  queue.push_back(pending);
}

Ordinary::Pending Ordinary::TakeFirst(std::deque<Pending>& queue) {
  const Pending pending = queue.front();
  queue.pop_front();
  messages_->memory().Use(pending.key(), false);
  return pending;
}

void Ordinary::Deliver(Instant now, uint8_t rank, std::span<const std::byte> bytes, Source source) {
  if (rank >= kMaxRanks || receives_[rank].empty()) {
    ++stats_->ordinary_dropped;
    return;
  }
  const Pending pending = TakeFirst(receives_[rank]);
  if (bytes.size() > pending.bytes.size()) {
    ++stats_->ordinary_dropped;
    return Complete(now, pending, WorkStatus::kLengthMismatch, 0);
  }
  std::memmove(pending.bytes.data(), bytes.data(), bytes.size());
  ++stats_->ordinary_received;
  Complete(now, pending, WorkStatus::kSuccess, bytes.size(), source);
}

void Ordinary::OnPacket(Instant now, const Packet& packet) {
  const Header& h = packet.header;
  if (!std::has_single_bit(h.ranks)) {
    ++stats_->packets_refused;
    return;
  }
  const auto* const data = reinterpret_cast<const std::byte*>(packet.payload.data());
  Deliver(now, h.root, {data, packet.payload.size()},
          {h.source, static_cast<uint8_t>(std::countr_zero(h.ranks))});
}

size_t Ordinary::Write(Instant now, MutableByteSpan out, uint8_t* target) {
  if (sends_.empty()) return 0;
  const Pending pending = TakeFirst(sends_);
  Header h;
  h.kind = PacketKind::kOrdinary;
  h.opcode = Opcode::kSend;
  h.jid = pending.request.jid;
  h.source = options_.node;
  h.root = pending.request.root_rank;
  h.ranks = BitOf(pending.rank);
  h.length = pending.bytes.size();
  *target = pending.request.root_node;
  const auto* const data = reinterpret_cast<const uint8_t*>(pending.bytes.data());
  const size_t size = Encapsulate(h, {data, pending.bytes.size()}, out);
  if (size > 0) ++stats_->ordinary_sent;
  Complete(now, pending, size > 0 ? WorkStatus::kSuccess : WorkStatus::kLengthMismatch, pending.bytes.size());
  return size;
}

void Ordinary::Flush(Instant now, uint8_t rank) {
  while (!receives_[rank].empty()) Complete(now, TakeFirst(receives_[rank]), WorkStatus::kFlushed, 0);
  for (size_t left = sends_.size(); left > 0; --left) {
    const Pending send = TakeFirst(sends_);
    if (send.rank == rank) {
      Complete(now, send, WorkStatus::kFlushed, 0);
    } else {
      Queue(sends_, send);
    }
  }
}

void Ordinary::Complete(Instant now, const Pending& pending, WorkStatus status, uint64_t bytes,
                        Source source) {
  Completion c;
  c.wr_id = pending.request.wr_id;
  c.opcode = pending.request.opcode;
  c.jid = pending.request.jid;
  c.mid = pending.request.mid;
  c.status = status;
  c.reason = status == WorkStatus::kSuccess ? Reason::kDone : Reason::kException;
  c.bytes = bytes;
  c.source_node = source.node;
  c.source_rank = source.rank;
  c.elapsed = now - pending.posted;
  messages_->Complete(pending.rank, c);
}

}  // namespace longhaul::offload
