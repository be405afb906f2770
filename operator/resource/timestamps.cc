#include "operator/resource/timestamps.h"

#include <chrono>
#include <cstdint>

namespace longhaul::kube {
namespace {

constexpr int64_t kSecond = 1'000'000'000;

// Two or four digits at `at`, -1 where there are none.
int Digits(std::string_view text, size_t at, size_t count) {
  int value = 0;
  for (size_t i = at; i < at + count; ++i) {
    if (text[i] < '0' || text[i] > '9') return -1;
    value = value * 10 + (text[i] - '0');
  }
  return value;
}

std::string Padded(int value, size_t width) {
  std::string text = std::to_string(value);
  return std::string(width > text.size() ? width - text.size() : 0, '0') + text;
}

}  // namespace

std::string TimestampText(Instant time) {
  const auto whole = std::chrono::sys_seconds(std::chrono::seconds(time.nanoseconds() / kSecond));
  const auto day = std::chrono::floor<std::chrono::days>(whole);
  const std::chrono::year_month_day date(day);
  const auto rest = static_cast<int>((whole - day).count());
  return Padded(int(date.year()), 4) + "-" + Padded(static_cast<int>(unsigned(date.month())), 2) + "-" +
         Padded(static_cast<int>(unsigned(date.day())), 2) + "T" + Padded(rest / 3600, 2) + ":" +
         Padded(rest / 60 % 60, 2) + ":" + Padded(rest % 60, 2) + "Z";
}

std::optional<Instant> ParseTimestamp(std::string_view text) {
  constexpr std::string_view kShape = "0000-00-00T00:00:00";
  if (text.size() <= kShape.size() || text.back() != 'Z') return std::nullopt;
  for (const size_t at : {4, 7, 10, 13, 16}) {
    if (text[at] != kShape[at]) return std::nullopt;
  }
  const int year = Digits(text, 0, 4), month = Digits(text, 5, 2), day = Digits(text, 8, 2);
  const int hour = Digits(text, 11, 2), minute = Digits(text, 14, 2), second = Digits(text, 17, 2);
  if (year < 1970 || year > 2261 || month < 0 || day < 0) return std::nullopt;
  if (hour < 0 || hour > 23 || minute < 0 || minute > 59 || second < 0 || second > 60) return std::nullopt;
  const std::string_view fraction = text.substr(kShape.size(), text.size() - kShape.size() - 1);
  if (!fraction.empty() && (fraction[0] != '.' || fraction.size() < 2 ||
                            fraction.substr(1).find_first_not_of("0123456789") != std::string_view::npos)) {
    return std::nullopt;
  }
  const std::chrono::year_month_day date{std::chrono::year(year),
                                         std::chrono::month(static_cast<unsigned>(month)),
                                         std::chrono::day(static_cast<unsigned>(day))};
  if (!date.ok()) return std::nullopt;
  const int64_t seconds = int64_t{std::chrono::sys_days(date).time_since_epoch().count()} * 86400 +
                          hour * 3600 + minute * 60 + second;
  return Instant::FromNanoseconds(seconds * kSecond);
}

}  // namespace longhaul::kube
