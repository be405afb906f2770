#include "worker/site/rank_desk.h"

#include <algorithm>
#include <utility>

namespace longhaul::site {
namespace {

uint64_t Bit(uint8_t rank) { return uint64_t{1} << rank; }

SiteMessage OfKind(SiteKind kind) {
  SiteMessage message;
  message.kind = kind;
  return message;
}

}  // namespace

bool RankDesk::Hello(uint8_t rank, uint64_t session, Instant now) {
  if (rank >= ranks_) return false;
  Rank& r = rank_[rank];
  r.heard = now;
  if (r.session == session) return false;
  r = Rank();
  r.session = session;
  r.heard = now;
  here_ |= Bit(rank);
  complete_ |= missing_at_start() == 0;
  return true;
}

bool RankDesk::IsCurrent(const SiteMessage& message, Instant now) {
  if (message.rank >= ranks_ || rank_[message.rank].session != message.session) return false;
  Rank& r = rank_[message.rank];
  r.heard = now;
  if ((here_ & Bit(message.rank)) != 0) return true;
  if (message.kind == SiteKind::kTaken) {
    Reply(message.rank, message.seq, OfKind(SiteKind::kClosed));
  } else if (!r.gone.ok() || message.kind == SiteKind::kLeave) {
    SiteMessage end = OfKind(r.gone.ok() ? SiteKind::kEnd : SiteKind::kFailed);
    end.SetStatus(r.gone);
    Reply(message.rank, message.seq, end);
  }
  return false;
}

bool RankDesk::ExpectNoMore(uint8_t rank) {
  const bool waited = rank < ranks_ && (missing_at_start() & Bit(rank)) != 0;
  if (!waited) return false;
  expected_ &= ~Bit(rank);
  complete_ = missing_at_start() == 0;
  return true;
}

// Datagrams may overtake each other: what is new is in a gap, or beyond.
bool RankDesk::Note(Rank& rank, uint64_t seq) {
  if (seq <= rank.highest) return seq >= rank.open_from && rank.gaps.erase(seq) > 0;
  for (uint64_t s = std::max({rank.highest + 1, rank.open_from, seq - std::min<uint64_t>(seq, kMostOpen)});
       s < seq; ++s) {
    rank.gaps.insert(s);
  }
  rank.highest = seq;
  while (rank.gaps.size() > kMostOpen) rank.gaps.erase(rank.gaps.begin());
  return true;
}

bool RankDesk::Take(const SiteMessage& message) {
  Rank& r = rank_[message.rank];
  r.open_from = std::max(r.open_from, message.open_from);
  r.gaps.erase(r.gaps.begin(), r.gaps.lower_bound(r.open_from));
  const auto found = r.open.find(message.seq);
  if (found != r.open.end()) {
    Reply(message.rank, message.seq, found->second);
    return false;
  }
  if (r.open.size() >= kMostOpen) return false;  // it comes again
  if (!Note(r, message.seq)) {
    Reply(message.rank, message.seq, OfKind(SiteKind::kClosed));
    return false;
  }
  r.open[message.seq] = OfKind(SiteKind::kPending);
  Reply(message.rank, message.seq, r.open[message.seq]);
  return true;
}

bool RankDesk::Close(uint8_t rank, uint64_t seq) {
  const bool open = rank_[rank].open.erase(seq) > 0;
  if (!open) (void)Note(rank_[rank], seq);  // what comes of it later is late
  Reply(rank, seq, OfKind(SiteKind::kClosed));
  return open;
}

void RankDesk::Answer(uint8_t rank, uint64_t seq, SiteMessage answer) {
  const auto found = rank_[rank].open.find(seq);
  if (found == rank_[rank].open.end()) return;
  found->second = std::move(answer);
  Reply(rank, seq, found->second);
}

void RankDesk::SetMissing(uint8_t rank, uint64_t seq, uint64_t missing) {
  const auto found = rank_[rank].open.find(seq);
  if (found != rank_[rank].open.end() && found->second.kind == SiteKind::kPending)
    found->second.ranks = missing;
}

void RankDesk::End(uint8_t rank, uint64_t seq, const Status& outcome) {
  SiteMessage end = OfKind(SiteKind::kEnd);
  end.SetStatus(outcome);
  Answer(rank, seq, std::move(end));
}

void RankDesk::FailAll(const Status& why) {
  SiteMessage failed = OfKind(SiteKind::kFailed);
  failed.SetStatus(why);
  for (uint8_t rank = 0; rank < ranks_; ++rank) {
    if ((here_ & Bit(rank)) != 0) Tell(rank, failed);
    Remove(rank, why);
  }
}

void RankDesk::Remove(uint8_t rank, const Status& why) {
  if (rank >= ranks_) return;
  here_ &= ~Bit(rank);
  rank_[rank].gone = why;
  rank_[rank].open.clear();
}

uint64_t RankDesk::SilentSince(Instant then) const {
  uint64_t silent = 0;
  for (uint8_t rank = 0; rank < ranks_; ++rank) {
    if ((here_ & Bit(rank)) != 0 && rank_[rank].heard < then) silent |= Bit(rank);
  }
  return silent;
}

void RankDesk::ForgiveSilence(Instant now) {
  for (Rank& rank : rank_) rank.heard = now;
}

void RankDesk::Reply(uint8_t rank, uint64_t seq, SiteMessage message) {
  message.rank = rank;
  message.session = rank_[rank].session;
  message.seq = seq;
  send_(rank, message);
}

}  // namespace longhaul::site
