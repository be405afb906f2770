#include "transport/core/path/path_manager.h"

#include <algorithm>

#include "base/reached.h"

namespace longhaul::transport {
namespace {

// The first repetition after one interval, the others two apart, and four more for the last answer to come.
constexpr int kWaitInIntervals = 1 + 2 * (PathManager::kMaxChallenges - 2) + 4;

}  // namespace

const PathManager::Candidate* PathManager::Find(const Address& address) const {
  const auto it = std::ranges::find(candidates_, address, &Candidate::address);
  return it == candidates_.end() ? nullptr : &*it;
}

PathManager::Candidate* PathManager::Find(const Address& address) {
  const auto it = std::ranges::find(candidates_, address, &Candidate::address);
  return it == candidates_.end() ? nullptr : &*it;
}

bool PathManager::IsValidated(const Address& address) const {
  const Candidate* candidate = Find(address);
  return candidate != nullptr && candidate->validated;
}

void PathManager::OnCandidate(Instant now, const Address& from, int64_t bytes, Duration pto) {
  Candidate* candidate = Find(from);
  if (candidate == nullptr) {
    if (candidates_.size() >= kMaxCandidates) {
      LH_REACHED("a candidate too many");
      ++counters_.refused;
      return;
    }
    LH_REACHED("an address becomes a candidate");
    ++counters_.candidates;
    candidate = &candidates_.emplace_back();
    candidate->address = from;
    candidate->interval = pto;
    candidate->next_challenge = now;
    candidate->expires = now + pto * kWaitInIntervals;
  }
  candidate->received += bytes;
}

void PathManager::OnResponse(const Address& from, uint64_t data) {
  Candidate* candidate = Find(from);
  if (candidate == nullptr || candidate->validated) return;
  if (std::ranges::find(candidate->asked, data) == candidate->asked.end()) return;
  candidate->validated = true;
  LH_REACHED("a candidate has answered its challenge");
  ++counters_.validated;
}

void PathManager::OnMigrated(const Address& to) {
  std::erase_if(candidates_, [&](const Candidate& c) { return c.address == to; });
}

bool PathManager::WantsChallenge(const Candidate& candidate) {
  return !candidate.validated && candidate.asked.size() < kMaxChallenges &&
         Room(candidate) >= kMinChallengeBytes;
}

std::optional<PathManager::Challenge> PathManager::NextChallenge(Instant now) {
  for (Candidate& candidate : candidates_) {
    if (!WantsChallenge(candidate) || now < candidate.next_challenge) continue;
    const Challenge challenge{candidate.address, security_->Unpredictable(random_.Next()),
                              std::min(kChallengeBytes, Room(candidate))};
    candidate.asked.push_back(challenge.data);
    candidate.sent += challenge.bytes;
    candidate.next_challenge = now + candidate.interval * (candidate.asked.size() == 1 ? 1 : 2);
    ++counters_.challenges;
    return challenge;
  }
  return std::nullopt;
}

void PathManager::OnTimeout(Instant now) {
  std::erase_if(candidates_, [&](const Candidate& candidate) {
    if (now < candidate.expires) return false;
    if (!candidate.validated) ++counters_.timed_out;
    return true;
  });
}

Instant PathManager::Deadline() const {
  Instant next = Instant::Infinite();
  for (const Candidate& candidate : candidates_) {
    next = std::min(next, candidate.expires);
    if (WantsChallenge(candidate)) next = std::min(next, candidate.next_challenge);
  }
  return next;
}

}  // namespace longhaul::transport
