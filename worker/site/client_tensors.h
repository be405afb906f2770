// What a rank has declared: its memory for each tensor, and where the leader puts results.
//
// Not thread-safe.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <vector>

#include "worker/site/mailbox.h"
#include "worker/site/site_requests.h"

namespace longhaul::site {

class ClientTensors {
 public:
  static constexpr uint64_t kNoRounds = UINT64_MAX;

  struct State {
    std::string name;
    std::vector<uint8_t> body;    // of its declaration
    uint64_t count = 0;           // 0: it never was declared
    uint32_t remote = kNoTensor;  // the leader's number for it; none: it is not declared to this one
    uint64_t rounds = kNoRounds;  // whose results are here
    bool declaring = false;       // by this client, to another leader
    Arena::Piece send;
    Arena::Piece result;
    std::deque<Request> waiting;
    uint64_t active = 0;  // its request
  };

  // Its number here. A declaration that differs from an earlier one is refused by the relay.
  uint32_t IndexOf(const std::string& name, const std::vector<uint8_t>& body);
  // Null: none of that number.
  State* Find(uint32_t tensor) { return tensor < tensors_.size() ? &tensors_[tensor] : nullptr; }
  std::vector<State>& all() { return tensors_; }
  // Memory for the gradient and its weight. Errors: kResourceExhausted (sums of several nodes would have no
  // room in the node's daemon), those of Device::Allocate.
  Status Prepare(offload::Device& device, State& tensor, uint64_t count);
  // The leader's answer to a declaration.
  Status TakeDeclared(offload::Device& device, const SiteMessage& message, State& tensor, uint64_t count);
  // Another one leads: nothing is declared to it, its results stand elsewhere.
  void TurnTo(uint64_t leader);
  // What was declared to an earlier leader, and is not being declared to this one; from now on it is.
  std::vector<uint32_t> TakeUndeclared();

 private:
  Status CheckScratch(const offload::SiteOptions& site, const State& tensor, uint64_t bytes) const;

  Arena sends_{""};
  Arena results_{""};           // the leader's; named after its leadership
  std::vector<Arena> retired_;  // of earlier leaders, until nothing uses them
  std::vector<State> tensors_;
  std::map<std::string, uint32_t> by_name_;
};

}  // namespace longhaul::site
