#include "server/tensor/rounds.h"

#include <algorithm>

#include "base/check.h"

namespace longhaul::server {

Rounds::Rounds(uint32_t chunks, uint32_t ranks)
    : members_(ranks, false),
      parts_(ranks, Participation::kAbsent),
      awaited_(chunks, 0),
      final_(chunks, false) {
  final_order_.reserve(chunks);
}

bool Rounds::OnMemberJoined(uint32_t rank) {
  LH_CHECK(!members_[rank]);
  members_[rank] = true;
  if (begun()) return false;
  parts_[rank] = Participation::kAwaited;
  for (uint32_t& awaited : awaited_) ++awaited;
  return true;
}

void Rounds::OnWindowOpened(uint32_t rank, const transport::ChunkBitmap& contributed, Instant now) {
  LH_CHECK(parts_[rank] == Participation::kAwaited || parts_[rank] == Participation::kLagging);
  if (parts_[rank] == Participation::kLagging) {
    for (uint32_t chunk = 0; chunk < awaited_.size(); ++chunk) {
      awaited_[chunk] += final_[chunk] || contributed.Test(chunk) ? 0 : 1;
    }
  }
  parts_[rank] = Participation::kOpen;
  if (!begun()) begun_ = now;
}

void Rounds::OnContribution(uint32_t rank, uint32_t chunk, std::vector<uint32_t>* ready) {
  LH_CHECK(parts_[rank] == Participation::kOpen);
  LH_CHECK(!final_[chunk]);
  LH_CHECK_OP(awaited_[chunk], >, 0u);
  if (--awaited_[chunk] == 0) ready->push_back(chunk);
}

void Rounds::OnWindowClosed(uint32_t rank, const transport::ChunkBitmap& contributed,
                            std::vector<uint32_t>* ready) {
  LH_CHECK(parts_[rank] == Participation::kOpen);
  Release(rank, contributed, ready);
}

void Rounds::OnMemberGone(uint32_t rank, const transport::ChunkBitmap& contributed,
                          std::vector<uint32_t>* ready) {
  LH_CHECK(members_[rank]);
  members_[rank] = false;
  if (parts_[rank] == Participation::kAwaited || parts_[rank] == Participation::kOpen)
    Release(rank, contributed, ready);
  if (parts_[rank] == Participation::kLagging) parts_[rank] = Participation::kAbsent;
}

bool Rounds::OnMemberReplaced(uint32_t rank) {
  LH_CHECK(members_[rank]);
  if (parts_[rank] == Participation::kOpen) parts_[rank] = Participation::kAwaited;
  return parts_[rank] == Participation::kAwaited || parts_[rank] == Participation::kLagging;
}

void Rounds::OnExcluded(uint32_t rank, const transport::ChunkBitmap& contributed,
                        std::vector<uint32_t>* ready) {
  LH_CHECK(parts_[rank] == Participation::kAwaited);
  Release(rank, contributed, ready);
  parts_[rank] = Participation::kLagging;
}

uint32_t Rounds::Count(Participation part) const {
  return static_cast<uint32_t>(std::count(parts_.begin(), parts_.end(), part));
}

void Rounds::Release(uint32_t rank, const transport::ChunkBitmap& contributed, std::vector<uint32_t>* ready) {
  parts_[rank] = Participation::kClosed;
  last_rank_ = rank;
  for (uint32_t chunk = 0; chunk < awaited_.size(); ++chunk) {
    if (contributed.Test(chunk)) continue;  // no longer awaited since it came
    if (final_[chunk]) continue;            // final before a lagging worker opened its window
    LH_CHECK_OP(awaited_[chunk], >, 0u);
    if (--awaited_[chunk] == 0) ready->push_back(chunk);
  }
}

void Rounds::CollectReady(std::vector<uint32_t>* ready) const {
  if (!begun()) return;
  for (uint32_t chunk = 0; chunk < awaited_.size(); ++chunk) {
    if (awaited_[chunk] == 0 && !final_[chunk]) ready->push_back(chunk);
  }
}

void Rounds::MarkFinal(uint32_t chunk) {
  LH_CHECK(!final_[chunk]);
  LH_CHECK_OP(awaited_[chunk], ==, 0u);
  final_[chunk] = true;
  final_order_.push_back(chunk);
}

void Rounds::Next() {
  LH_CHECK(AllFinal());
  ++number_;
  for (size_t rank = 0; rank < members_.size(); ++rank) {
    const bool lags = parts_[rank] == Participation::kLagging;
    parts_[rank] = !members_[rank] ? Participation::kAbsent
                   : lags          ? Participation::kLagging
                                   : Participation::kAwaited;
  }
  // A round must wait for at least one member: a round that waits for none would be over at once.
  if (Count(Participation::kAwaited) == 0)
    std::replace(parts_.begin(), parts_.end(), Participation::kLagging, Participation::kAwaited);
  std::fill(awaited_.begin(), awaited_.end(), Count(Participation::kAwaited));
  std::fill(final_.begin(), final_.end(), false);
  final_order_.clear();
  begun_.reset();
  tally_ = {};
}

}  // namespace longhaul::server
