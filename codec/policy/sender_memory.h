// The worker's half of a loss policy: what of a gradient was not delivered is remembered here, or not at all.
//
//   prepared = Prepare(gradient)        what to send: g, g + residual, or g - c
//   ... the window closes ...
//   SettleChunk(chunk, taken, sent)     for each chunk: the server has it, or not
//   Finish()
//
// One per tensor, one gradient at a time. Not thread-safe.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <vector>

#include "base/zeroed_array.h"
#include "codec/chunk/chunk.h"
#include "codec/policy/loss_policy.h"

namespace longhaul::codec {

class SenderMemory {
 public:
  explicit SenderMemory(const ChunkGeometry& geometry)
      : geometry_(geometry), holds_(geometry.chunks(), false) {}
  virtual ~SenderMemory() = default;
  SenderMemory(const SenderMemory&) = delete;
  SenderMemory& operator=(const SenderMemory&) = delete;

  // What to send for this gradient. Stable until the next Prepare; the policies that forget give the gradient
  // itself back, which the caller keeps in place. REQUIRES: size == count, the last one is finished.
  std::span<const float> Prepare(std::span<const float> gradient);
  // The same in steps: what Begin gives holds for a chunk after CombineChunk (again: nothing). The gradient
  // stays in place until Finish.
  std::span<const float> Begin(std::span<const float> gradient);
  void CombineChunk(uint32_t chunk);
  // The chunk of what Prepare gave is settled. taken: the server counted it, and it travelled as `sent`, the
  // values after quantisation and sparsification, as the server decoded them (the prepared values themselves
  // when nothing was changed). Not taken: nothing of it counts, `sent` is not read.
  // REQUIRES: Prepare came first; once per chunk; sent of the chunk's length when taken. Taken without having
  // been combined: !Holds(chunk), and `sent` is the gradient's chunk.
  void SettleChunk(uint32_t chunk, bool taken, std::span<const float> sent);
  // The window is over. A chunk that was not settled counts as not taken, combined or not. REQUIRES: Prepare
  // came first.
  void Finish();

  // What CombineChunk would make of a chunk, of which `fresh` is the gradient; nothing changes. `new_epoch`:
  // as after BeginEpoch. `least` as in SurveyOf. REQUIRES: nothing is under way.
  Survey SurveyChunk(uint32_t chunk, std::span<const float> fresh, bool new_epoch, uint32_t least) const;
  void Preview(uint32_t chunk, std::span<const float> fresh, bool new_epoch, std::span<float> out) const;
  // The same of one element; but a debt that will be dropped counts here.
  float PreviewOne(uint64_t element, float fresh, bool new_epoch) const;
  // False: nothing is remembered of the chunk, what is prepared is the gradient (but for the sign of zeros).
  bool Holds(uint32_t chunk) const { return holds_[chunk]; }
  // A new shift epoch: c := 0, from the next Prepare on (codec/policy/shift.h). What is under way belongs to
  // the epoch before, the server takes none of it any more. Other policies have no epochs.
  virtual void BeginEpoch() {}

  // What waits to be repaid, by element; between Begin and Finish: with what is combined of the gradient.
  // Empty but for residual.
  virtual std::span<const float> owed() const { return {}; }
  // Adds to that, from element `first` on; nothing with other policies. REQUIRES: nothing is under way.
  virtual void Owe(uint64_t, std::span<const float>) {}
  // Chunks whose debt had grown beyond what can be summed, and was dropped. 0 but for residual.
  virtual uint64_t debts_dropped() const { return 0; }
  // The shift c, by element. Empty but for shift.
  virtual std::span<const float> shift() const { return {}; }

 protected:
  // How a gradient is combined: `values` are added to it, or subtracted, but for a chunk in which that would
  // exceed the magnitude `largest` (bits).
  struct Memory {
    std::span<const float> values;  // by element; empty: nothing is remembered
    bool subtract = false;
    uint32_t largest = UINT32_MAX;
  };
  const ChunkGeometry& geometry() const { return geometry_; }
  bool under_way() const { return under_way_; }
  bool combined(uint32_t chunk) const { return combined_[chunk]; }
  bool unfinished(uint32_t chunk) const { return !settled_[chunk] && !combined_[chunk]; }
  void SetHolds(uint32_t chunk, bool holds) { holds_[chunk] = holds; }

 private:
  virtual Memory Remembered(bool) const { return {}; }
  const float* Kept(const Memory& memory, uint32_t chunk) const;
  // Where the prepared values will be.
  virtual std::span<const float> Prepared(std::span<const float> gradient) = 0;
  // Prepares one chunk, of which `fresh` is the gradient.
  virtual void Combine(uint32_t chunk, std::span<const float> fresh) = 0;
  // What was delivered of the chunk, and is the sender's no more.
  virtual void Deliver(uint32_t chunk, std::span<const float> sent) = 0;
  // The window is over, and not all of its chunks are settled.
  virtual void GiveUp() {}

  ChunkGeometry geometry_;
  bool under_way_ = false;
  std::span<const float> gradient_;  // under way
  std::vector<bool> settled_;        // by chunk
  uint32_t settled_chunks_ = 0;
  std::vector<bool> combined_;
  std::vector<bool> holds_;  // what is remembered may be other than zero
};

// largest: magnitude beyond which policy residual drops a debt.
std::unique_ptr<SenderMemory> MakeSenderMemory(const JobSpec& spec, const ChunkGeometry& geometry,
                                               float largest = std::numeric_limits<float>::max());

// Error feedback for the network: what a window lost of a gradient is added to the next one.
//
// Invariant (conservation): over a run, the sum of what was delivered plus what is owed here equals the sum
// of the gradients given to Prepare; exactly in integers, to rounding in floats. Nothing is lost, only
// delayed. That covers every way to be lost: by the network, by quantisation, by being left out of a sparse
// chunk.
//
// But for a debt that grows beyond `largest`, what a round's sum can hold: no server would ever take it. It
// is dropped with its chunk, and counted; the gradient travels alone.
class ResidualMemory final : public SenderMemory {
 public:
  explicit ResidualMemory(const ChunkGeometry& geometry, float largest = std::numeric_limits<float>::max())
      : SenderMemory(geometry), largest_(largest), owed_(geometry.count) {}

  std::span<const float> owed() const override { return owed_.span(); }
  void Owe(uint64_t first, std::span<const float> values) override;
  uint64_t debts_dropped() const override { return debts_dropped_; }

 private:
  Memory Remembered(bool new_epoch) const override;
  std::span<const float> Prepared(std::span<const float>) override { return owed_.span(); }
  void Combine(uint32_t chunk, std::span<const float> fresh) override;
  void Deliver(uint32_t chunk, std::span<const float> sent) override;
  void GiveUp() override;

  const float largest_;
  ZeroedArray<float> owed_;  // under way: with the gradient
  uint64_t debts_dropped_ = 0;
};

}  // namespace longhaul::codec
