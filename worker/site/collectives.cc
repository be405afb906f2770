#include "worker/site/collectives.h"

#include <utility>

#include "worker/site/site_clock.h"

namespace longhaul::site {

void Collectives::Queue(std::function<void()> begin) {
  queue_.push_back(std::move(begin));
  RunQueue();
}

void Collectives::RunQueue() {
  while (!queue_.empty() && under_way_.size() < kMostCollectives) {
    const std::function<void()> begin = std::move(queue_.front());
    queue_.pop_front();
    begin();
  }
}

uint64_t Collectives::SlotsOf(uint64_t ranks, uint8_t node) const {
  return shape_.SlotsOf(ranks, node) | (node == own_.node ? uint64_t{1} << own_.slot : 0);
}

uint32_t Collectives::Begin(const What& what, OnDone on_done) {
  offload::WorkRequest request;
  request.wr_id = request.mid = next_++;
  request.opcode = what.opcode;
  request.jid = job_;
  request.root_node = what.root.node;
  request.root_rank = what.root.slot;
  request.nodes = NodesOf(what.ranks);
  request.ranks = SlotsOf(what.ranks, own_.node);
  request.length = what.length;
  request.send = what.send;
  request.receive = what.receive;
  request.deadline = deadline_;
  under_way_[request.mid] = {what.ranks, std::move(on_done), std::nullopt};
  // Where the device has ended, Mailbox::Poll says so, and with it everything ends.
  (void)mailbox_.Post(request);
  return request.mid;
}

void Collectives::OnCompletion(const offload::Completion& completion) {
  if (completion.jid != job_ || completion.opcode == offload::Opcode::kCancel) return;
  const auto found = under_way_.find(static_cast<uint32_t>(completion.wr_id));
  if (found == under_way_.end()) return;
  const UnderWay what = std::move(found->second);
  under_way_.erase(found);
  offload::Completion ended = completion;
  if (ended.status == offload::WorkStatus::kCancelled) ended.status = what.refused.value_or(ended.status);
  what.on_done(ended);
  RunQueue();
}

bool Collectives::OnRefused(uint8_t rank, uint32_t mid, offload::WorkStatus why) {
  const auto found = under_way_.find(mid);
  if (found == under_way_.end() || (found->second.ranks >> rank & 1) == 0 || !IsRefusal(why)) return false;
  if (std::exchange(found->second.refused, why)) return false;
  (void)mailbox_.device().Cancel(job_, mid);
  return true;
}

void Collectives::EndAll() {
  queue_.clear();
  Cancel(~uint64_t{0});
  const Instant most = Now() + std::chrono::seconds(1);  // a daemon that works takes microseconds
  const auto ignore = [](const SiteMessage&) {};
  const auto take = [this](const offload::Completion& c) {
    if (c.jid == job_ && c.opcode != offload::Opcode::kCancel)
      under_way_.erase(static_cast<uint32_t>(c.wr_id));
  };
  while (!under_way_.empty() && Now() < most && mailbox_.Poll([] {}, ignore, take)) {
    mailbox_.Wait(std::chrono::milliseconds(1));
  }
}

void Collectives::Cancel(uint64_t ranks) {
  for (const auto& [mid, what] : under_way_) {
    if ((what.ranks & ranks) != 0) (void)mailbox_.device().Cancel(job_, mid);
  }
}

}  // namespace longhaul::site
