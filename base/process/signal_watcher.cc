#include "base/process/signal_watcher.h"

#include <fcntl.h>
#include <unistd.h>

#include <csignal>
#include <utility>

#include "base/files.h"

namespace longhaul::process {
namespace {

// A handler, since the default action does not end a container's first process.
[[noreturn]] void EndAtOnce(int signal) { ::_exit(128 + signal); }

bool IsIgnored(int signal) {
  struct sigaction now {};
  return ::sigaction(signal, nullptr, &now) == 0 && now.sa_handler == SIG_IGN;
}

EndingSignals TakeSignals() {
  for (const int signal : {SIGINT, SIGTERM}) {
    struct sigaction action {};
    action.sa_handler = EndAtOnce;
    ::sigaction(signal, &action, nullptr);
  }
  for (const int signal : {SIGPIPE, SIGXFSZ}) std::signal(signal, SIG_IGN);
  return IsIgnored(SIGHUP) ? EndingSignals({SIGINT, SIGTERM}) : EndingSignals({SIGINT, SIGTERM, SIGHUP});
}

bool HasTerminal() { return FileDescriptor(::open("/dev/tty", O_RDWR | O_NOCTTY | O_CLOEXEC)).valid(); }

}  // namespace

SignalWatcher::SignalWatcher(std::function<void()> reload)
    : reload_(std::move(reload)), terminal_(HasTerminal()), signals_(TakeSignals()) {
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
