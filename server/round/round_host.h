// What the engine of rounds reports to its owner, and asks of it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/instant.h"
#include "proto/control_codec.h"
#include "server/member/peer.h"
#include "server/tensor/tensor.h"

namespace longhaul::server {

// A round of a tensor is finished.
struct TensorRound {
  const Tensor* tensor = nullptr;
  uint64_t round = 0;
  Instant begun;  // first window opened
  uint32_t last_rank = 0;
  uint32_t contributors = 0;
  RoundTally tally;
};

// The guard refused a chunk of a push; reported once for each push.
struct Rejection {
  uint32_t rank = 0;
  std::string tensor;
  uint64_t round = 0;
  uint32_t chunk = 0;    // the first one
  std::string_view why;  // GuardVerdictName
  double excess = 0;     // "too large": the chunk's norm by the usual one
};

// Something that waits for these ranks: "round 3 of tensor \"w\"".
struct Wait {
  std::string what;
  std::vector<uint32_t> missing;
  Instant since;
};

// A round goes on without a worker that is a member; its gradient counts when it comes.
struct LeftOut {
  uint32_t rank = 0;
  std::string tensor;
  uint64_t round = 0;
  Duration waited{0};  // since the round began
};

// Counters; by_rank has one entry per rank.
struct EngineStats {
  struct Rank {
    uint64_t chunks = 0;           // contributions added
    uint64_t repaired = 0;         // of them rebuilt by FEC
    uint64_t lost = 0;             // contributions that did not arrive, or were rejected
    uint64_t rejected = 0;         // of them refused by the guard
    uint64_t excluded = 0;         // rounds that were over without it
    uint64_t weights_bounded = 0;  // windows that counted with less than they said
    float said_weight = 0;         // of the last window; 0: none yet
    float counted_weight = 0;
    double weight_share = 0;  // of what counted, a mean over the last kShareRounds rounds of all tensors
    uint64_t close_reasons[6] = {};  // windows, by wire::CloseReason
  };
  static constexpr uint64_t kShareRounds = 64;
  uint64_t tensor_rounds = 0;
  uint64_t filled = 0;
  uint64_t tolerated = 0;
  uint64_t duplicate_contributions = 0;  // not added: the rank's contribution was in
  uint64_t taken_and_dropped = 0;        // duplicate or rejected, acknowledged so that no policy repays them
  uint64_t late_chunks = 0;              // of a round that was over, or of a chunk that was final
  uint64_t epoch_refused = 0;            // chunks of another shift epoch
  uint64_t old_windows_refused = 0;      // of a round that was over
  uint64_t late_windows_taken = 0;       // of a round that was over: counted in the one in progress
  uint64_t weights_bounded = 0;          // windows that counted with less than they said
  uint64_t pulls_held = 0;    // answers that had to wait for memory (kMaxPinnedModels, kMaxPullsOfTensor)
  uint64_t state_hashes = 0;  // sent, downlink lossy
  uint64_t longest_event_elements = 0;  // of tensors, that one event worked on (WorkBudget)
  std::vector<Rank> by_rank;
};

class RoundEngineHost {
 public:
  virtual ~RoundEngineHost() = default;
  virtual void Send(Peer& peer, const control::ControlMessage& message) = 0;
  // The peer broke the protocol: its connection ends with this. May be called several times.
  virtual void Disconnect(Peer& peer, const Status& why) = 0;
  // The job cannot go on. Takes effect after the event in progress.
  virtual void RequestAbort(const Status& why) = 0;
  // Null when the rank has no connection.
  virtual Peer* PeerOfRank(uint32_t rank) = 0;
  virtual void OnTensorRound(const TensorRound& round) = 0;
  virtual void OnRejected(const Rejection& rejection) = 0;
  // A push of the rank counts as less than it says; reported for the first, second, fourth, ... of the rank.
  virtual void OnWeightBounded(uint32_t rank, float said, float counted) = 0;
  virtual void OnLeftOut(const LeftOut& left_out) = 0;
};

}  // namespace longhaul::server
