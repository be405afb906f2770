#include "worker/client/deadlines.h"

#include <algorithm>
#include <utility>

#include "base/units_text.h"

namespace longhaul::worker {

void Deadlines::Begin(Wait wait) {
  if (limit() == Duration(0)) return;
  while (!waits_.empty() && !link_.operations.IsPending(waits_.front().wait.operation)) waits_.pop_front();
  if (link_.operations.pending() <= 1) {  // what moved before it is no movement of its own
    LookForMovement();
    moved_at_ = link_.now;
  }
  waits_.push_back({std::move(wait), link_.now});
}

void Deadlines::OnStart() {
  started_ = true;
  waits_.insert(waits_.begin(), asked_.begin(), asked_.end());
  asked_.clear();
}

void Deadlines::OnWaiting(const std::string& text) {
  waiting_ = text;
  for (const Timed& timed : std::exchange(asked_, {})) {
    if (link_.operations.IsPending(timed.wait.operation)) timed.wait.end(TooLong(text));
  }
}

Status Deadlines::TooLong(const std::string& why) const {
  return {StatusCode::kDeadlineExceeded, "after " + SecondsText(limit()) + " (wait_timeout): " + why};
}

void Deadlines::GiveUp(uint32_t request) {
  control::ControlMessage message;
  message.mutable_give_up()->set_request(request);
  link_.Send(message);
}

void Deadlines::HandleTimeout() {
  if (limit() == Duration(0)) return;
  bool asks_for_start = false;
  while (!waits_.empty() && link_.now >= waits_.front().since + limit()) {
    const Timed timed = std::move(waits_.front());
    waits_.pop_front();
    if (!link_.operations.IsPending(timed.wait.operation) || !timed.wait.request) continue;
    const uint32_t request = timed.wait.request();
    if (started_ && request != 0) {
      GiveUp(request);
    } else if (started_) {
      timed.wait.end(TooLong("it had not had its turn"));
    } else {
      asked_.push_back(timed);
      asks_for_start = true;
    }
  }
  if (asks_for_start) GiveUp(0);
  FailWhenNothingMoves();
}

void Deadlines::LookForMovement() {
  const transport::ConnectionStats stats = link_.connection_stats();
  const uint64_t moved = stats.chunk_bytes_sent + stats.chunk_bytes_received + link_.operations.succeeded() +
                         link_.operations.failed();
  looked_at_ = link_.now;
  if (std::exchange(moved_, moved) != moved) moved_at_ = link_.now;
}

void Deadlines::FailWhenNothingMoves() {
  if (link_.operations.pending() == 0 || link_.now < std::min(looked_at_ + look_every(), FailAt())) return;
  LookForMovement();
  if (link_.now < FailAt()) return;
  link_.Fail({StatusCode::kDeadlineExceeded,
              "nothing has moved for " + SecondsText(link_.now - moved_at_) + ", twice wait_timeout; " +
                  (waiting_.empty() ? "nothing is known of the reason" : waiting_)});
}

void Deadlines::OnResumed() {
  moved_at_ = looked_at_ = link_.now;
  for (Timed& timed : waits_) timed.since = link_.now;
}

Instant Deadlines::NextTimeout() const {
  if (limit() == Duration(0)) return Instant::Infinite();
  Instant next = waits_.empty() ? Instant::Infinite() : waits_.front().since + limit();
  if (link_.operations.pending() > 0) next = std::min({next, looked_at_ + look_every(), FailAt()});
  return next;
}

}  // namespace longhaul::worker
