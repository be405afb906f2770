// The engines of a site that this process has, in one thread: those of all nodes, and every packet between
// them is a function call; or one, whose packets take a link to other machines.
//
// When not: several threads without a lock.
#pragma once

#include <memory>
#include <vector>

#include "longhaul/offload.h"
#include "offload/engine/engine.h"
#include "offload/port/node_link.h"

namespace longhaul::offload {

// Of a site, an aggregator's included.
inline uint32_t DeviceCount(const SiteOptions& site) { return site.nodes + (site.aggregator ? 1u : 0u); }

// Of a start of this process: more than that of any earlier one, as long as the clock does not go back. ns
// since 1970.
uint64_t StartNumber();

class SiteEngines {
 public:
  // Errors: kInvalidArgument names the option.
  static Status Validate(const SiteOptions& site, const NodeLink* link = nullptr);
  // link: to the others of the one node that is here, and outlives this; null: all nodes are.
  // REQUIRES: Validate(site, link).ok().
  explicit SiteEngines(const SiteOptions& site, NodeLink* link = nullptr);

  const SiteOptions& site() const { return site_; }
  bool Has(uint8_t node) const { return node < engines_.size() && engines_[node] != nullptr; }
  // REQUIRES: Has(node).
  Engine& engine(uint8_t node) { return *engines_[node]; }
  const Engine& engine(uint8_t node) const { return *engines_[node]; }

  // REQUIRES: Has(node).
  void RankGone(Instant now, uint8_t node, uint8_t rank);
  // As NodeLink's; false without one.
  bool Fetch() { return link_ != nullptr && link_->Fetch(); }
  // REQUIRES: Fetch() was true.
  void Deliver(Instant now) { link_->Deliver(now, *engines_[link_->node()]); }
  // Something waits for room to send: Work again within a ms or so.
  bool IsBlocked() const { return link_ != nullptr && link_->IsBlocked(); }
  // Reduces about `budget_bytes` of input per engine, and lets packets run until none moves. True: there is
  // more to do.
  bool Work(Instant now, uint64_t budget_bytes);
  // True: something was due.
  bool HandleTimeouts(Instant now);
  Instant NextTimeout() const;

 private:
  // Packets between engines here, until none moves. True: some did.
  bool Exchange(Instant now);

  SiteOptions site_;
  NodeLink* link_;
  std::vector<std::unique_ptr<Engine>> engines_;
  std::vector<uint8_t> datagram_;
};

}  // namespace longhaul::offload
