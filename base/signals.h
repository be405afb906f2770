// The signals that end a program, waited for instead of handled: no thread is interrupted, no handler runs.
#pragma once

#include <csignal>
#include <ctime>
#include <initializer_list>
#include <vector>

#include "longhaul/units.h"

namespace longhaul {

// Blocks them in this thread and in all that it starts: make it before any other thread. Children that are
// started by process::Spawn have them unblocked.
class EndingSignals {
 public:
  explicit EndingSignals(const std::vector<int>& signals = {SIGINT, SIGTERM}) {
    sigemptyset(&set_);
    for (const int signal : signals) sigaddset(&set_, signal);
    pthread_sigmask(SIG_BLOCK, &set_, nullptr);
  }

  // The next signal, waited for at most `limit`; 0 when none came. Any thread.
  int Take(Duration limit = Duration(0)) const {
    const timespec wait{limit.count() / 1'000'000'000, limit.count() % 1'000'000'000};
    const int signal = sigtimedwait(&set_, nullptr, &wait);
    return signal > 0 ? signal : 0;
  }

  // Lets these through to this thread, to their handlers or default actions.
  void Unblock(std::initializer_list<int> signals) const {
    sigset_t set;
    sigemptyset(&set);
    for (const int signal : signals) sigaddset(&set, signal);
    pthread_sigmask(SIG_UNBLOCK, &set, nullptr);
  }

 private:
  sigset_t set_;
};

}  // namespace longhaul
