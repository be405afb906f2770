#include "operator/api/core/work_queue.h"

#include <algorithm>

#include "operator/api/core/retry_policy.h"

namespace longhaul::kube::api {

bool WorkQueue::Add(const std::string& key, Instant now) {
  if (const auto found = taken_.find(key); found != taken_.end()) {
    if (found->second) ++counters_.merged;
    found->second = true;
    return true;
  }
  if (in_ready_.contains(key)) {
    ++counters_.merged;
    return true;
  }
  if (!HasRoomFor(key)) return false;
  ++(delays_.contains(key) ? counters_.merged : counters_.added);
  MakeReady(key, now);
  return true;
}

bool WorkQueue::AddAfter(const std::string& key, Duration delay, Instant now) {
  if (delay <= Duration(0)) return Add(key, now);
  if (in_ready_.contains(key)) {
    ++counters_.merged;
    return true;
  }
  const auto found = delays_.find(key);
  const Instant at = now + delay;
  if (found != delays_.end()) {
    ++counters_.merged;
    if (found->second <= at) return true;
    by_time_.erase({found->second, key});
    found->second = at;
  } else {
    if (!HasRoomFor(key)) return false;
    ++counters_.added;
    delays_[key] = at;
  }
  by_time_.insert({at, key});
  return true;
}

bool WorkQueue::AddRateLimited(const std::string& key, Instant now, double chance) {
  ++counters_.retries;
  // A key that there is no room for has no back-off either: else the bound would hold for nothing.
  if (!failures_.contains(key) && failures_.size() >= options_.max_keys) {
    ++counters_.refused;
    return false;
  }
  const uint32_t failures = ++failures_[key];
  const Duration back_off = BackOff(options_.first_back_off, options_.longest_back_off, failures, chance);
  // The bucket is full again `burst` intervals after its last retry.
  next_retry_ =
      std::max(next_retry_, now - options_.retry_interval * options_.retry_burst) + options_.retry_interval;
  return AddAfter(key, std::max(back_off, next_retry_ - now), now);
}

std::optional<std::string> WorkQueue::Take(Instant now) {
  Promote(now);
  if (ready_.empty()) return std::nullopt;
  auto [key, since] = std::move(ready_.front());
  ready_.pop_front();
  in_ready_.erase(key);
  taken_[key] = false;
  ++counters_.taken;
  counters_.longest_wait = std::max(counters_.longest_wait, now - since);
  return std::move(key);
}

void WorkQueue::Done(const std::string& key, Instant now) {
  const auto found = taken_.find(key);
  if (found == taken_.end()) return;
  const bool again = found->second;
  taken_.erase(found);
  if (!again) return;
  ++counters_.requeued;
  MakeReady(key, now);
}

Instant WorkQueue::NextDue() const {
  if (!ready_.empty()) return ready_.front().second;
  return by_time_.empty() ? Instant::Infinite() : by_time_.begin()->first;
}

uint32_t WorkQueue::failures(const std::string& key) const {
  const auto found = failures_.find(key);
  return found == failures_.end() ? 0 : found->second;
}

bool WorkQueue::HasRoomFor(const std::string& key) {
  if (delays_.contains(key) || taken_.contains(key)) return true;
  if (ready_.size() + delays_.size() + taken_.size() < options_.max_keys) return true;
  ++counters_.refused;
  return false;
}

void WorkQueue::MakeReady(const std::string& key, Instant since) {
  if (const auto delayed = delays_.find(key); delayed != delays_.end()) {
    by_time_.erase({delayed->second, key});
    delays_.erase(delayed);
  }
  in_ready_.insert(key);
  ready_.emplace_back(key, since);
}

void WorkQueue::Promote(Instant now) {
  while (!by_time_.empty() && by_time_.begin()->first <= now) {
    const auto [at, key] = *by_time_.begin();
    by_time_.erase(by_time_.begin());
    delays_.erase(key);
    if (const auto found = taken_.find(key); found != taken_.end()) {
      found->second = true;
    } else {
      MakeReady(key, at);
    }
  }
}

}  // namespace longhaul::kube::api
