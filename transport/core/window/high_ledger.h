// What became of a window's high chunks and repair symbols, and what must be sent because of it: the sender's
// decision between waiting for a repair symbol and retransmitting.
//
// A block needs as many symbols as it has real sources, whichever they are. A lost source waits as long as
// the symbols acknowledged, in flight or about to leave are enough without it; each further loss asks again.
// So waiting implies that something of the block is still under way, and no loss waits for ever. When enough
// symbols are acknowledged the block is complete at the receiver: what waited is settled without being
// resent, and repair symbols not yet sent are dropped.
//
// Knows numbers only, no bytes. All operations O(1), but for completing a block and a loss that asks a block
// again (O(k)); nothing is allocated after construction.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/zeroed_array.h"
#include "transport/core/window/block_map.h"

namespace longhaul::transport {

class HighLedger {
 public:
  static constexpr uint32_t kNone = ~uint32_t{0};

  struct Repair {
    uint32_t block = 0;
    uint8_t number = 0;
    uint8_t count = 0;  // m of the block: symbols 0..count-1 will be asked for, in order
  };

  struct Retransmission {
    uint32_t sequence = 0;
    bool repeated = false;  // a further copy, by Repeat
  };

  HighLedger(uint32_t high_count, const BlockMap& map);

  // A source left for the first time; in ascending order. Returns the block that it filled, or kNone: then
  // SetRepairCount is due.
  uint32_t OnFirstSent(uint32_t sequence);
  void SetRepairCount(uint32_t block, uint8_t count);
  // Sources of the block that are not acknowledged: those that repair symbols may still have to stand for.
  int Outstanding(uint32_t block) const { return blocks_[block].sources - blocks_[block].acked; }

  bool HasRetransmission() const { return queued_ > 0; }
  // The oldest source to be sent again; the copy counts as in flight. REQUIRES: HasRetransmission().
  Retransmission TakeRetransmission();
  // The source that was just taken is to leave so many times more, behind what waits already. It is lost when
  // all its copies are.
  void Repeat(uint32_t sequence, uint8_t copies);
  bool HasRepair() const { return repairs_pending_ > 0; }
  // The next repair symbol; it counts as in flight. Row-major like the sources: one symbol of each of the
  // `depth` oldest blocks in turn, so that a burst does not take all the repair of one block. REQUIRES:
  // HasRepair().
  Repair TakeRepair();

  // `count_unsent_repair`: repair symbols that have not left yet will leave soon enough to wait for.
  void OnSourceLost(uint32_t sequence, bool count_unsent_repair);
  void OnRepairLost(uint32_t block, uint8_t number, bool count_unsent_repair);
  // The receiver says that it has not got the source, nor can it do without. True when it will be sent again
  // because of this: it was in flight, or lost and hoping for repair.
  bool OnSourceMissing(uint32_t sequence);
  // The same for the first source of the block that waits for repair, when there is one.
  bool OnRepairMissing(uint32_t block);
  // Also right after a loss was declared, then a spurious one.
  void OnSourceAcked(uint32_t sequence);
  void OnRepairAcked(uint32_t block, uint8_t number);

  // Declared lost, spurious ones undone.
  uint32_t lost() const { return lost_; }
  // Lost sources that were never resent because their block was completed by other symbols.
  uint32_t settled() const { return settled_; }

 private:
  enum class Fate : uint8_t { kUnsent, kInFlight, kWaiting, kQueued, kAcked, kSettled };

  struct Source {
    Fate fate;          // zero: kUnsent
    bool listed;        // in the retransmission list (perhaps stale: then its fate is not kQueued)
    bool repeated;      // queued by Repeat
    uint8_t in_flight;  // copies of which nothing is known yet; saturates
    uint8_t more;       // copies that are to follow the one that is queued
    uint32_t next;      // in that list, while listed
  };
  struct Block {
    uint8_t sources = 0;
    uint8_t acked = 0;    // sources
    uint8_t waiting = 0;  // sources lost and hoping for repair
    uint8_t unsent = 0;   // sources
    uint8_t repair_count = 0;
    uint8_t repair_taken = 0;
    bool complete = false;
    uint32_t repair_in_flight = 0;  // bit per symbol
    uint32_t repair_acked = 0;
    int RepairUnsent() const { return repair_count - repair_taken; }
  };

  bool RepairIsOver(size_t place) const;
  void Enqueue(uint32_t sequence);
  void SetFate(Block& block, uint32_t sequence, Fate fate);
  void Reconsider(uint32_t block, bool count_unsent_repair);
  void CompleteIfEnough(uint32_t block);

  BlockMap map_;
  ZeroedArray<Source> sources_;
  std::vector<Block> blocks_;
  uint32_t list_head_ = kNone;
  uint32_t list_tail_ = kNone;
  std::vector<uint32_t> repair_order_;  // blocks in the order they were filled
  size_t repair_head_ = 0;              // every block before it has no more to send
  size_t repair_cursor_ = 0;            // whose turn it is
  uint32_t queued_ = 0;
  uint32_t repairs_pending_ = 0;
  uint32_t lost_ = 0;
  uint32_t settled_ = 0;
};

}  // namespace longhaul::transport
