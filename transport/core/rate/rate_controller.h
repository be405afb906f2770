// The seam between the connection and whatever decides how fast it may send. One object per path; it lives
// across windows and rounds. The names are those of draft-ietf-ccwg-bbr.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>

#include "base/instant.h"
#include "base/random.h"
#include "longhaul/units.h"
#include "transport/core/rate/delivery_rate.h"

namespace longhaul::transport {

// Everything one ACK (or a loss timer) tells the controller.
struct CongestionEvent {
  Instant now;
  RateSample sample;          // sample.valid may be false
  ByteCount acked;            // newly acknowledged by this event
  ByteCount lost;             // newly declared lost by this event: raw loss, before FEC repair
  ByteCount bytes_in_flight;  // after the event
  ByteCount delivered;        // C.delivered after the event
  Duration latest_rtt{0};     // zero when the event gave no RTT sample
  Duration smoothed_rtt{0};
  Duration min_rtt{0};      // over the connection's life
  uint64_t ecn_ce = 0;      // new CE marks
  uint64_t host_drops = 0;  // new drops in the peer's socket buffer: not network loss
};

// What the rate is limited by at present; exported as a counter per reason.
enum class RateLimiter : uint8_t { kApp, kPacing, kCwnd, kGrant };

struct RateSnapshot {
  std::string_view name;   // "longhaul", "bbr", "cubic"
  std::string_view state;  // "startup", "drain", "probe_bw_up", ...
  Bandwidth bandwidth;     // estimate of the bottleneck
  Bandwidth pacing_rate;
  ByteCount cwnd;
  Duration min_rtt{0};     // filtered, as the model uses it
  double loss = 0;         // recent raw loss, 0..1
  double target_loss = 0;  // l*; 0 until a controller fits one
};

struct RateOptions {
  ByteCount max_datagram{1452};
  Bandwidth floor = Bandwidth::BitsPerSecond(100'000);
  Bandwidth cap = Bandwidth::Max();
  Bandwidth initial = Bandwidth::Mbps(10);  // pacing rate before the first sample
  double bubble_threshold = 0.3;            // in-window rule: at or above this raw loss the rate is halved
  double target_loss = 0.05;                // in-window rule until the fit of a target loss exists
};

class RateController {
 public:
  virtual ~RateController() = default;

  // A packet left; `bytes_in_flight` includes it. app_limited: nothing else was waiting.
  virtual void OnPacketSent(Instant now, ByteCount bytes, ByteCount bytes_in_flight, bool app_limited) = 0;
  virtual void OnCongestionEvent(const CongestionEvent& event) = 0;
  // A packet-transmission window starts: compute the initial sending rate from the estimate (mission A4).
  virtual void OnWindowStart(Instant now) = 0;
  // The peer's GRANT. Bandwidth::Zero() = no bound.
  virtual void SetGrant(Bandwidth rate) = 0;

  virtual Bandwidth pacing_rate() const = 0;
  virtual ByteCount cwnd() const = 0;
  virtual RateSnapshot Snapshot() const = 0;
};

// The BBR-like controller (rate/bandwidth_model.h): bandwidth filter, min-RTT filter, STARTUP, DRAIN and a
// gain cycle that builds the queue and drains it. `random` picks the phase of the cycle.
std::unique_ptr<RateController> MakeRateController(const RateOptions& options, Random random);

}  // namespace longhaul::transport
