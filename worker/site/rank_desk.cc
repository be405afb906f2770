#include "worker/site/rank_desk.h"

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
  complete_ |= here_ == All();
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

bool RankDesk::Take(const SiteMessage& message) {
  Rank& r = rank_[message.rank];
  const auto found = r.open.find(message.seq);
  if (found != r.open.end()) {
    Reply(message.rank, message.seq, found->second);
    return false;
  }
  if (message.seq <= r.highest) {
    Reply(message.rank, message.seq, OfKind(SiteKind::kClosed));
    return false;
  }
  if (r.open.size() >= kMostOpen) return false;  // it comes again
  r.highest = message.seq;
  r.open[message.seq] = OfKind(SiteKind::kPending);
  Reply(message.rank, message.seq, r.open[message.seq]);
  return true;
}

bool RankDesk::Close(uint8_t rank, uint64_t seq) {
  const bool open = rank_[rank].open.erase(seq) > 0;
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

void RankDesk::Reply(uint8_t rank, uint64_t seq, SiteMessage message) {
  message.rank = rank;
  message.session = rank_[rank].session;
  message.seq = seq;
  send_(rank, message);
}

}  // namespace longhaul::site
