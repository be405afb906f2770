// Keys that wait for a worker (client-go's util/workqueue): a key is in it once, is never with two workers,
// and comes again after Done when it was added meanwhile.
//
// Not thread-safe. Time and chance (0..1) are arguments.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "base/instant.h"

namespace longhaul::kube::api {

struct WorkQueueOptions {
  size_t max_keys = 100'000;  // waiting, delayed and taken
  // client-go (DefaultControllerRateLimiter): 5 ms * 2^failures for a key. Its longest is 1,000 s; a job that
  // nothing else wakes would stand still for 17 minutes, so ours is the back-off of pods, 60 s.
  Duration first_back_off = std::chrono::milliseconds(5);
  Duration longest_back_off = std::chrono::seconds(60);
  // client-go: retries of all keys together, 10 a second after 100 at once. Keys that are added by an event
  // are not limited.
  Duration retry_interval = std::chrono::milliseconds(100);
  uint32_t retry_burst = 100;
};

struct WorkQueueCounters {
  uint64_t added = 0;     // keys that were not in it
  uint64_t merged = 0;    // adds of a key that waits already
  uint64_t requeued = 0;  // keys that came again after Done, since they were added while taken
  uint64_t retries = 0;   // AddRateLimited
  uint64_t refused = 0;   // beyond max_keys
  uint64_t taken = 0;
  Duration longest_wait{0};  // of a key that was due, until it was taken
};

class WorkQueue {
 public:
  explicit WorkQueue(const WorkQueueOptions& options = {}) : options_(options) {}

  // False: the bound is reached and the key is not in it; the next resync brings it again.
  bool Add(const std::string& key, Instant now);
  // The earliest time wins; an Add wins over it.
  bool AddAfter(const std::string& key, Duration delay, Instant now);
  // After a failure: with the key's back-off, doubled each time until Forget.
  bool AddRateLimited(const std::string& key, Instant now, double chance);
  void Forget(const std::string& key) { failures_.erase(key); }

  // The key that waits longest. Until Done it is not given to another.
  std::optional<std::string> Take(Instant now);
  void Done(const std::string& key, Instant now);
  // When Take has something: now or earlier, a delayed key's time, or Infinite.
  Instant NextDue() const;

  size_t waiting() const { return ready_.size(); }
  size_t delayed() const { return delays_.size(); }
  size_t taken() const { return taken_.size(); }
  uint32_t failures(const std::string& key) const;
  const WorkQueueCounters& counters() const { return counters_; }

 private:
  bool HasRoomFor(const std::string& key);
  void MakeReady(const std::string& key, Instant since);
  void Promote(Instant now);

  const WorkQueueOptions options_;
  std::deque<std::pair<std::string, Instant>> ready_;  // and since when
  std::set<std::string> in_ready_;
  std::map<std::string, Instant> delays_;
  std::set<std::pair<Instant, std::string>> by_time_;  // of delays_
  std::map<std::string, bool> taken_;                  // true: it was added meanwhile
  std::map<std::string, uint32_t> failures_;           // in a row
  // When the next retry would be due, were the bucket used up; long ago: it is full.
  Instant next_retry_ = Instant::FromNanoseconds(std::numeric_limits<int64_t>::min() / 2);
  WorkQueueCounters counters_;
};

}  // namespace longhaul::kube::api
