#include "base/process/output_queue.h"

#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <mutex>
#include <string_view>
#include <thread>
#include <utility>

#include "base/inject.h"

namespace longhaul::process {
namespace {

// Written by one call; what a pipe holds.
constexpr size_t kBatchBytes = 64 << 10;

// 0, or the error that ends it. A descriptor that another process made non-blocking is waited for.
int WriteFully(int fd, std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = ::write(fd, text.data(), text.size());
    if (written >= 0) {
      text.remove_prefix(static_cast<size_t>(written));
    } else if (errno == EAGAIN) {
      pollfd ready{fd, POLLOUT, 0};
      ::poll(&ready, 1, -1);
    } else if (errno != EINTR) {
      return errno;
    }
  }
  return 0;
}

}  // namespace

struct OutputQueue::State {
  int fd = -1;
  Notice notice;

  mutable std::mutex mutex;  // guards what follows
  std::condition_variable changed;
  std::deque<std::string> lines;  // with their ends
  size_t bytes = 0;               // of these
  uint64_t untold = 0;            // dropped in front of them, and not yet said
  uint64_t dropped = 0;
  std::string error;
  bool writing = false;
  bool stop = false;

  bool Idle() const { return lines.empty() && untold == 0 && !writing; }

  // The next batch, with how many lines it has; the notice is none of them. REQUIRES: the mutex is held.
  std::pair<std::string, uint64_t> Take() {
    std::string batch;
    uint64_t count = 0;
    if (const uint64_t missing = std::exchange(untold, 0); missing > 0) batch = notice(missing) + "\n";
    for (; !lines.empty() && (count == 0 || batch.size() + lines.front().size() <= kBatchBytes); ++count) {
      batch += lines.front();
      bytes -= lines.front().size();
      lines.pop_front();
    }
    return {std::move(batch), count};
  }
};

OutputQueue::OutputQueue(int fd, Notice notice) : state_(std::make_shared<State>()) {
  state_->fd = fd;
  state_->notice = std::move(notice);
  // Detached: a write(2) that blocks cannot be ended, so no thread may wait for this one.
  std::thread([state = state_] { Run(state); }).detach();
}

OutputQueue::~OutputQueue() {
  const std::lock_guard lock(state_->mutex);
  state_->stop = true;
  state_->changed.notify_all();
}

void OutputQueue::Run(const std::shared_ptr<State>& state) {
  std::unique_lock lock(state->mutex);
  for (;;) {
    state->changed.wait(lock, [&] { return state->stop || !state->Idle(); });
    if (state->stop) return;
    const auto [batch, count] = state->Take();
    state->writing = true;
    lock.unlock();
    const int error = WriteFully(state->fd, batch);
    lock.lock();
    state->writing = false;
    if (error != 0) {
      state->dropped += count;
      state->error = std::strerror(error);
    }
    state->changed.notify_all();
  }
}

void OutputQueue::Write(std::string line) {
  line += '\n';
  const std::lock_guard lock(state_->mutex);
  state_->bytes += line.size();
  state_->lines.push_back(std::move(line));
  // The newest stay, however long: the last one may say how it ended.
  while ((state_->bytes > kMaxBytes || LH_INJECT("output-full")) && state_->lines.size() > 1) {
    state_->bytes -= state_->lines.front().size();
    state_->lines.pop_front();
    ++state_->untold;
    ++state_->dropped;
  }
  state_->changed.notify_all();
}

bool OutputQueue::Flush(Duration limit) {
  std::unique_lock lock(state_->mutex);
  return state_->changed.wait_for(lock, limit, [this] { return state_->Idle(); });
}

uint64_t OutputQueue::dropped() const {
  const std::lock_guard lock(state_->mutex);
  return state_->dropped;
}

std::string OutputQueue::error() const {
  const std::lock_guard lock(state_->mutex);
  return state_->error;
}

}  // namespace longhaul::process
