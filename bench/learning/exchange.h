// What happens to one round's gradients between workers and parameters: the real worker half (PushPipeline)
// and the real server half (Tensor) of every tensor, with a lossy network in between that has no time.
//
// Each worker sends the high chunks of all its tensors, then the low ones, as a connection does; its loss
// process takes a step for every packet, so a burst hits neighbours in sending order. High chunks arrive all
// the same (FEC and retransmission), low chunks are lost by the loss process. Contributions are
// added in rank order, once the server's guard has passed them, by the weights that its ledger counts.
// Results are reliable. Deterministic; not thread-safe.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/random.h"
#include "bench/learning/capture_connection.h"
#include "bench/learning/scenario.h"
#include "server/member/weight_ledger.h"
#include "server/tensor/contribution_guard.h"
#include "server/tensor/parameter_store.h"
#include "server/tensor/tensor.h"
#include "wan/link_model.h"
#include "worker/client/push_pipeline.h"

namespace longhaul::bench {

// Of one worker in one round.
enum class Attendance : uint8_t {
  kPresent,
  kExcluded,  // a member, but its windows are given up
  kGone,      // no member
};

class Exchange {
 public:
  using Values = std::vector<float>;

  struct Stats {
    uint64_t high_chunks = 0;  // sent
    uint64_t low_chunks = 0;
    uint64_t low_lost = 0;
    uint64_t filled = 0;
  };

  // The job starts with `initial`, one entry per tensor. Errors: what the job's parts refuse.
  static Result<std::unique_ptr<Exchange>> Create(const Scenario& scenario, std::span<const Values> initial);

  // One round. gradients[rank][tensor]; only those of present workers are read. An absent worker stays away
  // until a round in which it is present again. REQUIRES: a worker is present.
  void Round(const std::vector<std::span<const Values>>& gradients, std::span<const Attendance> attendance);
  // One worker's push is a step of its own. REQUIRES: the scenario's staleness is not 0.
  void Step(uint32_t rank, std::span<const Values> gradient);
  // A worker is replaced by a new process: what it remembered is gone.
  void Replace(uint32_t rank);

  // As workers have them, until the next call for this tensor.
  std::span<const float> parameters(size_t tensor) {
    return codec::AsArrived(format_.result, models_[tensor]->current(), &arrived_[tensor]);
  }
  // What the server has not taken of a rank's gradients, between two rounds; empty: the policy forgets.
  std::span<const float> owed(uint32_t rank, size_t tensor) const {
    return workers_[rank].pipelines[tensor]->residual();
  }
  const Stats& stats() const { return stats_; }

 private:
  struct Worker {
    CaptureConnection connection;
    std::vector<std::unique_ptr<worker::PushPipeline>> pipelines;  // by tensor
    wan::LossProcess losses;
    std::vector<transport::ChunkBitmap> low_received;  // by tensor, of this round
    bool member = true;
  };

  Exchange() = default;
  void MakeWorkerHalf(uint32_t rank);
  void UpdateMembers(std::span<const Attendance> attendance);
  void BeginEpoch();
  void Send(Worker& worker, std::span<const Values> gradients);
  void Lose(Worker& worker);
  void Deliver(uint32_t rank, size_t tensor);
  void AddChunk(uint32_t rank, server::Tensor& tensor, bool high, const CaptureConnection::Chunk& chunk);
  void CountWeights(size_t tensor, std::span<const Attendance> attendance);
  void CloseWindow(uint32_t rank, size_t tensor, bool present);
  void FinaliseSwept(server::Tensor& tensor);

  Scenario scenario_;
  JobSpec job_spec_;
  codec::WireFormat format_;
  bool new_epoch_ = true;  // the members have changed
  uint64_t round_ = 0;
  std::vector<server::Parameters*> models_;  // owned by store_
  std::unique_ptr<server::ParameterStore> store_;
  std::vector<std::unique_ptr<server::Tensor>> tensors_;
  std::vector<server::ContributionGuard> guards_;  // by tensor
  std::vector<server::WeightLedger> ledgers_;      // by tensor
  std::vector<float> weights_;                     // by rank, of the tensor that is delivered
  std::vector<Worker> workers_;
  std::vector<uint8_t> packet_;  // one chunk as it arrives
  std::vector<float> scratch_;   // its elements
  std::vector<Values> arrived_;  // by tensor
  Stats stats_;
};

}  // namespace longhaul::bench
