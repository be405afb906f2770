#include "offload/engine/control_store.h"

#include <algorithm>
#include <bit>

#include "base/check.h"

namespace longhaul::offload {
namespace {

uint64_t KeyOf(uint16_t jid, uint32_t mid) { return uint64_t{jid} << 32 | mid; }

}  // namespace

ControlStore::Job* ControlStore::JobOf(uint16_t jid) {
  for (Job& job : jobs_) {
    if (job.used && job.jid == jid) return &job;
  }
  return nullptr;
}

const JobConfig* ControlStore::FindJob(uint16_t jid) const {
  const Job* const job = JobOf(jid);
  return job == nullptr ? nullptr : &job->config;
}

ControlStore::RingMemory* ControlStore::FindRing(uint16_t jid) {
  Job* const job = JobOf(jid);
  return job == nullptr ? nullptr : &job->ring;
}

uint64_t ControlStore::OutOf(uint16_t jid) const {
  const Job* const job = JobOf(jid);
  return job == nullptr ? 0 : job->out;
}

uint64_t ControlStore::PutOut(uint64_t nodes, std::optional<uint16_t> jid) {
  uint64_t fresh = 0;
  for (Job& job : jobs_) {
    if (!job.used || (jid && job.jid != *jid)) continue;
    fresh |= nodes & job.config.nodes & ~job.out;
    job.out |= nodes & job.config.nodes;
  }
  return fresh;
}

bool ControlStore::Configure(uint16_t jid, const JobConfig& config) {
  Job* job = JobOf(jid);
  if (job == nullptr) {
    // A free one, or the one that has been idle for longest.
    for (Job& other : jobs_) {
      if (other.used && other.messages > 0) continue;
      if (job == nullptr || (job->used && (!other.used || other.last_use < job->last_use))) job = &other;
    }
    if (job == nullptr) return false;
    *job = Job();
    job->used = true;
    job->jid = jid;
    job->ended.resize(kRemembered);
  }
  if (job->config.nodes != config.nodes && job->messages == 0) job->ring = RingMemory();
  job->config = config;
  job->out = 0;
  job->config.skip_after = std::min(config.skip_after, kMostDeadline);
  job->config.deadline = std::min(config.deadline, kMostDeadline);
  job->ring.deadlines.SetWait(config.policy == StragglerPolicy::kSeedSkip ? job->config.skip_after
                                                                          : Duration(0));
  job->last_use = ++uses_;
  return true;
}

bool ControlStore::ConfigureFrom(uint8_t source, uint64_t number, uint16_t jid, const JobConfig& config) {
  const Job* const known = JobOf(jid);
  if (known != nullptr && number <= known->numbers[source]) return true;
  if (!Configure(jid, config)) return false;
  JobOf(jid)->numbers[source] = number;
  return true;
}

uint64_t ControlStore::Awaited() const {
  uint64_t nodes = 0;
  for (uint64_t rest = live_; rest != 0; rest &= rest - 1) {
    const Operation& op = *slots_[std::countr_zero(rest)];
    if (op.posted && !op.what.local()) nodes |= op.what.nodes;
  }
  return nodes;
}

Operation* ControlStore::Find(uint16_t jid, uint32_t mid) {
  const uint64_t key = KeyOf(jid, mid);
  for (uint64_t rest = live_; rest != 0; rest &= rest - 1) {
    const int slot = std::countr_zero(rest);
    if (keys_[slot] == key) return slots_[slot].get();
  }
  return nullptr;
}

Operation* ControlStore::Begin(const Collective& what) {
  Job* const job = JobOf(what.jid);
  LH_CHECK(job != nullptr);
  if (~live_ == 0) return nullptr;
  const auto slot = static_cast<uint16_t>(std::countr_one(live_));
  if (slots_[slot] == nullptr) slots_[slot] = std::make_unique<Operation>();
  Operation& op = *slots_[slot];
  const uint32_t epoch = op.epoch + 1;
  // The tables keep their memory for the next message of this slot.
  auto missing = std::move(op.missing);
  auto ready = std::move(op.ready);
  auto segs = std::move(op.segs);
  auto works = std::move(op.works);
  auto places = std::move(op.places);
  op = Operation();
  op.what = what;
  op.slot = slot;
  op.epoch = epoch;
  op.live = true;
  works.clear();
  missing.assign(what.segs, what.ranks);
  ready.assign((what.segs + 63) / 64, 0);
  segs.assign(what.local() ? 0 : what.segs, Seg());
  op.missing = std::move(missing);
  op.ready = std::move(ready);
  op.segs = std::move(segs);
  op.works = std::move(works);
  places.clear();
  op.places = std::move(places);
  keys_[slot] = KeyOf(what.jid, what.mid);
  live_ |= uint64_t{1} << slot;
  ++job->messages;
  job->last_use = ++uses_;
  return &op;
}

bool ControlStore::MayBeginUnposted(uint64_t segs, uint64_t always) const {
  uint32_t messages = 1;
  for (uint64_t rest = live_; rest != 0; rest &= rest - 1) {
    const Operation& op = *slots_[std::countr_zero(rest)];
    if (op.joined != 0) continue;
    segs += op.what.segs;
    ++messages;
  }
  constexpr uint64_t kBytesOfSeg = sizeof(Seg) + sizeof(Operation::missing[0]);
  return messages <= kUnpostedMessages && segs <= std::max(always, kUnpostedBytes / kBytesOfSeg);
}

void ControlStore::End(Operation& op, std::optional<WorkStatus> status) {
  Job* const job = JobOf(op.what.jid);
  LH_CHECK(job != nullptr && op.live);
  op.live = false;
  op.scratch = {};
  live_ &= ~(uint64_t{1} << op.slot);
  --job->messages;
  // Late in a quarter of all segs, since others have owners or beginners that are not waited for.
  Contributors late = 0;
  for (uint32_t node = 0; node < kMaxNodes; ++node) {
    if (op.late_segs[node] > 0 && uint64_t{op.late_segs[node]} * 4 >= op.what.segs) late |= Bit(node);
  }
  if (status && Ok(*status) && op.Demotes()) {
    job->ring.demotion.OnRound(static_cast<Contributors>(op.what.nodes), late);
  }
  if (op.what.segs > kKeptSegs) {
    op.missing = std::vector<uint64_t>();
    op.ready = std::vector<uint64_t>();
    op.segs = std::vector<Seg>();
  }
  const uint32_t mid = op.what.mid;
  if (!status || job->IsTooOld(mid)) return;
  job->ended[mid % kRemembered] = {mid, op.what.generation, *status, true};
  if (!job->any_ended || static_cast<int32_t>(mid - job->newest) > 0) job->newest = mid;
  job->any_ended = true;
}

std::optional<ControlStore::Ended> ControlStore::FindEnded(uint16_t jid, uint32_t mid) const {
  const Job* const job = JobOf(jid);
  if (job == nullptr || !job->any_ended) return std::nullopt;
  const Ended& ended = job->ended[mid % kRemembered];
  if (ended.valid && ended.mid == mid) return ended;
  if (job->IsTooOld(mid)) return Ended{mid, UINT32_MAX, WorkStatus::kFlushed, true};
  return std::nullopt;
}

}  // namespace longhaul::offload
