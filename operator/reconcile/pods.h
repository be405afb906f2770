// What a pod says of itself, and what it comes to.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/instant.h"
#include "operator/resource/fields.h"

namespace longhaul::kube {

// With which the container `key` ends: the Secret's key is not the job's.
inline constexpr int kKeyIsAnothers = 78;

enum class PodFate : uint8_t {
  kWaiting,   // not on a machine yet, or its containers have not started
  kStarting,  // runs, not ready
  kReady,
  kSucceeded,
  kFailed,     // by itself: an exit code other than 0
  kDisrupted,  // by others: evicted, preempted, its machine lost, shut down or out of room
};

struct PodView {
  std::string name, uid, ip, plan;
  int64_t incarnation = -1;
  PodFate fate = PodFate::kWaiting;
  std::optional<int64_t> exit_code;
  Instant created;
  std::optional<Instant> deleting_until;  // deletionTimestamp: when its grace ends
  bool ends = false;                      // deleted, evicted, or over
  bool unschedulable = false;
  bool key_refused = false;  // the Secret of its key is not the operator's
  std::string trouble;       // what keeps it from running, in a sentence; "" when nothing does
};

// Of any JSON; what is missing is at its default.
PodView ReadPod(const Json& pod);

}  // namespace longhaul::kube
