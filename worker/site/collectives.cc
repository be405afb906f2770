#include "worker/site/collectives.h"

#include <utility>

#include "worker/site/site_clock.h"

namespace longhaul::site {

void Collectives::Queue(std::function<void()> begin) {
  queue_.push_back(std::move(begin));
  RunQueue();
}

void Collectives::RunQueue() {
  while (!queue_.empty() && under_way_.size() < kMost) {
    const std::function<void()> begin = std::move(queue_.front());
    queue_.pop_front();
    begin();
  }
}

uint32_t Collectives::Begin(const What& what, OnDone on_done) {
  offload::WorkRequest request;
  request.wr_id = request.mid = next_++;
  request.opcode = what.opcode;
  request.jid = kSiteJob;
  request.root_rank = what.root;
  request.ranks = WithOwn(what.ranks);
  request.length = what.length;
  request.send = what.send;
  request.receive = what.receive;
  request.deadline = deadline_;
  under_way_[request.mid] = std::move(on_done);
  // Where the device has ended, Mailbox::Poll says so, and with it everything ends.
  (void)mailbox_.Post(request);
  return request.mid;
}

void Collectives::OnCompletion(const offload::Completion& completion) {
  const auto found = under_way_.find(static_cast<uint32_t>(completion.wr_id));
  if (found == under_way_.end()) return;
  const OnDone on_done = std::move(found->second);
  under_way_.erase(found);
  on_done(completion);
  RunQueue();
}

}  // namespace longhaul::site
