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
  explicit SenderMemory(const ChunkGeometry& geometry) : geometry_(geometry) {}
  virtual ~SenderMemory() = default;
  SenderMemory(const SenderMemory&) = delete;
  SenderMemory& operator=(const SenderMemory&) = delete;

  // What to send for this gradient. Stable until the next Prepare; the policies that forget give the gradient
  // itself back, which the caller keeps in place. REQUIRES: size == count, the last one is finished.
  std::span<const float> Prepare(std::span<const float> gradient);
  // The same in steps: what Begin gives holds for a chunk after CombineChunk, due once per chunk.
  std::span<const float> Begin(std::span<const float> gradient);
  void CombineChunk(uint32_t chunk) { Combine(chunk, geometry_.Elements(gradient_, chunk)); }
  // The chunk of what Prepare gave is settled. taken: the server counted it, and it travelled as `sent`, the
  // values after quantisation and sparsification, as the server decoded them (the prepared values themselves
  // when nothing was changed). Not taken: nothing of it counts, `sent` is not read.
  // REQUIRES: Prepare came first; once per chunk; sent of the chunk's length when taken.
  void SettleChunk(uint32_t chunk, bool taken, std::span<const float> sent);
  // The window is over. A chunk that was not settled counts as not taken. REQUIRES: Prepare came first.
  void Finish();
  // A new shift epoch: c := 0, from the next Prepare on (codec/policy/shift.h). What is under way belongs to
  // the epoch before, the server takes none of it any more. Other policies have no epochs.
  virtual void BeginEpoch() {}

  // What waits to be repaid, by element; between Prepare and Finish: with the gradient. Empty but for
  // residual.
  virtual std::span<const float> owed() const { return {}; }
  // Adds to that, from element `first` on; nothing with other policies. REQUIRES: nothing is under way.
  virtual void Owe(uint64_t, std::span<const float>) {}
  // Chunks whose debt had grown beyond what can be summed, and was dropped. 0 but for residual.
  virtual uint64_t debts_dropped() const { return 0; }
  // The shift c, by element. Empty but for shift.
  virtual std::span<const float> shift() const { return {}; }

 protected:
  const ChunkGeometry& geometry() const { return geometry_; }
  bool under_way() const { return under_way_; }

 private:
  // Where the prepared values will be.
  virtual std::span<const float> Prepared(std::span<const float> gradient) = 0;
  // Prepares one chunk, of which `fresh` is the gradient.
  virtual void Combine(uint32_t chunk, std::span<const float> fresh) = 0;
  // What was delivered of the chunk, and is the sender's no more.
  virtual void Deliver(uint32_t chunk, std::span<const float> sent) = 0;

  ChunkGeometry geometry_;
  bool under_way_ = false;
  std::span<const float> gradient_;  // under way
  std::vector<bool> settled_;        // by chunk
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
  std::span<const float> Prepared(std::span<const float>) override { return owed_.span(); }
  void Combine(uint32_t chunk, std::span<const float> fresh) override;
  void Deliver(uint32_t chunk, std::span<const float> sent) override;

  const float largest_;
  ZeroedArray<float> owed_;  // under way: with the gradient
  uint64_t debts_dropped_ = 0;
};

}  // namespace longhaul::codec
