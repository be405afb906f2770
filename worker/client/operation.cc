#include <algorithm>
#include <chrono>

#include "worker/client/operation_state.h"

namespace longhaul {
namespace {

// Longer than any program runs; the clock's time plus this fits a Duration.
constexpr Duration kLongestWait = std::chrono::hours(24 * 365 * 100);

Status NoOperation() { return {StatusCode::kFailedPrecondition, "no operation"}; }

// The callback's thread may be the one that ends the operation.
Status FromACallback() {
  return {StatusCode::kFailedPrecondition,
          "the operation is still on its way; Wait waits: not from a callback"};
}

}  // namespace

namespace internal {

void OperationState::Complete(const Status& status, const OperationStats& final_stats) {
  std::unique_lock lock(mutex);
  if (ended) return;
  ended = true;
  completing = std::this_thread::get_id();
  outcome = status;
  stats = final_stats;
  // Before anything that waits goes on: it may take away what the callbacks use.
  while (!callbacks.empty()) {
    const UserCalls::Scope scope;  // also while what they own is destroyed
    auto to_call = std::exchange(callbacks, {});
    lock.unlock();
    for (auto& callback : to_call) {
      calls->Call("Then", callback, outcome);
      callback = nullptr;
    }
    lock.lock();
  }
  done = true;
  changed.notify_all();
}

}  // namespace internal

Status Operation::Wait() const {
  if (!state_) return NoOperation();
  std::unique_lock lock(state_->mutex);
  if (!state_->Done() && UserCalls::InCallback()) return FromACallback();
  state_->changed.wait(lock, [this] { return state_->Done(); });
  return state_->outcome;
}

Status Operation::WaitFor(Duration limit) const {
  if (!state_) return NoOperation();
  std::unique_lock lock(state_->mutex);
  if (!state_->Done() && UserCalls::InCallback()) return FromACallback();
  if (!state_->changed.wait_for(lock, std::min(limit, kLongestWait), [this] { return state_->Done(); })) {
    return {StatusCode::kDeadlineExceeded, "the operation is still on its way"};
  }
  return state_->outcome;
}

bool Operation::done() const {
  if (!state_) return true;
  const std::lock_guard lock(state_->mutex);
  return state_->Done();
}

void Operation::Then(std::function<void(const Status&)> callback) const {
  if (!callback) return;
  if (state_) {
    const std::lock_guard lock(state_->mutex);
    if (!state_->Done()) {
      state_->callbacks.push_back(std::move(callback));
      return;
    }
  }
  callback(state_ ? state_->outcome : NoOperation());  // does not change any more
}

OperationStats Operation::stats() const {
  if (!state_) return {};
  const std::lock_guard lock(state_->mutex);
  return state_->stats;
}

}  // namespace longhaul
