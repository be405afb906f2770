// Gradients that tell by their values where they went: a round's result shows which workers'
// contributions are in it, how often, and of which rounds.
//
//   element % period == rank      the marker: 1 + 16 * incarnation in this rank's gradients, 0 in all others'
//   element % period >= ranks     the fill: a small integer that depends on tensor, rank, push and element
//
// with ranks = 5 and period = 8; in larger jobs 64 and 67.
//
// So the sum of a chunk at rank r's marker is r's number of contributions; and with that known the fill must
// add up exactly. All values are integers and stay far below 2^24: float sums are exact.
#pragma once

#include <cstdint>

namespace longhaul::sim {

inline constexpr uint32_t kMaxRanks = 5;    // of a usual job
inline constexpr uint32_t kMostRanks = 64;  // of a large one
inline constexpr uint32_t kFill = 3;
inline constexpr uint32_t kMarkerPeriod =
    kMaxRanks + kFill;  // a chunk of so many elements holds every marker
inline constexpr uint64_t kMaxIncarnation = 3;

// One push of one worker process.
struct GradientId {
  uint32_t job = 0;
  uint32_t tensor = 0;
  uint32_t rank = 0;
  uint64_t incarnation = 0;
  uint32_t sequence = 0;  // pushes of this process into this tensor, from 0
};

int32_t MarkerValue(uint64_t incarnation);
struct GradientKind {
  bool sparse = false;  // seven of eight fill elements are zero
  // -127..127, with 127 or -127 in every kMarkerPeriod elements: int8 codes of scale one, so that nothing is
  // rounded.
  bool bytes = false;
  uint32_t ranks = kMaxRanks;

  uint32_t period() const { return ranks + kFill; }
};
int32_t GradientValue(const GradientId& id, uint64_t element, GradientKind kind);
// What a worker offers as the tensor's first values; differs between ranks everywhere.
int32_t InitialValue(uint32_t job, uint32_t tensor, uint32_t rank, uint64_t element);

}  // namespace longhaul::sim
