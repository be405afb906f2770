#include "server/job/successions.h"

#include <algorithm>

namespace longhaul::server {

void Successions::Begin(Peer& newcomer, const control::Join& join, Peer& holder, Instant now) {
  const Instant listen_from = now + std::max(kDrain, holder.rtt());
  claims_.push_back({.newcomer = &newcomer,
                     .join = join,
                     .holder = &holder,
                     .holder_since = holder.since,
                     .asked = now,
                     .listen_from = listen_from,
                     .decide_at = listen_from + std::min(kMost, kSilence + 4 * holder.rtt())});
  next_ = std::min(next_, listen_from);
}

bool Successions::IsWaiting(const Peer& peer) const {
  return std::ranges::count(claims_, &peer, &Claim::newcomer) > 0;
}

std::optional<Successions::Verdict> Successions::HolderGone(const Peer& holder, Instant now) {
  const auto claim = std::ranges::find(claims_, &holder, &Claim::holder);
  if (claim == claims_.end()) return std::nullopt;
  const Verdict verdict{claim->newcomer, claim->join, Answer::kSilent, now - claim->asked};
  claims_.erase(claim);
  return verdict;
}

void Successions::Forget(const Peer& peer) {
  std::erase_if(claims_, [&peer](const Claim& claim) { return claim.newcomer == &peer; });
}

// True: `answer` is the answer.
bool Successions::Judge(const std::vector<Peer*>& by_rank, Instant now, Claim& claim, Answer* answer) const {
  Peer* holder = by_rank[claim.join.rank()];
  if (holder != claim.holder || holder->since != claim.holder_since) {
    *answer = Answer::kChanged;
    return true;
  }
  if (now < claim.listen_from) return false;
  const uint64_t packets = holder->connection->stats().packets_received;
  if (!claim.listening) claim.packets = packets;
  claim.listening = true;
  *answer = packets > claim.packets ? Answer::kLives : Answer::kSilent;
  if (*answer == Answer::kLives || now >= claim.decide_at) return true;
  holder->connection->Probe();
  return false;
}

std::optional<Successions::Verdict> Successions::Decide(const std::vector<Peer*>& by_rank, Instant now) {
  if (now < next_) return std::nullopt;
  for (auto claim = claims_.begin(); claim != claims_.end(); ++claim) {
    Answer answer{};
    if (!Judge(by_rank, now, *claim, &answer)) continue;
    const Verdict verdict{claim->newcomer, claim->join, answer, now - claim->asked};
    claims_.erase(claim);
    return verdict;
  }
  next_ = claims_.empty() ? Instant::Infinite() : now + kEvery;
  return std::nullopt;
}

}  // namespace longhaul::server
