#include "worker/demo/mlp.h"

#include <Eigen/Core>
#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "base/random.h"

namespace longhaul::worker {
namespace {

using Matrix = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
using ConstMap = Eigen::Map<const Matrix>;
using MutableMap = Eigen::Map<Matrix>;

enum Tensor : size_t { kWeight1, kBias1, kWeight2, kBias2 };

ConstMap View(const std::vector<float>& values, size_t rows, size_t columns) {
  return {values.data(), static_cast<Eigen::Index>(rows), static_cast<Eigen::Index>(columns)};
}
MutableMap View(std::vector<float>& values, size_t rows, size_t columns) {
  return {values.data(), static_cast<Eigen::Index>(rows), static_cast<Eigen::Index>(columns)};
}

// One row per image of the batch.
struct Activations {
  Matrix hidden;         // after ReLU
  Matrix probabilities;  // after softmax
  double loss = 0;       // mean over the batch
};

Activations Forward(const Mlp::Tensors& p, const Batch& batch) {
  LH_CHECK_OP(batch.size(), >, size_t{0});
  Activations a;
  const ConstMap x = View(batch.images, batch.size(), Mlp::kInputs);
  a.hidden.noalias() = x * View(p[kWeight1], Mlp::kHidden, Mlp::kInputs).transpose();
  a.hidden.rowwise() += View(p[kBias1], 1, Mlp::kHidden).row(0);
  a.hidden = a.hidden.cwiseMax(0.0f);

  a.probabilities.noalias() = a.hidden * View(p[kWeight2], Mlp::kOutputs, Mlp::kHidden).transpose();
  a.probabilities.rowwise() += View(p[kBias2], 1, Mlp::kOutputs).row(0);
  for (Eigen::Index i = 0; i < a.probabilities.rows(); ++i) {
    auto row = a.probabilities.row(i);
    row.array() -= row.maxCoeff();  // exp() must not overflow
    const float label_logit = row(batch.labels[static_cast<size_t>(i)]);
    row = row.array().exp().matrix();
    const float sum = row.sum();
    row /= sum;
    a.loss += static_cast<double>(std::log(sum) - label_logit);
  }
  a.loss /= static_cast<double>(batch.size());
  return a;
}

}  // namespace

Mlp::Mlp(uint64_t seed) : parameters_(Zeros()) {
  Random random(seed);
  const auto initialise = [&random](std::vector<float>& weights, size_t inputs) {
    const double deviation = std::sqrt(2.0 / static_cast<double>(inputs));
    for (float& w : weights) w = static_cast<float>(random.Normal() * deviation);
  };
  initialise(parameters_[kWeight1], kInputs);
  initialise(parameters_[kWeight2], kHidden);
}

Mlp::Tensors Mlp::Zeros() {
  Tensors tensors;
  for (size_t i = 0; i < kTensors; ++i) tensors[i].assign(kShapes[i].count, 0.0f);
  return tensors;
}

double Mlp::Gradient(const Batch& batch, Tensors& gradients) const {
  for (size_t i = 0; i < kTensors; ++i) LH_CHECK_OP(gradients[i].size(), ==, kShapes[i].count);
  const Activations a = Forward(parameters_, batch);

  // d loss / d logits of softmax cross-entropy: probability minus one for the right class.
  Matrix delta2 = a.probabilities;
  for (Eigen::Index i = 0; i < delta2.rows(); ++i) delta2(i, batch.labels[static_cast<size_t>(i)]) -= 1.0f;
  delta2 /= static_cast<float>(batch.size());
  View(gradients[kWeight2], kOutputs, kHidden).noalias() = delta2.transpose() * a.hidden;
  View(gradients[kBias2], 1, kOutputs) = delta2.colwise().sum();

  Matrix delta1 = delta2 * View(parameters_[kWeight2], kOutputs, kHidden);
  delta1 = (a.hidden.array() > 0.0f).select(delta1, 0.0f);
  View(gradients[kWeight1], kHidden, kInputs).noalias() =
      delta1.transpose() * View(batch.images, batch.size(), kInputs);
  View(gradients[kBias1], 1, kHidden) = delta1.colwise().sum();
  return a.loss;
}

double Mlp::Loss(const Batch& batch) const { return Forward(parameters_, batch).loss; }

double Mlp::Accuracy(const Dataset& data) const {
  constexpr size_t kStep = 500;  // bounds the memory, not the result
  size_t right = 0;
  for (size_t first = 0; first < data.size(); first += kStep) {
    const Batch batch = MakeBatch(data, first, std::min(kStep, data.size() - first));
    const Activations a = Forward(parameters_, batch);
    for (size_t i = 0; i < batch.size(); ++i) {
      Eigen::Index best = 0;
      a.probabilities.row(static_cast<Eigen::Index>(i)).maxCoeff(&best);
      right += best == batch.labels[i] ? 1 : 0;
    }
  }
  return data.size() == 0 ? 0.0 : static_cast<double>(right) / static_cast<double>(data.size());
}

}  // namespace longhaul::worker
