// A site as one member of a job, in longhaul-offload: the relay beside the daemon, with --server.
#pragma once

#include <memory>
#include <mutex>

#include "offload/shm/site_daemon.h"
#include "worker/site/site_relay.h"

namespace longhaul::offload {

// The relay dies on the thread of a signal or at the end of the daemon.
class SiteMember {
 public:
  // Before the daemon starts.
  void Watch(DaemonOptions* daemon);
  // Errors: those of SiteRelay::Start.
  Status Start(site::RelayOptions options, SiteDaemon* daemon);
  // For probes; any thread, from Start to End. Null: no relay.
  std::shared_ptr<const site::SiteRelay> relay() const;
  // Leaves the job, if it has not; while the daemon works.
  void End();

  // After End.
  const Status& end() const { return end_; }
  const ClientStats& stats() const { return stats_; }

 private:
  mutable std::mutex mutex_;
  std::shared_ptr<site::SiteRelay> relay_;  // under it
  Status end_;
  ClientStats stats_;
};

}  // namespace longhaul::offload
