// Calls what the embedding program gave to be called. An exception of it ends here: it is counted and logged,
// and the thread goes on.
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <functional>
#include <string>
#include <string_view>
#include <utility>

#include "longhaul/log.h"

namespace longhaul {

class UserCalls {
 public:
  // While one lives, its thread is in the program's code on the library's time: InCallback() is true, and
  // what waits for the library refuses to.
  class Scope {
   public:
    Scope() { ++Depth(); }
    ~Scope() { --Depth(); }
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;
  };
  static bool InCallback() { return Depth() > 0; }

  explicit UserCalls(LogCallback log = {}) : log_(std::move(log)) {}

  // Calls `callback`, but for an empty one. `what`: its name in the log when it throws.
  template <typename... Parameters, typename... Arguments>
  void Call(std::string_view what, const std::function<void(Parameters...)>& callback,
            const Arguments&... arguments) {
    if (!callback) return;
    const Scope scope;
    try {
      callback(arguments...);
    } catch (const std::exception& error) {
      OnThrown(what, error.what());
    } catch (...) {
      OnThrown(what, "an exception of unknown type");
    }
  }
  void Log(LogLevel level, std::string_view text) { Call("", log_, level, text); }
  bool logs() const { return static_cast<bool>(log_); }
  // Calls that ended with an exception.
  uint64_t threw() const { return threw_.load(std::memory_order_relaxed); }

 private:
  static int& Depth() {
    static thread_local int depth = 0;
    return depth;
  }
  void OnThrown(std::string_view what, std::string_view why) {
    threw_.fetch_add(1, std::memory_order_relaxed);
    if (what.empty()) return;  // the log itself
    Log(LogLevel::kWarning,
        "the program's " + std::string(what) + " callback threw: " + std::string(why) + "; it is ignored");
  }

  const LogCallback log_;
  std::atomic<uint64_t> threw_{0};
};

}  // namespace longhaul
