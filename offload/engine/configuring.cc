#include "offload/engine/configuring.h"

#include <algorithm>
#include <array>

namespace longhaul::offload {

namespace {

uint64_t NumberOf(const Header& h) { return uint64_t{h.mid} << 32 | h.generation; }

}  // namespace

Configuring::Configuring(const EngineOptions& options, Messages* messages, ControlStore* store,
                         DeadlineWheel* wheel, Transfer* transfer, OffloadStats* stats)
    : options_(options),
      messages_(messages),
      store_(store),
      wheel_(wheel),
      transfer_(transfer),
      stats_(stats),
      pending_(kMostPending),
      last_number_(options.config_number) {}

WorkStatus Configuring::Check(const JobConfig& config) const {
  if ((config.nodes & BitOf(options_.node)) == 0 || (config.nodes & ~options_.nodes) != 0) {
    return WorkStatus::kBadNode;
  }
  const bool tree = config.route == Route::kTree;
  if (tree && (config.root_node >= kMaxNodes || (config.nodes & BitOf(config.root_node)) == 0)) {
    return WorkStatus::kBadNode;
  }
  if (options_.ranks == 0 && (!tree || config.root_node != options_.node)) return WorkStatus::kBadNode;
  if (options_.ranks != 0 && (config.ranks & options_.ranks) == 0) return WorkStatus::kBadRank;
  if (config.policy == StragglerPolicy::kSeedSkip && config.skip_after <= Duration(0)) {
    return WorkStatus::kOpMismatch;
  }
  return config.deadline > Duration(0) ? WorkStatus::kSuccess : WorkStatus::kTimeout;
}

void Configuring::Post(Instant now, uint8_t rank, const WorkRequest& request) {
  Pending pending;
  pending.used = true;
  pending.rank = rank;
  pending.target = request.root_node;
  pending.jid = request.jid;
  pending.wr_id = request.wr_id;
  pending.config = *request.config;
  pending.posted = now;
  if (request.root_node == options_.node || request.root_node == WorkRequest::kThisNode) {
    WorkStatus status = Check(*request.config);
    if (status == WorkStatus::kSuccess && !store_->Configure(request.jid, *request.config)) {
      status = WorkStatus::kOverflow;
    }
    return Finish(now, pending, status);
  }
  if (request.root_node >= kMaxNodes || (options_.nodes & BitOf(request.root_node)) == 0) {
    return Finish(now, pending, WorkStatus::kBadNode);
  }
  for (uint32_t i = 0; i < kMostPending; ++i) {
    if (pending_[i].used) continue;
    last_number_ = std::max(last_number_ + 1, static_cast<uint64_t>(now.nanoseconds()));
    pending_[i] = pending;
    pending_[i].number = last_number_;
    return Send(now, i);
  }
  Finish(now, pending, WorkStatus::kOverflow);
}

void Configuring::Send(Instant now, uint32_t number) {
  Pending& pending = pending_[number];
  if (pending.tries < 100) ++pending.tries;
  if (pending.tries > 1) ++stats_->retransmissions;
  if (!transfer_->QueueSend({kSlot, 0, number, pending.target, PacketKind::kConfig}))
    ++stats_->sends_deferred;
  pending.timer = wheel_->Add(now + transfer_->TimeoutOf(pending.tries), uint64_t{kSlot} << 48 | number);
}

void Configuring::OnTimer(Instant now, uint32_t number) {
  if (number >= kMostPending || !pending_[number].used) return;
  Pending& pending = pending_[number];
  pending.timer = DeadlineWheel::kNone;
  if (now - pending.posted >= pending.config.deadline) return Finish(now, pending, WorkStatus::kTimeout);
  Send(now, number);
}

size_t Configuring::Write(uint32_t number, MutableByteSpan out, uint8_t* target) const {
  const Pending& pending = pending_[number];
  if (!pending.used) return 0;
  std::array<uint8_t, kConfigBytes> payload;
  EncodeConfig(pending.config, payload);
  Header h;
  h.kind = PacketKind::kConfig;
  h.opcode = Opcode::kConfig;
  h.jid = pending.jid;
  h.source = options_.node;
  h.mid = static_cast<uint32_t>(pending.number >> 32);
  h.generation = static_cast<uint32_t>(pending.number);
  *target = pending.target;
  return Encapsulate(h, payload, out);
}

void Configuring::OnPacket(const Packet& packet) {
  const auto config = DecodeConfig(packet.payload);
  const Header& h = packet.header;
  // A device with ranks is configured by them.
  if (options_.ranks != 0 || !config || h.source >= kMaxNodes || (config->nodes & BitOf(h.source)) == 0) {
    ++stats_->packets_refused;
    return;
  }
  Header answer = h;
  answer.kind = PacketKind::kAckConfig;
  answer.source = options_.node;
  answer.status = Check(*config);
  if (answer.status == WorkStatus::kSuccess &&
      !store_->ConfigureFrom(h.source, NumberOf(h), h.jid, *config)) {
    answer.status = WorkStatus::kOverflow;
  }
  if (!transfer_->QueueAnswer(h.source, answer)) ++stats_->answers_dropped;
}

void Configuring::OnAck(Instant now, const Header& header) {
  for (Pending& pending : pending_) {
    if (!pending.used || pending.target != header.source || pending.number != NumberOf(header)) continue;
    return Finish(now, pending, header.status);
  }
}

void Configuring::Finish(Instant now, Pending& pending, WorkStatus status) {
  wheel_->Cancel(pending.timer);
  pending.used = false;
  Completion c;
  c.wr_id = pending.wr_id;
  c.opcode = Opcode::kConfig;
  c.jid = pending.jid;
  c.status = status;
  c.reason = status == WorkStatus::kSuccess ? Reason::kDone : Reason::kException;
  if (status == WorkStatus::kTimeout) c.missing_nodes = BitOf(pending.target);
  c.elapsed = now - pending.posted;
  messages_->Complete(pending.rank, c);
}

void Configuring::Flush(Instant now, uint8_t rank) {
  for (Pending& pending : pending_) {
    if (pending.used && pending.rank == rank) Finish(now, pending, WorkStatus::kFlushed);
  }
}

}  // namespace longhaul::offload
