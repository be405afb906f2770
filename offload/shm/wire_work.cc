#include "offload/shm/wire_work.h"

#include "offload/engine/collective.h"

namespace longhaul::offload {

WireRequest Encode(const WorkRequest& request, uint64_t token) {
  WireRequest wire;
  wire.token = token;
  wire.opcode = static_cast<uint8_t>(request.opcode);
  wire.op = static_cast<uint8_t>(request.op);
  wire.type = static_cast<uint8_t>(request.type);
  wire.flags = request.flags;
  wire.root_node = request.root_node;
  wire.root_rank = request.root_rank;
  wire.jid = request.jid;
  wire.mid = request.mid;
  wire.generation = request.generation;
  wire.first_seg = request.first_seg;
  wire.seg_count = request.seg_count;
  wire.nodes = request.nodes;
  wire.ranks = request.ranks;
  wire.length = request.length;
  wire.send_key = request.send.key;
  wire.send_offset = request.send.offset;
  wire.receive_key = request.receive.key;
  wire.receive_offset = request.receive.offset;
  wire.deadline_ns = request.deadline.count();
  if (request.opcode != Opcode::kConfig) return wire;
  const JobConfig& config = *request.config;
  wire.nodes = config.nodes;
  wire.ranks = config.ranks;
  wire.deadline_ns = config.deadline.count();
  wire.skip_after_ns = config.skip_after.count();
  wire.job_route = static_cast<uint8_t>(config.route);
  wire.job_root_node = config.root_node;
  wire.job_policy = static_cast<uint8_t>(config.policy);
  return wire;
}

bool Decode(const WireRequest& wire, DecodedRequest* out) {
  WorkRequest& request = out->request;
  request.wr_id = wire.token;
  request.opcode = static_cast<Opcode>(wire.opcode);
  request.op = static_cast<ReduceOp>(wire.op);
  request.type = static_cast<DataType>(wire.type);
  request.flags = wire.flags;
  request.root_node = wire.root_node;
  request.root_rank = wire.root_rank;
  request.jid = wire.jid;
  request.mid = wire.mid;
  request.generation = wire.generation;
  request.first_seg = wire.first_seg;
  request.seg_count = wire.seg_count;
  request.nodes = wire.nodes;
  request.ranks = wire.ranks;
  request.length = wire.length;
  request.send = {wire.send_key, wire.send_offset};
  request.receive = {wire.receive_key, wire.receive_offset};
  request.deadline = Duration(wire.deadline_ns);
  if (request.opcode != Opcode::kConfig) return CheckRequest(request).ok();
  JobConfig& config = out->config;
  config.nodes = wire.nodes;
  config.ranks = wire.ranks;
  config.deadline = Duration(wire.deadline_ns);
  config.skip_after = Duration(wire.skip_after_ns);
  config.route = static_cast<Route>(wire.job_route);
  config.root_node = wire.job_root_node;
  config.policy = static_cast<StragglerPolicy>(wire.job_policy);
  request.config = &config;
  return CheckRequest(request).ok();
}

WireCompletion Encode(const Completion& completion) {
  WireCompletion wire;
  wire.token = completion.wr_id;
  wire.status = static_cast<uint8_t>(completion.status);
  wire.reason = static_cast<uint8_t>(completion.reason);
  wire.opcode = static_cast<uint8_t>(completion.opcode);
  wire.jid = completion.jid;
  wire.mid = completion.mid;
  wire.segs_done = completion.segs_done;
  wire.segs_total = completion.segs_total;
  wire.missing_ranks = completion.missing_ranks;
  wire.missing_nodes = completion.missing_nodes;
  wire.bytes = completion.bytes;
  wire.source_node = completion.source_node;
  wire.source_rank = completion.source_rank;
  wire.elapsed_ns = completion.elapsed.count();
  return wire;
}

Completion Decode(const WireCompletion& wire) {
  Completion completion;
  completion.wr_id = wire.token;
  completion.status = static_cast<WorkStatus>(wire.status);
  completion.reason = static_cast<Reason>(wire.reason);
  completion.opcode = static_cast<Opcode>(wire.opcode);
  completion.jid = wire.jid;
  completion.mid = wire.mid;
  completion.segs_done = wire.segs_done;
  completion.segs_total = wire.segs_total;
  completion.missing_ranks = wire.missing_ranks;
  completion.missing_nodes = wire.missing_nodes;
  completion.bytes = wire.bytes;
  completion.source_node = wire.source_node;
  completion.source_rank = wire.source_rank;
  completion.elapsed = Duration(wire.elapsed_ns);
  return completion;
}

}  // namespace longhaul::offload
