// A set of counters as JSON, from its table (longhaul/stats.h).
#pragma once

#include <nlohmann/json.hpp>
#include <span>
#include <type_traits>
#include <variant>

#include "base/counters.h"

namespace longhaul {

// An object with every counter of the table: bytes as numbers, durations in milliseconds, rates in Mbit/s.
// Without `states` only what counts events: a sum over connections has no state.
template <typename S>
nlohmann::json CountersJson(std::span<const Counter<S>> table, const S& values, bool states = true) {
  nlohmann::json object = nlohmann::json::object();
  for (const Counter<S>& counter : table) {
    if (!states && !std::holds_alternative<uint64_t S::*>(counter.field)) continue;
    nlohmann::json& value = object[KeyOf(counter)];
    std::visit(
        [&]<typename T>(T S::*member) {
          if constexpr (std::is_same_v<T, ByteCount>) {
            value = (values.*member).value();
          } else if constexpr (std::is_same_v<T, Bandwidth>) {
            value = (values.*member).mbps();
          } else if constexpr (std::is_same_v<T, Duration>) {
            value = std::chrono::duration<double, std::milli>(values.*member).count();
          } else {
            value = values.*member;
          }
        },
        counter.field);
  }
  return object;
}

}  // namespace longhaul
