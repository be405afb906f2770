// Oracles for rounds under loss. They know what the workers produced and which chunks counted, from the
// test that ran the rounds, and keep books of their own in doubles; they share no code with what they check.
//
//   residual: over a run, what was applied, what is still owed and what is gone add up to what was produced,
//             element by element. Gone is what workers that left had owed, and what of a successor's gradient
//             arrived where its predecessor's was in: a rank counts once in a round
//   shift:    a chunk that did not count is replaced by its worker's expectation, and the server's C is the
//             weighted sum of the workers' shifts
//
// In integer mode (gradients and weights are integers, alpha = 1) both hold exactly, else to rounding.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "codec/chunk/chunk.h"
#include "codec/policy/sender_memory.h"

namespace longhaul::server {

// One process' part of a round.
struct RoundPart {
  uint64_t process = 0;  // a restarted worker is another process
  uint32_t rank = 0;
  double weight = 1;
  bool gone = false;    // died in this round
  bool behind = false;  // knew nothing of the shift epoch: its shift says nothing
  std::vector<float> gradient;
  std::vector<float> sent;    // as the server decodes it
  std::vector<bool> counted;  // by chunk
  std::vector<bool> dropped;  // by chunk: arrived where the predecessor's was in, gone for good
  const codec::SenderMemory* memory = nullptr;  // null when gone
};

struct RoundRecord {
  std::vector<RoundPart> parts;
  std::vector<bool> closed;  // by rank: its window was closed, so it is in the divisor
  std::vector<float> mean;   // what the server made of it
};

using Violation = std::optional<std::string>;

class ResidualChecker {
 public:
  ResidualChecker(const codec::ChunkGeometry& geometry, bool exact);
  Violation Check(const RoundRecord& record);
  // The process left between two rounds, and took along what it owed.
  void OnGone(uint64_t process, double weight);

 private:
  codec::ChunkGeometry geometry_;
  bool exact_;
  std::vector<double> produced_;
  std::vector<double> applied_;
  std::vector<double> forgotten_;
  std::vector<double> magnitude_;                 // of all that was added: what rounding is relative to
  std::map<uint64_t, std::vector<double>> owed_;  // by process: our own books
};

class ShiftChecker {
 public:
  // rounding: how far a sent value may be from gradient - shift by quantisation.
  ShiftChecker(const codec::ChunkGeometry& geometry, double alpha, bool exact, double rounding);
  void BeginEpoch(const std::map<uint32_t, double>& weights);  // of its members, by rank
  Violation Check(const RoundRecord& record, std::span<const float> shift_sum);

 private:
  bool Same(double a, double b) const;

  codec::ChunkGeometry geometry_;
  double alpha_;
  bool exact_;
  double rounding_;
  std::map<uint32_t, double> weights_;
  std::map<uint32_t, std::vector<double>> shifts_;  // by rank
};

}  // namespace longhaul::server
