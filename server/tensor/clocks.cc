#include "server/tensor/clocks.h"

#include "base/check.h"

namespace longhaul::server {

void Clocks::OnMemberJoined(uint32_t rank) {
  LH_CHECK(!members_[rank]);
  if (members() > 0) of_[rank] = Slowest();
  members_[rank] = true;
}

uint64_t Clocks::Slowest() const {
  uint64_t slowest = UINT64_MAX;
  for (size_t rank = 0; rank < of_.size(); ++rank) {
    if (members_[rank]) slowest = std::min(slowest, of_[rank]);
  }
  return slowest == UINT64_MAX ? 0 : slowest;
}

uint64_t Clocks::Fastest() const {
  uint64_t fastest = 0;
  for (size_t rank = 0; rank < of_.size(); ++rank) {
    if (members_[rank]) fastest = std::max(fastest, of_[rank]);
  }
  return fastest;
}

std::vector<uint32_t> Clocks::Behind(uint64_t clock) const {
  std::vector<uint32_t> behind;
  for (uint32_t rank = 0; rank < of_.size(); ++rank) {
    if (members_[rank] && of_[rank] < clock) behind.push_back(rank);
  }
  return behind;
}

}  // namespace longhaul::server
