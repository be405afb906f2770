#include "offload/engine/engine.h"

#include <algorithm>
#include <bit>

#include "base/check.h"
#include "offload/engine/seg_ways.h"

namespace longhaul::offload {
namespace {

// Sends that wait for the owner to fetch them; more wait for their timers.
constexpr uint32_t kSends = 16384;

Status Invalid(const char* what) { return Status(StatusCode::kInvalidArgument, what); }

Status CheckOptions(const EngineOptions& o) {
  if (o.node >= kMaxNodes || (o.nodes & BitOf(o.node)) == 0 || o.nodes >> kMaxNodes != 0) {
    return Invalid("offload: nodes are numbered 0..15");
  }
  if (o.seg_bytes < 64 || o.seg_bytes > 8192 || o.seg_bytes % 64 != 0) {
    return Invalid("offload: seg_bytes is 64..8192, a multiple of 64");
  }
  // With fewer, what comes out of its turn can leave none for what all wait for.
  const auto least = 2 * static_cast<uint32_t>(std::popcount(o.nodes));
  if (o.pool_segs < least || o.pool_segs >= SegRef::kNoIndex) {
    return Invalid("offload: pool_segs is at most 65534, at least 2 for each node, an aggregator included");
  }
  if (o.window_segs < 1 || o.window_segs > 512) return Invalid("offload: window_segs is 1..512");
  if (o.queue_depth < 1 || o.queue_depth > 65536) return Invalid("offload: queue_depth is 1..65536");
  if (SegCount(o.max_message_bytes, o.seg_bytes) > UINT32_MAX / 2) {
    return Invalid("offload: max_message_bytes are more segs than have numbers");
  }
  return Status::Ok();
}

WorkStatus Agree(const Collective& a, const Collective& b) {
  if (a.length != b.length) return WorkStatus::kLengthMismatch;
  const bool same = a.opcode == b.opcode && a.op == b.op && a.type == b.type && a.flags == b.flags &&
                    a.nodes == b.nodes && a.ranks == b.ranks && a.root_node == b.root_node &&
                    a.root_rank == b.root_rank && (a.local() || a.route == b.route);
  return same ? WorkStatus::kSuccess : WorkStatus::kOpMismatch;
}

bool CanGoOnWithout(const Operation& op, uint8_t rank) {
  const bool root = (op.what.opcode == Opcode::kReduce || op.what.opcode == Opcode::kBroadcast) &&
                    op.what.root_node == op.what.self && op.what.root_rank == rank;
  const bool holds_sums = !op.what.local() && op.message != nullptr && op.message == op.ranks[rank].receive;
  return op.what.allows_partial() && !root && !holds_sums && (op.what.ranks & ~op.gone & ~BitOf(rank)) != 0;
}

// The ranks that some seg still misses, from all of them.
void LeaveOut(Operation& op) {
  const uint64_t before = op.gone;  // segs that missed only these are ready or done
  for (uint32_t sid = 0; sid < op.what.segs; ++sid) {
    op.gone |= op.missing[sid];
    if ((op.missing[sid] & ~before) != 0) op.SetReady(sid);
  }
}

}  // namespace

Status Engine::Validate(const EngineOptions& options) { return CheckOptions(options); }

Engine::Engine(const EngineOptions& options)
    : options_(options),
      pool_(options.pool_segs, options.seg_bytes),
      wheel_(ControlStore::kMaxMessages * (2 * options.window_segs + 1) + 16 + Aborts::kMost + 1),
      transfer_(kSends),
      compute_(&stats_),
      messages_(options, &store_, &pool_, &wheel_, &stats_),
      execution_(options, &messages_, &store_, &pool_, &wheel_, &transfer_, &compute_, &stats_),
      ordinary_(options, &messages_, &stats_),
      configuring_(options, &messages_, &store_, &wheel_, &transfer_, &stats_),
      aborts_(&wheel_, &transfer_, &stats_),
      liveness_(options, &wheel_, &transfer_, &stats_) {
  LH_CHECK(Validate(options).ok());
}

Result<uint32_t> Engine::Register(uint8_t rank, std::span<std::byte> memory) {
  gone_ &= ~BitOf(rank % kMaxRanks);
  return messages_.memory().Register(rank, memory);
}

Status Engine::Deregister(uint8_t rank, uint32_t key) { return messages_.memory().Deregister(rank, key); }

Status Engine::Post(Instant now, uint8_t rank, const WorkRequest& request) {
  Status status;
  if (rank >= kMaxRanks || (options_.ranks & BitOf(rank)) == 0) {
    status = Invalid("offload: the device has no such rank");
  } else if (status = CheckRequest(request); !status.ok()) {
    // not taken
  } else if (!messages_.completions(rank).Reserve()) {
    status = Status(StatusCode::kResourceExhausted, "offload: the rank's queue is full: poll first");
  }
  if (!status.ok()) {
    ++stats_.requests_refused;
    return status;
  }
  ++stats_.requests;
  switch (request.opcode) {
    case Opcode::kSend:
    case Opcode::kReceive:
      ordinary_.Post(now, rank, request);
      break;
    case Opcode::kConfig:
      configuring_.Post(now, rank, request);
      break;
    case Opcode::kQuery:
      PostQuery(now, rank, request);
      break;
    case Opcode::kCancel:
      PostCancel(now, rank, request);
      break;
    default:
      PostCollective(now, rank, request);
  }
  return Status::Ok();
}

void Engine::Refuse(uint8_t rank, const WorkRequest& request, WorkStatus status) {
  Completion c;
  c.wr_id = request.wr_id;
  c.status = status;
  c.reason = Reason::kException;
  c.opcode = request.opcode;
  c.jid = request.jid;
  c.mid = request.mid;
  if (status == WorkStatus::kPeerDead) c.missing_nodes = store_.OutOf(request.jid);
  messages_.Complete(rank, c);
}

void Engine::PostCollective(Instant now, uint8_t rank, const WorkRequest& request) {
  const WorkStatus status = JoinMessage(now, rank, request);
  if (status != WorkStatus::kSuccess) Refuse(rank, request, status);
}

WorkStatus Engine::JoinMessage(Instant now, uint8_t rank, const WorkRequest& request) {
  if (store_.FindJob(request.jid) == nullptr) {
    JobConfig config;
    config.nodes = BitOf(options_.node);
    if (!store_.Configure(request.jid, config)) return WorkStatus::kOverflow;
  }
  Collective what = messages_.Describe(request);
  if ((what.ranks & BitOf(rank)) == 0) return WorkStatus::kBadRank;
  if (const WorkStatus status = messages_.Check(what); status != WorkStatus::kSuccess) return status;
  const uint64_t out = request.nodes == 0 ? store_.OutOf(request.jid) : 0;
  if (out != 0) {
    if (!what.CanDoWithout(out)) return WorkStatus::kPeerDead;
    what.nodes &= ~out;
    what.reformed = true;
  }
  if (const auto ended = store_.FindEnded(request.jid, request.mid);
      ended && request.generation <= ended->generation) {
    const bool this_one = request.generation == ended->generation && !Ok(ended->status);
    return this_one ? ended->status : WorkStatus::kFlushed;
  }
  Operation* op = store_.Find(request.jid, request.mid);
  if (op != nullptr && op->what.generation > what.generation) return WorkStatus::kFlushed;
  if (op != nullptr && op->what.generation < what.generation) {
    messages_.End(now, *op, WorkStatus::kFlushed);
    op = nullptr;
  }
  if (op != nullptr && op->joined == 0) {
    // Packets do not say which ranks belong to the message here.
    if (op->what.ranks != what.ranks) std::ranges::fill(op->missing, what.ranks);
    op->what.ranks = what.ranks;
    op->what.root_rank = what.root_rank;
  }
  if (op != nullptr) {
    const WorkStatus status = Agree(op->what, what);
    if (status != WorkStatus::kSuccess) {
      ++stats_.mismatches;
      if (op->joined != 0) return status;
      messages_.Discard(*op);  // requests count for more than packets
      op = nullptr;
    }
  }
  const bool first = op == nullptr;
  if (first) op = messages_.Begin(now, what);
  if (op == nullptr) return WorkStatus::kOverflow;
  if ((op->gone & BitOf(rank)) != 0) return WorkStatus::kTimeout;
  op->missing_nodes |= out;
  op->incomplete |= out != 0;
  if (!what.local()) liveness_.Watch(now);
  const JobConfig job = *store_.FindJob(request.jid);
  const WorkStatus status = messages_.Join(now, *op, rank, request, job);
  if (status != WorkStatus::kSuccess && first) messages_.Discard(*op);
  return status;
}

void Engine::PostQuery(Instant now, uint8_t rank, const WorkRequest& request) {
  const Operation* const op = store_.Find(request.jid, request.mid);
  Completion c;
  c.status = WorkStatus::kFlushed;  // nothing is known of it
  if (op != nullptr) {
    c = messages_.Progress(now, *op, op->begun);
    c.status = WorkStatus::kSuccess;
  } else if (const auto ended = store_.FindEnded(request.jid, request.mid)) {
    c.status = ended->status;
  }
  c.wr_id = request.wr_id;
  c.reason = Reason::kQuery;
  c.opcode = Opcode::kQuery;
  c.jid = request.jid;
  c.mid = request.mid;
  messages_.Complete(rank, c);
}

void Engine::PostCancel(Instant now, uint8_t rank, const WorkRequest& request) {
  Operation* const op = store_.Find(request.jid, request.mid);
  if (op == nullptr) return Refuse(rank, request, WorkStatus::kFlushed);
  Completion c = messages_.Progress(now, *op, now);
  Fail(now, *op, WorkStatus::kCancelled);
  c.wr_id = request.wr_id;
  c.opcode = Opcode::kCancel;
  messages_.Complete(rank, c);
}

size_t Engine::Poll(uint8_t rank, std::span<Completion> completions) {
  size_t n = 0;
  if (rank >= kMaxRanks) return 0;
  while (n < completions.size() && messages_.completions(rank).Pop(&completions[n])) ++n;
  return n;
}

bool Engine::Advance(Instant now, uint64_t budget_bytes) {
  uint64_t used = 0;
  bool more = true;
  while (more && used < budget_bytes) {
    more = false;
    // A burst of each message in turn, from where the last call stopped.
    for (uint64_t rest = std::rotr(store_.live(), static_cast<int>(turn_)); rest != 0; rest &= rest - 1) {
      const uint32_t slot = (turn_ + static_cast<uint32_t>(std::countr_zero(rest))) % 64;
      Operation& op = *store_.At(static_cast<uint16_t>(slot));
      if (op.ready_count == 0) continue;
      if (!op.what.local()) {
        execution_.Start(now, op);
        continue;
      }
      used += ReduceBurst(now, op);
      more |= op.live && op.ready_count > 0;
      if (used >= budget_bytes) {
        turn_ = (slot + 1) % 64;
        break;
      }
    }
  }
  return used >= budget_bytes;
}

uint64_t Engine::ReduceBurst(Instant now, Operation& op) {
  const uint32_t segs = op.what.segs;
  uint32_t first = op.cursor;
  while (!op.IsReady(first)) first = first + 1 < segs ? first + 1 : 0;
  uint32_t most = std::min(BufferCompute::BurstSegs(op), segs - first);
  most = std::min(most, op.what.share_segs() - first % op.what.share_segs());
  uint32_t count = 1;
  while (count < most && op.IsReady(first + count) && op.missing[first + count] == op.missing[first]) ++count;
  const uint64_t present = op.Present(first);
  std::byte* const out = compute_.Destination(op, first, count);
  if (present == 0 || out == nullptr) {
    Fail(now, op, WorkStatus::kTimeout);
    return 0;
  }
  const uint64_t before = stats_.bytes_reduced;
  compute_.Sum(op, first, count, {}, out);
  const auto ranks = static_cast<uint32_t>(std::popcount(present));
  compute_.Finish(op, first, count, ranks, out);
  compute_.Deliver(op, first, count, out);
  op.incomplete |= present != op.what.senders();
  for (uint32_t sid = first; sid < first + count; ++sid) op.ClearReady(sid);
  op.cursor = first + count < segs ? first + count : 0;
  messages_.OnSegsDone(now, op, first, count);
  return stats_.bytes_reduced - before;
}

void Engine::HandleTimeout(Instant now) {
  while (const auto what = wheel_.Expire(now)) {
    const auto slot = static_cast<uint16_t>(*what >> 48);
    const auto sid = static_cast<uint32_t>(*what);
    if (slot == Configuring::kSlot) {
      configuring_.OnTimer(now, sid);
    } else if (slot == Liveness::kSlot) {
      OnLivenessTimer(now);
    } else if (slot == Aborts::kSlot) {
      aborts_.OnTimer(now, sid);
    } else {
      Operation* const op = store_.At(slot);
      LH_CHECK(op != nullptr && op->live);  // a message that ends takes its timers along
      sid == Messages::kMessageTimer ? OnMessageTimer(now, *op) : execution_.OnSegTimer(now, *op, sid);
    }
  }
}

void Engine::OnMessageTimer(Instant now, Operation& op) {
  op.timer = DeadlineWheel::kNone;
  if (op.joined == 0) {
    // A message of others, which no rank here has joined, or which passes through an aggregator.
    const JobConfig* const job = store_.FindJob(op.what.jid);
    const Instant end = op.heard + Orphans::Life(*job);
    if (now < end) return messages_.ArmDeadline(op, end);
    ++stats_.orphans;
    // A rank may post the message yet; an aggregator has none that would.
    if (options_.ranks != 0) orphans_.OnEnd(now, op.what, *job);
    return messages_.Discard(op);
  }
  // Partial results in three steps: sums go on without those who are late, then owners finish, then it is
  // over.
  const Duration limit = op.deadline - op.begun;
  ++op.stage;
  if (op.what.allows_partial() && op.stage == 1) {
    messages_.ArmDeadline(op, op.deadline + limit / 4);
    return op.what.local() ? LeaveOut(op) : execution_.Force(now, op, false);
  }
  if (op.what.allows_partial() && op.stage == 2 && !op.what.local()) {
    messages_.ArmDeadline(op, op.deadline + limit);
    return execution_.Force(now, op, true);
  }
  Fail(now, op, op.starved ? WorkStatus::kBufferError : WorkStatus::kTimeout);
}

void Engine::OnLivenessTimer(Instant now) {
  for (uint64_t dead = liveness_.OnTimer(now, store_.Awaited()); dead != 0; dead &= dead - 1) {
    NodeGone(now, static_cast<uint8_t>(std::countr_zero(dead)));
  }
}

void Engine::Fail(Instant now, Operation& op, WorkStatus status, uint64_t dead) {
  const uint64_t others = op.what.local() ? 0 : op.what.nodes & ~BitOf(op.what.self);
  if (others != 0) {
    Header header = HeaderOf(op, 0, PacketKind::kAbort);
    header.status = status;
    header.missing = static_cast<uint32_t>(dead & op.what.nodes);
    if ((dead & store_.OutOf(op.what.jid)) != 0) header.flags |= Header::kReformed;
    aborts_.Tell(now, others, header);
  }
  messages_.End(now, op, status);
}

void Engine::RankGone(Instant now, uint8_t rank) {
  if (rank >= kMaxRanks || (options_.ranks & BitOf(rank)) == 0) return;
  const uint64_t bit = BitOf(rank);
  gone_ |= bit;
  for (uint64_t rest = store_.live(); rest != 0; rest &= rest - 1) {
    Operation& op = *store_.At(static_cast<uint16_t>(std::countr_zero(rest)));
    messages_.Flush(now, op, rank);
    if ((op.what.ranks & bit) == 0 || (op.joined == 0 && !IsDeserted())) continue;
    if (!CanGoOnWithout(op, rank)) {
      op.gone |= bit;
      Fail(now, op, WorkStatus::kPeerDead, IsDeserted() ? BitOf(options_.node) : 0);
      continue;
    }
    const uint64_t before = op.gone;
    op.gone |= bit;
    op.dead |= bit;
    for (uint32_t sid = 0; sid < op.what.segs && op.stage == 0; ++sid) {
      if ((op.missing[sid] & ~before) == bit) op.SetReady(sid);
    }
  }
  ordinary_.Flush(now, rank);
  configuring_.Flush(now, rank);
  messages_.memory().Forget(rank);
}

void Engine::NodeGone(Instant now, uint8_t node) {
  if (node >= kMaxNodes || node == options_.node) return;
  NodesOut(now, BitOf(node), std::nullopt);
}

void Engine::NodeRestarted(Instant now, uint8_t node) {
  if (node < kMaxNodes && node != options_.node) EndWith(now, BitOf(node), std::nullopt);
}

void Engine::NodesOut(Instant now, uint64_t nodes, std::optional<uint16_t> jid) {
  stats_.nodes_lost += static_cast<uint64_t>(std::popcount(store_.PutOut(nodes, jid)));
  EndWith(now, nodes, jid);
}

void Engine::EndWith(Instant now, uint64_t nodes, std::optional<uint16_t> jid) {
  for (uint64_t rest = store_.live(); rest != 0; rest &= rest - 1) {
    Operation& op = *store_.At(static_cast<uint16_t>(std::countr_zero(rest)));
    if ((op.what.nodes & nodes) == 0 || (jid && op.what.jid != *jid)) continue;
    op.missing_nodes |= op.what.nodes & nodes;
    op.seen = op.what.nodes;  // they alone are to blame
    Fail(now, op, WorkStatus::kPeerDead, nodes);
  }
}

std::optional<Engine::Outgoing> Engine::PollTransmit(Instant now, MutableByteSpan out) {
  Outgoing outgoing;
  if (const auto answer = transfer_.NextAnswer()) {
    outgoing = {answer->target, Encapsulate(answer->header, {}, out)};
  } else if (!ordinary_.empty()) {
    outgoing.bytes = ordinary_.Write(now, out, &outgoing.target);
  }
  while (outgoing.bytes == 0) {
    const auto send = transfer_.NextSend();
    if (!send) return std::nullopt;
    outgoing.target = send->target;
    outgoing.bytes = send->slot == Configuring::kSlot ? configuring_.Write(send->sid, out, &outgoing.target)
                                                      : execution_.Write(now, *send, out, &outgoing.target);
  }
  ++stats_.packets_sent;
  return outgoing;
}

OffloadStats Engine::stats() const {
  OffloadStats stats = stats_;
  stats.segs_in_use = pool_.in_use();
  stats.segs_most = pool_.most();
  return stats;
}

}  // namespace longhaul::offload
