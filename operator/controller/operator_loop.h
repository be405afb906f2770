// The operator: a lease, and while it is held a Controller, on one client of the API server.
//
// Without the lease nothing of a job is read or written: the next one begins with fresh lists, when the
// writes of the one before are over (kWriteLimit).
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "operator/controller/controller.h"

namespace longhaul::kube {

struct OperatorOptions {
  ControllerOptions controller;
  bool elect = true;  // false: this is the only one
  api::LeaseOptions lease;
  // Called once in Turn with the operator's key, which webhooks need without the lease, too; none: not read.
  std::function<void(const std::string& key)> on_key;
};

// What the counters say at a moment; strings and numbers alone, for another thread.
struct OperatorReport {
  bool leads = false;
  std::string holder;     // of the lease
  std::string not_ready;  // "" while it works, or waits for the lease that another one has
  ControllerCounters controller;
  api::RestCounters api;
  api::WorkQueueCounters queue;
  api::InformerCounters informers;
  api::PermissionCacheCounters permissions;
  api::LeaseCounters lease;
  EventCounters events;
  SiteCounters sites;
  ProgressCounters progress;
  uint64_t jobs = 0, objects = 0, waiting = 0, delayed = 0, in_work = 0, calls = 0, open_sites = 0;
};

class Operator {
 public:
  // Of Stop: answers that are waited for, and the lease. Below a pod's grace of 15 s.
  static constexpr Duration kFarewell = std::chrono::seconds(8);

  Operator(std::unique_ptr<api::RestClient> home, OperatorOptions options, Random chance);

  // Works for at most `limit`.
  void Turn(Duration limit);
  // Begins no job any more, waits for the answers of those in work, and gives the lease up. Turn until
  // stopped(). Any thread.
  void Stop() {
    stop_wanted_.store(true);
    home_->Wake();
  }
  bool stopped() const;

  // Any thread.
  OperatorReport report() const;
  // How long ago Turn was in its loop.
  Duration silent() const;

 private:
  void Lead(Instant now);
  void BeginStop(Instant now);
  void Publish(Instant now);

  std::unique_ptr<api::RestClient> home_;
  const OperatorOptions options_;
  Random chance_;
  std::optional<api::ElectionLoop> election_;
  std::optional<OperatorKey> key_;  // until on_key has it
  std::unique_ptr<Controller> controller_;
  std::optional<Instant> stop_at_;
  uint64_t terms_ = 0;
  Instant published_at_;
  bool lease_fails_ = false;  // said
  mutable std::mutex mutex_;
  OperatorReport report_;  // guarded by mutex_
  std::atomic<int64_t> turned_at_{0};
  std::atomic<bool> stop_wanted_{false};
};

}  // namespace longhaul::kube
