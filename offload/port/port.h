// What a port gives a rank: the face of a device, whatever lies between them (function calls, shared memory,
// a socket). Ports pass one conformance suite (tests/offload/port_conformance.h).
#pragma once

#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/zeroed_array.h"
#include "longhaul/offload.h"

namespace longhaul::offload {

// Methods have the contracts of Device's of the same names; they may be called from any thread.
class Port {
 public:
  virtual ~Port() = default;

  virtual Result<uint32_t> Register(std::span<std::byte> memory) = 0;
  // Here: memory of this process, until the port's end.
  virtual Result<Allocation> Allocate(uint64_t bytes, std::string_view shared_name);
  virtual Status Deregister(uint32_t key) = 0;
  virtual Status Post(std::span<const WorkRequest> requests, size_t* bad) = 0;
  virtual size_t Poll(std::span<Completion> completions) = 0;
  virtual Status RequestNotify() = 0;
  virtual int fd() const = 0;
  virtual SiteOptions site() const = 0;
  virtual uint8_t node() const = 0;
  virtual OffloadStats stats() const = 0;
  virtual void Close() = 0;

 private:
  std::mutex mutex_;
  std::vector<ZeroedArray<std::byte>> allocated_;
};

// A rank of the site of that name in this process. Errors: see Device::Open.
Result<std::unique_ptr<Port>> OpenInProcess(std::string_view name, const DeviceOptions& options);

// A rank's end of a device behind the longhaul-offload that listens on that socket: requests and completions
// through rings in shared memory, data in regions that the daemon maps too. Memory of Register is copied into
// such a region and back; memory of Allocate is one. Polling costs no system call: whether the daemon still
// lives is a word and, every few ms, a look at the socket. Errors: see Device::Open.
//
// When not: for a rank that is a thread beside the others (OpenInProcess is faster), or across fork(): the
// child's device is the parent's, and only one of them may use it.
Result<std::unique_ptr<Port>> OpenSharedMemory(const std::string& path, const DeviceOptions& options);

}  // namespace longhaul::offload
