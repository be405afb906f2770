#include "base/process/signal_watcher.h"

#include <fcntl.h>
#include <unistd.h>

#include <csignal>
#include <utility>
#include <vector>

#include "base/files.h"

namespace longhaul::process {
namespace {

// A handler, since the default action does not end a container's first process.
[[noreturn]] void EndAtOnce(int signal) { ::_exit(128 + signal); }

bool IsIgnored(int signal) {
  struct sigaction now {};
  return ::sigaction(signal, nullptr, &now) == 0 && now.sa_handler == SIG_IGN;
}

EndingSignals TakeSignals(bool hands_over) {
  for (const int signal : {SIGINT, SIGTERM}) {
    struct sigaction action {};
    action.sa_handler = EndAtOnce;
    ::sigaction(signal, &action, nullptr);
  }
  for (const int signal : {SIGPIPE, SIGXFSZ}) std::signal(signal, SIG_IGN);
  std::vector<int> taken = {SIGINT, SIGTERM};
  if (!IsIgnored(SIGHUP)) taken.push_back(SIGHUP);
  if (hands_over) taken.push_back(SIGUSR2);
  return EndingSignals(taken);
}

bool HasTerminal() { return FileDescriptor(::open("/dev/tty", O_RDWR | O_NOCTTY | O_CLOEXEC)).valid(); }

}  // namespace

SignalWatcher::SignalWatcher(std::function<void()> reload, std::function<void()> hand_over)
    : reload_(std::move(reload)),
      hand_over_(std::move(hand_over)),
      terminal_(HasTerminal()),
      signals_(TakeSignals(hand_over_ != nullptr)) {
  thread_ = std::thread([this] { Watch(); });
}

SignalWatcher::~SignalWatcher() {
  stop_ = true;
  thread_.join();
}

void SignalWatcher::Guard(std::function<void(int signal)> leave) {
  const std::lock_guard lock(mutex_);
  leave_ = std::move(leave);
}

void SignalWatcher::Watch() {
  while (!stop_) {
    const int signal = signals_.Take(std::chrono::milliseconds(100));
    if (signal == 0) continue;
    if (signal == SIGHUP && !terminal_ && reload_) {
      reload_();
      continue;
    }
    if (signal == SIGUSR2) {
      hand_over_();
      continue;
    }
    const std::lock_guard lock(mutex_);
    // A terminal that closes may say so twice, by the kernel and by the shell.
    if (interrupted_ && signal == SIGHUP) continue;
    if (interrupted_ || !leave_) EndAtOnce(signal);
    interrupted_ = true;
    signals_.Unblock({SIGINT, SIGTERM});
    leave_(signal);
  }
}

}  // namespace longhaul::process
