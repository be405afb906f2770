// Where the windows of load generators (`longhaul bench flow`) end at the server: chunks are counted and
// dropped, windows are closed by the same rule as a worker's. A load generator is no member of the job and
// reaches nothing of it.
//
// Bounded: connections, and for each of them windows and bytes open at once (what FEC may have to keep).
// Not thread-safe.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "base/instant.h"
#include "server/job/guests.h"
#include "server/settings.h"
#include "transport/core/window/close_rule.h"

namespace longhaul::load {

struct SinkOptions {
  uint32_t max_connections = 16;  // >= 1
  bool during_job = false;        // serves load generators also while a job is running
};

class Sink final : public server::Guests {
 public:
  static constexpr uint32_t kMaxOpenWindows = 32;               // per connection
  static constexpr ByteCount kMaxOpenBytes{int64_t{64} << 20};  // ditto: symbol length x chunks
  static constexpr Duration kReportInterval = std::chrono::milliseconds(100);

  // settings: the server's, for FEC, the close rule and time-outs.
  Sink(const SinkOptions& options, const server::ServerSettings& settings)
      : options_(options), settings_(settings) {}

  // --- server::Guests ---
  void SetNow(Instant now) override { now_ = now; }
  Result<control::ControlMessage> Admit(server::Peer& peer, const control::BenchJoin& join,
                                        bool job_running) override;
  server::GuestTotals Remove(server::Peer& peer) override;
  control::ControlMessage Report(const server::Peer& peer) const override;
  // Errors: kResourceExhausted (windows or bytes open at once).
  Status OnWindowOpened(server::Peer& peer, transport::WindowKey key,
                        const wire::WindowOpenFrame& open) override;
  void OnChunk(server::Peer& peer, const transport::event::Chunk& chunk) override;
  void OnWindowState(server::Peer& peer, const transport::event::WindowState& state) override;
  std::vector<server::Peer*> HandleTimeout() override;
  Instant NextTimeout() const override;
  server::GuestStats stats() const override;
  uint32_t max_connections() const override { return options_.max_connections; }
  bool during_job() const override { return options_.during_job; }

 private:
  struct Window {
    uint64_t bytes = 0;  // symbol length x chunks
    transport::WindowCloser closer;
  };
  struct Flow {
    server::Peer* peer = nullptr;
    Instant begun;
    Instant next_report;
    server::GuestTotals totals;
    uint64_t open_bytes = 0;
    std::map<transport::WindowKey, Window> windows;
  };

  void CheckClose(Flow& flow, transport::WindowKey key);

  const SinkOptions options_;
  const server::ServerSettings settings_;
  std::map<const server::Peer*, Flow> flows_;
  server::GuestStats gone_;  // bytes of flows that are over; served: ever
  Instant now_;
};

// For server::Daemon::Start; empty without connections.
inline std::function<std::unique_ptr<server::Guests>(const server::ServerSettings&)> MakeSink(
    const SinkOptions& options) {
  if (options.max_connections == 0) return nullptr;
  return [options](const server::ServerSettings& settings) -> std::unique_ptr<server::Guests> {
    return std::make_unique<Sink>(options, settings);
  };
}

}  // namespace longhaul::load
