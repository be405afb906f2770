// The network as the compressor of a shifted-compression method: a lost chunk counts as what its worker was
// expected to send.
//
//   worker i   keeps a shift c_i, its slowly moving expectation, and sends s_i = g_i - c_i
//   server     keeps C = sum_i w_i c_i, nothing by worker
//              mean = (C + sum_i w_i M_i s_i) / W        M_i = 1: the chunk was delivered; W = sum_i w_i
//   then both move by what was delivered, which both know from the close of the window:
//              c_i += alpha M_i s_i                      C += alpha sum_i w_i M_i s_i
//
// Invariant: C == sum_i w_i c_i; exactly while integers stay integers (alpha = 1), else to rounding. A sum
// and not a mean, so that integers stay exact.
//
// Epochs: the invariant needs the members, and their weights, to stay. When a worker leaves, joins or is
// replaced, a new epoch begins: C := 0 and c_i := 0 on both sides, from the same round on. Within an epoch W
// is the sum over all its members, whether they pushed in a round or not: an absent one counts as expected.
//
// Source: DIANA (Mishchenko et al. 2019) and EF21 (Richtarik et al. 2021), with loss in place of a
// compressor. Memory: one fp32 copy of the tensor at the server; two at each worker (the shift, and what is
// being sent).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/zeroed_array.h"
#include "codec/chunk/chunk.h"
#include "codec/policy/filler.h"
#include "codec/policy/sender_memory.h"

namespace longhaul::codec {

// The worker's half.
class ShiftMemory final : public SenderMemory {
 public:
  // REQUIRES: 0 < alpha <= 1.
  ShiftMemory(const ChunkGeometry& geometry, float alpha);

  void BeginEpoch() override;
  std::span<const float> shift() const override { return shift_.span(); }

 private:
  Memory Remembered(bool new_epoch) const override;
  std::span<const float> Prepared(std::span<const float> gradient) override;
  void Combine(uint32_t chunk, std::span<const float> fresh) override;
  void Deliver(uint32_t chunk, std::span<const float> sent) override;
  void GiveUp() override;

  float alpha_;
  bool outdated_ = false;        // what is under way is of an epoch that is over
  bool epoch_begins_ = false;    // the next gradient is the first of its epoch
  bool forgets_ = false;         // the gradient under way is: c := 0, chunk by chunk
  ZeroedArray<float> shift_;     // c
  ZeroedArray<float> prepared_;  // g - c
};

// The server's half.
class ShiftFiller final : public Filler {
 public:
  // REQUIRES: 0 < alpha <= 1.
  ShiftFiller(const ChunkGeometry& geometry, float alpha);

  void Mean(uint32_t chunk, const ChunkTally& tally, std::span<const float> sum,
            std::span<float> mean) override;
  void BeginEpoch(double total_weight) override;
  std::vector<float> shift_sum() const override;

 private:
  // The chunk's part of C: forgotten on first use in an epoch, so that an epoch begins without a walk.
  std::span<float> ShiftOf(uint32_t chunk);

  ChunkGeometry geometry_;
  float alpha_;
  double total_weight_ = 0;  // W
  uint32_t epoch_ = 0;
  ZeroedArray<float> shift_sum_;  // C, of the chunks of this epoch
  ZeroedArray<uint32_t> epochs_;  // by chunk
};

}  // namespace longhaul::codec
