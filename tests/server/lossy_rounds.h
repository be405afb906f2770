// Rounds of a few workers and one tensor over a network that loses, doubles, delays and reorders, with
// workers that leave, join and are replaced in the middle of a round.
//
//   gradient -> SenderMemory -> chunks, shuffled among all workers -> Tensor -> mean
//                    ^------------- which of them counted -----------'
//
// The network and the windows are played here; every round is recorded for the checkers.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "base/random.h"
#include "server/tensor/tensor.h"
#include "tests/server/loss_checkers.h"

namespace longhaul::server {

class LossyRounds {
 public:
  // What the players may do wrong, so that the checkers can be checked.
  enum class Fault : uint8_t {
    kNone,
    kDoubled,            // a chunk is added with twice its values
    kSettledThoughLost,  // a lost chunk is settled as taken
    kLostThoughSettled,  // a taken chunk is settled as lost
    kLateCounts,         // a chunk of an old window is added
    kDroppedOwed,        // a chunk dropped since its rank's is in is settled as lost
    kMissedEpoch,        // a worker that knows nothing of the new epoch is listened to
  };
  struct Options {
    JobSpec job_spec;
    bool integers = true;  // gradients -8..8, weights powers of two; else normal, and any weight
    double quantum = 0;    // what is sent is rounded to multiples of this; 0: travels as it is
    Fault fault = Fault::kNone;
    uint64_t seed = 1;
  };

  explicit LossyRounds(const Options& options);
  // One more round, settled; then what it did not conform to, if anything.
  Violation Round();
  bool faulty() const { return faulty_; }
  uint64_t late_dropped() const { return late_dropped_; }
  uint64_t duplicates_dropped() const { return duplicates_dropped_; }

 private:
  struct Process {
    uint64_t id = 0;
    uint32_t rank = 0;
    float weight = 1;
    bool behind = false;  // is not in the epoch in force, or has not heard of it: refused
    bool gone = false;
    std::unique_ptr<codec::SenderMemory> memory;
    std::vector<float> gradient;
    std::vector<float> sent;
    std::vector<bool> counted;
    std::vector<bool> dropped;  // its predecessor's was in
  };
  struct Event {
    enum class Kind : uint8_t { kChunk, kClose, kLeave, kReplace };
    Kind kind = Kind::kChunk;
    uint64_t process = 0;
    uint64_t round = 0;
    uint32_t chunk = 0;
    std::vector<float> values = {};
  };

  bool Shifts() const { return options_.job_spec.policy == LossPolicy::kShift; }
  float Gradient();
  bool Injects(Fault fault, double chance);
  Process& Of(uint32_t rank) { return *members_.at(rank); }
  void Join(uint32_t rank);
  void ChangeMembers();
  void BeginEpoch();
  void Begin(Process& process, std::vector<Event>* events);
  void Play(const Event& event, std::vector<Event>* more);
  void Arrive(const Event& event);
  // False when the rank's contribution to the chunk is in already.
  bool Count(uint32_t rank, uint32_t chunk, const std::vector<float>& values);
  void Close(uint32_t rank);
  void Leave(uint32_t rank);
  void Replace(uint32_t rank, std::vector<Event>* more);
  void FinaliseSwept();
  Violation Finish();

  Options options_;
  Random random_;
  codec::ChunkGeometry geometry_;
  uint32_t ranks_;
  double loss_ = 0;  // of this round
  ParameterStore store_;
  Parameters* parameters_;
  Tensor tensor_;
  ResidualChecker residual_checker_;
  ShiftChecker shift_checker_;
  std::map<uint32_t, std::unique_ptr<Process>> members_;  // by rank
  std::vector<std::unique_ptr<Process>> dead_;            // of this round
  std::map<uint32_t, uint64_t> open_;                     // windows: rank, process
  std::set<std::pair<uint32_t, uint32_t>> in_;            // rank, chunk: counted in this round
  std::vector<bool> closed_;                              // by rank
  std::vector<Event> late_;                               // arrives in a later round
  uint64_t next_process_ = 1;
  std::set<uint64_t> in_epoch_;   // processes
  bool members_changed_ = false;  // since the epoch began
  bool faulty_ = false;           // a fault was injected
  uint64_t late_dropped_ = 0;
  uint64_t duplicates_dropped_ = 0;
};

}  // namespace longhaul::server
