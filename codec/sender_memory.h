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
#include <memory>
#include <span>
#include <vector>

#include "codec/chunk.h"
#include "codec/loss_policy.h"

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
  // The chunk of what Prepare gave is settled. taken: the server counted it, and it travelled as `sent`, the
  // values after quantisation and sparsification, as the server decoded them (the prepared values themselves
  // when nothing was changed). Not taken: nothing of it counts, `sent` is not read.
  // REQUIRES: Prepare came first; once per chunk; sent of the chunk's length when taken.
  void SettleChunk(uint32_t chunk, bool taken, std::span<const float> sent);
  // The window is over. A chunk that nobody settled was not taken. REQUIRES: Prepare came first.
  void Finish();
  // A new shift epoch: c := 0 (codec/shift.h). What is under way belongs to the epoch before, the server
  // takes none of it any more. Other policies know no epochs.
  virtual void BeginEpoch() {}

  // What waits to be repaid, by element; between Prepare and Finish: with the gradient. Empty but for
  // residual.
  virtual std::span<const float> owed() const { return {}; }
  // Chunks whose debt had grown beyond what float holds, and was dropped. 0 but for residual.
  virtual uint64_t debts_dropped() const { return 0; }
  // The shift c, by element. Empty but for shift.
  virtual std::span<const float> shift() const { return {}; }

 protected:
  const ChunkGeometry& geometry() const { return geometry_; }
  bool under_way() const { return under_way_; }

 private:
  virtual std::span<const float> Combine(std::span<const float> gradient) = 0;
  // What was delivered of the chunk, and is the sender's no more.
  virtual void Deliver(uint32_t chunk, std::span<const float> sent) = 0;

  ChunkGeometry geometry_;
  bool under_way_ = false;
  std::vector<bool> settled_;  // by chunk
};

std::unique_ptr<SenderMemory> MakeSenderMemory(const LossPolicySpec& spec, const ChunkGeometry& geometry);

}  // namespace longhaul::codec
