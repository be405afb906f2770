// What follows from a table of counters (longhaul/stats.h): sums, differences, and the page that explains it.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <variant>

#include "longhaul/stats.h"

namespace longhaul {

// Adds what `other` has counted to `sum`; states stay as they are.
template <typename S>
void AddCounts(std::span<const Counter<S>> table, const S& other, S* sum) {
  for (const Counter<S>& counter : table) {
    if (const auto* count = std::get_if<uint64_t S::*>(&counter.field)) sum->** count += other.**count;
  }
}

// `end`, with what was counted since `begin`.
template <typename S>
S CountsSince(std::span<const Counter<S>> table, const S& begin, S end) {
  for (const Counter<S>& counter : table) {
    if (const auto* count = std::get_if<uint64_t S::*>(&counter.field)) end.** count -= begin.**count;
  }
  return end;
}

// Whether it only grows.
template <typename S>
bool IsCount(const Counter<S>& counter) {
  return counter.kind == CounterKind::kByType ? std::holds_alternative<uint64_t S::*>(counter.field)
                                              : counter.kind == CounterKind::kCount;
}

// The name with the unit that values have in JSON.
template <typename S>
std::string KeyOf(const Counter<S>& counter) {
  std::string key(counter.name);
  if (std::holds_alternative<Duration S::*>(counter.field)) key += "_ms";
  if (std::holds_alternative<Bandwidth S::*>(counter.field)) key += "_mbps";
  return key;
}

// A Markdown table of two columns.
template <typename S>
std::string CounterPage(std::span<const Counter<S>> table) {
  std::string page = "| counter | meaning |\n|---|---|\n";
  for (const Counter<S>& counter : table) {
    page += "| `" + KeyOf(counter) + "` | " + std::string(counter.help) + " |\n";
  }
  return page;
}

}  // namespace longhaul
