// How many GPUs each node of a job has: a pure function of what nodes can have, the least that a node needs,
// and the total.
//
//   C        capacities, those below the least dropped, sorted from large to small (equal ones keep their order)
//   k        the least k with C1 + ... + Ck >= N: as few nodes as there can be
//   feasible if and only if k x min <= N. Then
//   Packed   x_i = min(C_i, rest - min x (k-1-i)): nodes are filled in order, and leave min for each that follows
//   Balanced all rise evenly from min, each up to its C: the slowest ring decides how long a round takes. What
//            does not divide goes to the first nodes
//
// 15 of at most 10: Packed 10 + 5, Balanced 8 + 7. 11 is 8 + 3, not 10 + 1. Totals that no k fits exist only
// where the largest is below 2 x min - 1: of at most 4, 5 is neither 4 nor 3 + 3.
#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "operator/resource/training_job.h"

namespace longhaul::kube {

enum class AllocationProblem : uint8_t { kTooFewGpus, kUnsplittable, kNotEnoughCapacity };

struct AllocationError {
  AllocationProblem problem = AllocationProblem::kTooFewGpus;
  std::string message;  // with the remedy
  int below = 0;        // kUnsplittable: the nearest totals that can be had
  int above = 0;
};
// As the status has it: "TooFewGPUs".
std::string_view ReasonOf(AllocationProblem problem);

// One node's part: `source` is its capacity's index in the argument.
struct Share {
  size_t source = 0;
  int gpus = 0;

  bool operator==(const Share&) const = default;
};
using Shares = std::vector<Share>;

// REQUIRES: min >= 1, total >= 1. Capacities below min, also negative ones, count as none.
std::variant<Shares, AllocationError> Allocate(const std::vector<int>& capacities, int min, int total,
                                               Strategy strategy);
// Of as many nodes as it takes, each with at most `max`. REQUIRES: 1 <= min <= max.
std::variant<Shares, AllocationError> AllocateUniform(int max, int min, int total, Strategy strategy);

}  // namespace longhaul::kube
