#include "offload/engine/messages.h"

#include <algorithm>
#include <bit>

#include "base/check.h"
#include "offload/engine/buffer_compute.h"

namespace longhaul::offload {

Messages::Messages(const EngineOptions& options, ControlStore* store, SegPool* pool, DeadlineWheel* wheel,
                   OffloadStats* stats)
    : options_(options),
      store_(store),
      pool_(pool),
      wheel_(wheel),
      stats_(stats),
      queues_(kMaxRanks, CompletionQueue(0)) {
  for (uint8_t rank = 0; rank < kMaxRanks; ++rank) {
    if ((options.ranks & BitOf(rank)) != 0) queues_[rank] = CompletionQueue(options.queue_depth);
  }
}

Collective Messages::Describe(const WorkRequest& request) const {
  const JobConfig* const job = store_->FindJob(request.jid);
  LH_CHECK(job != nullptr);
  Collective what;
  what.opcode = request.opcode;
  what.op = request.op;
  what.type = request.type;
  what.route = job->route;
  what.flags = request.flags;
  what.self = options_.node;
  what.tree_root = job->root_node;
  what.jid = request.jid;
  what.mid = request.mid;
  what.generation = request.generation;
  what.seg_bytes = options_.seg_bytes;
  what.length = request.length;
  what.nodes = request.nodes != 0 ? request.nodes : job->nodes;
  what.ranks = request.ranks != 0 ? request.ranks : job->ranks & options_.ranks;
  if (request.opcode == Opcode::kReduce || request.opcode == Opcode::kBroadcast) {
    what.root_node = request.root_node;
    what.root_rank = request.root_rank;
  }
  if (request.length <= options_.max_message_bytes) {
    what.segs = static_cast<uint32_t>(SegCount(request.length, options_.seg_bytes));
  }
  return what;
}

WorkStatus Messages::Check(const Collective& what) const {
  const bool rooted = what.opcode == Opcode::kReduce || what.opcode == Opcode::kBroadcast;
  if ((what.ranks & ~options_.ranks) != 0) return WorkStatus::kBadRank;
  if (what.root_rank >= kMaxRanks) return WorkStatus::kBadRank;
  if (rooted && what.root_node == what.self && (what.ranks & BitOf(what.root_rank)) == 0) {
    return WorkStatus::kBadRank;
  }
  if ((what.nodes & BitOf(what.self)) == 0 || (what.nodes & ~options_.nodes) != 0)
    return WorkStatus::kBadNode;
  if (rooted && (what.root_node >= kMaxNodes || (what.nodes & BitOf(what.root_node)) == 0)) {
    return WorkStatus::kBadNode;
  }
  const bool tree = what.route == Route::kTree && !what.local();
  if (tree && (what.tree_root >= kMaxNodes || (what.nodes & BitOf(what.tree_root)) == 0)) {
    return WorkStatus::kBadNode;
  }
  // A tree's root is the only one that all of its nodes speak to.
  if (tree && rooted && what.root_node != what.tree_root) return WorkStatus::kBadNode;
  if (tree && what.opcode == Opcode::kReduceScatter) return WorkStatus::kBadNode;
  if (!BufferCompute::Supports(what.op, what.type)) return WorkStatus::kOpMismatch;
  if (what.segs == 0 || what.length % SizeOf(what.type) != 0) return WorkStatus::kLengthMismatch;
  return WorkStatus::kSuccess;
}

Operation* Messages::Begin(Instant now, const Collective& what) {
  Operation* const op = store_->Begin(what);
  if (op == nullptr) return nullptr;
  op->begun = op->start = now;
  op->deadline = Instant::Infinite();
  return op;
}

bool Messages::MakeScratch(Operation& op) {
  const uint64_t bytes = op.what.length;
  if (bytes > options_.scratch_bytes - scratch_in_use_) return false;
  op.scratch = ZeroedArray<std::byte>(bytes);
  scratch_in_use_ += bytes;
  op.message = op.scratch.data();
  return true;
}

WorkStatus Messages::EnterMemory(Operation& op, uint8_t rank, const WorkRequest& request) {
  const Collective& what = op.what;
  const bool root = what.root_node == what.self && what.root_rank == rank;
  const bool sends = what.opcode != Opcode::kBroadcast || root;
  const bool receives = what.opcode != Opcode::kReduce || root;
  Operation::RankMemory memory;
  memory.share = {0, what.length};
  if (what.opcode == Opcode::kReduceScatter) {
    memory.share = ShareOf(what.length, what.seg_bytes, what.GlobalIndexOf(rank), what.world());
  }
  if (sends) {
    const auto bytes = memory_.Find(rank, request.send, what.length);
    if (!bytes) return WorkStatus::kProtectionError;
    memory.send = bytes->data();
    memory.send_key = request.send.key;
  }
  if (receives) {
    const auto bytes = memory_.Find(rank, request.receive, memory.share.length);
    if (!bytes) return WorkStatus::kProtectionError;
    memory.receive = bytes->data();
    memory.receive_key = request.receive.key;
  }
  if ((op.joined & BitOf(rank)) != 0) {
    const Operation::RankMemory& before = op.ranks[rank];
    const bool same = before.send == memory.send && before.receive == memory.receive;
    return same ? WorkStatus::kSuccess : WorkStatus::kProtectionError;
  }
  if (!what.local() && op.message == nullptr) {
    const bool whole = receives && what.opcode != Opcode::kReduceScatter;
    const bool others =
        what.opcode == Opcode::kReduce && what.root_node == what.self;  // the root's will come
    if (whole) {
      op.message = memory.receive;
    } else if (!others && !MakeScratch(op)) {
      return WorkStatus::kBufferError;
    }
  }
  op.ranks[rank] = memory;
  op.joined |= BitOf(rank);
  memory_.Use(memory.send_key, true);
  memory_.Use(memory.receive_key, true);
  return WorkStatus::kSuccess;
}

WorkStatus Messages::Join(Instant now, Operation& op, uint8_t rank, const WorkRequest& request,
                          const JobConfig& job) {
  const uint32_t segs = op.what.segs;
  if (request.first_seg >= segs || request.seg_count > segs - request.first_seg) {
    return WorkStatus::kLengthMismatch;
  }
  if (const WorkStatus status = EnterMemory(op, rank, request); status != WorkStatus::kSuccess) return status;
  const uint32_t end = request.seg_count == 0 ? segs : request.first_seg + request.seg_count;
  Operation::Work work{request.wr_id, rank, request.first_seg, end, 0, now};
  const uint64_t bit = BitOf(rank);
  for (uint32_t sid = request.first_seg; sid < end; ++sid) {
    // Tested before it is cleared: a seg that is posted twice is added once.
    if ((op.missing[sid] & bit) == 0) {
      ++stats_->duplicates;
      continue;
    }
    op.missing[sid] &= ~bit;
    if ((op.missing[sid] & ~op.gone) == 0) op.SetReady(sid);
  }
  for (uint32_t sid = work.first; sid < end; ++sid) {
    work.left +=
        op.what.local() ? op.missing[sid] != 0 || op.IsReady(sid) : op.segs[sid].phase != Phase::kDone;
  }
  op.works.push_back(work);
  if (!op.posted) {
    op.posted = true;
    op.begun = now;  // a packet may have begun it earlier: deadlines count from the request
    const Duration own = std::min(request.deadline, kMostDeadline);
    const Duration limit = own > Duration(0) ? own : job.deadline;
    op.deadline = now + limit;
    ArmDeadline(op, op.deadline);
  }
  return WorkStatus::kSuccess;
}

uint64_t Messages::TimerOf(const Operation& op, uint32_t sid) { return uint64_t{op.slot} << 48 | sid; }

void Messages::ArmDeadline(Operation& op, Instant due) {
  wheel_->Cancel(op.timer);
  op.timer = wheel_->Add(due, TimerOf(op, kMessageTimer));
}

void Messages::OnSegsDone(Instant now, Operation& op, uint32_t first, uint32_t count) {
  op.done += count;
  stats_->segs_done += count;
  if (op.done == op.what.segs) {
    End(now, op, op.incomplete ? WorkStatus::kPartial : WorkStatus::kSuccess);
    return;
  }
  for (size_t i = 0; i < op.works.size();) {
    Operation::Work& work = op.works[i];
    const uint32_t from = std::max(first, work.first), to = std::min(first + count, work.end);
    if (from < to) work.left -= to - from;
    if (work.left > 0) {
      ++i;
      continue;
    }
    Completion completion = Progress(now, op, work.posted);
    completion.wr_id = work.wr_id;
    completion.status = op.incomplete ? WorkStatus::kPartial : WorkStatus::kSuccess;
    const uint8_t rank = work.rank;
    op.works.erase(op.works.begin() + static_cast<ptrdiff_t>(i));
    Complete(rank, completion);
  }
}

Completion Messages::Progress(Instant now, const Operation& op, Instant posted) const {
  Completion c;
  c.opcode = op.what.opcode;
  c.jid = op.what.jid;
  c.mid = op.what.mid;
  c.segs_done = op.done;
  c.segs_total = op.what.segs;
  c.bytes = std::min<uint64_t>(uint64_t{op.done} * op.what.seg_bytes, op.what.length);
  c.elapsed = now - posted;
  c.missing_ranks = op.gone & op.what.ranks;
  c.missing_nodes = op.missing_nodes;
  if (op.done == op.what.segs) return c;
  // Of what is not done: who has not come.
  for (uint32_t sid = op.lowest; sid < op.what.segs; ++sid) {
    if (!op.what.local() && op.segs[sid].phase == Phase::kDone) continue;
    c.missing_ranks |= op.missing[sid];
    if (op.missing[sid] != 0 || !op.what.local()) break;
  }
  const bool broadcast = op.what.opcode == Opcode::kBroadcast;
  const uint64_t contributing = broadcast ? BitOf(op.what.root_node) : op.what.nodes;
  c.missing_nodes |= contributing & ~op.seen & ~BitOf(op.what.self);
  return c;
}

void Messages::End(Instant now, Operation& op, WorkStatus status) {
  for (const Operation::Work& work : op.works) {
    Completion completion = Progress(now, op, work.posted);
    completion.wr_id = work.wr_id;
    completion.status = status;
    completion.reason = Ok(status) ? Reason::kDone : Reason::kException;
    Complete(work.rank, completion);
  }
  ++(Ok(status) ? stats_->messages_done : stats_->messages_failed);
  GiveBack(op);
  store_->End(op, status);
}

void Messages::Flush(Instant now, Operation& op, uint8_t rank) {
  for (const Operation::Work& work : op.works) {
    if (work.rank != rank) continue;
    Completion completion = Progress(now, op, work.posted);
    completion.wr_id = work.wr_id;
    completion.status = WorkStatus::kFlushed;
    completion.reason = Reason::kException;
    Complete(rank, completion);
  }
  std::erase_if(op.works, [rank](const Operation::Work& work) { return work.rank == rank; });
}

void Messages::Discard(Operation& op) {
  GiveBack(op);
  store_->End(op, std::nullopt);
}

void Messages::GiveBack(Operation& op) {
  for (uint64_t rest = op.joined; rest != 0; rest &= rest - 1) {
    const Operation::RankMemory& memory = op.ranks[std::countr_zero(rest)];
    memory_.Use(memory.send_key, false);
    memory_.Use(memory.receive_key, false);
  }
  for (Seg& seg : op.segs) wheel_->Cancel(seg.timer);
  wheel_->Cancel(op.timer);
  pool_->ReleaseAllOf(op.slot);
  scratch_in_use_ -= op.scratch.size();
}

void Messages::Complete(uint8_t rank, Completion completion) {
  ++stats_->completions;
  stats_->exceptions += completion.reason == Reason::kException;
  queues_[rank].Push(completion);
}

}  // namespace longhaul::offload
