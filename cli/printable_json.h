// JSON that somebody else wrote, for a terminal.
#pragma once

#include <string>
#include <string_view>

#include "longhaul/status.h"

namespace longhaul::cli {

// Objects and arrays within each other; the server's own answers have 3.
constexpr int kMaxJsonDepth = 16;

// `text` indented by two, in printable ASCII and line feeds only: of all else, in names and values, stands
// the \uXXXX, so that it is the same JSON and commands nothing to a terminal. At most 40 times as long as
// `text`. kProtocolViolation: no JSON object, or one deeper than kMaxJsonDepth.
Result<std::string> PrintableJson(std::string_view text);

}  // namespace longhaul::cli
