#include "server/job/barriers.h"

#include <algorithm>

namespace longhaul::server {

Status Barriers::Wait(const std::string& name, Waiter waiter) {
  if (!barriers_.contains(name) && barriers_.size() >= kMaxBarriers) {
    return {StatusCode::kResourceExhausted,
            "more than " + std::to_string(kMaxBarriers) + " barriers at once"};
  }
  std::vector<Waiter>& waiters = barriers_[name];
  if (std::ranges::count(waiters, waiter.rank, &Waiter::rank) > 0) {
    return {StatusCode::kProtocolViolation, "waits twice at barrier " + name};
  }
  waiters.push_back(waiter);
  return {};
}

void Barriers::Forget(uint32_t rank) {
  for (auto& [name, waiters] : barriers_) {
    std::erase_if(waiters, [rank](const Waiter& waiter) { return waiter.rank == rank; });
  }
  std::erase_if(barriers_, [](const auto& barrier) { return barrier.second.empty(); });
}

std::vector<Barriers::Waiter> Barriers::Release(uint32_t joined) {
  std::vector<Waiter> released;
  std::erase_if(barriers_, [&](const auto& barrier) {
    if (barrier.second.size() < joined) return false;
    released.insert(released.end(), barrier.second.begin(), barrier.second.end());
    return true;
  });
  return released;
}

}  // namespace longhaul::server
