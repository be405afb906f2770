#include "operator/plan/allocation.h"

#include <algorithm>
#include <numeric>

#include "base/check.h"

namespace longhaul::kube {
namespace {

std::string Gpus(int64_t count) { return std::to_string(count) + (count == 1 ? " GPU" : " GPUs"); }

AllocationError TooFew(int min, int total) {
  return {AllocationProblem::kTooFewGpus, "totalGPUs is " + std::to_string(total) +
                                              ", and a node has at least " + std::to_string(min) +
                                              " (minGPUs): ask for " + std::to_string(min) + " or more"};
}

AllocationError Unsplittable(int below, int above, size_t nodes, int min, int total) {
  return {AllocationProblem::kUnsplittable,
          Gpus(total) + " cannot be split: " + std::to_string(nodes - 1) + " nodes have " +
              std::to_string(below) + " at most, and " + std::to_string(nodes) + " need " +
              std::to_string(above) + ", at least " + std::to_string(min) + " each: ask for " +
              std::to_string(below) + " or " + std::to_string(above) + ", or raise maxGPUs",
          below, above};
}

AllocationError NotEnough(int64_t there, int min, int total) {
  return {AllocationProblem::kNotEnoughCapacity,
          Gpus(there) + " are free on nodes with at least " + std::to_string(min) + ", and totalGPUs is " +
              std::to_string(total) + ": wait, ask for fewer, or add nodes"};
}

// Evenly from `min`, under the caps, the remainder to the first. Caps fall, so a node that is full stays so.
void Raise(const std::vector<int>& caps, int min, int total, Shares* shares) {
  for (Share& share : *shares) share.gpus = min;
  int left = total - min * static_cast<int>(shares->size());
  size_t open = shares->size();  // those that have room: the first ones
  while (left > 0) {
    while (caps[open - 1] == (*shares)[open - 1].gpus) --open;
    const int room = caps[open - 1] - (*shares)[open - 1].gpus;  // of the smallest
    const int each = std::min(room, left / static_cast<int>(open));
    for (size_t i = 0; i < open; ++i) (*shares)[i].gpus += each;
    left -= each * static_cast<int>(open);
    if (each == 0) {  // fewer than there are open nodes
      for (size_t i = 0; left > 0; ++i, --left) ++(*shares)[i].gpus;
    }
  }
}

}  // namespace

std::string_view ReasonOf(AllocationProblem problem) {
  switch (problem) {
    case AllocationProblem::kTooFewGpus:
      return "TooFewGPUs";
    case AllocationProblem::kUnsplittable:
      return "Unsplittable";
    case AllocationProblem::kNotEnoughCapacity:
      return "NotEnoughCapacity";
  }
  return "Unknown";
}

std::variant<Shares, AllocationError> Allocate(const std::vector<int>& capacities, int min, int total,
                                               Strategy strategy) {
  LH_CHECK_OP(min, >=, 1);
  LH_CHECK_OP(total, >=, 1);
  if (total < min) return TooFew(min, total);
  std::vector<size_t> order(capacities.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::erase_if(order, [&](size_t i) { return capacities[i] < min; });
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return capacities[a] > capacities[b]; });
  int64_t sum = 0, before = 0;  // of the first k, and of the first k - 1
  size_t k = 0;
  while (sum < total && k < order.size()) {
    before = sum;
    sum += capacities[order[k++]];
  }
  if (sum < total) return NotEnough(sum, min, total);
  const int64_t least = static_cast<int64_t>(k) * min;
  if (least > total) return Unsplittable(static_cast<int>(before), static_cast<int>(least), k, min, total);
  Shares shares;
  std::vector<int> caps;
  for (size_t i = 0; i < k; ++i) {
    shares.push_back({order[i], 0});
    caps.push_back(capacities[order[i]]);
  }
  if (strategy == Strategy::kBalanced) {
    Raise(caps, min, total, &shares);
    return shares;
  }
  int rest = total;
  for (size_t i = 0; i < k; ++i) {
    shares[i].gpus = std::min(caps[i], rest - min * static_cast<int>(k - 1 - i));
    rest -= shares[i].gpus;
  }
  return shares;
}

std::variant<Shares, AllocationError> AllocateUniform(int max, int min, int total, Strategy strategy) {
  LH_CHECK_OP(min, <=, max);
  LH_CHECK_OP(total, >=, 1);
  // One more than max-nodes would need: where the last does not fill up to min, a total is unsplittable.
  const auto nodes = static_cast<size_t>((total + max - 1) / max);
  return Allocate(std::vector<int>(nodes, max), min, total, strategy);
}

}  // namespace longhaul::kube
