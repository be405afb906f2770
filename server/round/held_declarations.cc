#include "server/round/held_declarations.h"

#include <algorithm>
#include <utility>

namespace longhaul::server {

bool HeldDeclarations::Held::Has(uint32_t rank) const {
  return std::ranges::count(requests, rank, &Request::rank) > 0;
}

Status HeldDeclarations::Add(const TensorSpec& spec, double cost, const Request& request, Instant now) {
  const auto known = all_.find(spec.name);
  if (known != all_.end() && known->second.spec != spec) {
    return {StatusCode::kSettingsMismatch, "tensor \"" + spec.name + "\" is declared as " + spec.ToString() +
                                               " here, and as " + known->second.spec.ToString() +
                                               " by worker rank " +
                                               std::to_string(known->second.requests.front().rank)};
  }
  if (known != all_.end() && known->second.Has(request.rank)) {
    return {StatusCode::kFailedPrecondition, "this worker waits for tensor \"" + spec.name + "\" already"};
  }
  if (held_[request.rank] >= kMaxPerMember) {
    return {StatusCode::kResourceExhausted, "worker rank " + std::to_string(request.rank) + " has " +
                                                std::to_string(kMaxPerMember) +
                                                " declarations that wait for others to say the same"};
  }
  ++held_[request.rank];
  Held& held = all_.try_emplace(spec.name, Held{.spec = spec, .cost = cost, .since = now, .requests = {}})
                   .first->second;
  held.requests.push_back(request);
  return {};
}

std::optional<HeldDeclarations::Held> HeldDeclarations::Take(
    const std::function<bool(const Held&)>& admissible) {
  const auto found =
      std::ranges::find_if(all_, [&admissible](const auto& entry) { return admissible(entry.second); });
  if (found == all_.end()) return std::nullopt;
  Held held = std::move(found->second);
  all_.erase(found);
  for (const Request& request : held.requests) --held_[request.rank];
  return held;
}

HeldDeclarations::Map::iterator HeldDeclarations::Remove(Map::iterator held,
                                                         const std::function<bool(const Request&)>& which) {
  std::erase_if(held->second.requests, [&](const Request& request) {
    const bool remove = which(request);
    if (remove) --held_[request.rank];
    return remove;
  });
  return held->second.requests.empty() ? all_.erase(held) : std::next(held);
}

std::optional<HeldDeclarations::Held> HeldDeclarations::GiveUp(uint32_t rank, uint32_t request) {
  const auto same = [rank, request](const Request& r) { return r.rank == rank && r.request == request; };
  for (auto it = all_.begin(); it != all_.end(); ++it) {
    if (std::ranges::none_of(it->second.requests, same)) continue;
    Held held = it->second;
    Remove(it, same);
    return held;
  }
  return std::nullopt;
}

void HeldDeclarations::Forget(uint32_t rank) {
  const auto same = [rank](const Request& request) { return request.rank == rank; };
  for (auto it = all_.begin(); it != all_.end();) it = Remove(it, same);
}

// One member's declarations, however old, hide none that others wait for.
const HeldDeclarations::Held* HeldDeclarations::MostWanted() const {
  const auto before = [](const auto& a, const auto& b) {
    const auto wanted = a.second.requests.size() <=> b.second.requests.size();
    return wanted != 0 ? wanted > 0 : a.second.since < b.second.since;
  };
  const auto first = std::ranges::min_element(all_, before);
  return first == all_.end() ? nullptr : &first->second;
}

}  // namespace longhaul::server
