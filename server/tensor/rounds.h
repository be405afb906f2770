// One tensor's rounds: which worker has its window in which state, and when a chunk is final.
//
// A chunk is final when every awaited worker has contributed it or its window is over. A round is finished
// when all chunks are final; the next one then begins with the workers that are members at that moment.
//
// Nothing here walks the chunks in one event. Which chunks are ready follows from which ranks are awaited and
// which chunks each has contributed, a bit of a bitmap; where a window that is over had lost chunks, a sweep
// in slices finds those that waited for nothing else.
//
// A worker that a round was not willing to wait for is lagging: no round waits for it any more until it opens
// a window, with which it takes part in the round of that moment, as far as that is not final yet. Where
// fewer members than a quorum, by default half of them, do not lag, the round waits for all of them again, as
// long as it is willing to: those that are left make one round in that time, and not the model.
//
// Asynchronous (staleness is not 0), a round is a step: it waits for no one, and is closed by the first
// window that is over. Windows that are open then stay open, and what comes of them later is of the steps to
// come. A member lags whenever it has no window. Knows no tensor values and no connections. Not thread-safe.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/instant.h"
#include "base/pages.h"
#include "base/zeroed_array.h"
#include "codec/policy/filler.h"
#include "transport/core/window/window_types.h"

namespace longhaul::server {

// What became of the workers' windows in one round, summed over the workers.
struct RoundTally {
  uint32_t repaired_chunks = 0;
  uint32_t low_chunks = 0;        // expected
  uint32_t low_lost = 0;          // of them did not arrive
  uint32_t lost_chunks = 0;       // contributions of both classes that did not arrive
  uint32_t tolerated_chunks = 0;  // of them, in windows that lost no more than the bubble-filling threshold
  uint32_t filled_chunks = 0;     // of them, in windows that lost more
  uint32_t rejected_chunks = 0;   // of them, arrived and refused by the guard
  codec::FillReason fill_reason = codec::FillReason::kNoneLost;  // the weightiest of all chunks
  uint32_t excluded = 0;                // workers that were lagging when the round was over; set then
  std::array<uint32_t, 6> closed = {};  // windows, by wire::CloseReason
};

// What closes a round.
struct RoundRule {
  uint32_t quorum = 0;  // JobSpec's
  bool asynchronous = false;
};

class Rounds {
 public:
  enum class Participation : uint8_t {
    kAbsent,   // not a member in this round: the round does not wait for it
    kAwaited,  // will open its window
    kOpen,     // its window is open
    kClosed,   // its window is over, or it was excluded
    kLagging,  // a member that the round does not wait for; it may still open its window
  };

  // By rank: the chunks that are in (Aggregator::contributions). Without a bit: none.
  using Contributions = std::span<const transport::ChunkBitmap>;

  // Throws std::bad_alloc.
  Rounds(uint32_t chunks, uint32_t ranks, RoundRule rule = {});

  // --- Questions ---
  uint64_t number() const { return number_; }  // of the round in progress = rounds completed so far
  Participation participation(uint32_t rank) const { return parts_[rank]; }
  // A rank has opened a window of this round.
  bool begun() const { return begun_.has_value(); }
  bool IsFinal(uint32_t chunk) const { return final_.Test(chunk); }
  // Chunks in the order in which they became final, of the round in progress and of the one before.
  const PagedVector<uint32_t>& final_order() const { return final_order_; }
  const PagedVector<uint32_t>& previous_order() const { return previous_order_; }
  bool asynchronous() const { return rule_.asynchronous; }
  // Chunks may become final: asynchronous, a window is over.
  bool Closes() const { return !asynchronous() || windows_in_ > 0; }
  bool AllFinal() const { return final_order_.size() == final_.size(); }
  // Whose window closed last, and when the first one was opened. REQUIRES for begun_at: begun().
  uint32_t last_rank() const { return last_rank_; }
  // The members whose windows are in, and how many of them close the round; 0: it has no quorum.
  uint32_t windows_in() const { return windows_in_; }
  uint32_t Quorum() const;
  // Members whose part this is.
  uint32_t Count(Participation part) const { return counts_[static_cast<size_t>(part)]; }
  Instant begun_at() const { return *begun_; }
  RoundTally& tally() { return tally_; }

  // --- Events ---
  // The first round has this number. REQUIRES: none has begun.
  void StartAt(uint64_t number) { number_ = number; }
  // A worker became a member. True: it takes part in this round. False: the round in progress goes on without
  // it, it takes part from the next one. A round that has begun takes it in while it waits for another
  // member's window, which may itself wait for this worker, by way of another tensor or server; unless a
  // chunk is final, or `in`: its rank has contributed already.
  bool OnMemberJoined(uint32_t rank, bool in = false);
  void OnWindowOpened(uint32_t rank, Instant now);
  // The rank's contribution to the chunk is now in. True: the chunk is ready. REQUIRES: participation(rank)
  // == kOpen, the chunk is not final; once per rank and chunk; not asynchronous.
  bool OnContribution(uint32_t rank, uint32_t chunk, Contributions in);
  // The rank's window is over; `contributed` are the chunks of it that are in. Where some are not, a sweep is
  // due.
  void OnWindowClosed(uint32_t rank, const transport::ChunkBitmap& contributed);
  // Asynchronous: the rank's window is over, and the step in progress has nothing of it. REQUIRES: as
  // OnWindowClosed.
  void OnWindowPassed(uint32_t rank);
  // The round does not wait for this rank's window any longer: it is lagging. REQUIRES: participation(rank)
  // == kAwaited.
  void OnExcluded(uint32_t rank, const transport::ChunkBitmap& contributed);
  // The rank is no member any more: as OnWindowClosed, and later rounds do not wait for it.
  void OnMemberGone(uint32_t rank, const transport::ChunkBitmap& contributed);
  // The connection of this rank was replaced by a newer incarnation: its window, if open, is awaited again.
  // True: the new one takes part in this round (as OnMemberJoined).
  bool OnMemberReplaced(uint32_t rank);

  // --- Sweeps ---
  // Chunks for which no rank is awaited any more, but that were not marked (the tensor was not ready then),
  // are to be found again.
  void BeginSweep() { swept_ = 0; }
  bool HasSweep() const { return swept_ < final_.size(); }
  // Appends chunks that are ready, lowest first, and `max` of them at most; each is to be marked before the
  // next call. Looks at kSweptChunks per rank at most.
  static constexpr uint32_t kSweptChunks = 64 * 1024;
  void Sweep(Contributions in, size_t max, std::vector<uint32_t>* ready);
  // The chunk's value is computed. REQUIRES: not final yet.
  void MarkFinal(uint32_t chunk);

  // A window of the next step is over: this one is made of what is in. REQUIRES: asynchronous(), begun().
  void CloseStep();
  // Begins the next round with every rank that is a member; lagging ones go on lagging as long as the others
  // are enough. now: asynchronous, when windows that are open begin it. REQUIRES: AllFinal().
  void Next(Instant now = {});

 private:
  bool IsAwaited(uint32_t rank) const {
    if (asynchronous()) return false;
    return parts_[rank] == Participation::kAwaited || parts_[rank] == Participation::kOpen;
  }
  bool IsReady(uint32_t chunk, Contributions in);
  // Bit i: chunk 64 word + i is ready.
  uint64_t ReadyChunks(uint32_t word, Contributions in) const;
  void SetPart(uint32_t rank, Participation part);
  void Release(uint32_t rank, const transport::ChunkBitmap& contributed);
  void AwaitEnough();

  RoundRule rule_;
  uint32_t windows_in_ = 0;
  uint64_t number_ = 0;
  std::vector<bool> members_;
  std::vector<Participation> parts_;
  std::array<uint32_t, 5> counts_ = {};  // by Participation: each datagram may ask
  // By chunk: a rank that it was found to wait for. Where that is so still, nothing else needs a look.
  ZeroedArray<uint16_t> waits_for_;
  transport::ChunkBitmap final_;
  PagedVector<uint32_t> final_order_;
  PagedVector<uint32_t> previous_order_;
  uint32_t swept_;  // chunks that the sweep has looked at
  std::optional<Instant> begun_;
  uint32_t last_rank_ = 0;
  RoundTally tally_;
};

}  // namespace longhaul::server
