#include "server/optimizer.h"

#include <algorithm>

#include "base/check.h"
#include "server/adam.h"
#include "server/sgd.h"

namespace longhaul::server {
namespace {

class AggregateOnly final : public Optimizer {
 public:
  void Step(uint64_t, uint64_t, std::span<const float> gradient, std::span<const float>,
            std::span<float> updated) override {
    LH_CHECK_OP(gradient.size(), ==, updated.size());
    std::copy(gradient.begin(), gradient.end(), updated.begin());
  }
  void ScaleRate(double) override {}  // there is none
};

}  // namespace

std::unique_ptr<Optimizer> MakeOptimizer(const OptimizerSpec& spec, uint64_t count) {
  switch (spec.kind) {
    case OptimizerSpec::Kind::kAggregate:
      return std::make_unique<AggregateOnly>();
    case OptimizerSpec::Kind::kSgd:
      return std::make_unique<Sgd>(spec, count);
    case OptimizerSpec::Kind::kAdam:
    case OptimizerSpec::Kind::kAdamW:
      return std::make_unique<Adam>(spec, count);
  }
  return nullptr;
}

}  // namespace longhaul::server
