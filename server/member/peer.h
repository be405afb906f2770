// What the server knows about one connection, and about the windows that arrive on it.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <utility>

#include "base/instant.h"
#include "longhaul/status.h"
#include "proto/control_codec.h"
#include "transport/core/connection/connection.h"
#include "transport/core/window/close_rule.h"

namespace longhaul::server {

class Tensor;

// A window that a worker is sending to us.
struct Transfer {
  enum class Kind : uint8_t { kGradient, kInitial };

  Kind kind = Kind::kGradient;
  Tensor* tensor = nullptr;
  uint64_t round = 0;
  float weight = 1;
  transport::ChunkBitmap superseded;  // chunks of the round that the worker's predecessor had delivered
  transport::ChunkBitmap rejected;    // chunks that the guard has refused; empty: none
  bool takes_epoch = true;            // false: made in another shift epoch, nothing of it counts
  uint32_t low_taken = 0;             // low chunks that count
  double low_energy = 0;              // of the low class, as announced
  double low_energy_received = 0;     // of the low chunks that are here
  Instant opened;
  bool on_time = true;  // made for the round in progress
  bool high_done = false;
  transport::WindowCloser closer;
};

struct Peer {
  enum class Phase : uint8_t {
    kNew,      // no message yet
    kJoined,   // a member of the job
    kServer,   // another server of the job (server/job/server_desk.h)
    kGuest,    // no member; its windows are the guest handler's (server/job/guests.h)
    kLeaving,  // refused, left or dismissed; closed at close_at at the latest
  };

  explicit Peer(transport::Connection* c) : connection(c) {}

  transport::Connection* connection;
  wire::ControlReader control;
  Phase phase = Phase::kNew;
  uint32_t rank = 0;  // of a member
  bool takes_membership = false;
  bool takes_hand_over = false;
  Instant since;           // when it was accepted
  Instant accepted_at;     // ... or connected, or extended its stay by a status request
  bool connected = false;  // the search for the path's MTU, where one was needed, is over
  Instant last_heard;
  uint64_t packets_heard = 0;
  bool expiry_said = false;  // that its certificate expires soon
  Instant close_at = Instant::Infinite();
  Status close_why;
  std::map<transport::WindowKey, Transfer> transfers;
  uint32_t next_window = 1;  // id of the next window towards this peer

  // Packets have come since the last call: it lives.
  void CountHeard(Instant now) {
    const uint64_t packets = connection->stats().packets_received;
    if (std::exchange(packets_heard, packets) != packets) last_heard = now;
  }
  void CloseIfDue(Instant now) {
    if (now < close_at) return;
    close_at = Instant::Infinite();
    connection->Close(close_why);
  }
  Duration rtt() const { return connection->smoothed_rtt(); }
  void BecomeMember(const control::Join& join) {
    phase = Phase::kJoined;
    rank = join.rank();
    takes_membership = join.takes_membership();
    takes_hand_over = join.takes_hand_over();
  }
  bool joined() const { return phase == Phase::kJoined; }
};

}  // namespace longhaul::server
