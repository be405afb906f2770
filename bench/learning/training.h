// Trains the built-in model in one process, gradient by gradient through an Exchange.
#pragma once

#include "bench/learning/exchange.h"
#include "bench/learning/scenario.h"
#include "worker/demo/mlp.h"

namespace longhaul::bench {

struct Outcome {
  // Share of the test images that are right: mean of nine evaluations over the last tenth of the rounds,
  // since one alone moves by a tenth of a point from round to round.
  double accuracy = 0;
  // Of the mean of the weights over the last tenth of the rounds, which moves less than one round's.
  double averaged_accuracy = 0;
  double averaged_loss = 0;  // cross-entropy of the test images
  double training_loss = 0;  // mean over the workers' batches and the last tenth of the rounds
  double low_lost = 0;       // share of the low chunks
  double high_share = 0;     // of all chunks
  double filled = 0;         // chunks, per round
  bool diverged = false;     // the model became infinite; the accuracy is that of chance
};

// Who takes part in a round, by rank.
std::vector<Attendance> AttendanceIn(const Scenario& scenario, uint64_t round);
// What gradients are multiplied with: the schedule of SGD's learning rate, 0..1. 1 for Adam, which would undo
// it.
float RateFactor(const Scenario& scenario, uint64_t round);

// The same scenario and data give the same outcome, bit for bit. `model`, if given, receives the parameters.
// Errors: what the scenario asks for does not exist.
Result<Outcome> Train(const Scenario& scenario, const worker::Dataset& train, const worker::Dataset& test,
                      worker::Mlp* model = nullptr);

}  // namespace longhaul::bench
