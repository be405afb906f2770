// Ordinary datagrams between ranks: no collective sees them.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "base/instant.h"
#include "offload/engine/messages.h"
#include "offload/engine/wire.h"

namespace longhaul::offload {

class Ordinary {
 public:
  Ordinary(const EngineOptions& options, Messages* messages, OffloadStats* stats);

  // kSend or kReceive, whose completion has a place.
  void Post(Instant now, uint8_t rank, const WorkRequest& request);
  void OnPacket(Instant now, const Packet& packet);
  // The next datagram for another node: its completion is made. 0: none.
  size_t Write(Instant now, MutableByteSpan out, uint8_t* target);
  bool empty() const { return sends_.empty(); }
  // What that rank has posted ends as kFlushed.
  void Flush(Instant now, uint8_t rank);

 private:
  struct Pending {
    WorkRequest request;
    uint8_t rank = 0;
    std::span<std::byte> bytes;
    Instant posted;
    uint32_t key() const { return request.opcode == Opcode::kSend ? request.send.key : request.receive.key; }
  };
  // Its memory is in use while it waits.
  void Queue(std::deque<Pending>& queue, const Pending& pending);
  Pending TakeFirst(std::deque<Pending>& queue);
  struct Source {
    uint8_t node = 0;
    uint8_t rank = 0;
  };
  void Deliver(Instant now, uint8_t rank, std::span<const std::byte> bytes, Source source);
  void Complete(Instant now, const Pending& pending, WorkStatus status, uint64_t bytes,
                Source source = {0, 0});

  EngineOptions options_;
  Messages* messages_;
  OffloadStats* stats_;
  // Bounded by the places of their completions.
  std::deque<Pending> sends_;
  std::vector<std::deque<Pending>> receives_;
};

}  // namespace longhaul::offload
