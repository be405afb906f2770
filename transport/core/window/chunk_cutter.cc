#include "transport/core/window/chunk_cutter.h"

#include <algorithm>

#include "base/check.h"

namespace longhaul::transport {
namespace {

size_t RoundedUp(size_t bytes) { return (bytes + wire::kPartUnit - 1) / wire::kPartUnit * wire::kPartUnit; }

}  // namespace

void ChunkCutter::Take(const WindowTx::Item& item) {
  LH_CHECK(!HasRest());
  item_ = item;
  item_.first = item_.second = {};
  bytes_.assign(item.first.begin(), item.first.end());
  bytes_.insert(bytes_.end(), item.second.begin(), item.second.end());
  at_ = 0;
  fate_ = std::make_shared<CutChunk>();
}

// Equal parts, not full packets and a rest: one GSO send takes only equally long datagrams.
WindowTx::Item ChunkCutter::Next(size_t room) {
  LH_CHECK(HasRest());
  LH_CHECK_OP(room, >=, kMinRoom);
  const size_t rest = bytes_.size() - at_;
  const size_t longest = (room - wire::kPartHeaderBytes) / wire::kPartUnit * wire::kPartUnit;
  const size_t parts = (rest + longest - 1) / longest;
  const size_t size = std::min(rest, RoundedUp((rest + parts - 1) / parts));
  ByteWriter writer(head_);
  wire::Encode(wire::PartHeader{static_cast<uint16_t>(at_), static_cast<uint16_t>(bytes_.size())}, writer);
  WindowTx::Item part = item_;
  part.header.part = true;
  part.first = head_;
  part.second = ByteSpan(bytes_).subspan(at_, size);
  at_ += size;
  part.header.last_of_window = item_.header.last_of_window && !HasRest();
  part.cut = fate_;
  fate_->OnPartSent(!HasRest());
  return part;
}

void ChunkCutter::Forget(WindowKey key) {
  if (item_.header.window_id == key.id && item_.header.generation == key.generation) at_ = bytes_.size();
}

}  // namespace longhaul::transport
