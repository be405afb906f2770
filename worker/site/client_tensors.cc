#include "worker/site/client_tensors.h"

#include <utility>

namespace longhaul::site {

uint32_t ClientTensors::IndexOf(const std::string& name, const std::vector<uint8_t>& body) {
  const uint32_t index = by_name_.try_emplace(name, static_cast<uint32_t>(tensors_.size())).first->second;
  if (index == tensors_.size()) tensors_.emplace_back().name = name;
  if (tensors_[index].count == 0) tensors_[index].body = body;
  return index;
}

Status ClientTensors::Prepare(offload::Device& device, State& tensor, uint64_t count) {
  const uint64_t bytes = (count + 1) * sizeof(float);
  if (tensor.count != 0 || tensor.send.memory.size() >= bytes) return {};
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
