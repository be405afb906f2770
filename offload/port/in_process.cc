#include "offload/port/in_process.h"

#include <chrono>
#include <map>
#include <utility>

namespace longhaul::offload {
namespace {

Status Closed() { return Status(StatusCode::kFailedPrecondition, "offload: the device is closed"); }

}  // namespace

InProcessSite::InProcessSite(const SiteOptions& options) : engines_(options) {
  wake_ups_.resize(options.nodes);
  gone_.resize(options.nodes);
}

Instant InProcessSite::Now() {
  return Instant::FromNanoseconds(std::chrono::steady_clock::now().time_since_epoch().count());
}

Status InProcessSite::Attach(uint8_t node, uint8_t rank, WakeUp* wake_up) {
  const std::lock_guard lock(mutex_);
  if (node >= options().nodes || rank >= options().ranks_per_node) {
    return Status(StatusCode::kInvalidArgument, "offload: the site has no such node or rank");
  }
  if (wake_ups_[node][rank] != nullptr) {
    return Status(StatusCode::kAlreadyExists, "offload: the rank's device is open already");
  }
  wake_ups_[node][rank] = wake_up;
  gone_[node] &= ~BitOf(rank);
  return Status::Ok();
}

void InProcessSite::Detach(uint8_t node, uint8_t rank) {
  const std::lock_guard lock(mutex_);
  wake_ups_[node][rank] = nullptr;
  // Completions that were not polled go with their rank.
  Completion completion;
  while (engines_.engine(node).Poll(rank, {&completion, 1}) > 0) {
  }
}

Result<uint32_t> InProcessSite::Register(uint8_t node, uint8_t rank, std::span<std::byte> memory) {
  const std::lock_guard lock(mutex_);
  if (IsGone(node, rank)) return Closed();
  return engines_.engine(node).Register(rank, memory);
}

Status InProcessSite::Deregister(uint8_t node, uint8_t rank, uint32_t key) {
  const std::lock_guard lock(mutex_);
  return engines_.engine(node).Deregister(rank, key);
}

Status InProcessSite::Post(uint8_t node, uint8_t rank, std::span<const WorkRequest> requests, size_t* bad) {
  const std::lock_guard lock(mutex_);
  if (IsGone(node, rank)) return Closed();
  const Instant now = Now();
  Status status;
  for (size_t i = 0; i < requests.size() && status.ok(); ++i) {
    status = engines_.engine(node).Post(now, rank, requests[i]);
    if (!status.ok() && bad != nullptr) *bad = i;
  }
  Work(now);
  return status;
}

size_t InProcessSite::Poll(uint8_t node, uint8_t rank, std::span<Completion> completions) {
  const std::lock_guard lock(mutex_);
  size_t count = engines_.engine(node).Poll(rank, completions);
  if (count == 0) {
    wake_ups_[node][rank]->Clear();
    Work(Now());
    count = engines_.engine(node).Poll(rank, completions);
  }
  return count;
}

void InProcessSite::RequestNotify(uint8_t node, uint8_t rank) {
  const std::lock_guard lock(mutex_);
  wake_ups_[node][rank]->Clear();
  engines_.engine(node).RequestNotify(rank);
  Work(Now());
}

OffloadStats InProcessSite::stats(uint8_t node) const {
  const std::lock_guard lock(mutex_);
  return engines_.engine(node).stats();
}

void InProcessSite::RankGone(uint8_t node, uint8_t rank) {
  const std::lock_guard lock(mutex_);
  if (IsGone(node, rank)) return;
  gone_[node] |= BitOf(rank);
  const Instant now = Now();
  engines_.RankGone(now, node, rank);
  Work(now);
}

void InProcessSite::Work(Instant now) {
  engines_.HandleTimeouts(now);
  Notify(now, engines_.Work(now, kBudgetBytes));
}

void InProcessSite::Notify(Instant now, bool more) {
  const Instant next = more ? now : engines_.NextTimeout();
  for (uint8_t node = 0; node < wake_ups_.size(); ++node) {
    for (uint8_t rank = 0; rank < options().ranks_per_node; ++rank) {
      WakeUp* const wake_up = wake_ups_[node][rank];
      if (wake_up == nullptr) continue;
      if (engines_.engine(node).TakeNotification(rank)) wake_up->Notify();
      if (engines_.engine(node).IsWaiting(rank)) wake_up->SetTimer(next);
    }
  }
}

namespace {

// The sites that are open, by name.
struct Sites {
  std::mutex mutex;
  std::map<std::string, std::weak_ptr<InProcessSite>, std::less<>> by_name;
};
Sites& AllSites() {
  static Sites sites;
  return sites;
}

Result<std::shared_ptr<InProcessSite>> SiteOf(std::string_view name, const SiteOptions& options) {
  if (const Status status = SiteEngines::Validate(options); !status.ok()) return status;
  Sites& sites = AllSites();
  const std::lock_guard lock(sites.mutex);
  std::erase_if(sites.by_name, [](const auto& entry) { return entry.second.expired(); });
  const auto found = sites.by_name.find(name);
  if (found != sites.by_name.end()) {
    auto site = found->second.lock();
    if (site->options() == options) return site;
    return Status(StatusCode::kSettingsMismatch, "offload: the site is open with other options");
  }
  auto site = std::make_shared<InProcessSite>(options);
  sites.by_name.emplace(name, site);
  return site;
}

class InProcessPort final : public Port {
 public:
  InProcessPort(std::shared_ptr<InProcessSite> site, const DeviceOptions& options)
      : site_(std::move(site)),
        node_(options.node == DeviceOptions::kDaemonsNode ? uint8_t{0} : options.node),
        rank_(options.rank) {}
  ~InProcessPort() override {
    Close();
    if (attached_) site_->Detach(node_, rank_);
  }

  Status Attach() {
    if (Status status = wake_up_.Open(); !status.ok()) return status;
    Status status = site_->Attach(node_, rank_, &wake_up_);
    attached_ = status.ok();
    return status;
  }

  Result<uint32_t> Register(std::span<std::byte> memory) override {
    return site_->Register(node_, rank_, memory);
  }
  Status Deregister(uint32_t key) override { return site_->Deregister(node_, rank_, key); }
  Status Post(std::span<const WorkRequest> requests, size_t* bad) override {
    return site_->Post(node_, rank_, requests, bad);
  }
  size_t Poll(std::span<Completion> completions) override { return site_->Poll(node_, rank_, completions); }
  Status RequestNotify() override {
    site_->RequestNotify(node_, rank_);
    return Status::Ok();
  }
  int fd() const override { return wake_up_.fd(); }
  SiteOptions site() const override { return site_->options(); }
  uint8_t node() const override { return node_; }
  OffloadStats stats() const override { return site_->stats(node_); }
  void Close() override {
    if (attached_) site_->RankGone(node_, rank_);
  }

 private:
  std::shared_ptr<InProcessSite> site_;
  WakeUp wake_up_;
  uint8_t node_;
  uint8_t rank_;
  bool attached_ = false;
};

}  // namespace

Result<std::unique_ptr<Port>> OpenInProcess(std::string_view name, const DeviceOptions& options) {
  auto site = SiteOf(name, options.site);
  if (!site.ok()) return site.status();
  auto port = std::make_unique<InProcessPort>(*site, options);
  if (Status status = port->Attach(); !status.ok()) return status;
  return std::unique_ptr<Port>(std::move(port));
}

}  // namespace longhaul::offload
