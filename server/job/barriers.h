// Named points that all joined workers wait for. Not thread-safe.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "longhaul/status.h"

namespace longhaul::server {

class Barriers {
 public:
  static constexpr size_t kMaxBarriers = 64;  // waited for at once

  struct Waiter {
    uint32_t rank = 0;
    uint32_t request = 0;
  };

  // The rank waits. Errors, which end its connection: kResourceExhausted (kMaxBarriers), kProtocolViolation
  // (it waits at this one already).
  Status Wait(const std::string& name, Waiter waiter);
  // The rank's worker is gone, or replaced.
  void Forget(uint32_t rank);
  // Removes the barriers that `joined` workers have reached; returns their waiters.
  std::vector<Waiter> Release(uint32_t joined);
  void Clear() { barriers_.clear(); }

 private:
  std::map<std::string, std::vector<Waiter>> barriers_;
};

}  // namespace longhaul::server
