// One training run of the learning bench: everything that its outcome depends on.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

#include "longhaul/status.h"

namespace longhaul::bench {

struct Scenario {
  // The job.
  std::string policy = "shift";  // zero | count | stale | ipw | residual | shift
  double shift_alpha = 0.1;
  std::string priority = "energy";  // energy | topk
  double high_share = 0.2;          // share of chunks that always arrive
  double high_energy = 0;           // > 0: instead, the fewest that hold this share of the energy
  double lost_energy = 1;           // < 1: more are high where else a round would lose more of the energy
  double topk_share = 0.1;          // priority topk: share of elements that travel
  double bubble_threshold = 0;      // zero, count, stale, ipw: windows that lose more are filled
  std::string wire_dtype = "float32";
  std::string result_dtype = "float32";  // of the parameters on their way back
  // Of the server. sgd: lr 0.1, momentum 0.9, falling to zero; adam: lr 0.001; or as a declaration names it,
  // "sgd:lr=0.7,momentum=0.9,nesterov", whose rate stays.
  std::string optimizer = "sgd";
  uint32_t workers = 8;
  uint32_t batch = 32;  // images per worker and round
  uint64_t rounds = 700;
  double skew = 0.9;  // share of a worker's images that come from its own classes
  // Batches as the workers of `longhaul run` draw them (worker/demo): disjoint shards, each image once an
  // epoch.
  bool shards = false;
  // Matrices are [inputs][outputs], as Flax and Keras store them, and not [outputs][inputs], as PyTorch does:
  // what a chunk holds of them is another thing.
  bool transposed = false;
  // decay: SGD's rate falls linearly to zero. drop: constant, a tenth of it from half of the rounds on.
  std::string schedule = "decay";
  // What happens to workers:
  //   none
  //   left      one leaves for a seventh of the rounds, in the middle, and comes back
  //   excluded  the same one stays a member, but all that it sends in that time is lost
  //   replaced  every 50 rounds one worker is replaced by a new process that remembers nothing
  std::string membership = "none";

  // The network: raw loss of packets. High chunks arrive all the same, low chunks are gone.
  double loss = 0;     // mean over the workers, 0..1
  double burst = 10;   // mean burst in packets; 0: independent losses
  bool uneven = true;  // two workers lose five times as much as the others

  // Consistency (JobSpec::staleness): 0 = synchronous rounds; else every push is a step, workers take times
  // of 0.5 to 1.5 for one, evenly, and the last one `slow` times as long. `rounds` pushes a worker, on
  // average.
  int32_t staleness = 0;
  double slow = 1;

  // Members that lie: the last ranks. An attack is what they push in the place of their gradient g:
  //   flip    -g
  //   scale   -10 g
  //   weight  -g, with a weight of 1e9
  uint32_t liars = 0;
  std::string attack = "flip";
  std::string aggregation = "mean";  // mean | trimmed-mean | centred-clipping
  double norm_guard = 0;
  double max_weight_share = 0;

  uint64_t seed = 1;  // of model, batches and losses

  bool Lies(uint32_t rank) const { return rank + liars >= workers; }
  // Raw loss of one worker. Uneven: that of the two (ranks seed and seed + 1, modulo the workers) is five
  // times that of the others, or 0.95 where that would be more, and the mean over the workers is `loss`.
  double LossOf(uint32_t rank) const;
  // The server's optimizer as a declaration names it.
  std::string OptimizerText() const;
  // The run without loss that this one is compared with: same seed, batches and membership.
  Scenario Lossless() const;

  // Without the fields of liars where there are none, and the mean is taken, nor those of staleness where it
  // is 0, nor shards, transposed and lost_energy where they are not set, nor result_dtype where it is
  // float32: so results of before go on.
  nlohmann::json ToJson() const;
  // Errors: kInvalidArgument (unknown or impossible value, with its name).
  static Result<Scenario> FromJson(const nlohmann::json& json);
  // One line that is the same if and only if the scenario is.
  std::string Key() const { return ToJson().dump(); }
};

}  // namespace longhaul::bench
