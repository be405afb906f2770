#include "offload/engine/collective.h"

#include "base/check.h"

namespace longhaul::offload {
namespace {

uint8_t NthNode(uint64_t nodes, uint32_t n) {
  for (; n > 0; --n) nodes &= nodes - 1;
  return static_cast<uint8_t>(std::countr_zero(nodes));
}

uint32_t IndexOf(uint64_t nodes, uint8_t node) {
  return static_cast<uint32_t>(std::popcount(nodes & (BitOf(node) - 1)));
}

uint8_t OwnerOf(const Collective& what, uint32_t sid) {
  if (what.opcode == Opcode::kReduce || what.opcode == Opcode::kBroadcast) return what.root_node;
  if (what.opcode == Opcode::kReduceScatter) {
    return NthNode(what.nodes, sid / what.share_segs() / what.local_ranks());
  }
  if (what.route == Route::kTree) return what.tree_root;
  // The way of every seg begins one node farther on, so that all of them are at work at the same time.
  const auto n = static_cast<uint32_t>(std::popcount(what.nodes));
  return NthNode(what.nodes, (what.mid + sid + n - 1) % n);
}

}  // namespace

Status CheckRequest(const WorkRequest& request) {
  const auto invalid = [](const char* what) { return Status(StatusCode::kInvalidArgument, what); };
  if (request.opcode > Opcode::kCancel) return invalid("offload: no such opcode");
  if ((request.flags & ~WorkRequest::kAllFlags) != 0) return invalid("offload: no such flag");
  if (request.opcode != Opcode::kConfig) return Status::Ok();
  if (request.config == nullptr) return invalid("offload: kConfig without a configuration");
  if (request.config->route > Route::kTree) return invalid("offload: no such route");
  if (request.config->policy > StragglerPolicy::kLeafDemote) return invalid("offload: no such policy");
  return Status::Ok();
}

Share ShareOf(uint64_t length, uint32_t seg_bytes, uint32_t index, uint32_t count) {
  const uint64_t each = (SegCount(length, seg_bytes) + count - 1) / count * seg_bytes;
  const uint64_t offset = std::min(length, index * each);
  return {offset, std::min(each, length - offset)};
}

SegRoute::SegRoute(const Collective& what, uint32_t sid)
    : route_(what.route),
      collects_(what.opcode != Opcode::kBroadcast),
      distributes_(what.opcode == Opcode::kAllReduce || what.opcode == Opcode::kBroadcast),
      self_(what.self),
      owner_(OwnerOf(what, sid)),
      nodes_(what.nodes) {}

uint8_t SegRoute::Neighbour(uint8_t node) const {
  const uint64_t above = node >= 63 ? 0 : nodes_ & ~((uint64_t{2} << node) - 1);
  return static_cast<uint8_t>(std::countr_zero(above != 0 ? above : nodes_));
}

uint8_t SegRoute::NextOf(uint8_t node) const { return route_ == Route::kTree ? owner_ : Neighbour(node); }

uint32_t SegRoute::PositionOf(uint8_t node) const {
  const auto n = static_cast<uint32_t>(std::popcount(nodes_));
  if (route_ == Route::kTree) return node == owner_ ? 1 : 0;
  return (IndexOf(nodes_, node) + n - IndexOf(nodes_, Neighbour(owner_))) % n;
}

uint64_t SegRoute::Needed() const {
  const uint64_t others = nodes_ & ~BitOf(self_);
  if (!collects_) return 0;
  if (owned_here()) return others;
  if (route_ == Route::kTree) return 0;
  uint64_t before = 0;
  for (uint8_t node = Neighbour(owner_); node != self_; node = Neighbour(node)) before |= BitOf(node);
  return before;
}

uint64_t SegRoute::ResultTargets(uint8_t owner) const {
  if (!distributes_) return 0;
  if (route_ == Route::kTree) return owned_here() ? nodes_ & ~BitOf(self_) : 0;
  const uint8_t next = Neighbour(self_);
  return next == owner ? 0 : BitOf(next);
}

}  // namespace longhaul::offload
