#include "base/inject.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <optional>
#include <utility>
#include <vector>

#include "base/random.h"

extern "C" {
// The linker's names of a section's bounds.
// NOLINTNEXTLINE(bugprone-reserved-identifier)
extern longhaul::inject::Point __start_longhaul_points[] __attribute__((weak, visibility("hidden")));
// NOLINTNEXTLINE(bugprone-reserved-identifier)
extern longhaul::inject::Point __stop_longhaul_points[] __attribute__((weak, visibility("hidden")));
}

namespace longhaul::inject {
namespace {

// One sequence for the process: a run in one thread is repeatable.
std::atomic<uint64_t> seed = 1;
std::atomic<uint64_t> draws = 0;

template <typename T>
std::optional<T> Number(std::string_view text) {
  T value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

Point* Find(std::string_view name) {
  for (Point& point : AllPoints()) {
    if (name == point.name) return &point;
  }
  return nullptr;
}

Status Wrong(std::string_view word, const std::string& why) {
  return {StatusCode::kInvalidArgument, "\"" + std::string(word) + "\": " + why};
}

}  // namespace

std::span<Point> AllPoints() {
  if (__start_longhaul_points == nullptr) return {};
  return {__start_longhaul_points, __stop_longhaul_points};
}

std::string PointNames() {
  std::string names;
  for (const Point& point : AllPoints()) names += (names.empty() ? "" : ", ") + std::string(point.name);
  return names;
}

bool Point::Draw() {
  const uint64_t number = draws.fetch_add(1, std::memory_order_relaxed);
  const uint64_t drawn = Random(seed.load(std::memory_order_relaxed)).Fork(number).Below(uint64_t{1} << 32);
  if (drawn >= chance.load(std::memory_order_relaxed)) return false;
  times.fetch_add(1, std::memory_order_relaxed);
  return true;
}

Status Enable(std::string_view list) {
  std::vector<std::pair<Point*, uint32_t>> wanted;
  std::optional<uint64_t> wanted_seed;
  while (!list.empty()) {
    const std::string_view word = list.substr(0, list.find(','));
    list.remove_prefix(std::min(list.size(), word.size() + 1));
    const size_t equals = word.find('=');
    if (equals == std::string_view::npos) return Wrong(word, "NAME=CHANCE is needed");
    const std::string_view name = word.substr(0, equals);
    const std::string_view value = word.substr(equals + 1);
    if (name == "seed") {
      wanted_seed = Number<uint64_t>(value);
      if (!wanted_seed) return Wrong(word, "a seed is a whole number");
      continue;
    }
    const std::optional<double> chance = Number<double>(value);
    if (!chance || !(*chance >= 0 && *chance <= 1)) return Wrong(word, "a chance is between 0 and 1");
    const auto of_2_32 = static_cast<uint32_t>(std::min(*chance * 0x1p32, 0x1p32 - 1));
    if (name == "all") {
      for (Point& point : AllPoints()) wanted.emplace_back(&point, of_2_32);
    } else if (Point* point = Find(name)) {
      wanted.emplace_back(point, of_2_32);
    } else {
      return Wrong(word, "no such point; there are " + PointNames());
    }
  }
  if (wanted_seed) seed = *wanted_seed;
  draws = 0;
  for (const auto& [point, chance] : wanted) point->chance = chance;
  return Status::Ok();
}

bool AnyEnabled() {
  return std::ranges::any_of(AllPoints(), [](const Point& point) { return point.chance != 0; });
}

void Disable() {
  for (Point& point : AllPoints()) {
    point.chance = 0;
    point.times = 0;
  }
  draws = 0;
}

}  // namespace longhaul::inject
