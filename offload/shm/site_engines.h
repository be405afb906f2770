// The engines of one site in one thread: one per node, and every packet between them a function call.
//
// When not: several threads, or engines on several machines.
#pragma once

#include <memory>
#include <vector>

#include "longhaul/offload.h"
#include "offload/engine/engine.h"

namespace longhaul::offload {

class SiteEngines {
 public:
  // Errors: kInvalidArgument names the option.
  static Status Validate(const SiteOptions& site);
  // REQUIRES: Validate(site).ok().
  explicit SiteEngines(const SiteOptions& site);

  const SiteOptions& site() const { return site_; }
  Engine& engine(uint8_t node) { return *engines_[node]; }
  const Engine& engine(uint8_t node) const { return *engines_[node]; }

  // Reduces about `budget_bytes` of input per engine, and lets packets run until none moves. True: there is
  // more to do.
  bool Work(Instant now, uint64_t budget_bytes);
  // True: something was due.
  bool HandleTimeouts(Instant now);
  Instant NextTimeout() const;

 private:
  SiteOptions site_;
  std::vector<std::unique_ptr<Engine>> engines_;
  std::vector<uint8_t> datagram_;
};

}  // namespace longhaul::offload
