#include "offload/engine/execution.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <utility>

#include "base/reached.h"
#include "offload/engine/seg_ways.h"

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
      stats_(stats),
      held_(pool, compute, stats),
      late_(pool, transfer, stats) {}

void Execution::Start(Instant now, Operation& op) {
  Open(now, op);
  // Every node begins the first segs that are not done before later ones: credits that two nodes spent on
  // different segs would leave both waiting.
  while (op.live && op.ready_count > 0) {
    const auto sid = FirstReady(op, std::min(op.what.segs, op.lowest + options_.window_segs));
    if (!sid) return;
    op.ClearReady(*sid);
    Seg& seg = op.segs[*sid];
    seg.local = true;
    if (!seg.early) {
      const bool too_late = seg.hop.opened() && seg.hop.OnOwn(now) == Arrival::kPassOn;
      too_late ? SendOwnPart(now, op, *sid) : TrySum(now, op, *sid);
      continue;
    }
    const SegPool::Unit* const unit = pool_->Find(seg.held);
    std::memcpy(op.message + op.what.OffsetOf(*sid), unit->data, unit->length);
    held_.Release(&seg.held);
    HaveResult(now, op, *sid, op.message + op.what.OffsetOf(*sid));
  }
}

// The clock began when the sender's did, which is as long ago as its sum usually takes to come here.
void Execution::BeginFrom(Instant now, Operation& op, const Header& header) {
  const SegRoute route(op.what, header.sid);
  if (header.kind == PacketKind::kPartial && route.collects()) {
    MakePlaces(*store_, transfer_->OneWay(), op);
    const RingPlace& place = op.places[route.owner()];
    const bool previous =
        place.position > 0 && !place.IsLeaf() && place.order.nodes[place.position - 1] == header.source;
    if (previous && place.deadlines != nullptr) op.start = now - place.deadlines->Usual(place.position);
  }
  Start(now, op);
}

// The segs of the window begin to wait, whether the ranks here have posted or not.
void Execution::Open(Instant now, Operation& op) {
  const uint32_t end = std::min(op.what.segs, op.lowest + options_.window_segs);
  for (; op.opened < end; ++op.opened) {
    OpenSeg(now, op, op.opened);
    const Seg& seg = op.segs[op.opened];
    if (seg.claimed && seg.timer == DeadlineWheel::kNone) SendClaim(now, op, op.opened);
  }
}

void Execution::OpenSeg(Instant now, Operation& op, uint32_t sid) {
  Seg& seg = op.segs[sid];
  const SegRoute route(op.what, sid);
  if (seg.hop.opened() || seg.phase != Phase::kWaiting || !route.collects()) return;
  if (op.places.empty()) MakePlaces(*store_, transfer_->OneWay(), op);
  seg.hop = RingHop(&op.places[route.owner()], op.posted ? now : op.start);
  const RingOrder& order = seg.hop.order();
  stats_->demotions += order.leaves != 0 && !seg.hop.direct();
  if (seg.hop.IsOwner() && !route.owned_here()) {
    seg.claimed = true;
    SendClaim(now, op, sid);
  } else {
    ArmSeg(now, op, sid);
  }
}

void Execution::TrySum(Instant now, Operation& op, uint32_t sid) {
  Seg& seg = op.segs[sid];
  if (seg.phase != Phase::kWaiting) return;
  const bool forced = seg.forced && seg.local;
  if (!seg.hop.opened()) {  // a broadcast
    if (seg.local && OwnsSeg(op, sid)) Sum(now, op, sid, nullptr);
  } else if (OwnsSeg(op, sid) && !seg.hop.direct()) {
    if (forced || seg.hop.Complete()) Sum(now, op, sid, nullptr);
  } else if (forced || (seg.hop.Due(now) && (seg.local || CanGoOnWithoutRanks(op, seg)))) {
    GoOn(now, op, sid, nullptr);
  } else if (seg.timer == DeadlineWheel::kNone) {
    ArmSeg(now, op, sid);
  }
}

// The sum of what is here leaves; `last` is straight from its datagram.
void Execution::GoOn(Instant now, Operation& op, uint32_t sid, const Packet* last) {
  Seg& seg = op.segs[sid];
  const RingOrder& order = seg.hop.order();
  const uint32_t position = op.places[order.home].position;
  if (seg.hop.IsOwner()) seg.hop.GoDirect();  // of a seg that it has claimed in vain, when time is up
  seg.claimed = false;
  if (!seg.hop.UpstreamIsIn()) {
    ++stats_->skips;
    LH_REACHED("a ring goes on without a late node");
    // Who has not begun to send aims farther on at once; without the notice, this node passes the sum on.
    const uint8_t previous = order.nodes[position - 1];
    if ((seg.hop.have() & Bit(previous)) == 0) late_.Tell(op, sid, previous, 0, 0);
  }
  const Partial says = seg.hop.Begin(now);
  seg.missing = says.missing;
  if (seg.local && (seg.contributors != 0 || last != nullptr || op.Present(sid) != 0)) {
    Sum(now, op, sid, last);
    return;
  }
  // Without the ranks here: what has come goes on, and the next one is told if there is nothing.
  ++stats_->self_skips;
  LH_REACHED("a node goes on without its own ranks");
  seg.phase = Phase::kSent;
  seg.acked = true;
  const uint8_t target = late_.Aim(op, sid, seg.hop.Close(now), says.set);
  if (seg.held.empty()) {
    late_.Tell(op, sid, target, says.missing, 0);
  } else {
    late_.PassOnHeld(seg, target, says.missing);
  }
  SendLate(now, op, sid);
}

// The sum then stays in its unit until another node has it.
bool Execution::CanGoOnWithoutRanks(const Operation& op, const Seg& seg) const {
  return seg.held.empty() || pool_->HasRoom(op.slot, SegPool::Turn::kOutOfOrder);
}

// Everything that is here becomes one sum, with `last` straight from its datagram. False: there was nothing,
// or no memory.
bool Execution::Sum(Instant now, Operation& op, uint32_t sid, const Packet* last) {
  Seg& seg = op.segs[sid];
  const uint64_t present = op.Present(sid);
  if (present == 0 && seg.contributors == 0 && last == nullptr) return false;
  std::byte* out = op.message == nullptr ? nullptr : op.message + op.what.OffsetOf(sid);
  if (out == nullptr && seg.held.empty()) {
    SegPool::Unit* const unit = held_.TakeUnit(op, seg, op.what.LengthOf(sid));
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

  if (last != nullptr) HeldSums::Enter(seg, last->header);
  if (present != 0 || op.what.senders() == 0) seg.contributors |= Bit(op.what.self);
  seg.participants += static_cast<uint32_t>(std::popcount(present));
  seg.incomplete |= present != op.what.senders();
  if (op.message != nullptr) held_.Release(&seg.held);
  wheel_->Cancel(seg.timer);
  if (OwnsSeg(op, sid)) {
    if (op.what.opcode != Opcode::kBroadcast) seg.incomplete |= seg.contributors != op.what.nodes;
    if (op.what.opcode == Opcode::kBroadcast) seg.contributors = static_cast<Contributors>(op.what.nodes);
    seg.owner = op.what.self;
    seg.late |= seg.hop.late();
    compute_->Finish(op, sid, 1, seg.participants, out);
    HaveResult(now, op, sid, out);
    return true;
  }
  seg.phase = Phase::kSent;
  SendSum(now, op, sid);
  return true;
}

// A sum or result that stands in a unit has nothing of this message's own memory.
const std::byte* Execution::DataOf(const Operation& op, uint32_t sid) const {
  const SegPool::Unit* const unit = pool_->Find(op.segs[sid].held);
  if (unit != nullptr) return unit->data;
  return op.message == nullptr ? nullptr : op.message + op.what.OffsetOf(sid);
}

// The ranks here have come after the sum had left: their part is a sum of its own, straight to the owner.
void Execution::SendOwnPart(Instant now, Operation& op, uint32_t sid) {
  Seg& seg = op.segs[sid];
  if (op.Present(sid) == 0) return;
  seg.contributors = 0;
  seg.participants = 0;
  seg.missing = 0;
  seg.incomplete = false;
  seg.acked = false;
  seg.aimed = true;
  seg.target = TargetOf(op, sid, seg.hop.order().owner());
  seg.tries = 0;
  Sum(now, op, sid, nullptr);
}

void Execution::HaveResult(Instant now, Operation& op, uint32_t sid, const std::byte* data) {
  Seg& seg = op.segs[sid];
  compute_->Deliver(op, sid, 1, data);
  op.incomplete |= seg.incomplete;
  op.missing_nodes |= op.what.nodes & ~seg.contributors;
  wheel_->Cancel(seg.timer);
  held_.Release(&seg.passing);
  for (Contributors rest = seg.late; rest != 0; rest &= rest - 1)
    ++op.late_segs[std::countr_zero(rest) % kMaxNodes];
  seg.phase = Phase::kResult;
  seg.pending = static_cast<Contributors>(SegRoute(op.what, sid).ResultTargets(seg.owner));
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
  seg.again = now + transfer_->TimeoutOf(seg.tries);
  ArmSeg(now, op, sid);
}

void Execution::SendLate(Instant now, Operation& op, uint32_t sid) {
  late_.Send(now, op, sid);
  ArmSeg(now, op, sid);
}

// The one timer of a seg: the end of its wait, or when the first of its sums is to be sent again. A claim has
// the timer for itself.
void Execution::ArmSeg(Instant now, Operation& op, uint32_t sid) {
  Seg& seg = op.segs[sid];
  if (seg.claimed) return;
  Instant due = Instant::Infinite();
  if (seg.phase == Phase::kWaiting) {
    // What is over already has not been enough: an event is awaited.
    if (HasTimer(op, sid) && seg.hop.NextTimeout() > now) due = seg.hop.NextTimeout();
  } else if (!seg.acked) {
    due = seg.again;
  }
  due = std::min(due, late_.Next(seg));
  if (due.IsInfinite()) return wheel_->Cancel(seg.timer);
  Arm(due, op, sid);
}

// There are timers for the segs of two windows; others wait until their turn comes.
bool Execution::HasTimer(const Operation& op, uint32_t sid) const {
  return sid < op.lowest + 2 * options_.window_segs;
}

void Execution::SendClaim(Instant now, Operation& op, uint32_t sid) {
  Seg& seg = op.segs[sid];
  seg.tries = std::min<uint8_t>(static_cast<uint8_t>(seg.tries + 1), 100);
  const Header claim = HeaderOf(op, sid, PacketKind::kClaim);
  if (!transfer_->QueueAnswer(seg.hop.order().home, claim)) ++stats_->answers_dropped;
  if (HasTimer(op, sid)) Arm(now + transfer_->TimeoutOf(seg.tries), op, sid);
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
  held_.Release(&seg.held);
  while (op.lowest < op.what.segs && op.segs[op.lowest].phase == Phase::kDone) ++op.lowest;
  Open(now, op);
  messages_->OnSegsDone(now, op, sid, 1);
}

void Execution::OnSegTimer(Instant now, Operation& op, uint32_t sid) {
  if (sid >= op.segs.size()) return;
  Seg& seg = op.segs[sid];
  seg.timer = DeadlineWheel::kNone;
  switch (seg.phase) {
    case Phase::kWaiting:
      if (seg.claimed) return SendClaim(now, op, sid);
      SendLate(now, op, sid);
      return TrySum(now, op, sid);
    case Phase::kSent:
      if (!seg.acked && now >= seg.again) SendSum(now, op, sid);
      return SendLate(now, op, sid);
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
    case PacketKind::kGoneOn:
      return OnGoneOn(now, op, packet.header);
    case PacketKind::kClaim:
      return OnClaim(now, op, packet.header);
    case PacketKind::kOwner:
      return OnOwner(now, op, packet.header);
    default:
      ++stats_->packets_refused;
  }
}

void Execution::OnPartial(Instant now, Operation& op, const Packet& packet) {
  const Header& h = packet.header;
  Seg& seg = op.segs[h.sid];
  OpenSeg(now, op, h.sid);
  const auto set = static_cast<Contributors>(h.contributors);
  const bool have_result = seg.early || seg.phase == Phase::kResult || seg.phase == Phase::kDone;
  const Partial says{set, h.missing};
  // What is in is tested before anything is added.
  Arrival arrival = Arrival::kNoPlace;
  if (have_result) {
    if (set != 0 && (set & ~seg.contributors) == 0) arrival = Arrival::kDuplicate;
  } else if (seg.hop.opened()) {
    arrival = seg.hop.Judge(says);
  }
  if (arrival == Arrival::kDuplicate) {
    ++stats_->duplicates;
    return Answer(op, h, PacketKind::kAckPartial);
  }
  if (arrival == Arrival::kOverlap) return void(++stats_->overlaps_refused);
  const bool possible = h.participants != 0 && h.participants <= uint32_t{kMaxNodes} * kMaxRanks;
  if (!possible || arrival == Arrival::kNoPlace || arrival == Arrival::kNotice) {
    ++stats_->packets_refused;
    return;
  }
  op.seen |= h.contributors;
  if ((seg.refused & set) != 0) {
    return Answer(op, h, PacketKind::kRedirect, TargetOf(op, h.sid, seg.hop.Aim(now)));
  }
  if (arrival != Arrival::kMerge) return OnLate(now, op, packet);
  // What comes from the owner says that the seg is left to this node.
  if (seg.claimed && (set & Bit(seg.hop.order().home)) != 0) TakeOver(op, seg);
  const SegRoute route(op.what, h.sid);
  const bool last = seg.hop.UpstreamIsIn(set);
  const bool in_order =
      op.what.deterministic() && op.what.route == Route::kTree && std::popcount(route.Needed()) > 1;
  // Where there is no memory for the sum it needs a unit: what finds none is not acknowledged.
  const bool has_room = op.message != nullptr || !seg.held.empty();
  const bool at_once = last && seg.local && !in_order && has_room;
  if (at_once) {
    // The answer is queued first: the message may be over afterwards.
    seg.hop.Accept(now, h.source, says);
    seg.late |= h.late;
    Answer(op, h, PacketKind::kAckPartial);
    OwnsSeg(op, h.sid) ? void(Sum(now, op, h.sid, &packet)) : GoOn(now, op, h.sid, &packet);
    return;
  }
  if (!held_.Hold(op, seg, packet)) return;
  seg.hop.Accept(now, h.source, says);
  seg.late |= h.late;
  Answer(op, h, PacketKind::kAckPartial);
  TrySum(now, op, h.sid);
}

// This node has sent its own sum, or owns the seg no more. What finds no room is never taken from then on:
// its sender sends it to another.
void Execution::OnLate(Instant now, Operation& op, const Packet& packet) {
  const Header& h = packet.header;
  Seg& seg = op.segs[h.sid];
  if (!HasTimer(op, h.sid)) return;  // comes again
  // In a sum in rank order it would come out of its turn: behind the part of this node, which went on.
  if (op.what.deterministic()) return void(++stats_->packets_refused);
  if (!late_.PassOn(now, op, packet)) {
    seg.refused |= static_cast<Contributors>(h.contributors);
    return Answer(op, h, PacketKind::kRedirect, TargetOf(op, h.sid, seg.hop.Aim(now)));
  }
  seg.hop.Accept(now, h.source, {static_cast<Contributors>(h.contributors), h.missing});
  Answer(op, h, PacketKind::kAckPartial);
  SendLate(now, op, h.sid);
}

void Execution::OnResult(Instant now, Operation& op, const Packet& packet) {
  const Header& h = packet.header;
  Seg& seg = op.segs[h.sid];
  const SegRoute route(op.what, h.sid);
  const bool owned = route.owned_here() && (seg.owner == Seg::kNoOwner || seg.owner == op.what.self);
  if (!route.distributes() || owned) {
    ++stats_->packets_refused;
    return;
  }
  if (seg.phase == Phase::kResult || seg.phase == Phase::kDone) {
    ++stats_->duplicates;
    return Answer(op, h, PacketKind::kAckResult);
  }
  // There are timers for the segs of two windows; what comes before comes again.
  if (!HasTimer(op, h.sid)) return;
  op.seen |= h.contributors;
  if (op.posted && (op.missing[h.sid] & ~op.gone) == 0 && op.message != nullptr) {
    return TakeResult(now, op, h.sid, h, packet.payload);
  }
  if (seg.early) return;
  // Before the ranks here have said where it belongs: kept, and acknowledged when it is taken.
  held_.Release(&seg.held);
  wheel_->Cancel(seg.timer);
  held_.Release(&seg.passing);
  seg.contributors = 0;
  seg.participants = 0;
  if (!held_.Hold(op, seg, packet)) return;
  seg.early = true;
  seg.acked = true;  // the result makes a sum that is still on its way superfluous
  seg.owner = OwnerIn(op, h);
  seg.late = h.late;
}

void Execution::TakeResult(Instant now, Operation& op, uint32_t sid, const Header& header, ByteSpan payload) {
  Seg& seg = op.segs[sid];
  std::byte* const place = op.message + op.what.OffsetOf(sid);
  std::memcpy(place, payload.data(), payload.size());
  held_.Release(&seg.held);
  if (op.IsReady(sid)) op.ClearReady(sid);
  seg.local = true;
  seg.early = false;
  seg.owner = OwnerIn(op, header);
  seg.late = header.late;
  seg.contributors = static_cast<Contributors>(header.contributors);
  seg.participants = header.participants;
  seg.incomplete = (header.flags & Header::kIncomplete) != 0;
  Answer(op, header, PacketKind::kAckResult);
  HaveResult(now, op, sid, place);
}

void Execution::OnAckPartial(Instant now, Operation& op, const Header& header) {
  Seg& seg = op.segs[header.sid];
  if (IsOnItsWay(seg, header)) {
    seg.acked = true;
    if (seg.tries == 1) transfer_->OnRoundTrip(now - seg.since);
    held_.Release(&seg.held);
    if (!SegRoute(op.what, header.sid).distributes()) return Done(now, op, header.sid);
    return ArmSeg(now, op, header.sid);
  }
  if (late_.OnAck(now, seg, header)) ArmSeg(now, op, header.sid);
}

void Execution::OnAckResult(Instant now, Operation& op, const Header& header) {
  Seg& seg = op.segs[header.sid];
  if (seg.phase != Phase::kResult || (seg.pending & Bit(header.source)) == 0) return;
  seg.pending &= ~Bit(header.source);
  if (seg.tries == 1) transfer_->OnRoundTrip(now - seg.since);
  if (seg.pending == 0) Done(now, op, header.sid);
}

// The node that this one has sent a sum to has no room for it. Farther on is a node that has, the owner at
// last: redirects go forward, so they end; the owner alone names another one, to which it has left the seg.
void Execution::OnRedirect(Instant now, Operation& op, const Header& header) {
  Seg& seg = op.segs[header.sid];
  const SegRoute route(op.what, header.sid);
  const bool forward =
      route.PositionOf(header.root) > route.PositionOf(header.source) || header.source == route.owner();
  if (!seg.hop.opened() || !op.Skips() || header.root == op.what.self || !forward) return;
  if (IsOnItsWay(seg, header)) {
    seg.target = header.root;
    seg.tries = 0;
    ++stats_->redirects;
    return SendSum(now, op, header.sid);
  }
  if (!late_.OnRedirect(seg, header)) return;
  ++stats_->redirects;
  SendLate(now, op, header.sid);
}

void Execution::OnGoneOn(Instant now, Operation& op, const Header& header) {
  Seg& seg = op.segs[header.sid];
  if (seg.early || seg.phase == Phase::kResult || seg.phase == Phase::kDone) return;
  OpenSeg(now, op, header.sid);
  const Partial says{0, header.missing};
  if (!seg.hop.opened() || seg.hop.Judge(says) != Arrival::kNotice) {
    ++stats_->packets_refused;
    return;
  }
  seg.hop.OnGoneOn(header.source, static_cast<Contributors>(header.contributors));
  if (header.missing != 0) seg.hop.Accept(now, header.source, says);
  TrySum(now, op, header.sid);
}

// One node gets the seg, once: what is here and what comes goes to it.
void Execution::OnClaim(Instant now, Operation& op, const Header& header) {
  const SegRoute route(op.what, header.sid);
  Seg& seg = op.segs[header.sid];
  OpenSeg(now, op, header.sid);
  if (!route.owned_here() || !seg.hop.opened() || !op.Demotes()) {
    ++stats_->packets_refused;
    return;
  }
  const bool leaves = seg.owner == Seg::kNoOwner && seg.phase == Phase::kWaiting && !seg.early;
  if (leaves) {
    seg.owner = header.source;
    seg.hop.GoDirect();
  }
  Answer(op, header, PacketKind::kOwner, seg.owner);
  if (leaves) TrySum(now, op, header.sid);
}

void Execution::TakeOver(const Operation& op, Seg& seg) {
  seg.claimed = false;
  seg.owner = op.what.self;
  seg.tries = 0;
  wheel_->Cancel(seg.timer);
}

void Execution::OnOwner(Instant now, Operation& op, const Header& header) {
  Seg& seg = op.segs[header.sid];
  if (!seg.claimed || seg.phase != Phase::kWaiting || header.source != seg.hop.order().home) return;
  TakeOver(op, seg);
  seg.owner = header.root;
  if (seg.owner != op.what.self) seg.hop.GoDirect();
  TrySum(now, op, header.sid);
}

void Execution::Force(Instant now, Operation& op, bool owners) {
  // Who is not here for some seg is left out of all that are not begun.
  for (uint32_t sid = op.lowest; sid < op.what.segs; ++sid) {
    if (!op.segs[sid].local) op.gone |= op.missing[sid];
  }
  for (uint32_t sid = op.lowest; sid < op.what.segs; ++sid) {
    Seg& seg = op.segs[sid];
    if (owners || !OwnsSeg(op, sid)) seg.forced = true;
    if (!seg.local && !op.IsReady(sid)) op.SetReady(sid);
  }
  for (uint32_t sid = op.lowest; op.live && sid < op.what.segs; ++sid) TrySum(now, op, sid);
  Start(now, op);
}

void Execution::Answer(const Operation& op, const Header& to, PacketKind kind, uint8_t root) {
  Header answer = HeaderOf(op, to.sid, kind);
  answer.contributors = to.contributors;
  if (kind == PacketKind::kRedirect || kind == PacketKind::kOwner) answer.root = root;
  if (!transfer_->QueueAnswer(to.source, answer)) ++stats_->answers_dropped;
}

// A sum is aimed when it leaves, not when it is made: that may have taken longer than others wait.
size_t Execution::Write(Instant now, const Transfer::Send& send, MutableByteSpan out, uint8_t* target) {
  Operation* const op = store_->At(send.slot);
  if (op == nullptr || !op->live || op->epoch != send.epoch) return 0;
  Seg& seg = op->segs[send.sid];
  const uint32_t length = op->what.LengthOf(send.sid);
  Header h = HeaderOf(*op, send.sid, send.kind);
  const std::byte* data = DataOf(*op, send.sid);
  if (send.kind == PacketKind::kResult) {
    if (seg.phase != Phase::kResult || (seg.pending & Bit(send.target)) == 0) return 0;
  } else if (!send.unit.empty()) {
    data = late_.Describe(send.unit, &h, target);
  } else {
    if (seg.phase != Phase::kSent || seg.acked) return 0;
    if (!seg.aimed) {
      seg.target = late_.Aim(*op, send.sid, seg.hop.Close(now), seg.contributors);
      seg.aimed = true;
      seg.since = now;
    }
    *target = seg.target;
  }
  if (data == nullptr) return 0;
  const ByteSpan payload(reinterpret_cast<const uint8_t*>(data), length);
  return Encapsulate(h, payload, out);
}

}  // namespace longhaul::offload
