#include "worker/site/site_requests.h"

#include <algorithm>
#include <utility>

namespace longhaul::site {
namespace {

// Messages that are over here keep their room until other nodes have acknowledged it. One that is lost is
// said again within 0.25 s at most (offload/engine); this is four of them.
constexpr Duration kRoomComes = std::chrono::seconds(1);

}  // namespace

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
  const uint64_t before = std::exchange(leader_, leader);
  paused_ = before != 0;
  unanswered_ = 0;
  for (auto& [seq, request] : requests_) {
    // They would hold room of the device until their deadline.
    if (request.mid != 0) (void)mailbox_.device().Cancel(JobOfLeader(before), request.mid);
    request.mid = 0;
    request.full = Instant::Infinite();
    request.refused.reset();
    request.missing = 0;
    if (request.message.kind == SiteKind::kBarrier && request.asked) request.message.value = 1;
    request.held |= request.tensor != kNoTensor && !request.ended;
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
  if (request.refused) (void)Send(*request.refused);
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

void SiteRequests::Join(Request& request, const SiteMessage& begun, const Collective& what,
                        Duration deadline) {
  if (!request.IsNews(begun.mid)) return;
  const uint32_t before = std::exchange(request.mid, begun.mid);
  offload::WorkRequest work;
  work.wr_id = request.message.seq;
  work.opcode = what.opcode;
  work.root_node = what.root.node;
  work.root_rank = what.root.slot;
  work.jid = JobOfLeader(leader_);
  work.mid = begun.mid;
  work.nodes = begun.value;
  work.ranks = begun.ranks;
  work.length = what.length;
  work.send = what.send;
  work.receive = what.receive;
  work.deadline = deadline;
  if (!mailbox_.Post(work).ok()) request.mid = before;  // when it is said again
}

Request* SiteRequests::OnCompletion(Instant now, const offload::Completion& completion) {
  if (completion.jid != JobOfLeader(leader_) || completion.opcode == offload::Opcode::kCancel) return nullptr;
  Request* const request = Find(completion.wr_id);
  if (request == nullptr || request->ended) return nullptr;
  if (completion.status == offload::WorkStatus::kSuccess) return request;
  if (!IsRefusal(completion.status)) return nullptr;
  request->mid = 0;  // tried again when it is said again
  const bool full = completion.status == offload::WorkStatus::kBufferError ||
                    completion.status == offload::WorkStatus::kOverflow;
  request->full = std::min(request->full, now);
  if (full && now - request->full < kRoomComes) return nullptr;
  SiteMessage& refused = request->refused.emplace();
  refused.kind = SiteKind::kRefused;
  refused.seq = request->message.seq;
  refused.mid = completion.mid;
  refused.value = static_cast<uint64_t>(completion.status);
  (void)Say(now, *request);
  return nullptr;
}

void SiteRequests::End(Instant now, Request& request) {
  request.ended = true;
  request.held = false;
  request.refused.reset();
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

void SiteRequests::Clear(const std::function<void(Request&)>& each) {
  for (auto& [seq, request] : requests_) each(request);
  requests_.clear();
  unanswered_ = 0;
}

}  // namespace longhaul::site
