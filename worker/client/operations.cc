#include "worker/client/operations.h"

#include <algorithm>
#include <chrono>
#include <string>
#include <utility>

#include "base/check.h"

namespace longhaul::worker {

OperationId Operations::Begin(Instant now, Callback callback) {
  const OperationId id = next_++;
  if (pending_.size() + completed_.size() >= bound_) {
    Refuse(std::move(callback), Status(StatusCode::kResourceExhausted,
                                       std::to_string(bound_) + " operations are pending already"));
    return id;
  }
  ++started_;
  pending_.emplace(id, Entry{std::move(callback), {}, now});
  return id;
}

void Operations::Refuse(Callback callback, Status why) {
  LH_CHECK(!why.ok());
  ++refused_;
  completed_.push_back({std::move(callback), std::move(why), {}});
}

OperationStats& Operations::stats(OperationId id) {
  const auto it = pending_.find(id);
  LH_CHECK(it != pending_.end());
  return it->second.stats;
}

bool Operations::Finish(OperationId id, const Status& outcome, Instant now, Duration rtt) {
  const auto it = pending_.find(id);
  if (it == pending_.end()) return false;
  Entry entry = std::move(it->second);
  pending_.erase(it);
  ++(outcome.ok() ? succeeded_ : failed_);
  entry.stats.rtt = rtt;
  entry.stats.seconds = std::chrono::duration<double>(now - entry.begun).count();
  completed_.push_back({std::move(entry.callback), outcome, entry.stats});
  return true;
}

void Operations::FinishAll(const Status& outcome, Instant now, Duration rtt) {
  std::vector<OperationId> ids;
  for (const auto& [id, entry] : pending_) ids.push_back(id);
  std::sort(ids.begin(), ids.end());
  for (OperationId id : ids) Finish(id, outcome, now, rtt);
}

void Operations::RunCallbacks() {
  const std::vector<Completed> ready = std::exchange(completed_, {});
  for (const Completed& c : ready) {
    if (c.callback) c.callback(c.outcome, c.stats);
  }
}

}  // namespace longhaul::worker
