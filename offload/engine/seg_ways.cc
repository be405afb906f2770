#include "offload/engine/seg_ways.h"

#include <bit>

#include "base/check.h"

namespace longhaul::offload {

void MakePlaces(ControlStore& store, Duration transfer, Operation& op) {
  const Collective& what = op.what;
  const JobConfig* const job = store.FindJob(what.jid);
  ControlStore::RingMemory* const ring = store.FindRing(what.jid);
  LH_CHECK(job != nullptr && ring != nullptr);
  const bool tree = what.route == Route::kTree;
  const bool skips = !tree && !what.deterministic() && what.opcode == Opcode::kAllReduce;
  RingPlace place;
  place.self = what.self;
  place.policy = skips ? job->policy : StragglerPolicy::kOff;
  if (place.policy != StragglerPolicy::kOff) place.deadlines = &ring->deadlines;
  place.transfer = transfer;
  const auto nodes = static_cast<Contributors>(what.nodes);
  Contributors leaves = place.policy == StragglerPolicy::kLeafDemote ? ring->demotion.leaves() : 0;
  if (std::popcount(nodes & ~leaves) < static_cast<int>(Demotion::kLeastMembers)) leaves = 0;
  op.places.resize(kMaxNodes);
  uint32_t chunk = 1;  // that of the first owner begins at the second node
  for (uint64_t rest = what.nodes; rest != 0; rest &= rest - 1, ++chunk) {
    const auto owner = static_cast<uint8_t>(std::countr_zero(rest));
    const bool child = tree && owner != what.self;
    const Contributors members = child ? Bit(owner) | Bit(what.self) : nodes;
    const int before = std::popcount(members & (Bit(owner) - 1));
    // An owner stays one until another node claims the seg.
    const Contributors passed_over = owner == what.self ? leaves & ~Bit(owner) : leaves;
    place.order = MakeRingOrder(members, passed_over, tree ? static_cast<uint32_t>(before) + 1 : chunk);
    place.position = 0;
    while (place.position < place.order.size && place.order.nodes[place.position] != what.self)
      ++place.position;
    op.places[owner] = place;
  }
}

bool OwnsSeg(const Operation& op, uint32_t sid) {
  const Seg& seg = op.segs[sid];
  if (seg.owner != Seg::kNoOwner) return seg.owner == op.what.self;
  return SegRoute(op.what, sid).owned_here();
}

// What leads backwards could come back: only the route's owner sends to the node that it has left the seg to.
uint8_t TargetOf(const Operation& op, uint32_t sid, uint32_t position) {
  const Seg& seg = op.segs[sid];
  const RingOrder& order = seg.hop.order();
  if (position != order.owner()) return order.nodes[position];
  if (seg.owner != Seg::kNoOwner) return seg.owner;
  const SegRoute route(op.what, sid);
  const uint8_t last = order.nodes[position];
  return last != op.what.self && route.PositionOf(last) > route.PositionOf(op.what.self) ? last : order.home;
}

Header HeaderOf(const Operation& op, uint32_t sid, PacketKind kind) {
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
  if (what.reformed) h.flags |= Header::kReformed;
  h.seg_bytes = static_cast<uint16_t>(what.seg_bytes);
  h.length = what.length;
  h.nodes = what.nodes;
  if (kind != PacketKind::kPartial && kind != PacketKind::kResult) return h;
  const Seg& seg = op.segs[sid];
  h.intra |= Header::kReduced;
  h.contributors = seg.contributors;
  h.participants = seg.participants;
  h.ranks = op.Present(sid);
  h.late = seg.late | (kind == PacketKind::kPartial ? seg.hop.late() : 0);
  if (kind == PacketKind::kPartial) h.missing = seg.missing;
  if (kind == PacketKind::kResult && what.route == Route::kRing) h.root = seg.owner;
  if (seg.incomplete) h.flags |= Header::kIncomplete;
  return h;
}

uint8_t OwnerIn(const Operation& op, const Header& result) {
  return op.what.route == Route::kTree ? op.what.tree_root : result.root;
}

bool IsOnItsWay(const Seg& seg, const Header& answer) {
  return seg.phase == Phase::kSent && !seg.acked && seg.aimed && answer.source == seg.target &&
         answer.contributors == seg.contributors;
}

}  // namespace longhaul::offload
