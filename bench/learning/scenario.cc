#include "bench/learning/scenario.h"

#include <algorithm>
#include <string_view>

#include "codec/policy/loss_policy.h"
#include "codec/policy/optimizer.h"
#include "longhaul/tensor.h"
#include "wan/link_model.h"

namespace longhaul::bench {
namespace {

constexpr uint32_t kLossy = 2;
constexpr double kTimes = 5;
constexpr double kMostLoss = 0.95;

nlohmann::json LiarsJson(const Scenario& s) {
  return {{"liars", s.liars},
          {"attack", s.attack},
          {"aggregation", s.aggregation},
          {"norm_guard", s.norm_guard},
          {"max_weight_share", s.max_weight_share}};
}

// What its fields of liars are not.
std::string LiarsProblem(const Scenario& s) {
  if (s.liars >= s.workers) return "liars: fewer than workers";
  if (s.attack != "flip" && s.attack != "scale" && s.attack != "weight")
    return "attack: flip | scale | weight";
  JobSpec job;
  const auto policy = FromName<LossPolicy>(s.policy);
  const auto aggregation = FromName<Aggregation>(s.aggregation);
  if (!aggregation) return "aggregation: mean | trimmed-mean | centred-clipping";
  job.policy = *policy;
  job.aggregation = *aggregation;
  job.norm_guard = s.norm_guard;
  job.max_weight_share = s.max_weight_share;
  job.staleness = s.staleness;
  if (s.staleness != 0 && (s.membership != "none" || s.liars > 0))
    return "staleness: with membership none, and no liars";
  if (!(s.slow >= 1)) return "slow: at least 1";
  return job.Validate().message();
}

nlohmann::json StalenessJson(const Scenario& s) { return {{"staleness", s.staleness}, {"slow", s.slow}}; }

}  // namespace

double Scenario::LossOf(uint32_t rank) const {
  if (!uneven || workers <= kLossy) return loss;
  const bool lossy = (rank + workers - seed % workers) % workers < kLossy;
  const double others = loss * workers / (workers - kLossy + kLossy * kTimes);
  if (kTimes * others <= kMostLoss) return lossy ? kTimes * others : others;
  return lossy ? kMostLoss : (loss * workers - kLossy * kMostLoss) / (workers - kLossy);
}

std::string Scenario::OptimizerText() const {
  if (optimizer == "sgd") return "sgd:lr=0.1,momentum=0.9";
  if (optimizer == "adam") return "adam:lr=0.001";
  return optimizer;
}

Scenario Scenario::Lossless() const {
  Scenario s = *this;
  const Scenario defaults;
  s.policy = "zero";
  s.shift_alpha = defaults.shift_alpha;
  s.priority = defaults.priority;
  s.high_share = defaults.high_share;
  s.high_energy = defaults.high_energy;
  s.lost_energy = defaults.lost_energy;
  s.topk_share = defaults.topk_share;
  s.bubble_threshold = defaults.bubble_threshold;
  s.wire_dtype = defaults.wire_dtype;
  s.result_dtype = defaults.result_dtype;
  s.loss = 0;
  s.burst = defaults.burst;
  s.uneven = defaults.uneven;
  s.transposed = defaults.transposed;  // element by element it is the same
  // Excluded for a while means that the mean is over the others, as when it had left.
  if (s.membership == "excluded") s.membership = "left";
  return s;
}

nlohmann::json Scenario::ToJson() const {
  nlohmann::json json = {{"policy", policy},
                         {"shift_alpha", shift_alpha},
                         {"priority", priority},
                         {"high_share", high_share},
                         {"high_energy", high_energy},
                         {"topk_share", topk_share},
                         {"bubble_threshold", bubble_threshold},
                         {"wire_dtype", wire_dtype},
                         {"optimizer", optimizer},
                         {"workers", workers},
                         {"batch", batch},
                         {"rounds", rounds},
                         {"skew", skew},
                         {"schedule", schedule},
                         {"membership", membership},
                         {"loss", loss},
                         {"burst", burst},
                         {"uneven", uneven},
                         {"seed", seed}};
  if (liars > 0 || aggregation != "mean") json.update(LiarsJson(*this));
  if (staleness != 0) json.update(StalenessJson(*this));
  if (shards) json["shards"] = true;
  if (result_dtype != "float32") json["result_dtype"] = result_dtype;
  if (transposed) json["transposed"] = true;
  if (lost_energy < 1) json["lost_energy"] = lost_energy;
  return json;
}

Result<Scenario> Scenario::FromJson(const nlohmann::json& json) {
  Scenario s;
  const auto bad = [](const std::string& what) { return Status(StatusCode::kInvalidArgument, what); };
  if (!json.is_object()) return bad("a scenario is a JSON object, for example {\"policy\": \"residual\"}");
  nlohmann::json known = s.ToJson();
  known.update(LiarsJson(s));
  known.update(StalenessJson(s));
  known["shards"] = s.shards;
  known["result_dtype"] = s.result_dtype;
  known["transposed"] = s.transposed;
  known["lost_energy"] = s.lost_energy;
  for (const auto& [name, value] : json.items()) {
    if (!known.contains(name)) return bad("a scenario has no setting \"" + name + "\"");
    const bool same_kind =
        value.type() == known[name].type() || (value.is_number() && known[name].is_number());
    if (!same_kind) return bad("setting \"" + name + "\" of a scenario is not of its type");
  }
  // A number that does not fit would wrap around.
  for (const std::string_view name : {"workers", "batch", "rounds", "seed", "liars"}) {
    const double value = json.value(name, 1.0);
    if (!(value >= (name == "seed" || name == "liars" ? 0 : 1) && value <= 1e9)) {
      return bad(std::string(name) + ": 1..1e9");
    }
  }
  for (const char* name : {"shift_alpha", "high_share", "high_energy", "lost_energy", "topk_share",
                           "bubble_threshold", "skew"}) {
    const double value = json.value(name, 0.5);
    if (!(value >= 0 && value <= 1)) return bad(std::string(name) + ": 0..1");
  }
  s.policy = json.value("policy", s.policy);
  s.shift_alpha = json.value("shift_alpha", s.shift_alpha);
  s.priority = json.value("priority", s.priority);
  s.high_share = json.value("high_share", s.high_share);
  s.high_energy = json.value("high_energy", s.high_energy);
  s.lost_energy = json.value("lost_energy", s.lost_energy);
  s.topk_share = json.value("topk_share", s.topk_share);
  s.bubble_threshold = json.value("bubble_threshold", s.bubble_threshold);
  s.wire_dtype = json.value("wire_dtype", s.wire_dtype);
  s.result_dtype = json.value("result_dtype", s.result_dtype);
  s.optimizer = json.value("optimizer", s.optimizer);
  s.workers = json.value("workers", s.workers);
  s.batch = json.value("batch", s.batch);
  s.rounds = json.value("rounds", s.rounds);
  s.skew = json.value("skew", s.skew);
  s.schedule = json.value("schedule", s.schedule);
  s.membership = json.value("membership", s.membership);
  s.loss = json.value("loss", s.loss);
  s.burst = json.value("burst", s.burst);
  s.uneven = json.value("uneven", s.uneven);
  s.shards = json.value("shards", s.shards);
  s.transposed = json.value("transposed", s.transposed);
  s.seed = json.value("seed", s.seed);
  s.staleness = json.value("staleness", s.staleness);
  s.slow = json.value("slow", s.slow);
  s.liars = json.value("liars", s.liars);
  s.attack = json.value("attack", s.attack);
  s.aggregation = json.value("aggregation", s.aggregation);
  s.norm_guard = json.value("norm_guard", s.norm_guard);
  s.max_weight_share = json.value("max_weight_share", s.max_weight_share);

  if (s.workers < 1 || s.workers > 64) return bad("workers: 1..64");
  if (s.batch > 60'000) return bad("batch: 1..60000");
  if (!FromName<LossPolicy>(s.policy)) return bad("policy: zero | count | stale | ipw | residual | shift");
  if (s.shift_alpha == 0) return bad("shift_alpha: above 0");
  if (s.priority == "topk" && s.topk_share == 0) return bad("topk_share: above 0");
  if (!ParseDType(s.wire_dtype)) return bad("wire_dtype: float32 | bfloat16 | float16 | int8 | int4 | int2");
  if (!ParseDType(s.result_dtype) || DTypeBits(*ParseDType(s.result_dtype)) < 16)
    return bad("result_dtype: float32 | bfloat16 | float16");
  if (!(s.burst == 0 || (s.burst >= 1 && s.burst <= 1000))) return bad("burst: 0 (independent) or 1..1000");
  if (const auto parsed = codec::ParseOptimizer(s.OptimizerText()); !parsed.ok())
    return bad("optimizer: " + parsed.status().message());
  if (s.priority != "energy" && s.priority != "topk") return bad("priority: energy | topk");
  if (s.schedule != "decay" && s.schedule != "drop") return bad("schedule: decay | drop");
  if (s.membership != "none" && s.membership != "left" && s.membership != "excluded" &&
      s.membership != "replaced") {
    return bad("membership: none | left | excluded | replaced");
  }
  if (!(s.loss >= 0 && s.loss < 1)) return bad("loss: 0..1");
  if (const std::string problem = LiarsProblem(s); !problem.empty()) return bad(problem);
  for (uint32_t rank = 0; rank < s.workers; ++rank) {
    if (s.burst > 0 && !wan::GilbertElliott::Possible(s.LossOf(rank), s.burst)) {
      return bad("bursts of that mean cannot lose so much");
    }
  }
  return s;
}

}  // namespace longhaul::bench
