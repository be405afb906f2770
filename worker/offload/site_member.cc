#include "worker/offload/site_member.h"

#include <utility>

namespace longhaul::offload {

void SiteMember::Watch(DaemonOptions* daemon) {
  daemon->on_rank = [this](uint8_t node, uint8_t rank, bool here) {
    const std::lock_guard lock(mutex_);
    if (relay_) relay_->OnRank(node, rank, here);
  };
}

Status SiteMember::Start(site::RelayOptions options, SiteDaemon* daemon) {
  options.on_end = [this, daemon](const Status& status) {
    end_ = status;
    daemon->Stop();
  };
  auto relay = site::SiteRelay::Start(options);
  if (!relay.ok()) return relay.status();
  const std::lock_guard lock(mutex_);
  relay_ = std::move(*relay);
  return {};
}

std::shared_ptr<const site::SiteRelay> SiteMember::relay() const {
  const std::lock_guard lock(mutex_);
  return relay_;
}

void SiteMember::End() {
  std::shared_ptr<site::SiteRelay> relay;
  {
    const std::lock_guard lock(mutex_);
    relay = std::move(relay_);
  }
  if (!relay) return;
  relay->Stop();
  stats_ = relay->stats();
}

}  // namespace longhaul::offload
