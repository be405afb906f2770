#include "bench/learning/c_exchange.h"

#include <algorithm>
#include <cmath>
#include <exception>
#include <memory>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "bench/learning/exchange.h"

using longhaul::Result;
using longhaul::Status;
using longhaul::StatusCode;
using longhaul::bench::Attendance;
using longhaul::bench::Exchange;
using longhaul::bench::Scenario;

struct longhaul_exchange {
  std::unique_ptr<Exchange> exchange;
  std::vector<uint64_t> counts;                          // by tensor
  std::vector<std::vector<Exchange::Values>> gradients;  // by rank and tensor
  std::vector<Attendance> everyone;
};

namespace {

constexpr uint32_t kMostTensors = longhaul::server::ParameterStore::kMaxTensors;
constexpr uint64_t kMostElements = uint64_t{1} << 28;
constexpr float kLargest = 1e18f;  // sums of its square are finite

thread_local std::string last_error;

Status Invalid(std::string what) { return {StatusCode::kInvalidArgument, std::move(what)}; }

// No exception leaves, and what went wrong is kept.
template <typename Call>
int Guarded(Call call) {
  Status status;
  try {
    status = call();
  } catch (const std::exception& e) {
    status = Status(StatusCode::kResourceExhausted, e.what());
  }
  if (status.ok()) return 0;
  last_error = status.message();
  return 1;
}

Result<Scenario> ScenarioOf(const char* text) {
  if (text == nullptr) return Invalid("the scenario is null");
  const nlohmann::json json = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (json.is_discarded()) return Invalid("the scenario is not JSON");
  Result<Scenario> scenario = Scenario::FromJson(json);
  if (scenario.ok() && (scenario->membership != "none" || scenario->staleness != 0 || scenario->liars > 0))
    return Invalid("membership, staleness and liars are of longhaul_learning_bench alone");
  return scenario;
}

Result<std::vector<Exchange::Values>> Copied(std::span<const uint64_t> counts, const float* const* values) {
  std::vector<Exchange::Values> copies;
  for (size_t t = 0; t < counts.size(); ++t) {
    if (values[t] == nullptr || counts[t] == 0 || counts[t] > kMostElements)
      return Invalid("tensor " + std::to_string(t) + ": null, or of a wrong number of elements");
    copies.emplace_back(values[t], values[t] + counts[t]);
  }
  return copies;
}

Status Create(const char* text, std::span<const uint64_t> counts, const float* const* initial,
              longhaul_exchange& made) {
  const Result<Scenario> scenario = ScenarioOf(text);
  if (!scenario.ok()) return scenario.status();
  const Result<std::vector<Exchange::Values>> values = Copied(counts, initial);
  if (!values.ok()) return values.status();
  Result<std::unique_ptr<Exchange>> exchange = Exchange::Create(*scenario, *values);
  if (!exchange.ok()) return exchange.status();
  made.exchange = *std::move(exchange);
  made.counts.assign(counts.begin(), counts.end());
  made.gradients.resize(scenario->workers);
  made.everyone.assign(scenario->workers, Attendance::kPresent);
  return Status::Ok();
}

// False for what is not finite, too.
bool Small(float value) { return std::abs(value) <= kLargest; }

Status Round(longhaul_exchange& e, const float* const* gradients) {
  std::vector<std::span<const Exchange::Values>> pushed;
  for (size_t rank = 0; rank < e.gradients.size(); ++rank) {
    Result<std::vector<Exchange::Values>> own = Copied(e.counts, gradients + rank * e.counts.size());
    if (!own.ok()) return Invalid("rank " + std::to_string(rank) + ", " + own.status().message());
    e.gradients[rank] = *std::move(own);
    for (const Exchange::Values& values : e.gradients[rank]) {
      if (!std::ranges::all_of(values, Small))
        return Invalid("the gradient of rank " + std::to_string(rank) + " is not finite, or above 1e18");
    }
    pushed.emplace_back(e.gradients[rank]);
  }
  e.exchange->Round(pushed, e.everyone);
  return Status::Ok();
}

}  // namespace

const char* longhaul_exchange_error(void) { return last_error.c_str(); }

longhaul_exchange* longhaul_exchange_create(const char* scenario, uint32_t tensors, const uint64_t* counts,
                                            const float* const* initial) {
  std::unique_ptr<longhaul_exchange> made;
  const int failed = Guarded([&] {
    if (tensors == 0 || tensors > kMostTensors || counts == nullptr || initial == nullptr)
      return Invalid("wanted are 1 to " + std::to_string(kMostTensors) + " tensors, their counts and values");
    made = std::make_unique<longhaul_exchange>();
    return Create(scenario, std::span(counts, tensors), initial, *made);
  });
  return failed != 0 ? nullptr : made.release();
}

void longhaul_exchange_destroy(longhaul_exchange* exchange) { delete exchange; }

int longhaul_exchange_round(longhaul_exchange* exchange, const float* const* gradients) {
  return Guarded([&] {
    if (exchange == nullptr || gradients == nullptr) return Invalid("no exchange, or no gradients");
    return Round(*exchange, gradients);
  });
}

int longhaul_exchange_parameters(longhaul_exchange* exchange, uint32_t tensor, float* values,
                                 uint64_t count) {
  return Guarded([&] {
    if (exchange == nullptr || values == nullptr) return Invalid("no exchange, or no memory for the values");
    if (tensor >= exchange->counts.size() || exchange->counts[tensor] != count)
      return Invalid("no tensor " + std::to_string(tensor) + " of " + std::to_string(count) + " elements");
    std::ranges::copy(exchange->exchange->parameters(tensor), values);
    return Status::Ok();
  });
}

int longhaul_exchange_owed(longhaul_exchange* exchange, uint32_t rank, uint32_t tensor, float* values,
                           uint64_t count) {
  return Guarded([&] {
    if (exchange == nullptr || values == nullptr) return Invalid("no exchange, or no memory for the values");
    if (rank >= exchange->gradients.size()) return Invalid("no rank " + std::to_string(rank));
    if (tensor >= exchange->counts.size() || exchange->counts[tensor] != count)
      return Invalid("no tensor " + std::to_string(tensor) + " of " + std::to_string(count) + " elements");
    const std::span<const float> owed = exchange->exchange->owed(rank, tensor);
    if (owed.empty()) std::fill_n(values, count, 0.0f);  // policies that forget
    std::ranges::copy(owed, values);
    return Status::Ok();
  });
}

int longhaul_exchange_statistics(const longhaul_exchange* exchange, longhaul_exchange_stats* stats) {
  return Guarded([&] {
    if (exchange == nullptr || stats == nullptr)
      return Invalid("no exchange, or no memory for its statistics");
    const Exchange::Stats& s = exchange->exchange->stats();
    *stats = {s.high_chunks, s.low_chunks, s.low_lost, s.filled};
    return Status::Ok();
  });
}
