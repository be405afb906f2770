// Rates, times, sizes and shares as text: "200mbit", "25ms", "256kb", "2%", and back.
//
// Units are not case-sensitive. A number needs its unit where tools disagree about its meaning (tc reads a
// bare rate as bits, a bare time as microseconds, and "bps" as bytes); zero is zero in every unit and needs
// none. Errors: kInvalidArgument naming the text and what would be right.
#pragma once

#include <string>
#include <string_view>

#include "longhaul/status.h"
#include "longhaul/units.h"

namespace longhaul {

// bit kbit mbit gbit (bits per second, powers of 1000), 1bit..1000gbit; "unlimited" is Bandwidth::Zero().
// "0" is refused: it could mean either end.
Result<Bandwidth> ParseRate(std::string_view text);
// ns us ms s. Rounded to nanoseconds.
Result<Duration> ParseTime(std::string_view text);
// b kb mb gb (powers of 1000), kib mib (powers of 1024); a bare number is bytes.
Result<ByteCount> ParseBytes(std::string_view text);
// "2%" -> 0.02. A bare number is refused, except 0.
Result<double> ParsePercent(std::string_view text);
// "2%" or "0.02" -> 0.02.
Result<double> ParseShare(std::string_view text);

// In the largest unit that leaves a whole number, so that the parsers above read back the same value.
std::string RateText(Bandwidth rate);
std::string TimeText(Duration time);
std::string PercentText(double share);
// The shortest decimal that reads back as `value`.
std::string NumberText(double value);
// For messages to people: seconds with one decimal, "10.0 s".
std::string SecondsText(Duration time);

// Seconds as programs hold them, for flags and JSON.
constexpr double ToSeconds(Duration time) { return static_cast<double>(time.count()) * 1e-9; }
constexpr Duration FromSeconds(double seconds) { return Duration(static_cast<int64_t>(seconds * 1e9)); }

}  // namespace longhaul
