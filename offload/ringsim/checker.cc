#include "offload/ringsim/checker.h"

namespace longhaul::offload::ringsim {

std::string CheckExactlyOnce(const RingModel& model, const RingOutcome& outcome) {
  if (outcome.stuck) return "a chunk never had its result";
  if (outcome.at_owner.size() != model.chunks()) return "a chunk is missing";
  for (size_t chunk = 0; chunk < outcome.at_owner.size(); ++chunk) {
    const std::vector<uint8_t>& parts = outcome.at_owner[chunk];
    if (parts.size() != model.nodes) return "chunk " + std::to_string(chunk) + " has no result";
    for (size_t node = 0; node < parts.size(); ++node) {
      if (parts[node] == 1) continue;
      return "chunk " + std::to_string(chunk) + " has the part of node " + std::to_string(node) + " " +
             std::to_string(parts[node]) + " times";
    }
  }
  for (const Sent& message : outcome.sent) {
    for (uint32_t node = 0; node < model.nodes; ++node) {
      if (message.holds[node] == (message.says.set >> node & 1)) continue;
      return "a message of chunk " + std::to_string(message.chunk) + " does not say what it holds of node " +
             std::to_string(node);
    }
  }
  return "";
}

}  // namespace longhaul::offload::ringsim
