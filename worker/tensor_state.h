// One tensor as a worker sees it: how far its declaration is, and the one push that may be on its way.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "longhaul/options.h"
#include "longhaul/stats.h"
#include "transport/core/window/window_types.h"
#include "worker/operations.h"
#include "worker/pull_assembler.h"
#include "worker/push_pipeline.h"
#include "worker/replica.h"
#include "worker/tensor_shape.h"

namespace longhaul::worker {

// A push between its first chunk and its end. It is over when the gradient window is closed and, with a
// result wanted, the result is here: all of it, or, with a lossy downlink, enough. Without one the server
// must have said in which round it counts: the next push is for a later one.
struct ActivePush {
  OperationId operation = 0;
  uint64_t round = 0;
  transport::WindowKey window;
  bool window_closed = false;
  bool taken = false;                   // the server has said which round it counts in
  bool initial = false;                 // carries initial values: no operation of its own
  std::optional<PullAssembler> result;  // when a result is wanted
  std::span<float> out;  // where it is wanted; with a replica the result is written there first
  bool result_over = false;
  std::optional<transport::WindowKey> result_window;
};

struct TensorState {
  std::string name;
  std::string optimizer;
  TensorShape shape;  // key and chunk_elements once declared
  DType wire_dtype = DType::kFloat32;
  DType result_dtype = DType::kFloat32;
  int priority = 0;  // lower leaves first
  std::vector<TensorOptions::Range> high_ranges;
  std::optional<double> high_share;  // none: the job's
  std::optional<double> high_energy;
  std::span<const float> initial;      // borrowed while a declaration is pending
  std::vector<OperationId> declaring;  // operations that wait for the declaration
  uint32_t declare_request = 0;
  bool declared = false;
  bool initial_waits = false;  // the initial values wait for a free window
  uint64_t next_round = 0;     // of the next push
  // Rounds that the server is known to have finished; pushing further ahead would be a protocol error.
  uint64_t completed_rounds = 0;
  std::optional<PushPipeline> pipeline;              // once declared
  std::optional<Replica> replica;                    // downlink lossy, once declared
  std::optional<transport::WindowOptions> prepared;  // what the pipeline has ready, until a window is free
  uint64_t prepared_round = 0;
  // Policy shift: the newest epoch that is known, and from which round on the next one is in force (0: no
  // change is announced).
  uint32_t shift_epoch = 0;
  uint64_t shift_epoch_round = 0;
  // What a message or a result says about it; older news than what is known change nothing.
  void LearnEpoch(uint32_t epoch, uint64_t change_round) {
    if (epoch < shift_epoch || (epoch == shift_epoch && change_round == 0)) return;
    shift_epoch = epoch;
    shift_epoch_round = change_round;
  }
  uint32_t EpochOf(uint64_t round) const {
    return shift_epoch + (shift_epoch_round != 0 && round >= shift_epoch_round ? 1 : 0);
  }
  std::optional<ActivePush> active;
  std::optional<OperationStats::RoundInfo> report;  // of round report_round
  uint64_t report_round = 0;
};

}  // namespace longhaul::worker
