#include "offload/shm/site_engines.h"

#include <algorithm>

#include "offload/port/in_process.h"

namespace longhaul::offload {
namespace {

uint64_t FirstBits(uint32_t count) { return count >= 64 ? ~uint64_t{0} : (uint64_t{1} << count) - 1; }

EngineOptions OptionsOf(const SiteOptions& site, uint8_t node) {
  EngineOptions options;
  options.node = node;
  options.nodes = FirstBits(site.nodes + (site.aggregator ? 1u : 0u));
  options.ranks = node < site.nodes ? FirstBits(site.ranks_per_node) : 0;
  options.seg_bytes = site.seg_bytes;
  options.pool_segs = site.pool_segs;
  options.window_segs = site.window_segs;
  options.queue_depth = site.queue_depth;
  options.max_message_bytes = site.max_message_bytes;
  options.scratch_bytes = site.scratch_bytes;
  return options;
}

}  // namespace

Status SiteEngines::Validate(const SiteOptions& site) { return InProcessSite::Validate(site); }

SiteEngines::SiteEngines(const SiteOptions& site) : site_(site), datagram_(kHeaderBytes + site.seg_bytes) {
  const uint32_t nodes = site.nodes + (site.aggregator ? 1u : 0u);
  for (uint32_t node = 0; node < nodes; ++node) {
    engines_.push_back(std::make_unique<Engine>(OptionsOf(site, static_cast<uint8_t>(node))));
  }
}

bool SiteEngines::Work(Instant now, uint64_t budget_bytes) {
  bool more = false;
  for (bool moved = true; moved;) {
    moved = false;
    for (auto& engine : engines_) more |= engine->Advance(now, budget_bytes);
    if (engines_.size() == 1) break;  // there is nobody to send to
    for (auto& engine : engines_) {
      while (const auto outgoing = engine->PollTransmit(now, datagram_)) {
        moved = true;
        engines_[outgoing->target]->HandlePacket(now, ByteSpan(datagram_).first(outgoing->bytes));
      }
    }
  }
  return more;
}

bool SiteEngines::HandleTimeouts(Instant now) {
  if (now < NextTimeout()) return false;
  for (auto& engine : engines_) engine->HandleTimeout(now);
  return true;
}

Instant SiteEngines::NextTimeout() const {
  Instant next = Instant::Infinite();
  for (const auto& engine : engines_) next = std::min(next, engine->NextTimeout());
  return next;
}

}  // namespace longhaul::offload
