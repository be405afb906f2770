#include "base/units_text.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <cmath>
#include <initializer_list>
#include <utility>

namespace longhaul {
namespace {

Status Malformed(std::string message) { return {StatusCode::kInvalidArgument, std::move(message)}; }

std::string Quoted(std::string_view text) { return "'" + std::string(text) + "'"; }

std::string Lower(std::string_view text) {
  std::string out(text);
  std::ranges::transform(out, out.begin(),
                         [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return out;
}

struct Unit {
  std::string_view name;
  double factor;
};

// A number followed by one of `units` (an empty name: a bare number); `wants` ends the sentence of the error.
Result<double> ParseWithUnit(std::string_view text, std::initializer_list<Unit> units,
                             std::string_view wants) {
  const std::string lower = Lower(text);
  double number = 0;
  const auto [rest, error] = std::from_chars(lower.data(), lower.data() + lower.size(), number);
  if (error != std::errc() || !std::isfinite(number)) {
    return Malformed(Quoted(text) + " is not a number with a unit; write " + std::string(wants));
  }
  if (number < 0) return Malformed(Quoted(text) + " is negative");
  const std::string_view suffix(rest, static_cast<size_t>(lower.data() + lower.size() - rest));
  if (suffix.empty() && number == 0) return 0.0;
  for (const Unit& unit : units) {
    if (suffix == unit.name) return number * unit.factor;
  }
  const std::string problem = suffix.empty() ? " has no unit" : " has the unknown unit " + Quoted(suffix);
  return Malformed(Quoted(text) + problem + "; write " + std::string(wants));
}

// `value` in the largest of four units, each 1000 times the next, that leaves a whole number.
std::string InLargestUnit(int64_t value, const std::array<std::string_view, 4>& units) {
  int64_t factor = 1'000'000'000;
  size_t unit = 0;
  for (; value % factor != 0; factor /= 1000) ++unit;
  return std::to_string(value / factor) + std::string(units[unit]);
}

}  // namespace

Result<Bandwidth> ParseRate(std::string_view text) {
  if (Lower(text) == "unlimited") return Bandwidth::Zero();
  if (Lower(text).ends_with("bps")) {
    return Malformed(Quoted(text) +
                     ": tc's bps means bytes per second, most people's means bits; write mbit, kbit or gbit");
  }
  const auto bps = ParseWithUnit(text, {{"bit", 1}, {"kbit", 1e3}, {"mbit", 1e6}, {"gbit", 1e9}},
                                 "a rate such as 200mbit or 1gbit");
  if (!bps.ok()) return bps.status();
  if (*bps < 1 || *bps > 1e12) return Malformed("rate " + Quoted(text) + " is outside 1bit..1000gbit");
  return Bandwidth::BitsPerSecond(std::llround(*bps));
}

Result<Duration> ParseTime(std::string_view text) {
  const auto ns =
      ParseWithUnit(text, {{"ns", 1}, {"us", 1e3}, {"ms", 1e6}, {"s", 1e9}}, "a time such as 25ms or 500us");
  if (!ns.ok()) return ns.status();
  if (*ns > 1e18) return Malformed("time " + Quoted(text) + " is too long");
  return Duration(std::llround(*ns));
}

Result<ByteCount> ParseBytes(std::string_view text) {
  const auto bytes = ParseWithUnit(
      text, {{"", 1}, {"b", 1}, {"kb", 1e3}, {"mb", 1e6}, {"gb", 1e9}, {"kib", 1024}, {"mib", 1048576}},
      "a size such as 256kb or 1500");
  if (!bytes.ok()) return bytes.status();
  if (*bytes > 1e15) return Malformed("size " + Quoted(text) + " is too large");
  return ByteCount(std::llround(*bytes));
}

Result<double> ParsePercent(std::string_view text) {
  const auto percent = ParseWithUnit(text, {{"%", 1}}, "a percentage such as 2%");
  if (!percent.ok()) return percent.status();
  if (*percent > 100) return Malformed(Quoted(text) + " is more than 100%");
  return *percent / 100;
}

Result<double> ParseShare(std::string_view text) {
  if (text.ends_with('%')) return ParsePercent(text);
  double share = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), share);
  if (error != std::errc() || end != text.data() + text.size() || !std::isfinite(share)) {
    return Malformed(Quoted(text) + " is not a number; write a share such as 0.02 or 2%");
  }
  if (share < 0 || share > 1) return Malformed(Quoted(text) + " is outside 0..1; for percent write 2%");
  return share;
}

std::string RateText(Bandwidth rate) {
  return InLargestUnit(rate.bits_per_second(), {"gbit", "mbit", "kbit", "bit"});
}

std::string TimeText(Duration time) { return InLargestUnit(time.count(), {"s", "ms", "us", "ns"}); }

std::string PercentText(double share) { return NumberText(share * 100) + "%"; }

std::string NumberText(double value) {
  char buffer[32];
  const auto [end, error] = std::to_chars(buffer, buffer + sizeof buffer, value);
  return error == std::errc() ? std::string(buffer, end) : std::to_string(value);
}

std::string SecondsText(Duration time) {
  // Tenths, rounded half away from zero.
  const int64_t tenths = (time.count() + (time.count() < 0 ? -1 : 1) * 50'000'000) / 100'000'000;
  const std::string sign = tenths < 0 ? "-" : "";
  const int64_t whole = tenths < 0 ? -tenths : tenths;
  return sign + std::to_string(whole / 10) + "." + std::to_string(whole % 10) + " s";
}

}  // namespace longhaul
