#include "offload/port/site_engines.h"

#include <algorithm>
#include <chrono>
#include <string>

namespace longhaul::offload {
namespace {

uint64_t FirstBits(uint32_t count) { return count >= 64 ? ~uint64_t{0} : (uint64_t{1} << count) - 1; }

EngineOptions OptionsOf(const SiteOptions& site, uint8_t node) {
  EngineOptions options;
  options.node = node;
  options.nodes = FirstBits(DeviceCount(site));
  options.ranks = node < site.nodes ? FirstBits(site.ranks_per_node) : 0;
  options.seg_bytes = site.seg_bytes;
  options.pool_segs = site.pool_segs;
  options.window_segs = site.window_segs;
  options.queue_depth = site.queue_depth;
  options.max_message_bytes = site.max_message_bytes;
  options.scratch_bytes = site.scratch_bytes;
  options.config_number = StartNumber();
  return options;
}

}  // namespace

uint64_t StartNumber() {
  const auto since = std::chrono::system_clock::now().time_since_epoch();
  return static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(since).count());
}

Status SiteEngines::Validate(const SiteOptions& site, const NodeLink* link) {
  if (site.nodes == 0 || DeviceCount(site) > kMaxNodes) {
    return Status(StatusCode::kInvalidArgument, "offload: a site has 1..16 nodes, an aggregator included");
  }
  if (site.ranks_per_node == 0 || site.ranks_per_node > kMaxRanks) {
    return Status(StatusCode::kInvalidArgument, "offload: a node has 1..64 ranks");
  }
  if (Status status = Engine::Validate(OptionsOf(site, 0)); !status.ok()) return status;
  if (link == nullptr || link->node() < DeviceCount(site)) return Status::Ok();
  return Status(StatusCode::kInvalidArgument, "offload: the site has no node " +
                                                  std::to_string(link->node()) + ": its nodes are 0.." +
                                                  std::to_string(DeviceCount(site) - 1));
}

SiteEngines::SiteEngines(const SiteOptions& site, NodeLink* link)
    : site_(site), link_(link), datagram_(kHeaderBytes + site.seg_bytes) {
  engines_.resize(DeviceCount(site));
  for (uint8_t node = 0; node < engines_.size(); ++node) {
    if (link != nullptr && link->node() != node) continue;
    engines_[node] = std::make_unique<Engine>(OptionsOf(site, node));
  }
}

void SiteEngines::RankGone(Instant now, uint8_t node, uint8_t rank) {
  engines_[node]->RankGone(now, rank);
  if (!engines_[node]->IsDeserted()) return;
  for (auto& engine : engines_) {
    if (engine) engine->NodeGone(now, node);  // but itself
  }
}

bool SiteEngines::Work(Instant now, uint64_t budget_bytes) {
  if (link_ != nullptr) {
    Engine& engine = *engines_[link_->node()];
    const bool more = engine.Advance(now, budget_bytes);
    return link_->Transmit(now, engine) || more;
  }
  bool more = false;
  do {
    for (auto& engine : engines_) more |= engine->Advance(now, budget_bytes);
  } while (engines_.size() > 1 && Exchange(now));
  return more;
}

bool SiteEngines::Exchange(Instant now) {
  bool moved = false;
  for (auto& engine : engines_) {
    while (const auto outgoing = engine->PollTransmit(now, datagram_)) {
      moved = true;
      engines_[outgoing->target]->HandlePacket(now, ByteSpan(datagram_).first(outgoing->bytes));
    }
  }
  return moved;
}

bool SiteEngines::HandleTimeouts(Instant now) {
  if (now < NextTimeout()) return false;
  for (auto& engine : engines_) {
    if (engine) engine->HandleTimeout(now);
  }
  return true;
}

Instant SiteEngines::NextTimeout() const {
  Instant next = Instant::Infinite();
  for (const auto& engine : engines_) {
    if (engine) next = std::min(next, engine->NextTimeout());
  }
  return next;
}

}  // namespace longhaul::offload
