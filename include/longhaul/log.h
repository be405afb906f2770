// What the library has to say besides the Status of a call. It never writes to standard output or standard
// error.
#pragma once

#include <functional>
#include <string_view>

namespace longhaul {

enum class LogLevel { kDebug, kInfo, kWarning };

// One line without its end, valid during the call. Any thread; must return soon, and
// what it calls of the library must not wait (client.h).
using LogCallback = std::function<void(LogLevel level, std::string_view text)>;

}  // namespace longhaul
