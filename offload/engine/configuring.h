// Jobs' configurations: of this engine, and by packet of engines that have no host to post requests.
#pragma once

#include <cstdint>
#include <vector>

#include "base/instant.h"
#include "offload/engine/messages.h"
#include "offload/engine/transfer.h"

namespace longhaul::offload {

class Configuring {
 public:
  Configuring(const EngineOptions& options, Messages* messages, ControlStore* store, DeadlineWheel* wheel,
              Transfer* transfer, OffloadStats* stats);

  // kConfig, whose completion has a place.
  void Post(Instant now, uint8_t rank, const WorkRequest& request);
  void OnPacket(const Packet& packet);  // kConfig
  void OnAck(Instant now, const Header& header);
  void OnTimer(Instant now, uint32_t number);
  size_t Write(uint32_t number, MutableByteSpan out, uint8_t* target) const;
  // kSuccess: this engine can serve such a job.
  WorkStatus Check(const JobConfig& config) const;
  void Flush(Instant now, uint8_t rank);

  // In the place of a message's slot in timers and sends.
  static constexpr uint16_t kSlot = UINT16_MAX;

 private:
  static constexpr uint32_t kMostPending = 16;

  struct Pending {
    bool used = false;
    uint8_t rank = 0;
    uint8_t target = 0;
    uint8_t tries = 0;
    uint16_t jid = 0;
    uint64_t wr_id = 0;
    uint64_t number = 0;
    JobConfig config;
    Instant posted;
    DeadlineWheel::Timer timer = DeadlineWheel::kNone;
  };
  void Send(Instant now, uint32_t number);
  void Finish(Instant now, Pending& pending, WorkStatus status);

  EngineOptions options_;
  Messages* messages_;
  ControlStore* store_;
  DeadlineWheel* wheel_;
  Transfer* transfer_;
  OffloadStats* stats_;
  std::vector<Pending> pending_;
  // Grows with every configuration that is sent, and, as it is a time, from one process to the next.
  uint64_t last_number_ = 0;
};

}  // namespace longhaul::offload
