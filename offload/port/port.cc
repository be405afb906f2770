#include "offload/port/port.h"

#include <new>

namespace longhaul::offload {

Result<Allocation> Port::Allocate(uint64_t bytes, std::string_view shared_name) {
  if (!shared_name.empty()) {
    return Status(StatusCode::kInvalidArgument,
                  "offload: ranks of one process share memory when each registers it");
  }
  try {
    ZeroedArray<std::byte> memory(bytes);
    const auto key = Register(memory.span());
    if (!key.ok()) return key.status();
    const std::lock_guard lock(mutex_);
    allocated_.push_back(std::move(memory));
    return Allocation{*key, allocated_.back().span()};
  } catch (const std::bad_alloc&) {
    return Status(StatusCode::kResourceExhausted, "offload: no memory of that size");
  }
}

}  // namespace longhaul::offload
