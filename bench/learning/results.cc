#include "bench/learning/results.h"

#include <fstream>

namespace longhaul::bench {

Result<Results> Results::Open(const std::string& path) {
  Results results;
  results.path_ = path;
  std::ifstream file(path);
  std::string text;
  for (int line = 1; std::getline(file, text); ++line) {
    const nlohmann::json json = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
    const auto damaged = [&] {
      return Status(StatusCode::kDataLoss,
                    path + ", line " + std::to_string(line) + ": not a result of this bench");
    };
    if (!json.is_object() || !json.contains("scenario")) return damaged();
    const Result<Scenario> scenario = Scenario::FromJson(json["scenario"]);
    if (!scenario.ok()) return damaged();
    TimedOutcome& outcome = results.outcomes_[scenario->Key()];
    outcome.outcome.accuracy = json.value("accuracy", 0.0);
    outcome.outcome.averaged_accuracy = json.value("averaged_accuracy", 0.0);
    outcome.outcome.averaged_loss = json.value("averaged_loss", 0.0);
    outcome.outcome.high_share = json.value("high_share", 0.0);
    outcome.outcome.training_loss = json.value("training_loss", 0.0);
    outcome.outcome.low_lost = json.value("low_lost", 0.0);
    outcome.outcome.filled = json.value("filled", 0.0);
    outcome.seconds = json.value("seconds", 0.0);
  }
  return results;
}

const TimedOutcome* Results::Find(const Scenario& scenario) const {
  const auto found = outcomes_.find(scenario.Key());
  return found == outcomes_.end() ? nullptr : &found->second;
}

Status Results::Add(const Scenario& scenario, const TimedOutcome& outcome) {
  outcomes_[scenario.Key()] = outcome;
  std::ofstream file(path_, std::ios::app);
  const nlohmann::json line = {{"scenario", scenario.ToJson()},
                               {"accuracy", outcome.outcome.accuracy},
                               {"averaged_accuracy", outcome.outcome.averaged_accuracy},
                               {"averaged_loss", outcome.outcome.averaged_loss},
                               {"training_loss", outcome.outcome.training_loss},
                               {"high_share", outcome.outcome.high_share},
                               {"low_lost", outcome.outcome.low_lost},
                               {"filled", outcome.outcome.filled},
                               {"seconds", outcome.seconds}};
  file << line.dump() << std::endl;
  if (!file) return {StatusCode::kUnavailable, "cannot write " + path_};
  return Status::Ok();
}

}  // namespace longhaul::bench
