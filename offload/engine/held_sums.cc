#include "offload/engine/held_sums.h"

#include <bit>
#include <cstring>

namespace longhaul::offload {
namespace {

const std::byte* Bytes(ByteSpan span) { return reinterpret_cast<const std::byte*>(span.data()); }

}  // namespace

SegPool::Unit* HeldSums::TakeUnit(Operation& op, Seg& seg, uint32_t length, bool in_order) {
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

bool HeldSums::Hold(Operation& op, Seg& seg, const Packet& packet) {
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
  Enter(seg, h);
  return true;
}

bool HeldSums::HoldAlone(Operation& op, Seg& seg, const Packet& packet, bool in_order) {
  SegPool::Unit* const unit = TakeUnit(op, seg, op.what.LengthOf(packet.header.sid), in_order);
  if (unit == nullptr) return false;
  std::memcpy(unit->data, packet.payload.data(), packet.payload.size());
  unit->contributors = packet.header.contributors;
  return true;
}

// Children are added by number, each to the sum of those before it: the first unit holds the sum of all
// children up to one of them, what came out of its turn waits in units of its own.
bool HeldSums::HoldInOrder(Operation& op, Seg& seg, const Packet& packet) {
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
void HeldSums::SortHeld(Seg& seg) {
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

void HeldSums::AddFollowers(Operation& op, Seg& seg, uint64_t children) {
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

void HeldSums::Release(SegRef* list) {
  while (!list->empty()) {
    const SegPool::Unit* const unit = pool_->Find(*list);
    const SegRef next = unit == nullptr ? SegRef() : unit->next;
    pool_->Release(*list);
    *list = next;
  }
}

void HeldSums::Enter(Seg& seg, const Header& h) {
  seg.contributors |= static_cast<Contributors>(h.contributors);
  seg.participants += h.participants;
  seg.incomplete |= (h.flags & Header::kIncomplete) != 0;
}

}  // namespace longhaul::offload
