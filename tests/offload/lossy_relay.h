// A process between the UDP ports of a site's nodes: loses, repeats, reorders and delays datagrams, whatever
// is in them. Node `at` reaches node `of` at AddressAt(at, of), and is answered from there.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

namespace longhaul::offload {

class LossyRelay {
 public:
  struct Faults {
    double loss = 0;
    double duplication = 0;
    double reordering = 0;  // share that takes up to 2 ms
    double late = 0;        // share that takes up to 50 ms
  };
  struct Counts {
    uint64_t datagrams = 0;
    uint64_t lost = 0;
    uint64_t repeated = 0;
    uint64_t delayed = 0;
  };

  // The process begins at once; it ends with this one. nodes: how many. real: HOST:PORT of a node.
  LossyRelay(uint8_t nodes, const Faults& faults, uint64_t seed,
             const std::function<std::string(uint8_t)>& real,
             const std::function<std::string(uint8_t at, uint8_t of)>& address_at);
  ~LossyRelay();
  LossyRelay(const LossyRelay&) = delete;
  LossyRelay& operator=(const LossyRelay&) = delete;

  Counts counts() const { return *counts_; }

 private:
  int pid_ = -1;
  Counts* counts_ = nullptr;  // in memory of both; it alone writes
};

}  // namespace longhaul::offload
