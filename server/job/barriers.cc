#include "server/job/barriers.h"

#include <algorithm>
#include <utility>

namespace longhaul::server {

bool Barriers::Barrier::Has(uint32_t rank) const {
  return std::ranges::count(waiters, rank, &Waiter::rank) > 0;
}

size_t Barriers::MaxPerMember(uint32_t world_size) {
  return std::min(kMaxPerMember, kMaxOfJob / std::max(world_size, 1u));
}

Status Barriers::Wait(const std::string& name, Waiter waiter, Instant now) {
  auto found = barriers_.find(name);
  if (found == barriers_.end()) {
    const size_t most = MaxPerMember(static_cast<uint32_t>(opened_.size()));
    if (opened_[waiter.rank] >= most) {
      ++refused_;
      return {StatusCode::kResourceExhausted,
              "barrier \"" + name + "\": worker rank " + std::to_string(waiter.rank) + " holds " +
                  std::to_string(opened_[waiter.rank]) + " of " + std::to_string(most) +
                  " barriers that one worker may open"};
    }
    ++opened_[waiter.rank];
    found = barriers_.emplace(name, Barrier{.opener = waiter.rank, .since = now, .waiters = {}}).first;
  }
  if (found->second.Has(waiter.rank)) {
    return {StatusCode::kFailedPrecondition, "this worker waits at barrier \"" + name + "\" already"};
  }
  found->second.waiters.push_back(waiter);
  return {};
}

Barriers::Map::iterator Barriers::Erase(Map::iterator barrier) {
  --opened_[barrier->second.opener];
  return barriers_.erase(barrier);
}

std::optional<std::pair<std::string, Barriers::Barrier>> Barriers::GiveUp(Waiter waiter) {
  const auto same = [waiter](const Waiter& w) {
    return w.rank == waiter.rank && w.request == waiter.request;
  };
  for (auto it = barriers_.begin(); it != barriers_.end(); ++it) {
    if (std::erase_if(it->second.waiters, same) == 0) continue;
    const std::pair<std::string, Barrier> left = *it;
    if (it->second.waiters.empty()) Erase(it);
    return left;
  }
  return std::nullopt;
}

void Barriers::Forget(uint32_t rank) {
  for (auto it = barriers_.begin(); it != barriers_.end();) {
    std::erase_if(it->second.waiters, [rank](const Waiter& waiter) { return waiter.rank == rank; });
    it = it->second.waiters.empty() ? Erase(it) : std::next(it);
  }
}

std::vector<Barriers::Waiter> Barriers::Release(uint32_t joined) {
  std::vector<Waiter> released;
  for (auto it = barriers_.begin(); it != barriers_.end();) {
    const std::vector<Waiter>& waiters = it->second.waiters;
    const bool complete = waiters.size() >= joined;
    if (complete) released.insert(released.end(), waiters.begin(), waiters.end());
    it = complete ? Erase(it) : std::next(it);
  }
  return released;
}

void Barriers::Clear() {
  barriers_.clear();
  std::ranges::fill(opened_, 0);
}

const std::pair<const std::string, Barriers::Barrier>* Barriers::Fullest() const {
  const auto fuller = [](const auto& a, const auto& b) {
    const size_t in_a = a.second.waiters.size(), in_b = b.second.waiters.size();
    return in_a != in_b ? in_a > in_b : a.second.since < b.second.since;
  };
  const auto fullest = std::ranges::min_element(barriers_, fuller);
  return fullest == barriers_.end() ? nullptr : &*fullest;
}

}  // namespace longhaul::server
