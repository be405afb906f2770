// One tensor in training: its values, the sum and the state of the round in progress, and what turns the one
// into the other. Not thread-safe.
#pragma once

#include <cstdint>
#include <memory>
#include <set>
#include <vector>

#include "codec/bubble_fill.h"
#include "server/aggregator.h"
#include "server/optimizer.h"
#include "server/parameter_store.h"
#include "server/rounds.h"

namespace longhaul::server {

class Tensor {
 public:
  struct Fill {
    codec::FillPolicy policy = codec::FillPolicy::kResidual;
    double bubble_threshold = 0;  // losses of windows that lost more than this are filled
  };

  Tensor(Parameters* parameters, uint32_t ranks, Fill fill);

  Parameters& parameters() { return *parameters_; }
  const Parameters& parameters() const { return *parameters_; }
  Aggregator& aggregator() { return aggregator_; }
  Rounds& rounds() { return rounds_; }
  const Rounds& rounds() const { return rounds_; }
  uint32_t key() const { return parameters_->key(); }
  uint32_t chunks() const { return parameters_->geometry().chunks(); }
  bool aggregate_only() const {
    return parameters_->spec().optimizer.kind == OptimizerSpec::Kind::kAggregate;
  }

  // A worker's window is over (or the worker is gone): what of its low class did not arrive, 0..1, and its
  // weight. Needed to decide about filling its losses.
  void SetWindowLoss(uint32_t rank, double loss, float weight);
  // Computes the chunk's value for this round: mean by the fill policy, then the optimizer. REQUIRES: the
  // parameters are ready, nobody is awaited for this chunk. Returns the contributions that were filled.
  uint32_t Finalise(uint32_t chunk);
  // The round is finished: on to the next.
  void NextRound();

 private:
  struct LostWindow {
    bool over = false;
    double loss = 0;
    float weight = 0;
  };

  Parameters* parameters_;
  Fill fill_;
  Aggregator aggregator_;
  Rounds rounds_;
  std::unique_ptr<Optimizer> optimizer_;
  std::vector<LostWindow> windows_;  // by rank, of this round
  std::vector<float> mean_;          // of one chunk
  std::vector<float> previous_;      // the previous round's mean, for the policy stale only
};

}  // namespace longhaul::server
