#include <sstream>

#include "tests/sim/plan.h"

namespace longhaul::sim {

std::string RunPlan::ToString() const {
  std::ostringstream out;
  constexpr const char* kProtections[] = {"integrity tag", "shared key", "certificates"};
  out << "seed " << seed << ", idle time-out " << InSeconds(idle_timeout) << " s, datagrams of "
      << datagram.value() << ", " << kProtections[static_cast<size_t>(protection)];
  if (!injections.empty()) out << ", injected " << injections;
  if (key_update_packets > 0) out << ", other keys every " << key_update_packets << " packets";
  out << "\n";
  for (size_t j = 0; j < jobs.size(); ++j) {
    const JobPlan& job = jobs[j];
    out << "job " << j << ": " << job.workers << " workers (at least " << job.min_workers << ", "
        << (job.start_workers == 0 ? job.workers : job.start_workers) << " to start with), " << job.rounds
        << " rounds" << (job.gate > 0 ? ", the last of them quick" : "")
        << (job.barriers ? ", a barrier before each" : "") << (job.durable ? ", a round log" : "")
        << ", policy " << NameOf(job.policy)
        << (job.policy == LossPolicy::kShift ? " " + std::to_string(job.shift_alpha) : "") << ", high "
        << job.high_share << ", lost energy " << job.lost_energy << ", ratio " << job.close_ratio
        << ", threshold " << job.bubble_threshold << ", fec k " << int{job.fec_k} << " depth "
        << int{job.fec_depth} << (job.deterministic ? ", sums in rank order" : "");
    if (job.norm_guard > 0) out << ", guard " << job.norm_guard;
    if (job.IsOfSteps()) out << ", steps with staleness " << job.staleness;
    if (job.IsTopK()) out << ", the largest " << job.topk_share << " of the elements";
    if (job.downlink == Downlink::kLossy)
      out << ", lossy downlink with a hash every " << job.hash_rounds << " rounds";
    if (job.LeavesOut()) {
      out << ", stragglers beyond " << job.straggler_factor << " times or " << InSeconds(job.round_bound)
          << " s" << (job.quorum > 0 ? ", a quorum of " + std::to_string(job.quorum) : "");
    }
    out << "\n";
    for (const TensorPlan& t : job.tensors) {
      out << "  tensor: " << t.chunks << " chunks, the last of " << t.tail << ", " << t.Optimizer()
          << (t.pull_apart ? ", push + pull" : ", push-pull") << (t.sparse ? ", sparse" : "") << ", "
          << DTypeName(t.wire) << ", initial values from mask " << t.initial_offers << "\n";
    }
    for (uint32_t rank = 0; rank < job.workers; ++rank) {
      out << "  rank " << rank << ": weight " << job.weights[rank] << ", starts at "
          << InSeconds(job.start_delays[rank]) << " s, up " << up[rank].ToString() << ", down "
          << down[rank].ToString() << "\n";
    }
  }
  for (const Fault& fault : faults) out << "fault: " << fault.ToString() << "\n";
  return out.str();
}

}  // namespace longhaul::sim
