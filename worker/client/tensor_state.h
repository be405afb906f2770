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
#include "worker/client/operations.h"
#include "worker/client/pull_assembler.h"
#include "worker/client/push_pipeline.h"
#include "worker/client/replica.h"
#include "worker/client/tensor_shape.h"

namespace longhaul::worker {

// Names a declared tensor within one worker.
using TensorHandle = uint32_t;

struct Declaration {
  std::string name;
  DType dtype = DType::kFloat32;
  DType wire_dtype = DType::kFloat32;    // of gradients in chunks
  DType result_dtype = DType::kFloat32;  // of results in chunks
  int priority = 0;                      // lower leaves first; among equals, those declared first
  std::vector<TensorOptions::Range> high_ranges = {};
  std::optional<double> high_share = std::nullopt;  // none: the job's
  std::optional<double> high_energy = std::nullopt;
  std::optional<double> topk_share = std::nullopt;  // none: the job's
  std::optional<int32_t> staleness = std::nullopt;  // none: the job's
  std::optional<uint32_t> quorum = std::nullopt;
  uint64_t count = 0;
  std::string optimizer = "aggregate";
  std::span<const float> initial = {};  // empty or `count` values, borrowed until the callback
};

// How far a tensor's push is, in this order. Stages marked * are worked on in slices.
enum class PushStage : uint8_t {
  kNone,
  kEncoding,  // *
  kWaiting,   // encoded; no window is free
  kOpen,      // * its window is open: chunks are submitted, sent and acknowledged
  kClosed,    // it is closed, and may be needed again: the server may die before the round is kept
  kSettling,  // * the window is closed: what it lost goes back to the loss policy
  kAwaiting,  // the result, or the number of the round that it counts in
};

// How far the result of a push is, if one is wanted.
enum class ResultStage : uint8_t {
  kNone,
  kAwaited,  // or arriving
  kCopying,  // * with a replica: it is here, and goes from there to the caller's memory
  kOver,
};

// A tensor's one push, or the window of its initial values. It ends when its window is settled and, with a
// result wanted, the result is here: all of it, or, with a lossy downlink, enough. Without one the server
// must have said in which round it counts: the next push is for a later one. Where staleness is not 0 the
// server must have said so in any case, and the result is a pull of the values that have this push.
struct TensorPush {
  PushStage stage = PushStage::kNone;
  ResultStage result_stage = ResultStage::kNone;
  OperationId operation = 0;
  uint64_t round = 0;
  transport::WindowKey window;
  bool initial = false;  // carries initial values: no operation of its own
  bool taken = false;    // the server has said which round it counts in
  bool ahead = false;    // its server is ahead of the others of its step: it is passed over
  bool is_step = false;  // staleness is not 0
  Status refusal;        // by the server: the round went on without it
  std::span<const float> gradient;
  float weight = 0;
  std::span<float> out;  // where the result is wanted; with a replica it is written there first
  std::optional<PullAssembler> result;
  std::optional<transport::WindowKey> result_window;
  uint32_t copied = 0;  // chunks of the result

  // The server keeps the round: this push is never sent again.
  bool told() const {
    return result_stage == ResultStage::kNone || is_step ? taken : result_stage >= ResultStage::kCopying;
  }
  // Its window is or was open.
  bool started() const { return stage >= PushStage::kOpen; }
  bool over() const {
    if (stage != PushStage::kAwaiting) return false;
    if (!refusal.ok()) return true;
    if (is_step && !taken) return false;
    return result_stage == ResultStage::kNone ? taken : result_stage == ResultStage::kOver;
  }
};

struct TensorState {
  const std::string& name() const { return declaration.name; }
  // The server keeps the last round's mean only.
  bool aggregates() const { return declaration.optimizer == "aggregate"; }

  Declaration declaration;             // the one that the server was asked for; `initial` while it is pending
  TensorShape shape;                   // key and chunk_elements once declared
  std::vector<OperationId> declaring;  // operations that wait for the declaration
  uint32_t declare_request = 0;
  bool declared = false;
  bool attached = false;       // declared, and known to the server of this connection
  bool asynchronous = false;   // staleness is not 0
  bool waits_for_all = false;  // so do its rounds, each time (round_alignment.h)
  uint64_t pushes = 0;         // begun
  // The server has reported a round that went on without this worker's push while it was connected: it waits
  // for the next one in whatever round that comes.
  bool left_out = false;
  uint32_t connection_pushes = 0;  // windows of gradients that this connection has opened
  bool offered = false;            // the server took its version 0 from here
  uint64_t next_round = 0;         // of the next push
  // Rounds that the server is known to have finished; pushing further ahead would be a protocol error.
  uint64_t completed_rounds = 0;
  std::optional<PushPipeline> pipeline;  // once declared
  std::optional<Replica> replica;        // downlink lossy, once declared
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
  TensorPush push;
  std::optional<OperationStats::RoundInfo> report;  // of round report_round
  uint64_t report_round = 0;
};

}  // namespace longhaul::worker
