// Where the windows of load generators (`longhaul bench flow`) end: chunks are counted and dropped, windows
// are closed by the same rule as a worker's. A load generator is no member of the job and reaches nothing of
// it.
//
// Bounded: connections, and for each of them windows and bytes open at once (what FEC may have to keep).
// Not thread-safe. Time is set by SetNow before any event.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>

#include "base/instant.h"
#include "server/peer.h"
#include "server/settings.h"

namespace longhaul::server {

// What has come from one load generator since it was let in.
struct BenchTotals {
  Duration elapsed{0};
  uint64_t high_bytes = 0;  // distinct chunks, repaired ones included
  uint64_t low_bytes = 0;
  uint64_t chunks_repaired = 0;
  uint64_t windows_closed = 0;
  uint64_t windows_refused = 0;  // beyond a bound
};

class BenchSink {
 public:
  static constexpr uint32_t kMaxOpenWindows = 32;               // per connection
  static constexpr ByteCount kMaxOpenBytes{int64_t{64} << 20};  // ditto: symbol length x chunks
  static constexpr Duration kReportInterval = std::chrono::milliseconds(100);

  explicit BenchSink(const ServerSettings& settings);

  void SetNow(Instant now) { now_ = now; }

  // Takes a connection in. Errors, in words for the user: kUnavailable (switched off, a job is running),
  // kResourceExhausted (connections).
  Status Admit(Peer& peer, const std::string& site, bool job_running);
  // The connection is over, or about to be. Returns what had come.
  BenchTotals Remove(Peer& peer);
  bool Contains(const Peer& peer) const { return flows_.contains(&peer); }

  // --- Windows (see transport::ConnectionObserver). REQUIRES: Contains(peer). ---
  // Errors: kResourceExhausted (windows or bytes open at once).
  Status OnWindowOpened(Peer& peer, transport::WindowKey key, const wire::WindowOpenFrame& open);
  transport::ChunkVerdict OnChunk(Peer& peer, wire::ReliabilityClass reliability, ByteSpan chunk,
                                  bool repaired);
  void OnWindowProgress(Peer& peer, transport::WindowKey key);

  // Closes what time alone closes, and gives every load generator its report when that is due.
  using Report = std::function<void(Peer&, const BenchTotals&)>;
  void HandleTimeout(const Report& report);
  Instant NextTimeout() const;

  // --- Questions ---
  size_t connections() const { return flows_.size(); }
  BenchTotals Totals(const Peer& peer) const;
  const std::string& site(const Peer& peer) const { return flows_.at(&peer).site; }
  uint32_t max_connections() const { return max_connections_; }
  bool during_job() const { return during_job_; }

 private:
  struct Window {
    uint64_t bytes = 0;  // symbol length x chunks
    Instant last_chunk;
    uint32_t received = 0;
    Instant finished = Instant::Infinite();
    Instant check_at = Instant::Infinite();
  };
  struct Flow {
    Peer* peer = nullptr;
    std::string site;
    Instant begun;
    Instant next_report;
    BenchTotals totals;
    uint64_t open_bytes = 0;
    std::map<transport::WindowKey, Window> windows;
  };

  void Close(Flow& flow, transport::WindowKey key, wire::CloseReason reason);

  const uint32_t max_connections_;
  const bool during_job_;
  const double close_ratio_;
  std::map<const Peer*, Flow> flows_;
  Instant now_;
};

}  // namespace longhaul::server
