#include "transport/core/window/high_ledger.h"

#include <algorithm>
#include <bit>

#include "base/check.h"

namespace longhaul::transport {
namespace {

constexpr uint8_t kMaxCopies = 255;

}  // namespace

HighLedger::HighLedger(uint32_t high_count, const BlockMap& map)
    : map_(map), sources_(high_count), blocks_(map.block_count()) {
  for (uint32_t b = 0; b < map_.block_count(); ++b) {
    blocks_[b].sources = blocks_[b].unsent = map_.SourceSymbols(b);
  }
  repair_order_.reserve(blocks_.size());
}

uint32_t HighLedger::OnFirstSent(uint32_t sequence) {
  LH_CHECK(sources_[sequence].fate == Fate::kUnsent);
  sources_[sequence].fate = Fate::kInFlight;
  sources_[sequence].in_flight = 1;
  if (blocks_.empty()) return kNone;
  const uint32_t block = map_.Locate(sequence).block;
  return --blocks_[block].unsent == 0 ? block : kNone;
}

void HighLedger::SetRepairCount(uint32_t block, uint8_t count) {
  Block& b = blocks_[block];
  LH_CHECK(b.unsent == 0 && b.repair_count == 0);
  if (count == 0 || b.complete) return;
  b.repair_count = count;
  repairs_pending_ += count;
  repair_order_.push_back(block);
}

HighLedger::Retransmission HighLedger::TakeRetransmission() {
  LH_CHECK(HasRetransmission());
  for (;;) {
    const uint32_t sequence = list_head_;
    Source& source = sources_[sequence];
    list_head_ = source.next;
    if (list_head_ == kNone) list_tail_ = kNone;
    source.listed = false;
    if (source.fate != Fate::kQueued) continue;  // acknowledged or settled while it stood in line
    --queued_;
    source.fate = Fate::kInFlight;
    if (source.in_flight < kMaxCopies) ++source.in_flight;
    const bool repeated = source.repeated;
    if (repeated && source.more > 0) Repeat(sequence, source.more);
    return {sequence, repeated};
  }
}

void HighLedger::Repeat(uint32_t sequence, uint8_t copies) {
  if (copies == 0) return;
  Enqueue(sequence);
  sources_[sequence].repeated = true;
  sources_[sequence].more = static_cast<uint8_t>(copies - 1);
}

bool HighLedger::RepairIsOver(size_t place) const {
  const Block& b = blocks_[repair_order_[place]];
  return b.complete || b.RepairUnsent() == 0;
}

HighLedger::Repair HighLedger::TakeRepair() {
  LH_CHECK(HasRepair());
  while (RepairIsOver(repair_head_)) ++repair_head_;
  const size_t end = std::min(repair_head_ + map_.depth(), repair_order_.size());
  do {  // the block at the head has something, so this ends
    if (repair_cursor_ < repair_head_ || repair_cursor_ >= end) repair_cursor_ = repair_head_;
  } while (RepairIsOver(repair_cursor_++));
  const uint32_t block = repair_order_[repair_cursor_ - 1];
  Block& b = blocks_[block];
  const uint8_t number = b.repair_taken++;
  b.repair_in_flight |= uint32_t{1} << number;
  --repairs_pending_;
  return {block, number, b.repair_count};
}

void HighLedger::OnSourceLost(uint32_t sequence, bool count_unsent_repair) {
  Source& source = sources_[sequence];
  // Copies of one chunk cannot be told apart: when the copy in flight has already been taken for the one
  // acknowledged, this loss stands for the earlier one, which has been counted.
  if (source.in_flight == 0) return;
  --source.in_flight;
  ++lost_;
  // Another copy is under way, or waits to leave, or has arrived.
  if (source.in_flight > 0 || source.fate != Fate::kInFlight) return;
  if (blocks_.empty()) return Enqueue(sequence);
  const uint32_t block = map_.Locate(sequence).block;
  if (blocks_[block].complete) {
    ++settled_;
    return SetFate(blocks_[block], sequence, Fate::kSettled);
  }
  SetFate(blocks_[block], sequence, Fate::kWaiting);
  Reconsider(block, count_unsent_repair);
}

void HighLedger::OnRepairLost(uint32_t block, uint8_t number, bool count_unsent_repair) {
  const uint32_t bit = uint32_t{1} << number;
  if ((blocks_[block].repair_in_flight & bit) == 0) return;
  blocks_[block].repair_in_flight &= ~bit;
  ++lost_;
  if (!blocks_[block].complete) Reconsider(block, count_unsent_repair);
}

bool HighLedger::OnSourceMissing(uint32_t sequence) {
  Source& source = sources_[sequence];
  if (source.fate != Fate::kInFlight && source.fate != Fate::kWaiting) return false;
  if (!blocks_.empty()) {
    Block& block = blocks_[map_.Locate(sequence).block];
    if (block.complete) return false;  // what was acknowledged since is enough
    if (source.fate == Fate::kWaiting) --block.waiting;
  }
  Enqueue(sequence);
  return true;
}

bool HighLedger::OnRepairMissing(uint32_t block) {
  for (uint8_t symbol = 0; symbol < blocks_[block].sources; ++symbol) {
    const uint32_t sequence = map_.Sequence(block, symbol);
    if (sources_[sequence].fate == Fate::kWaiting) return OnSourceMissing(sequence);
  }
  return false;
}

void HighLedger::OnSourceAcked(uint32_t sequence) {
  Source& source = sources_[sequence];
  LH_CHECK(source.fate != Fate::kUnsent);
  if (source.in_flight > 0) {
    --source.in_flight;
  } else {
    --lost_;  // a copy declared lost has arrived after all
  }
  if (source.fate == Fate::kAcked) return;
  if (source.fate == Fate::kSettled) --settled_;
  if (blocks_.empty()) {
    if (source.fate == Fate::kQueued) --queued_;
    source.fate = Fate::kAcked;
    return;
  }
  const uint32_t block = map_.Locate(sequence).block;
  SetFate(blocks_[block], sequence, Fate::kAcked);
  CompleteIfEnough(block);
}

void HighLedger::OnRepairAcked(uint32_t block, uint8_t number) {
  Block& b = blocks_[block];
  const uint32_t bit = uint32_t{1} << number;
  if ((b.repair_acked & bit) != 0) return;
  if ((b.repair_in_flight & bit) == 0) --lost_;
  b.repair_in_flight &= ~bit;
  b.repair_acked |= bit;
  CompleteIfEnough(block);
}

void HighLedger::Enqueue(uint32_t sequence) {
  Source& source = sources_[sequence];
  LH_CHECK(!source.listed);
  source.fate = Fate::kQueued;
  source.listed = true;
  source.repeated = false;
  source.next = kNone;
  if (list_tail_ == kNone) {
    list_head_ = sequence;
  } else {
    sources_[list_tail_].next = sequence;
  }
  list_tail_ = sequence;
  ++queued_;
}

void HighLedger::SetFate(Block& block, uint32_t sequence, Fate fate) {
  Source& source = sources_[sequence];
  if (source.fate == Fate::kQueued) --queued_;
  if (source.fate == Fate::kWaiting) --block.waiting;
  if (source.fate == Fate::kAcked) --block.acked;
  source.fate = fate;
  if (fate == Fate::kWaiting) ++block.waiting;
  if (fate == Fate::kAcked) ++block.acked;
}

void HighLedger::Reconsider(uint32_t block, bool count_unsent_repair) {
  Block& b = blocks_[block];
  // Every source but the waiting ones is acknowledged or under way, so the repair symbols must stand for
  // those.
  int repair = std::popcount(b.repair_in_flight) + std::popcount(b.repair_acked);
  if (count_unsent_repair) repair += b.RepairUnsent();
  for (uint8_t symbol = 0; b.waiting > repair && symbol < b.sources; ++symbol) {
    const uint32_t sequence = map_.Sequence(block, symbol);
    if (sources_[sequence].fate != Fate::kWaiting) continue;
    --b.waiting;
    Enqueue(sequence);
  }
}

void HighLedger::CompleteIfEnough(uint32_t block) {
  Block& b = blocks_[block];
  if (b.complete || b.acked + std::popcount(b.repair_acked) < b.sources) return;
  b.complete = true;
  repairs_pending_ -= static_cast<uint32_t>(b.RepairUnsent());
  for (uint8_t symbol = 0; symbol < b.sources; ++symbol) {
    const uint32_t sequence = map_.Sequence(block, symbol);
    const Fate fate = sources_[sequence].fate;
    if (fate != Fate::kWaiting && fate != Fate::kQueued) continue;
    if (sources_[sequence].in_flight > 0) {  // nothing of it was lost, as far as is known
      SetFate(b, sequence, Fate::kInFlight);
      continue;
    }
    SetFate(b, sequence, Fate::kSettled);
    ++settled_;
  }
}

}  // namespace longhaul::transport
