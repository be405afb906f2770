#include "worker/site/site_requests.h"

#include <algorithm>
#include <utility>

namespace longhaul::site {

bool SiteRequests::Send(SiteMessage message) {
  message.rank = rank_;
  message.session = session_;
  return mailbox_.Send(relay_, message);
}

Request& SiteRequests::Add(Request request) {
  const uint64_t seq = next_seq_++;
  request.message.seq = seq;
  return requests_[seq] = std::move(request);
}

Request* SiteRequests::Find(uint64_t seq) {
  const auto found = requests_.find(seq);
  return found == requests_.end() ? nullptr : &found->second;
}

void SiteRequests::Close(uint64_t seq) {
  const auto found = requests_.find(seq);
  if (found == requests_.end()) return;
  OnAnswered(found->second);
  requests_.erase(found);
}

bool SiteRequests::Say(Instant now, Request& request) {
  request.next = now;
  if (!request.unanswered && unanswered_ >= mailbox_.window()) return false;
  if (!Send(request.message)) return false;
  unanswered_ += !request.unanswered;
  request.unanswered = true;
  request.next = now + request.repeat;
  request.repeat = std::min(request.repeat * 2, Request::kLongestRepeat);
  return true;
}

void SiteRequests::OnAnswered(Request& request) {
  unanswered_ -= request.unanswered;
  request.unanswered = false;
}

void SiteRequests::End(Instant now, Request& request) {
  request.ended = true;
  request.missing = 0;
  request.repeat = Request::kFirstRepeat;
  const uint64_t seq = request.message.seq;
  request.message = {};
  request.message.kind = SiteKind::kTaken;
  request.message.seq = seq;
  (void)Say(now, request);
}

void SiteRequests::Repeat(Instant now) {
  for (auto& [seq, request] : requests_) {
    // Where there is no room, those that wait for it come first next time.
    if (now >= request.next && !Say(now, request)) break;
  }
}

Instant SiteRequests::NextDue() const {
  Instant next = Instant::Infinite();
  for (const auto& [seq, request] : requests_) next = std::min(next, request.next);
  return next;
}

std::vector<uint64_t> SiteRequests::Late(Instant now, Duration limit) const {
  std::vector<uint64_t> late;
  for (const auto& [seq, request] : requests_) {
    if (request.missing != 0 && now - request.since > limit) late.push_back(seq);
  }
  return late;
}

void SiteRequests::Clear(const std::function<void(Request&)>& each) {
  for (auto& [seq, request] : requests_) each(request);
  requests_.clear();
  unanswered_ = 0;
}

}  // namespace longhaul::site
