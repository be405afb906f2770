// The model of the built-in trainer: a multi-layer perceptron 784-128-10 with ReLU and softmax cross-entropy.
//
// Its parameters are four flat tensors that a parameter server can hold; the optimizer is not in here.
// Not thread-safe.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "worker/demo/dataset.h"
#include "worker/demo/mini_batches.h"

namespace longhaul::worker {

class Mlp {
 public:
  static constexpr size_t kInputs = Dataset::kPixels;
  static constexpr size_t kHidden = 128;
  static constexpr size_t kOutputs = Dataset::kClasses;
  static constexpr size_t kTensors = 4;

  struct TensorShape {
    std::string_view name;
    size_t count;
  };
  // Weights are row-major [outputs][inputs].
  static constexpr std::array<TensorShape, kTensors> kShapes = {{{"fc1.weight", kHidden* kInputs},
                                                                 {"fc1.bias", kHidden},
                                                                 {"fc2.weight", kOutputs* kHidden},
                                                                 {"fc2.bias", kOutputs}}};
  using Tensors = std::array<std::vector<float>, kTensors>;

  // He initialisation (He et al. 2015): weights normal with variance 2 / inputs, biases zero. The same seed
  // gives the same model on every machine.
  explicit Mlp(uint64_t seed);

  // Zeros in the model's shapes, for example for gradients.
  static Tensors Zeros();

  Tensors& parameters() { return parameters_; }
  const Tensors& parameters() const { return parameters_; }

  // Mean loss of the batch; writes the mean gradient of every tensor. REQUIRES: batch not empty; gradients in
  // shape.
  double Gradient(const Batch& batch, Tensors& gradients) const;
  // Mean loss of the batch alone.
  double Loss(const Batch& batch) const;
  // Share of `data` whose most likely class is its label, 0..1; zero for an empty dataset.
  double Accuracy(const Dataset& data) const;

 private:
  Tensors parameters_;
};

}  // namespace longhaul::worker
