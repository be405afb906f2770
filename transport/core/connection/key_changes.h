// The change of a connection's keys: an exchange of fresh shares in KEY_UPDATE frames, from which both sides
// make the keys of the next phase.
//
//   A: offer(n+1) ──▶  B                    either side begins, when KeyUpdatePolicy says so
//   A  ◀── answer(n+1): B                   B opens packets of phase n+1 from now on
//   A: packets of phase n+1 ──▶  B          B follows with the first of them
//
// When both begin at once, the client's offer counts. A peer that offers again too soon is refused; packets
// of a phase without an exchange do not open.
//
// Not thread-safe; lives inside one connection.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/instant.h"
#include "longhaul/status.h"
#include "proto/frames.h"
#include "transport/core/security/key_update.h"
#include "transport/core/security/packet_protection.h"

namespace longhaul::transport {

class KeyChanges {
 public:
  // Probe timeouts for which packets of the phase before still open (RFC 9001 §6.5).
  static constexpr int kPtosOfPrevious = 3;

  explicit KeyChanges(const KeyUpdateLimits& limits) : limits_(limits), policy_(limits) {}

  // Exchanges that this side has begun.
  uint64_t begun() const { return begun_; }

  // --- Events; pto: the probe timeout ---
  // Something is about to be sent: begins an exchange when one is due, and forgets what is too old.
  void OnPoll(PacketProtection* keys, Instant now, Duration pto);
  // kProtocolViolation: no honest peer sends that, or not so soon.
  Status OnFrame(PacketProtection* keys, bool is_client, const wire::KeyUpdateFrame& frame, Instant now,
                 Duration pto);
  void OnPacketSent(wire::PacketNumber number, bool phase, uint64_t bytes, Instant now) {
    policy_.OnPacketSent(number, phase, bytes, now);
  }
  void OnPacketAcked(wire::PacketNumber number, Instant now) { policy_.OnPacketAcked(number, now); }
  void OnFrameLost(uint64_t phase) { frame_due_ = frame_due_ || (frame_ && frame_->phase == phase); }

  // --- Sending ---
  bool HasFrame() const { return frame_due_; }
  // REQUIRES: HasFrame().
  const wire::KeyUpdateFrame& frame() const { return *frame_; }
  void OnFrameSent() { frame_due_ = false; }

 private:
  // The peer has moved on, perhaps.
  void Notice(const PacketProtection& keys, Instant now, Duration pto);
  Status OnOffer(PacketProtection* keys, const wire::KeyUpdateFrame& offer, Instant now);
  void Say(const wire::KeyUpdateFrame& frame) {
    frame_ = frame;
    frame_due_ = true;
  }

  KeyUpdateLimits limits_;
  KeyUpdatePolicy policy_;
  uint64_t phase_ = 0;                         // the peer's
  std::optional<wire::KeyUpdateFrame> frame_;  // ours, of the exchange under way; none: none is
  bool frame_due_ = false;
  bool concluded_ = false;  // the answer to our offer is here
  std::optional<Instant> changed_at_;
  Instant drop_at_ = Instant::Infinite();
  uint64_t begun_ = 0;
};

}  // namespace longhaul::transport
