// The memory that ranks have registered, by key. A key is good for one registration of one rank.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "longhaul/offload.h"
#include "longhaul/status.h"

namespace longhaul::offload {

class MemoryTable {
 public:
  static constexpr uint16_t kMaxRegions = 1024;

  // Errors: kInvalidArgument (no bytes), kResourceExhausted (kMaxRegions).
  Result<uint32_t> Register(uint8_t rank, std::span<std::byte> memory);
  // Errors: kNotFound, kFailedPrecondition (in use).
  Status Deregister(uint8_t rank, uint32_t key);
  // The `length` bytes there; none: not registered by this rank, or not so many.
  std::optional<std::span<std::byte>> Find(uint8_t rank, MemorySlice slice, uint64_t length) const;
  // What is in use is not deregistered.
  void Use(uint32_t key, bool begin);
  void Forget(uint8_t rank);

 private:
  struct Region {
    uint8_t rank = 0;
    uint16_t generation = 0;
    uint32_t uses = 0;
    std::span<std::byte> memory;  // empty: free
  };
  const Region* Get(uint8_t rank, uint32_t key) const;

  std::vector<Region> regions_;
};

}  // namespace longhaul::offload
