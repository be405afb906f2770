// What a port gives a rank: the face of a device, whatever lies between them (function calls, shared memory,
// a socket). Ports pass one conformance suite (tests/offload/port_conformance.h).
#pragma once

#include <memory>
#include <span>
#include <string_view>

#include "longhaul/offload.h"

namespace longhaul::offload {

// Methods have the contracts of Device's of the same names; they may be called from any thread.
class Port {
 public:
  virtual ~Port() = default;

  virtual Result<uint32_t> Register(std::span<std::byte> memory) = 0;
  virtual Status Deregister(uint32_t key) = 0;
  virtual Status Post(std::span<const WorkRequest> requests, size_t* bad) = 0;
  virtual size_t Poll(std::span<Completion> completions) = 0;
  virtual Status RequestNotify() = 0;
  virtual int fd() const = 0;
  virtual OffloadStats stats() const = 0;
  virtual void Close() = 0;
};

// A rank of the site of that name in this process. Errors: see Device::Open.
Result<std::unique_ptr<Port>> OpenInProcess(std::string_view name, const DeviceOptions& options);

}  // namespace longhaul::offload
