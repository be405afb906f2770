// So many events (or bytes) per second, and so many at once: what is beyond is refused, not queued.
#pragma once

#include <algorithm>

#include "base/instant.h"

namespace longhaul {

class TokenBucket {
 public:
  // Full at first. `per_second` > 0.
  TokenBucket(double per_second, double burst) : per_second_(per_second), burst_(burst), tokens_(burst) {}

  // Whether `amount` is there.
  bool Has(Instant now, double amount = 1) {
    const double seconds = static_cast<double>(std::max<int64_t>(0, (now - last_).count())) * 1e-9;
    tokens_ = std::min(burst_, tokens_ + seconds * per_second_);
    last_ = std::max(last_, now);
    return tokens_ >= amount;
  }
  // False, with nothing taken, when there is none.
  bool Take(Instant now, double amount = 1) {
    if (!Has(now, amount)) return false;
    tokens_ -= amount;
    return true;
  }

 private:
  double per_second_;
  double burst_;
  double tokens_;
  Instant last_;
};

}  // namespace longhaul
