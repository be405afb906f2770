#include "offload/engine/late_sums.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/reached.h"
#include "offload/engine/seg_ways.h"

namespace longhaul::offload {

void LateSums::Tell(Operation& op, uint32_t sid, uint8_t target, uint32_t missing, uint64_t past) {
  Header notice = HeaderOf(op, sid, PacketKind::kGoneOn);
  notice.missing = missing;
  notice.contributors = past;
  if (!transfer_->QueueAnswer(target, notice)) ++stats_->answers_dropped;
}

// Where a late sum of `set` goes; the nodes that it goes past do not wait for it.
uint8_t LateSums::Aim(Operation& op, uint32_t sid, uint32_t position, uint64_t set) {
  const RingOrder& order = op.segs[sid].hop.order();
  const uint32_t next = op.places[order.home].position + 1;
  for (uint32_t p = next; p < position; ++p) Tell(op, sid, order.nodes[p], 0, set);
  return TargetOf(op, sid, position);
}

// A late sum goes on as it is, to a node that still waits. False: there is no unit for it.
bool LateSums::PassOn(Instant now, Operation& op, const Packet& packet) {
  const Header& h = packet.header;
  Seg& seg = op.segs[h.sid];
  const auto ref = pool_->Take(op.slot, SegPool::Turn::kOutOfOrder);
  if (!ref) {
    ++stats_->pool_exhausted;
    return false;
  }
  SegPool::Unit* const unit = pool_->Find(*ref);
  unit->next = std::exchange(seg.passing, *ref);
  unit->length = op.what.LengthOf(h.sid);
  std::memcpy(unit->data, packet.payload.data(), packet.payload.size());
  unit->contributors = h.contributors;
  unit->participants = h.participants;
  unit->missing = h.missing;
  unit->late = h.late;
  unit->incomplete = (h.flags & Header::kIncomplete) != 0;
  unit->target = Aim(op, h.sid, seg.hop.Aim(now), h.contributors);
  ++stats_->passed_on;
  LH_REACHED("a late sum is passed on");
  return true;
}

// Those of the passed-on sums whose time has come.
void LateSums::Send(Instant now, Operation& op, uint32_t sid) {
  SegRef ref = op.segs[sid].passing;
  for (SegPool::Unit* unit = pool_->Find(ref); unit != nullptr; ref = unit->next, unit = pool_->Find(ref)) {
    if (unit->tries > 0 && now < unit->again) continue;
    if (unit->tries++ == 0) unit->since = now;
    unit->tries = std::min<uint8_t>(unit->tries, 100);
    if (unit->tries > 1) ++stats_->retransmissions;
    if (!transfer_->QueueSend({op.slot, op.epoch, sid, unit->target, PacketKind::kPartial, ref}))
      ++stats_->sends_deferred;
    unit->again = now + transfer_->TimeoutOf(unit->tries);
  }
}

// The passed-on sum that the answer is about; empty: none.
SegRef* LateSums::Find(Seg& seg, const Header& answer) {
  SegRef* ref = &seg.passing;
  for (SegPool::Unit* unit = pool_->Find(*ref); unit != nullptr;
       ref = &unit->next, unit = pool_->Find(*ref)) {
    if (unit->contributors == answer.contributors && unit->target == answer.source) return ref;
  }
  return nullptr;
}

// The sum in the unit that the seg holds, without the ranks here.
void LateSums::PassOnHeld(Seg& seg, uint8_t target, uint32_t missing) {
  SegPool::Unit& unit = *pool_->Find(seg.held);
  unit.participants = seg.participants;
  unit.missing = missing;
  unit.late = seg.late | seg.hop.late();
  unit.incomplete = seg.incomplete;
  unit.target = target;
  unit.next = std::exchange(seg.passing, std::exchange(seg.held, {}));
}

Instant LateSums::Next(const Seg& seg) const {
  Instant due = Instant::Infinite();
  for (const SegPool::Unit* unit = pool_->Find(seg.passing); unit != nullptr;
       unit = pool_->Find(unit->next)) {
    due = std::min(due, unit->again);
  }
  return due;
}

bool LateSums::OnAck(Instant now, Seg& seg, const Header& answer) {
  SegRef* const passing = Find(seg, answer);
  if (passing == nullptr) return false;
  const SegPool::Unit& unit = *pool_->Find(*passing);
  if (unit.tries == 1) transfer_->OnRoundTrip(now - unit.since);
  const SegRef gone = std::exchange(*passing, unit.next);
  pool_->Release(gone);
  return true;
}

bool LateSums::OnRedirect(Seg& seg, const Header& answer) {
  SegRef* const passing = Find(seg, answer);
  if (passing == nullptr) return false;
  SegPool::Unit& unit = *pool_->Find(*passing);
  unit.target = answer.root;
  unit.tries = 0;
  return true;
}

const std::byte* LateSums::Describe(SegRef ref, Header* h, uint8_t* target) const {
  const SegPool::Unit* const unit = pool_->Find(ref);
  if (unit == nullptr) return nullptr;
  h->contributors = unit->contributors;
  h->participants = unit->participants;
  h->missing = unit->missing;
  h->late = unit->late;
  h->ranks = 0;
  h->flags &= static_cast<uint8_t>(~Header::kIncomplete);
  if (unit->incomplete) h->flags |= Header::kIncomplete;
  *target = unit->target;
  return unit->data;
}

}  // namespace longhaul::offload
