// What rides in WINDOW_OPEN's opaque metadata: which tensor and round a window's chunks belong to.
//
//   kind 8 | flags 8 (bit 0: wants_result) | dtype 8 | reserved 8 (zero) | key 32 | request 32 | round 64 |
//   count 64 | chunk_elements 32 | weight f32 | total_low_energy f32 | reserved 32 | shift_epoch 32 |
//   shift_epoch_round 64                                                              (56 bytes, big-endian)
#pragma once

#include <cstdint>
#include <vector>

#include "base/bytes.h"
#include "longhaul/status.h"
#include "longhaul/tensor.h"

namespace longhaul::codec {

enum class WindowKind : uint8_t {
  kGradient = 0,   // worker to server: a contribution to a round
  kInitial = 1,    // worker to server: the tensor's first values
  kWeights = 2,    // server to worker: parameters
  kAggregate = 3,  // server to worker: the round's mean gradient (tensors without optimizer)
};

struct WindowMetadata {
  WindowKind kind = WindowKind::kGradient;
  bool wants_result = false;  // gradient: send me this round's result
  DType dtype = DType::kFloat32;
  uint32_t key = 0;      // the tensor
  uint32_t request = 0;  // weights: the PullRequest it answers; 0 = result of a push
  uint64_t round = 0;
  uint64_t count = 0;  // elements of the tensor
  uint32_t chunk_elements = 0;
  float weight = 1;            // gradient: the contribution's weight (sample count), > 0
  float total_low_energy = 0;  // gradient: sum over low chunks of their quantised energies
  // Policy shift. Gradient: the epoch of the shift that was taken off. Result: the epoch of its round, and
  // the round from which on the next epoch is in force (0: no change is announced).
  uint32_t shift_epoch = 0;
  uint64_t shift_epoch_round = 0;
  bool operator==(const WindowMetadata&) const = default;
};

inline constexpr size_t kWindowMetadataBytes = 56;

std::vector<uint8_t> EncodeWindowMetadata(const WindowMetadata& metadata);
// Errors: kProtocolViolation naming the field (wrong length, unknown kind or flag, chunk_elements out of
// range, count 0 or more than wire::kMaxWindowChunks chunks, a weight that is not finite and positive, an
// energy or share out of range).
Result<WindowMetadata> DecodeWindowMetadata(ByteSpan bytes);

}  // namespace longhaul::codec
