#include "server/job/waits.h"

#include <algorithm>

#include "base/units_text.h"

namespace longhaul::server {
namespace {

Wait BarrierWait(const Membership& membership, const std::string& name, const Barriers::Barrier& barrier) {
  Wait wait{.what = "barrier \"" + name + "\"", .missing = {}, .since = barrier.since};
  for (uint32_t rank = 0; rank < membership.world_size(); ++rank) {
    if (membership.IsJoined(rank) && !barrier.Has(rank)) wait.missing.push_back(rank);
  }
  return wait;
}

}  // namespace

std::string WaitText(const Membership& membership, const Wait& wait, Instant now) {
  return wait.what + " waits for " + membership.Names(wait.missing) + " (" + SecondsText(now - wait.since) +
         ")";
}

Wait StartWait(const Membership& membership, Instant since) {
  Wait wait{.what = "the start of the job", .missing = {}, .since = since};
  for (uint32_t rank = 0; rank < membership.world_size(); ++rank) {
    if (!membership.IsJoined(rank)) wait.missing.push_back(rank);
  }
  return wait;
}

std::string GaveUpText(const Membership& membership, const std::string& name, Barriers::Barrier barrier,
                       uint32_t rank, Instant now) {
  barrier.waiters.push_back({rank, 0});  // GiveUp has removed it; it counts as arrived
  return WaitText(membership, BarrierWait(membership, name, barrier), now);
}

std::vector<Wait> Waits::Of(const Membership& membership, const RoundEngine* engine, const Barriers& barriers,
                            Instant first_joined) {
  if (engine == nullptr) {
    if (membership.joined() == 0) return {};
    return {StartWait(membership, first_joined)};
  }
  std::vector<Wait> waits = engine->LongestWaits();
  if (const auto* fullest = barriers.Fullest()) {
    waits.push_back(BarrierWait(membership, fullest->first, fullest->second));
  }
  return waits;
}

std::string Waits::Say(std::vector<Wait> waits, const Membership& membership, Instant now,
                       ServerEvents* events) {
  std::string all;
  for (const Wait& wait : Due(std::move(waits), now)) {
    const std::string text = WaitText(membership, wait, now);
    if (events) events->OnWaiting(text, wait.missing);
    all += (all.empty() ? "" : "; ") + text;
  }
  return all;
}

std::vector<Wait> Waits::Due(std::vector<Wait> waits, Instant now) {
  const Instant looked = std::exchange(looked_, now);
  std::erase_if(waits, [looked, now](const Wait& wait) {
    const int64_t before = looked > wait.since ? (looked - wait.since) / kEvery : 0;
    return (now - wait.since) / kEvery <= before;
  });
  return waits;
}

}  // namespace longhaul::server
