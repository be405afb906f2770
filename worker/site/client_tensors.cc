#include "worker/site/client_tensors.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <utility>

namespace longhaul::site {

uint32_t ClientTensors::IndexOf(const std::string& name, const std::vector<uint8_t>& body) {
  const uint32_t index = by_name_.try_emplace(name, static_cast<uint32_t>(tensors_.size())).first->second;
  if (index == tensors_.size()) tensors_.emplace_back().name = name;
  if (tensors_[index].count == 0) tensors_[index].body = body;
  return index;
}

// Where a node does not lead, sums stand in scratch memory: those that are under way at a time, each with a
// weight.
Status ClientTensors::CheckScratch(const offload::SiteOptions& site, const State& tensor,
                                   uint64_t bytes) const {
  if (site.nodes == 1) return {};
  std::vector<uint64_t> sizes{bytes};
  for (const State& other : tensors_) {
    if (&other != &tensor) sizes.push_back(other.send.memory.size());
  }
  std::ranges::sort(sizes, std::greater());
  sizes.resize(std::min(sizes.size(), kMostCollectives));
  const uint64_t needed = std::accumulate(sizes.begin(), sizes.end(), uint64_t{0});
  if (needed <= site.scratch_bytes) return {};
  return {StatusCode::kResourceExhausted,
          "tensor " + tensor.name + ": with it, sums of the site's " + std::to_string(sizes.size()) +
              " largest tensors take " + std::to_string(needed) + " bytes; its daemon has --scratch-bytes " +
              std::to_string(site.scratch_bytes)};
}

Status ClientTensors::Prepare(offload::Device& device, State& tensor, uint64_t count) {
  const uint64_t bytes = (count + 1) * sizeof(float);
  if (tensor.count != 0 || tensor.send.memory.size() >= bytes) return {};
  if (Status s = CheckScratch(device.site(), tensor, bytes); !s.ok()) return s;
  const auto taken = sends_.Take(device, bytes);
  if (taken.ok()) tensor.send = *taken;
  return taken.status();
}

Status ClientTensors::TakeDeclared(offload::Device& device, const SiteMessage& message, State& tensor,
                                   uint64_t count) {
  const auto place = DecodePlace(message.body);
  if (!place || message.tensor == kNoTensor) {
    return {StatusCode::kProtocolViolation, "the site's relay answers a declaration with what cannot be"};
  }
  tensor.declaring = false;
  if (tensor.remote == message.tensor) return {};
  std::erase_if(retired_, [&device](Arena& arena) { return arena.GiveBack(device); });
  auto result = results_.Open(device, *place, count * sizeof(float));
  if (!result.ok()) return result.status();
  tensor.count = count;
  tensor.remote = message.tensor;
  tensor.result = *result;
  return {};
}

void ClientTensors::TurnTo(uint64_t leader) {
  for (State& tensor : tensors_) tensor.remote = kNoTensor;
  retired_.push_back(std::exchange(results_, Arena("longhaul-site-" + std::to_string(leader))));
}

std::vector<uint32_t> ClientTensors::TakeUndeclared() {
  std::vector<uint32_t> unknown;
  for (uint32_t i = 0; i < tensors_.size(); ++i) {
    State& tensor = tensors_[i];
    if (tensor.count == 0 || tensor.remote != kNoTensor || std::exchange(tensor.declaring, true)) continue;
    unknown.push_back(i);
  }
  return unknown;
}

}  // namespace longhaul::site
