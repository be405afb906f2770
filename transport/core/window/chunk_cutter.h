// Cuts a chunk or repair symbol that is longer than a packet into parts of about equal length, which leave in
// packets of their own (docs/decisions/0023). Holds one at a time: its parts follow each other.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "transport/core/window/window_tx.h"

namespace longhaul::transport {

class ChunkCutter {
 public:
  // Room for the smallest part.
  static constexpr size_t kMinRoom = wire::kPartHeaderBytes + wire::kPartUnit;

  // Copies the item. REQUIRES: !HasRest().
  void Take(const WindowTx::Item& item);
  // Parts wait to leave.
  bool HasRest() const { return at_ < bytes_.size(); }
  // The next part, which fits `room` with its header; it borrows from this object until the next call.
  // REQUIRES: HasRest(), room >= kMinRoom.
  WindowTx::Item Next(size_t room);
  // The window is over: what waits of it does not leave.
  void Forget(WindowKey key);

 private:
  WindowTx::Item item_;  // but its bytes
  std::vector<uint8_t> bytes_;
  size_t at_ = 0;
  std::array<uint8_t, wire::kPartHeaderBytes> head_{};
  std::shared_ptr<CutChunk> fate_;
};

}  // namespace longhaul::transport
