// What the engine makes of packets: whose they are, and whether they agree with their message.
#include "offload/engine/engine.h"

namespace longhaul::offload {
namespace {

bool CarriesData(PacketKind kind) { return kind == PacketKind::kPartial || kind == PacketKind::kResult; }

// In the place of the message's root; a result of a ring names who has made it.
bool NamesAnotherNode(const Header& h) {
  const bool ring_result = h.kind == PacketKind::kResult || h.kind == PacketKind::kAckResult;
  if ((h.nodes & BitOf(h.root)) == 0) return false;
  return h.kind == PacketKind::kRedirect || h.kind == PacketKind::kOwner ||
         (ring_result && h.opcode == Opcode::kAllReduce && (h.flags & Header::kTree) == 0);
}

WorkStatus AgreePacket(const Collective& what, const Packet& packet) {
  const Header& h = packet.header;
  if (h.length != what.length || h.seg_bytes != what.seg_bytes || h.sid >= what.segs) {
    return WorkStatus::kLengthMismatch;
  }
  const size_t payload = CarriesData(h.kind) ? what.LengthOf(h.sid) : 0;
  if (packet.payload.size() != payload) return WorkStatus::kLengthMismatch;
  const bool tree = (h.flags & Header::kTree) != 0;
  const uint8_t root = what.route == Route::kTree ? what.tree_root : what.root_node;
  const bool same = h.op == what.op && h.type == what.type && h.opcode == what.opcode &&
                    h.nodes == what.nodes && (h.flags & WorkRequest::kAllFlags) == what.flags &&
                    tree == (what.route == Route::kTree) && (h.root == root || NamesAnotherNode(h));
  return same && !what.local() ? WorkStatus::kSuccess : WorkStatus::kOpMismatch;
}

// With the ranks that the job has here: packets do not say which belong to the message.
Collective CollectiveOf(const Header& h, const EngineOptions& options, const JobConfig& job) {
  Collective what;
  what.opcode = h.opcode;
  what.op = h.op;
  what.type = h.type;
  what.route = (h.flags & Header::kTree) != 0 ? Route::kTree : Route::kRing;
  what.flags = h.flags & WorkRequest::kAllFlags;
  what.self = options.node;
  if (what.opcode == Opcode::kReduce || what.opcode == Opcode::kBroadcast) what.root_node = h.root;
  what.tree_root = h.root;
  what.jid = h.jid;
  what.mid = h.mid;
  what.generation = h.generation;
  what.seg_bytes = options.seg_bytes;
  what.length = h.length;
  what.nodes = h.nodes;
  what.reformed = (h.flags & Header::kReformed) != 0;
  what.ranks = job.ranks & options.ranks;
  what.root_rank = what.ranks == 0 ? uint8_t{0} : static_cast<uint8_t>(std::countr_zero(what.ranks));
  if (h.length <= options.max_message_bytes) {
    what.segs = static_cast<uint32_t>(SegCount(h.length, options.seg_bytes));
  }
  return what;
}

}  // namespace

Engine::Verdict Engine::HandlePacket(Instant now, ByteSpan datagram) {
  ParseError error;
  const auto packet = Parse(datagram, &error);
  if (!packet) {
    uint64_t& counter = error == ParseError::kForeign   ? stats_.foreign_packets
                        : error == ParseError::kDamaged ? stats_.damaged_packets
                                                        : stats_.packets_refused;
    ++counter;
    return Verdict::kOrdinary;
  }
  ++stats_.packets_received;
  const Header& h = packet->header;
  if (h.source >= kMaxNodes || h.source == options_.node || (options_.nodes & BitOf(h.source)) == 0) {
    ++stats_.packets_refused;
    return Verdict::kTaken;
  }
  liveness_.OnHeard(now, h.source);
  switch (h.kind) {
    case PacketKind::kProbe:
      liveness_.Answer(h.source);
      break;
    case PacketKind::kAlive:
      break;
    case PacketKind::kOrdinary:
      ordinary_.OnPacket(now, *packet);
      break;
    case PacketKind::kConfig:
      configuring_.OnPacket(*packet);
      break;
    case PacketKind::kAckConfig:
      configuring_.OnAck(now, h);
      break;
    default:
      OnMessagePacket(now, *packet);
  }
  return Verdict::kTaken;
}

void Engine::OnMessagePacket(Instant now, const Packet& packet) {
  const Header& h = packet.header;
  if ((h.nodes & BitOf(h.source)) == 0 || (h.nodes & BitOf(options_.node)) == 0) {
    ++stats_.packets_refused;
    return;
  }
  Operation* op = store_.Find(h.jid, h.mid);
  // An attempt that no rank here has joined, whose end was not heard of: an aggregator's above all.
  if (op != nullptr && op->joined == 0 && op->what.generation < h.generation && CarriesData(h.kind)) {
    messages_.End(now, *op, WorkStatus::kFlushed);
    op = nullptr;
  }
  if (op == nullptr) {
    const auto ended = store_.FindEnded(h.jid, h.mid);
    if (ended && h.generation <= ended->generation) return AnswerForEnded(h, *ended);
    op = BeginFromPacket(now, packet);
    if (op == nullptr) return;
  }
  if (op->what.generation != h.generation) {
    ++stats_.stale_generations;
    return;
  }
  if (h.kind == PacketKind::kAbort) return OnAbort(now, *op, h);
  if (op->what.nodes != h.nodes && TellsOfDeath(now, *op, h)) return;
  if (Agrees(op->what, packet)) execution_.OnPacket(now, *op, packet);
}

bool Engine::TellsOfDeath(Instant now, const Operation& op, const Header& h) {
  if (!CarriesData(h.kind)) return false;
  if ((h.flags & Header::kReformed) != 0 && (h.nodes & ~op.what.nodes) == 0) {
    NodesOut(now, op.what.nodes & ~h.nodes, h.jid);
    return true;
  }
  const bool knows_less = op.what.reformed && (h.nodes & store_.OutOf(h.jid)) != 0;
  if (knows_less) Abort(h.source, h, WorkStatus::kPeerDead);
  return knows_less;
}

bool Engine::Agrees(const Collective& what, const Packet& packet) {
  const WorkStatus status = AgreePacket(what, packet);
  if (status == WorkStatus::kSuccess) return true;
  ++stats_.mismatches;
  if (CarriesData(packet.header.kind)) Abort(packet.header.source, packet.header, status);
  return false;
}

// The ranks here will post their part later; until then what comes is held, in a bounded share of the pool.
Operation* Engine::BeginFromPacket(Instant now, const Packet& packet) {
  const Header& h = packet.header;
  const JobConfig* const job = store_.FindJob(h.jid);
  // Others tell a node that is late.
  const bool begins = CarriesData(h.kind) || h.kind == PacketKind::kClaim || h.kind == PacketKind::kGoneOn;
  if (job == nullptr || !begins || !IsCollective(h.opcode)) {
    ++stats_.packets_refused;
    return nullptr;
  }
  if (IsDeserted()) {
    if (CarriesData(h.kind)) Abort(h.source, h, WorkStatus::kPeerDead);
    return nullptr;
  }
  const Collective what = CollectiveOf(h, options_, *job);
  const bool aggregator = options_.ranks == 0;
  const bool root_here = what.route == Route::kTree && what.tree_root == options_.node;
  if (messages_.Check(what) != WorkStatus::kSuccess || what.local() ||
      (aggregator &&
       (!root_here || h.opcode != Opcode::kAllReduce || (h.nodes | store_.OutOf(h.jid)) != job->nodes))) {
    ++stats_.packets_refused;
    return nullptr;
  }
  if (!Agrees(what, packet)) return nullptr;
  const uint64_t served = aggregator ? SegCount(options_.max_message_bytes, options_.seg_bytes) : 0;
  if (orphans_.Refuses(now, h, *job) || !store_.MayBeginUnposted(what.segs, served)) {
    ++stats_.begins_refused;
    return nullptr;
  }
  Operation* const op = messages_.Begin(now, what);
  if (op == nullptr) {
    ++stats_.packets_refused;
    return nullptr;
  }
  if (what.reformed) NodesOut(now, job->nodes & ~h.nodes, h.jid);
  op->heard = now;
  messages_.ArmDeadline(*op, now + Orphans::Life(*job));
  if (aggregator) {
    op->posted = true;
    liveness_.Watch(now);
    for (uint32_t sid = 0; sid < what.segs; ++sid) op->SetReady(sid);
  }
  execution_.BeginFrom(now, *op, h);
  return op;
}

void Engine::AnswerForEnded(const Header& h, const ControlStore::Ended& ended) {
  if (h.generation != ended.generation) {
    ++stats_.stale_generations;
    return;
  }
  if (!CarriesData(h.kind)) return;
  if (!Ok(ended.status)) return Abort(h.source, h, ended.status);
  // It has everything; the answer to this one was lost.
  ++stats_.duplicates;
  Header answer = h;
  answer.kind = h.kind == PacketKind::kPartial ? PacketKind::kAckPartial : PacketKind::kAckResult;
  answer.source = options_.node;
  answer.ranks = 0;
  answer.participants = 0;
  answer.flags &= WorkRequest::kAllFlags | Header::kTree;
  if (!transfer_.QueueAnswer(h.source, answer)) ++stats_.answers_dropped;
}

void Engine::Abort(uint8_t target, Header header, WorkStatus status) {
  header.kind = PacketKind::kAbort;
  header.source = options_.node;
  header.status = status;
  header.contributors = 0;
  header.missing = header.late = 0;
  header.flags &= static_cast<uint8_t>(~Header::kReformed);
  if (status == WorkStatus::kPeerDead) {
    const uint64_t out = store_.OutOf(header.jid) | (IsDeserted() ? BitOf(options_.node) : 0);
    header.missing = static_cast<uint32_t>(out);
    header.nodes |= out;
    if (out != 0) header.flags |= Header::kReformed;
  }
  if (!transfer_.QueueAnswer(target, header)) ++stats_.answers_dropped;
}

void Engine::OnAbort(Instant now, Operation& op, const Header& h) {
  if (Ok(h.status) || (op.what.nodes & BitOf(h.source)) == 0) {
    ++stats_.packets_refused;
    return;
  }
  if (h.status == WorkStatus::kPeerDead) op.seen = op.what.nodes;  // the dead alone are to blame
  if (h.status == WorkStatus::kPeerDead || h.status == WorkStatus::kTimeout)
    op.missing_nodes |= h.missing != 0 ? h.missing : BitOf(h.source);  // a rank of the node that says so
  // The node that finds that two disagree sends an abort to one of them, which sends it to all.
  const bool disagreement = h.status == WorkStatus::kLengthMismatch || h.status == WorkStatus::kOpMismatch;
  if (disagreement) return Fail(now, op, h.status);
  messages_.End(now, op, h.status);
  if ((h.flags & Header::kReformed) != 0) NodesOut(now, h.missing, h.jid);
}

}  // namespace longhaul::offload
