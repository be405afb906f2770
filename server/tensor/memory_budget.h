// How much memory a job's tensors may take, counted before any of it is allocated.
//
// A declaration is 30 bytes, and what it makes the server keep is not: copies of the values, and per worker
// and tensor bitmaps and times even when the tensor has one element. The plan counts the most that a tensor
// can come to in the server's own state, whatever its workers do:
//
//   per element    4 bytes x (2 values + 1 sum + 0..1 loss policy + 0..2 optimizer (of a plug-in 0..8) + 4 pulls held for slow
//                  readers)
//   16-bit results + 2 bytes for each of the 2 values, one that is kept or that a checkpoint holds
//   checkpoints    + 4 bytes x (1 values + 0..2 optimizer) an element, while one is being written
//   deterministic  + 4 bytes per element and worker (server/tensor/aggregator.h); so does a robust aggregation
//   asynchronous   + 4 bytes an element, and counters, of the sum of the next step
//   per chunk      counters, and per worker bits; with a norm guard 4 bytes, under
//                  a policy that repays 8
//   per worker     kPerWorker
//   per tensor     kPerTensor
//
// The budget is what one tensor of --max-model-bytes would come to, plus max(kOverhead, --max-model-bytes)
// for tensors that are small; and no more than the machine has (ServerSettings::memory). Pages are taken as
// they are first touched, so the server has as much as rounds and pulls have used so far, 20 bytes an element
// with Adam.
//
// Beside it is what one member's connection can be made to hold, whatever its worker does. PerMember counts
// what grows with the tensors:
//
//   kept result          4 bytes per element: of one result per tensor that the worker neither closes nor
//                        goes on from, once it is two rounds old (server/results/result_sender.h). Workers that lag
//                        in the same round share it
//   windows that arrive  a gradient's and one of initial values: buffers of FEC blocks of which one symbol is
//                        here, whatever k and depth the worker announces, and bitmaps
//   windows that leave   kLeavingWindows tables of chunks: two results in progress, a kept one,
//                        kPullsOfTensor pulls. Their values are borrowed
//   repair symbols       of these: of the blocks of one interleaver each
//   per tensor           kPerMemberTensor: scratch of all these windows
//
// What does not grow with them: chunks that overtook their window, closes that were not acknowledged
// (transport/core/window/incoming_windows.h: 4 MiB, 2 MiB), control messages that the worker does not read
// (ConnectionOptions::max_control_backlog), pulls and declarations that wait (server/round/round_engine.h). A
// load generator has the bounds of bench/load/sink.h, a peer before its Join those of transport::kWary.
#pragma once

#include <cstdint>

#include "longhaul/status.h"
#include "server/settings.h"
#include "server/tensor/parameter_store.h"

namespace longhaul::server {

class MemoryBudget {
 public:
  static constexpr uint64_t kPerWorker = 1024;      // of one tensor: times of its windows, and the like
  static constexpr uint64_t kPerTensor = 8 * 1024;  // names, tables, one chunk's mean
  static constexpr uint64_t kOverhead = uint64_t{256} << 20;
  // Snapshots of parameters that pulls hold, in models (Pulls::kMaxPinnedModels).
  static constexpr uint64_t kPinnedModels = 4;

  // Unfinished answers to pulls of one tensor and worker (Pulls::kMaxOfTensor).
  static constexpr uint64_t kPullsOfTensor = 1;
  static constexpr uint64_t kLeavingWindows = 3 + kPullsOfTensor;
  static constexpr uint64_t kPerLeavingChunk = 96;   // in one of their tables
  static constexpr uint64_t kPerArrivingChunk = 64;  // beside its symbol
  static constexpr uint64_t kPerMemberTensor = uint64_t{512} << 10;

  // chunk_elements: of float32, the job's.
  MemoryBudget(const ServerSettings& settings, uint32_t chunk_elements);

  // The most that the tensor can come to, in bytes.
  uint64_t Plan(const TensorSpec& spec) const;
  // What the tensor can add to what one member's connection holds.
  uint64_t PerMember(const TensorSpec& spec) const;
  // Ok: Take would succeed.
  Status Check(const TensorSpec& spec) const;
  // Takes the tensor's bytes. kResourceExhausted, with nothing taken, names tensor, need, rest and bound.
  Status Take(const TensorSpec& spec);
  // Gives them back: the tensor was not made.
  void Return(const TensorSpec& spec);

  uint64_t taken() const { return taken_; }
  // PerMember of all that was taken.
  uint64_t per_member() const { return per_member_; }
  uint64_t total() const { return total_; }

 private:
  // state: arrays that the optimizer keeps.
  uint64_t Plan(const TensorSpec& spec, uint64_t state) const;
  uint64_t PerElement(const TensorSpec& spec, uint64_t state) const;

  uint64_t workers_;
  bool holds_;               // all workers' contributions
  bool by_machine_ = false;  // what bounds the total
  uint64_t fec_depth_;       // of windows that leave, at most
  uint64_t guard_bytes_;     // of what each worker pushes and owes, by chunk
  bool lossy_;
  uint64_t filler_floats_;  // per element
  bool checkpoints_ = false;
  uint32_t chunk_elements_;
  uint64_t total_ = 0;
  uint64_t taken_ = 0;
  uint64_t per_member_ = 0;
};

}  // namespace longhaul::server
