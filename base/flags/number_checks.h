// Values that the command line library accepts and we refuse: of numbers, a range check lets nan through,
// which is neither below nor above anything; an unsigned -1 becomes 2^64 - 1, and what is too long the
// largest number there is. An empty value, which an unset variable of a script leaves, becomes 0 or "off".
#pragma once

#include <CLI/CLI.hpp>
#include <cerrno>
#include <cmath>
#include <cstdlib>
#include <string>

#include "base/units_text.h"

namespace longhaul::cli {

// Refuses them in words, in every option of `app` and its subcommands. To be called once, when all options
// are there.
inline void CheckValues(CLI::App& app) {
  const auto finite_in = [](const std::string& range) {
    return CLI::Validator(
        [range](std::string& text) {
          char* end = nullptr;
          const double value = std::strtod(text.c_str(), &end);
          const bool is_number = !text.empty() && *end == '\0';
          return is_number && !std::isfinite(value) ? text + " is not a finite number" + range
                                                    : std::string();
        },
        "");
  };
  const CLI::Validator natural(
      [](std::string& text) {
        if (text.starts_with('-')) return text + " is negative";
        errno = 0;
        (void)std::strtoull(text.c_str(), nullptr, 0);
        return errno == ERANGE ? text + " is above 2^64 - 1" : std::string();
      },
      "");
  const CLI::Validator given(
      [](std::string& text) { return text.empty() ? "its value is empty" : std::string(); }, "");
  for (CLI::Option* option : app.get_options({})) {
    if (option->get_expected_max() > 0 && !option->get_positional())
      option->transform(given);  // before all others
    const std::string type = option->get_type_name();
    // "FLOAT:FLOAT in [0.1 - 60]"
    if (type.starts_with("FLOAT")) {
      const size_t range = type.find(" in [");
      option->check(finite_in(range == std::string::npos ? "" : type.substr(range)));
    }
    if (type.starts_with("UINT")) option->check(natural);
  }
  for (CLI::App* command : app.get_subcommands({})) CheckValues(*command);
}

// Of a rate with its unit that bounds something, for example 200mbit.
inline CLI::Validator IsRate() {
  return CLI::Validator(
      [](const std::string& text) {
        const auto rate = ParseRate(text);
        if (!rate.ok()) return rate.status().message();
        return rate->IsZero() ? "a bound that is unlimited is none: leave it out" : std::string();
      },
      "RATE");
}

// A size, with or without its unit, becomes the number of its bytes: 1gb.
inline CLI::Validator AsBytes() {
  return CLI::Validator(
      [](std::string& text) {
        const auto bytes = ParseBytes(text);
        if (bytes.ok()) text = std::to_string(bytes->value());
        return bytes.status().message();
      },
      "SIZE");
}

}  // namespace longhaul::cli
