#include "offload/engine/execution.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "base/reached.h"

namespace longhaul::offload {
namespace {

const std::byte* Bytes(ByteSpan span) { return reinterpret_cast<const std::byte*>(span.data()); }

// The first ready seg of [lowest, end).
std::optional<uint32_t> FirstReady(const Operation& op, uint32_t end) {
  for (uint32_t sid = op.lowest; sid < end;) {
    const uint64_t word = op.ready[sid / 64] >> sid % 64;
    if (word != 0) {
      sid += static_cast<uint32_t>(std::countr_zero(word));
      return sid < end ? std::optional(sid) : std::nullopt;
    }
    sid += 64 - sid % 64;
  }
  return std::nullopt;
}

}  // namespace

Execution::Execution(const EngineOptions& options, Messages* messages, ControlStore* store, SegPool* pool,
                     DeadlineWheel* wheel, Transfer* transfer, BufferCompute* compute, OffloadStats* stats)
    : options_(options),
      messages_(messages),
      store_(store),
      pool_(pool),
      wheel_(wheel),
      transfer_(transfer),
      compute_(compute),
      stats_(stats) {}

void Execution::Start(Instant now, Operation& op) {
  // Every node begins the first segs that are not done before later ones: credits that two nodes spent on
  // different segs would leave both waiting.
  while (op.live && op.ready_count > 0) {
    const auto sid = FirstReady(op, std::min(op.what.segs, op.lowest + options_.window_segs));
    if (!sid) return;
    op.ClearReady(*sid);
    Seg& seg = op.segs[*sid];
    seg.local = true;
    seg.since = now;
    if (!seg.early) {
      TrySum(now, op, *sid, nullptr);
      continue;
    }
    SegPool::Unit* const unit = pool_->Find(seg.held);
    LH_CHECK(unit != nullptr);
    std::memcpy(op.message + op.what.OffsetOf(*sid), unit->data, unit->length);
    ReleaseHeld(seg);
    HaveResult(now, op, *sid, op.message + op.what.OffsetOf(*sid));
  }
}

void Execution::TrySum(Instant now, Operation& op, uint32_t sid, const Packet* last) {
  Seg& seg = op.segs[sid];
  const SegRoute route(op.what, sid);
  if (seg.phase != Phase::kWaiting || !seg.local || (!route.Sends() && !route.owned_here())) return;
  const uint64_t lacking = route.Needed() & ~seg.contributors;
  if (lacking == 0 || seg.forced) {
    Sum(now, op, sid, last);
  } else {
    WaitForStraggler(now, op, sid);
  }
}

// Everything that is here becomes one sum, with `last` straight from its datagram. False: there was nothing,
// or no memory.
bool Execution::Sum(Instant now, Operation& op, uint32_t sid, const Packet* last) {
  Seg& seg = op.segs[sid];
  const SegRoute route(op.what, sid);
  const uint64_t present = op.Present(sid);
  if (present == 0 && seg.contributors == 0 && last == nullptr) return false;
  std::byte* out = op.message == nullptr ? nullptr : op.message + op.what.OffsetOf(sid);
  if (out == nullptr && seg.held.empty()) {
    SegPool::Unit* const unit = TakeUnit(op, seg, op.what.LengthOf(sid));
    if (unit == nullptr) return false;
    out = unit->data;
    unit->contributors = 0;  // nothing is in it yet
  }
  std::array<const std::byte*, kMaxNodes + 1> externals;
  size_t count = 0;
  for (SegPool::Unit* unit = pool_->Find(seg.held); unit != nullptr; unit = pool_->Find(unit->next)) {
    if (out == nullptr) out = unit->data;
    if (unit->contributors != 0) externals[count++] = unit->data;
  }
  if (last != nullptr) externals[count++] = Bytes(last->payload);
  compute_->Sum(op, sid, 1, {externals.data(), count}, out);

  if (last != nullptr) {
    seg.contributors |= last->header.contributors;
    seg.participants += last->header.participants;
    seg.incomplete |= (last->header.flags & Header::kIncomplete) != 0;
  }
  if (present != 0 || op.what.senders() == 0) seg.contributors |= BitOf(op.what.self);
  seg.participants += static_cast<uint32_t>(std::popcount(present));
  seg.incomplete |= present != op.what.senders();
  if (op.message != nullptr) {
    ReleaseHeld(seg);
  } else {
    KeepFirst(seg);
  }
  wheel_->Cancel(seg.timer);
  if (route.owned_here()) {
    if (op.what.opcode != Opcode::kBroadcast) seg.incomplete |= seg.contributors != op.what.nodes;
    if (op.what.opcode == Opcode::kBroadcast) seg.contributors = op.what.nodes;
    compute_->Finish(op, sid, 1, seg.participants, out);
    HaveResult(now, op, sid, out);
    return true;
  }
  seg.phase = Phase::kSent;
  if (!seg.aimed) seg.target = route.Next();
  SendSum(now, op, sid);
  return true;
}

const std::byte* Execution::DataOf(const Operation& op, uint32_t sid) const {
  if (op.message != nullptr) return op.message + op.what.OffsetOf(sid);
  const SegPool::Unit* const unit = pool_->Find(op.segs[sid].held);
  return unit == nullptr ? nullptr : unit->data;
}

SegPool::Unit* Execution::TakeUnit(Operation& op, Seg& seg, uint32_t length, bool in_order) {
  using Turn = SegPool::Turn;
  const auto ref = pool_->Take(op.slot, !in_order   ? Turn::kOutOfOrder
                                        : seg.local ? Turn::kNow
                                                    : Turn::kAfterRanks);
  if (!ref) {
    ++stats_->pool_exhausted;
    op.starved = true;
    return nullptr;
  }
  SegPool::Unit* const unit = pool_->Find(*ref);
  unit->length = length;
  unit->intra = Header::kInvolvesOthers;
  unit->next = seg.held;
  seg.held = *ref;
  return unit;
}

bool Execution::Hold(Operation& op, Seg& seg, const Packet& packet) {
  const Header& h = packet.header;
  SegPool::Unit* const unit = pool_->Find(seg.held);
  if (op.what.deterministic() && op.what.route == Route::kTree && h.kind == PacketKind::kPartial) {
    if (!HoldInOrder(op, seg, packet)) return false;
  } else if (unit != nullptr) {
    // Later data uses the seg's own operation.
    compute_->Accumulate(op, *unit, Bytes(packet.payload));
    unit->contributors |= h.contributors;
    unit->intra |= Header::kReduced;
  } else if (!HoldAlone(op, seg, packet, true)) {
    return false;
  }
  seg.contributors |= h.contributors;
  seg.participants += h.participants;
  seg.incomplete |= (h.flags & Header::kIncomplete) != 0;
  return true;
}

bool Execution::HoldAlone(Operation& op, Seg& seg, const Packet& packet, bool in_order) {
  SegPool::Unit* const unit = TakeUnit(op, seg, op.what.LengthOf(packet.header.sid), in_order);
  if (unit == nullptr) return false;
  std::memcpy(unit->data, packet.payload.data(), packet.payload.size());
  unit->contributors = packet.header.contributors;
  return true;
}

// Children are added by number, each to the sum of those before it: the first unit holds the sum of all
// children up to one of them, what came out of its turn waits in units of its own.
bool Execution::HoldInOrder(Operation& op, Seg& seg, const Packet& packet) {
  const Header& h = packet.header;
  const uint64_t children = SegRoute(op.what, h.sid).Needed();
  const uint64_t before = children & (h.contributors - 1);
  SegPool::Unit* const sum = pool_->Find(seg.held);
  if (!std::has_single_bit(h.contributors)) return false;
  if (sum != nullptr && before == sum->contributors) {
    compute_->Accumulate(op, *sum, Bytes(packet.payload));
    sum->contributors |= h.contributors;
    sum->intra |= Header::kReduced;
  } else if (!HoldAlone(op, seg, packet, before == 0)) {
    return false;
  } else {
    SortHeld(seg);
  }
  AddFollowers(op, seg, children);
  return true;
}

// The newest unit, which is the first, goes to its place among those that wait.
void Execution::SortHeld(Seg& seg) {
  const SegRef newest = seg.held;
  SegPool::Unit* const unit = pool_->Find(newest);
  SegRef* place = &unit->next;
  const auto order = [](const SegPool::Unit& u) { return std::countr_zero(u.contributors); };
  if (place->empty() || order(*pool_->Find(*place)) > order(*unit)) return;
  seg.held = *place;
  place = &seg.held;
  while (!place->empty() && order(*pool_->Find(*place)) < order(*unit)) place = &pool_->Find(*place)->next;
  unit->next = *place;
  *place = newest;
}

void Execution::AddFollowers(Operation& op, Seg& seg, uint64_t children) {
  SegPool::Unit* const sum = pool_->Find(seg.held);
  const auto follows = [&](const SegPool::Unit& unit) {
    return (children & ((unit.contributors & -unit.contributors) - 1)) == sum->contributors;
  };
  // Nothing follows a unit that itself waits for one before it.
  for (SegPool::Unit* next = pool_->Find(sum->next); next != nullptr && follows(*next);
       next = pool_->Find(sum->next)) {
    compute_->Accumulate(op, *sum, next->data);
    sum->contributors |= next->contributors;
    const SegRef gone = sum->next;
    sum->next = next->next;
    pool_->Release(gone);
  }
}

void Execution::KeepFirst(Seg& seg) {
  SegPool::Unit* const first = pool_->Find(seg.held);
  LH_CHECK(first != nullptr);
  Seg rest;
  rest.held = std::exchange(first->next, {});
  ReleaseHeld(rest);
}

void Execution::ReleaseHeld(Seg& seg) {
  while (!seg.held.empty()) {
    const SegPool::Unit* const unit = pool_->Find(seg.held);
    const SegRef next = unit == nullptr ? SegRef() : unit->next;
    pool_->Release(seg.held);
    seg.held = next;
  }
}

void Execution::WaitForStraggler(Instant now, Operation& op, uint32_t sid) {
  Seg& seg = op.segs[sid];
  const SegRoute route(op.what, sid);
  if (!route.Sends() || op.what.deterministic()) return;
  const JobConfig* const job = store_->FindJob(op.what.jid);
  if (job == nullptr) return;
  // The one skip: a node that has something of those before it waits for all of it.
  if (job->policy == StragglerPolicy::kSeedSkip && seg.contributors != 0) return;
  const auto wait = clock_.WaitFor(route.Previous(), *job);
  if (!wait) return;
  if (*wait > Duration(0)) {
    Arm(now + *wait, op, sid);
    return;
  }
  ++stats_->demotions;
  Skip(now, op, sid);
}

// Goes on without those that are late, and tells the one before where to aim.
void Execution::Skip(Instant now, Operation& op, uint32_t sid) {
  Seg& seg = op.segs[sid];
  const SegRoute route(op.what, sid);
  seg.forced = true;
  ++stats_->skips;
  LH_REACHED("a ring goes on without a late node");
  if ((seg.contributors & BitOf(route.Previous())) == 0) {
    Header notice = HeaderOf(op, sid, PacketKind::kRedirect);
    notice.root = route.Next();
    notice.contributors = 0;
    if (!transfer_->QueueAnswer(route.Previous(), notice)) ++stats_->answers_dropped;
  }
  Sum(now, op, sid, nullptr);
}

void Execution::HaveResult(Instant now, Operation& op, uint32_t sid, const std::byte* data) {
  Seg& seg = op.segs[sid];
  compute_->Deliver(op, sid, 1, data);
  op.incomplete |= seg.incomplete;
  op.missing_nodes |= op.what.nodes & ~seg.contributors;
  wheel_->Cancel(seg.timer);
  seg.phase = Phase::kResult;
  seg.pending = SegRoute(op.what, sid).ResultTargets();
  seg.tries = 0;
  if (seg.pending == 0) {
    Done(now, op, sid);
  } else {
    SendResult(now, op, sid);
  }
}

void Execution::SendSum(Instant now, Operation& op, uint32_t sid) {
  Seg& seg = op.segs[sid];
  if (seg.tries++ == 0) seg.since = now;
  seg.tries = std::min<uint8_t>(seg.tries, 100);
  if (seg.tries > 1) ++stats_->retransmissions;
  if (!transfer_->QueueSend({op.slot, op.epoch, sid, seg.target, PacketKind::kPartial}))
    ++stats_->sends_deferred;
  Arm(now + transfer_->TimeoutOf(seg.tries), op, sid);
}

void Execution::SendResult(Instant now, Operation& op, uint32_t sid) {
  Seg& seg = op.segs[sid];
  if (seg.tries++ == 0) seg.since = now;
  seg.tries = std::min<uint8_t>(seg.tries, 100);
  for (uint64_t rest = seg.pending; rest != 0; rest &= rest - 1) {
    if (seg.tries > 1) ++stats_->retransmissions;
    const auto target = static_cast<uint8_t>(std::countr_zero(rest));
    if (!transfer_->QueueSend({op.slot, op.epoch, sid, target, PacketKind::kResult}))
      ++stats_->sends_deferred;
  }
  Arm(now + transfer_->TimeoutOf(seg.tries), op, sid);
}

void Execution::Arm(Instant due, Operation& op, uint32_t sid) {
  Seg& seg = op.segs[sid];
  wheel_->Cancel(seg.timer);
  seg.timer = wheel_->Add(due, Messages::TimerOf(op, sid));
}

void Execution::Done(Instant now, Operation& op, uint32_t sid) {
  Seg& seg = op.segs[sid];
  seg.phase = Phase::kDone;
  wheel_->Cancel(seg.timer);
  ReleaseHeld(seg);
  while (op.lowest < op.what.segs && op.segs[op.lowest].phase == Phase::kDone) ++op.lowest;
  messages_->OnSegsDone(now, op, sid, 1);
}

void Execution::OnSegTimer(Instant now, Operation& op, uint32_t sid) {
  if (sid >= op.segs.size()) return;
  Seg& seg = op.segs[sid];
  seg.timer = DeadlineWheel::kNone;
  switch (seg.phase) {
    case Phase::kWaiting:
      clock_.OnMiss(SegRoute(op.what, sid).Previous());
      return Skip(now, op, sid);
    case Phase::kSent:
      return seg.acked ? void() : SendSum(now, op, sid);
    case Phase::kResult:
      return SendResult(now, op, sid);
    case Phase::kDone:
      return;
  }
}

void Execution::OnPacket(Instant now, Operation& op, const Packet& packet) {
  op.heard = now;
  switch (packet.header.kind) {
    case PacketKind::kPartial:
      return OnPartial(now, op, packet);
    case PacketKind::kResult:
      return OnResult(now, op, packet);
    case PacketKind::kAckPartial:
      return OnAckPartial(now, op, packet.header);
    case PacketKind::kAckResult:
      return OnAckResult(now, op, packet.header);
    case PacketKind::kRedirect:
      return OnRedirect(now, op, packet.header);
    default:
      ++stats_->packets_refused;
  }
}

void Execution::OnPartial(Instant now, Operation& op, const Packet& packet) {
  const Header& h = packet.header;
  Seg& seg = op.segs[h.sid];
  const SegRoute route(op.what, h.sid);
  const uint64_t needed = route.Needed();
  const bool has_place = h.contributors != 0 && (h.contributors & ~needed) == 0;
  // What is in is tested before anything is added.
  if ((h.contributors & ~seg.contributors) == 0 && h.contributors != 0 && !seg.early) {
    ++stats_->duplicates;
    return Answer(op, h, PacketKind::kAckPartial);
  }
  if (!has_place || h.participants == 0 || h.participants > uint32_t{kMaxNodes} * kMaxRanks || seg.early) {
    ++stats_->packets_refused;
    return;
  }
  if ((h.contributors & seg.contributors) != 0) {
    ++stats_->overlaps_refused;
    return;
  }
  op.seen |= h.contributors;
  if (seg.phase == Phase::kSent) {
    LH_REACHED("a late sum is sent to a node farther on");
    return Answer(op, h, PacketKind::kRedirect, route.Next());
  }
  if (seg.phase != Phase::kWaiting) return;  // the result is made, without it
  const bool last = (needed & ~seg.contributors & ~h.contributors) == 0;
  if (last && !route.owned_here())
    clock_.OnArrival(route.Previous(), seg.local ? now - seg.since : Duration(0));
  const bool in_order = op.what.deterministic() && op.what.route == Route::kTree && std::popcount(needed) > 1;
  // Where there is no memory for the sum it needs a unit: what finds none is not acknowledged.
  const bool has_room = op.message != nullptr || !seg.held.empty();
  const bool at_once = last && seg.local && !in_order && has_room;
  if (at_once) {
    // The answer is queued first: the message may be over afterwards.
    Answer(op, h, PacketKind::kAckPartial);
    if (!Sum(now, op, h.sid, &packet)) ++stats_->packets_refused;
    return;
  }
  if (Hold(op, seg, packet)) Answer(op, h, PacketKind::kAckPartial);
  if (in_order || (last && seg.local)) return TrySum(now, op, h.sid, nullptr);
  const JobConfig* const job = store_->FindJob(op.what.jid);
  if (job != nullptr && job->policy == StragglerPolicy::kSeedSkip) wheel_->Cancel(seg.timer);
}

void Execution::OnResult(Instant now, Operation& op, const Packet& packet) {
  const Header& h = packet.header;
  Seg& seg = op.segs[h.sid];
  const SegRoute route(op.what, h.sid);
  if (!route.distributes() || route.owned_here()) {
    ++stats_->packets_refused;
    return;
  }
  if (seg.phase == Phase::kResult || seg.phase == Phase::kDone) {
    ++stats_->duplicates;
    return Answer(op, h, PacketKind::kAckResult);
  }
  // There are timers for the segs of two windows; what comes before comes again.
  if (h.sid >= op.lowest + 2 * options_.window_segs) return;
  op.seen |= h.contributors;
  if (op.posted && (op.missing[h.sid] & ~op.gone) == 0 && op.message != nullptr) {
    return TakeResult(now, op, h.sid, h, packet.payload);
  }
  if (seg.early) return;
  // Before the ranks here have said where it belongs: kept, and acknowledged when it is taken.
  ReleaseHeld(seg);
  seg.contributors = 0;
  seg.participants = 0;
  if (!Hold(op, seg, packet)) return;
  seg.early = true;
}

void Execution::TakeResult(Instant now, Operation& op, uint32_t sid, const Header& header, ByteSpan payload) {
  Seg& seg = op.segs[sid];
  std::byte* const place = op.message + op.what.OffsetOf(sid);
  std::memcpy(place, payload.data(), payload.size());
  ReleaseHeld(seg);
  if (op.IsReady(sid)) op.ClearReady(sid);
  seg.local = true;
  seg.early = false;
  seg.contributors = header.contributors;
  seg.participants = header.participants;
  seg.incomplete = (header.flags & Header::kIncomplete) != 0;
  Answer(op, header, PacketKind::kAckResult);
  HaveResult(now, op, sid, place);
}

void Execution::OnAckPartial(Instant now, Operation& op, const Header& header) {
  Seg& seg = op.segs[header.sid];
  if (seg.phase != Phase::kSent || seg.acked || header.source != seg.target) return;
  seg.acked = true;
  wheel_->Cancel(seg.timer);
  if (seg.tries == 1) transfer_->OnRoundTrip(now - seg.since);
  if (!SegRoute(op.what, header.sid).distributes()) Done(now, op, header.sid);
}

void Execution::OnAckResult(Instant now, Operation& op, const Header& header) {
  Seg& seg = op.segs[header.sid];
  if (seg.phase != Phase::kResult || (seg.pending & BitOf(header.source)) == 0) return;
  seg.pending &= ~BitOf(header.source);
  if (seg.tries == 1) transfer_->OnRoundTrip(now - seg.since);
  if (seg.pending == 0) Done(now, op, header.sid);
}

// The node that this one aims at has sent its own already. Farther on is a node that waits, the owner at
// last: every redirect goes forward, so they end.
void Execution::OnRedirect(Instant now, Operation& op, const Header& header) {
  Seg& seg = op.segs[header.sid];
  const SegRoute route(op.what, header.sid);
  const bool aims = seg.phase == Phase::kWaiting || (seg.phase == Phase::kSent && !seg.acked);
  const uint8_t target = seg.aimed || seg.phase == Phase::kSent ? seg.target : route.Next();
  const bool forward =
      (op.what.nodes & BitOf(header.root)) != 0 && route.PositionOf(header.root) > route.PositionOf(target);
  if (!route.Sends() || op.what.deterministic() || !aims || header.source != target || !forward) return;
  seg.target = header.root;
  seg.aimed = true;
  ++stats_->redirects;
  if (seg.phase == Phase::kSent) {
    seg.tries = 0;
    SendSum(now, op, header.sid);
  }
}

void Execution::Force(Instant now, Operation& op, bool owners) {
  // Who is not here for some seg is left out of all that are not begun.
  for (uint32_t sid = op.lowest; sid < op.what.segs; ++sid) {
    if (!op.segs[sid].local) op.gone |= op.missing[sid];
  }
  for (uint32_t sid = op.lowest; sid < op.what.segs; ++sid) {
    Seg& seg = op.segs[sid];
    if (owners || !SegRoute(op.what, sid).owned_here()) seg.forced = true;
    if (!seg.local && !op.IsReady(sid)) op.SetReady(sid);
  }
  for (uint32_t sid = op.lowest; op.live && sid < op.what.segs; ++sid) TrySum(now, op, sid, nullptr);
  Start(now, op);
}

Header Execution::HeaderOf(const Operation& op, uint32_t sid, PacketKind kind) const {
  const Collective& what = op.what;
  Header h;
  h.kind = kind;
  h.intra = Header::kInvolvesOthers;
  h.jid = what.jid;
  h.source = what.self;
  h.root = what.route == Route::kTree ? what.tree_root : what.root_node;
  h.mid = what.mid;
  h.sid = sid;
  h.generation = what.generation;
  h.op = what.op;
  h.type = what.type;
  h.opcode = what.opcode;
  h.flags = what.flags;
  if (what.route == Route::kTree) h.flags |= Header::kTree;
  h.seg_bytes = static_cast<uint16_t>(what.seg_bytes);
  h.length = what.length;
  h.nodes = what.nodes;
  if (kind != PacketKind::kPartial && kind != PacketKind::kResult) return h;
  const Seg& seg = op.segs[sid];
  h.intra |= Header::kReduced;
  h.contributors = seg.contributors;
  h.participants = seg.participants;
  h.ranks = op.Present(sid);
  if (seg.incomplete) h.flags |= Header::kIncomplete;
  return h;
}

void Execution::Answer(const Operation& op, const Header& to, PacketKind kind, uint8_t root) {
  Header answer = HeaderOf(op, to.sid, kind);
  answer.contributors = kind == PacketKind::kRedirect ? 0 : to.contributors;
  if (kind == PacketKind::kRedirect) answer.root = root;
  if (!transfer_->QueueAnswer(to.source, answer)) ++stats_->answers_dropped;
}

size_t Execution::Write(const Transfer::Send& send, MutableByteSpan out) {
  Operation* const op = store_->At(send.slot);
  if (op == nullptr || !op->live || op->epoch != send.epoch) return 0;
  const Seg& seg = op->segs[send.sid];
  const bool wanted = send.kind == PacketKind::kPartial
                          ? seg.phase == Phase::kSent && !seg.acked && seg.target == send.target
                          : seg.phase == Phase::kResult && (seg.pending & BitOf(send.target)) != 0;
  const std::byte* const data = DataOf(*op, send.sid);
  if (!wanted || data == nullptr) return 0;
  const ByteSpan payload(reinterpret_cast<const uint8_t*>(data), op->what.LengthOf(send.sid));
  return Encapsulate(HeaderOf(*op, send.sid, send.kind), payload, out);
}

}  // namespace longhaul::offload
