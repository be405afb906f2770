// Connections that use the server without being members of the job. The daemon registers a handler for load
// generators (bench/load/sink.h); an embedded server has none and refuses them.
//
// The coordinator lets a guest in, routes its windows to the handler, and sends and closes on its behalf.
// SetNow comes before any event. Not thread-safe.
#pragma once

#include "server/member/peer.h"
#include "server/report/server_stats.h"
#include "transport/core/connection/events.h"

namespace longhaul::server {

class Guests {
 public:
  virtual ~Guests() = default;
  virtual void SetNow(Instant now) = 0;

  // Takes in a connection whose first message is `join`; returns the answer. Errors, in words for the user:
  // kUnavailable (a job is running), kResourceExhausted (too many guests).
  virtual Result<control::ControlMessage> Admit(Peer& peer, const control::BenchJoin& join,
                                                bool job_running) = 0;
  // The remaining calls REQUIRE: the peer is a guest.
  // The connection is over, or about to be. Returns what had come.
  virtual GuestTotals Remove(Peer& peer) = 0;
  // What has come so far, as a message.
  virtual control::ControlMessage Report(const Peer& peer) const = 0;

  // --- Windows (see transport/core/connection/events.h). An error refuses the window. ---
  virtual Status OnWindowOpened(Peer& peer, transport::WindowKey key, const wire::WindowOpenFrame& open) = 0;
  virtual void OnChunk(Peer& peer, const transport::event::Chunk& chunk) = 0;
  virtual void OnWindowState(Peer& peer, const transport::event::WindowState& state) = 0;

  // Closes what time alone closes. Returns the guests whose Report is due.
  virtual std::vector<Peer*> HandleTimeout() = 0;
  virtual Instant NextTimeout() const = 0;

  // --- Questions ---
  virtual GuestStats stats() const = 0;
  // At once; connections beyond it are refused.
  virtual uint32_t max_connections() const = 0;
  // Guests stay when a job starts.
  virtual bool during_job() const = 0;
};

}  // namespace longhaul::server
