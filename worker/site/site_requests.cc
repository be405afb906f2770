#include "worker/site/site_requests.h"

#include <algorithm>
#include <utility>

namespace longhaul::site {

void SiteRequests::Sign(SiteMessage* message) const {
  message->rank = shape_.IndexOf(own_);
  message->session = session_;
  message->leader = leader_;
  message->open_from = requests_.empty() ? next_seq_ : requests_.begin()->first;
}

bool SiteRequests::Send(SiteMessage message) {
  Sign(&message);
  return mailbox_.Send(relay(), message);
}

bool SiteRequests::SendToOwnNode(SiteMessage message) {
  Sign(&message);
  return mailbox_.Send({own_.node, shape_.relay_slot()}, message);
}

void SiteRequests::SetLeader(uint64_t leader) {
  paused_ = leader_ != 0;
  leader_ = leader;
  unanswered_ = 0;
  for (auto& [seq, request] : requests_) {
    request.unanswered = false;
    request.repeat = Request::kFirstRepeat;
    request.next = Instant();
  }
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
  if (paused_ || request.held) return true;
  if (!request.unanswered && unanswered_ >= mailbox_.window()) return false;
  if (!Send(request.message)) return false;
  request.asked = true;
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
  request.held = false;
  request.missing = 0;
  request.repeat = Request::kFirstRepeat;
  const uint64_t seq = request.message.seq;
  request.message = {};
  request.message.kind = SiteKind::kTaken;
  request.message.seq = seq;
  (void)Say(now, request);
}

void SiteRequests::Repeat(Instant now) {
  if (paused_) return;
  for (auto& [seq, request] : requests_) {
    // Where there is no room, those that wait for it come first next time.
    if (request.held || now < request.next) continue;
    if (!Say(now, request)) break;
  }
}

Instant SiteRequests::NextDue() const {
  Instant next = Instant::Infinite();
  for (const auto& [seq, request] : requests_) {
    if (!paused_ && !request.held) next = std::min(next, request.next);
  }
  return next;
}

std::vector<uint64_t> SiteRequests::Late(Instant now, Duration limit) const {
  std::vector<uint64_t> late;
  for (const auto& [seq, request] : requests_) {
    if (request.missing != 0 && now - request.since > limit) late.push_back(seq);
  }
  return late;
}

void SiteRequests::ForEach(const std::function<void(Request&)>& what) {
  for (auto& [seq, request] : requests_) what(request);
}

void SiteRequests::Clear(const std::function<void(Request&)>& each) {
  for (auto& [seq, request] : requests_) each(request);
  requests_.clear();
  unanswered_ = 0;
}

}  // namespace longhaul::site
