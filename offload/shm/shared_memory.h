// Memory that two processes map: a memfd whose size is sealed, so that neither side's accesses can fault
// because the other has truncated it. The daemon makes all of them, and maps no file of a client.
//
// When not: between threads of one process, or for memory that a third party must not see, since every holder
// of the descriptor can write it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/files.h"
#include "longhaul/status.h"

namespace longhaul::offload {

// Move-only; unmaps.
class SharedMemory {
 public:
  // `bytes` of zeros, rounded up to pages, and the descriptor that another process maps. Errors:
  // kInvalidArgument (no bytes), kResourceExhausted (the system gives no memory or descriptor).
  static Result<SharedMemory> Create(const char* name, uint64_t bytes);
  // What another process has made. REQUIRES: that process is trusted, or Create made it. Errors: kInternal.
  static Result<SharedMemory> Map(FileDescriptor fd, uint64_t bytes);

  SharedMemory() = default;
  SharedMemory(SharedMemory&& other) noexcept { *this = std::move(other); }
  SharedMemory& operator=(SharedMemory&& other) noexcept;
  ~SharedMemory();

  std::byte* data() const { return data_; }
  uint64_t size() const { return bytes_; }
  std::span<std::byte> first(uint64_t bytes) const { return {data_, bytes}; }
  // The descriptor, for another process; keep: it can be passed on again. The mapping stays.
  FileDescriptor PassOn(bool keep);

  static uint64_t RoundUp(uint64_t bytes);

 private:
  FileDescriptor fd_;
  std::byte* data_ = nullptr;
  uint64_t bytes_ = 0;
};

}  // namespace longhaul::offload
