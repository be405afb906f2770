// How a daemon takes its signals, in a thread of its own, so that it takes them whatever its other threads
// wait for.
//
//   SIGINT, SIGTERM   the first one: takes leave in order; the second one ends the process at once, with
//                     exit code 128 + signal
//   SIGHUP            with a terminal, which has gone then, or with nothing to reload: as SIGTERM, but never at
//                     once; else: reload; where it was ignored at the start (nohup): ignored
//   SIGUSR2           where something can be handed over: does so
//   SIGPIPE, SIGXFSZ  ignored: the write that causes them fails, and is reported
#pragma once

#include <atomic>
#include <functional>
#include <mutex>
#include <thread>

#include "base/signals.h"

namespace longhaul::process {

class SignalWatcher {
 public:
  // Make it before any other thread. `reload` and `hand_over`, if any, are called in the watcher's thread.
  // One per process.
  explicit SignalWatcher(std::function<void()> reload = {}, std::function<void()> hand_over = {});
  ~SignalWatcher();
  SignalWatcher(const SignalWatcher&) = delete;
  SignalWatcher& operator=(const SignalWatcher&) = delete;

  // From now on the first signal calls `leave`, once, in the watcher's thread. Empty, as at the start:
  // nothing is to be taken leave of, and the first signal ends the process at once. Waits for a `leave` that
  // runs.
  void Guard(std::function<void(int signal)> leave);
  // Whether `leave` was called.
  bool interrupted() const { return interrupted_; }

 private:
  void Watch();

  std::function<void()> reload_, hand_over_;
  bool terminal_;
  EndingSignals signals_;
  std::mutex mutex_;
  std::function<void(int)> leave_;
  std::atomic<bool> interrupted_{false};
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

}  // namespace longhaul::process
