#include "server/tensor/rounds.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include "base/check.h"

namespace longhaul::server {
namespace {

constexpr uint32_t kWordBits = 64;

// Bits 64 word .. of the bitmap; zeros beyond its end.
uint64_t WordOf(const transport::ChunkBitmap& bits, uint32_t word) {
  static_assert(std::endian::native == std::endian::little);
  const std::vector<uint8_t>& bytes = bits.bytes();
  const size_t at = size_t{word} * sizeof(uint64_t);
  uint64_t value = 0;
  if (at < bytes.size()) std::memcpy(&value, bytes.data() + at, std::min(sizeof(value), bytes.size() - at));
  return value;
}

}  // namespace

Rounds::Rounds(uint32_t chunks, uint32_t ranks, RoundRule rule)
    : rule_(rule),
      members_(ranks, false),
      parts_(ranks, Participation::kAbsent),
      waits_for_(chunks),
      final_(chunks),
      swept_(chunks) {
  LH_CHECK_OP(ranks, <=, uint32_t{UINT16_MAX});
  counts_[static_cast<size_t>(Participation::kAbsent)] = ranks;
  final_order_.reserve(chunks);
  previous_order_.reserve(chunks);
}

bool Rounds::OnMemberJoined(uint32_t rank, bool in) {
  LH_CHECK(!members_[rank]);
  members_[rank] = true;
  if (asynchronous()) {
    SetPart(rank, Participation::kLagging);
    return true;
  }
  if (begun() && (in || !final_order_.empty() || Count(Participation::kAwaited) == 0)) return false;
  SetPart(rank, Participation::kAwaited);
  return true;
}

void Rounds::OnWindowOpened(uint32_t rank, Instant now) {
  LH_CHECK(parts_[rank] == Participation::kAwaited || parts_[rank] == Participation::kLagging);
  SetPart(rank, Participation::kOpen);
  if (!begun()) begun_ = now;
}

bool Rounds::OnContribution(uint32_t rank, uint32_t chunk, Contributions in) {
  LH_CHECK(parts_[rank] == Participation::kOpen && !asynchronous());
  LH_CHECK(!IsFinal(chunk));
  return IsReady(chunk, in);
}

bool Rounds::IsReady(uint32_t chunk, Contributions in) {
  const auto ranks = static_cast<uint32_t>(parts_.size());
  uint32_t rank = waits_for_[chunk];
  for (uint32_t i = 0; i < ranks; ++i, rank = rank + 1 < ranks ? rank + 1 : 0) {
    if (!IsAwaited(rank) || in[rank].Test(chunk)) continue;
    waits_for_[chunk] = static_cast<uint16_t>(rank);
    return false;
  }
  return true;
}

void Rounds::OnWindowClosed(uint32_t rank, const transport::ChunkBitmap& contributed) {
  LH_CHECK(parts_[rank] == Participation::kOpen);
  ++windows_in_;
  Release(rank, contributed);
}

void Rounds::OnWindowPassed(uint32_t rank) {
  LH_CHECK(parts_[rank] == Participation::kOpen && asynchronous());
  SetPart(rank, Participation::kLagging);
}

void Rounds::CloseStep() {
  LH_CHECK(asynchronous() && begun());
  ++windows_in_;
  BeginSweep();
}

void Rounds::OnMemberGone(uint32_t rank, const transport::ChunkBitmap& contributed) {
  LH_CHECK(members_[rank]);
  members_[rank] = false;
  if (IsAwaited(rank)) Release(rank, contributed);
  if (asynchronous() || parts_[rank] == Participation::kLagging) SetPart(rank, Participation::kAbsent);
  if (rule_.quorum > 0) AwaitEnough();
}

bool Rounds::OnMemberReplaced(uint32_t rank) {
  LH_CHECK(members_[rank]);
  if (parts_[rank] == Participation::kOpen)
    SetPart(rank, asynchronous() ? Participation::kLagging : Participation::kAwaited);
  return parts_[rank] == Participation::kAwaited || parts_[rank] == Participation::kLagging;
}

void Rounds::OnExcluded(uint32_t rank, const transport::ChunkBitmap& contributed) {
  LH_CHECK(parts_[rank] == Participation::kAwaited);
  Release(rank, contributed);
  SetPart(rank, Participation::kLagging);
}

uint32_t Rounds::Quorum() const {
  return std::min(rule_.quorum, static_cast<uint32_t>(std::count(members_.begin(), members_.end(), true)));
}

// A round that waited for fewer would be theirs alone, and the next one as soon as they push.
void Rounds::AwaitEnough() {
  const auto lagging = Count(Participation::kLagging);
  const uint32_t others = windows_in_ + Count(Participation::kAwaited) + Count(Participation::kOpen);
  if (others >= (rule_.quorum > 0 ? Quorum() : lagging)) return;
  for (uint32_t rank = 0; rank < parts_.size(); ++rank) {
    if (parts_[rank] == Participation::kLagging) SetPart(rank, Participation::kAwaited);
  }
}

void Rounds::SetPart(uint32_t rank, Participation part) {
  --counts_[static_cast<size_t>(parts_[rank])];
  ++counts_[static_cast<size_t>(part)];
  parts_[rank] = part;
}

// What it contributed, it was no longer awaited for.
void Rounds::Release(uint32_t rank, const transport::ChunkBitmap& contributed) {
  SetPart(rank, asynchronous() ? Participation::kLagging : Participation::kClosed);
  last_rank_ = rank;
  if (begun() && (asynchronous() || contributed.count() < final_.size())) BeginSweep();
}

uint64_t Rounds::ReadyChunks(uint32_t word, Contributions in) const {
  const uint32_t end = final_.size() - word * kWordBits;
  uint64_t ready = ~WordOf(final_, word);
  if (end < kWordBits) ready &= (uint64_t{1} << end) - 1;
  for (uint32_t rank = 0; ready != 0 && rank < parts_.size(); ++rank) {
    if (IsAwaited(rank)) ready &= WordOf(in[rank], word);
  }
  return ready;
}

void Rounds::Sweep(Contributions in, size_t max, std::vector<uint32_t>* ready) {
  const uint32_t end = std::min(final_.size() - swept_, kSweptChunks) + swept_;
  const size_t full = ready->size() + max;
  while (swept_ < end) {
    const uint32_t first = swept_ / kWordBits * kWordBits;
    for (uint64_t bits = ReadyChunks(swept_ / kWordBits, in); bits != 0; bits &= bits - 1) {
      if (ready->size() == full) return;
      ready->push_back(first + static_cast<uint32_t>(std::countr_zero(bits)));
    }
    swept_ = std::min(first + kWordBits, final_.size());
  }
}

void Rounds::MarkFinal(uint32_t chunk) {
  LH_CHECK(final_.Set(chunk));
  final_order_.push_back(chunk);
}

void Rounds::Next(Instant now) {
  LH_CHECK(AllFinal());
  ++number_;
  for (uint32_t rank = 0; rank < members_.size() && !asynchronous(); ++rank) {
    const bool lags = parts_[rank] == Participation::kLagging;
    SetPart(rank, !members_[rank] ? Participation::kAbsent
                  : lags          ? Participation::kLagging
                                  : Participation::kAwaited);
  }
  windows_in_ = 0;
  if (!asynchronous()) AwaitEnough();
  final_ = transport::ChunkBitmap(final_.size());
  std::swap(final_order_, previous_order_);
  final_order_.clear();
  swept_ = final_.size();
  begun_.reset();
  if (asynchronous() && Count(Participation::kOpen) > 0) begun_ = now;
  tally_ = {};
}

}  // namespace longhaul::server
