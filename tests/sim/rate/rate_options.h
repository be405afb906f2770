// What a simulated path does and what each flow over it wants (tests/sim/rate/rate_sim.h).
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "base/instant.h"
#include "longhaul/units.h"
#include "transport/core/rate/rate_controller.h"

namespace longhaul::transport::sim {

inline constexpr ByteCount kDatagram{1452};

struct LinkOptions {
  Bandwidth rate = Bandwidth::Mbps(100);
  Duration rtt = std::chrono::milliseconds(20);
  double buffer_bdp = 1.0;  // of the present rate and RTT, at least four datagrams
  ByteCount buffer{0};      // in bytes instead of buffer_bdp: stays when the rate or the RTT changes
  double loss = 0;          // random, of data
  double mean_burst = 0;    // packets; 0: independent losses, else Gilbert-Elliott
  std::optional<double> ack_loss = {};  // independent; none: as `loss`
  Duration jitter{0};                   // uniform extra delay per packet: reorders
  // The extra delay is drawn once every `jitter` instead, and nothing overtakes: what a fall of the delay
  // would let overtake arrives together.
  bool jitter_in_order = false;
  double reorder = 0;  // share of packets that take reorder_delay longer
  Duration reorder_delay{0};
  Duration ack_batch{0};                  // ACKs arrive at the sender only every so often, together
  bool ack_thinning = false;              // of those that come together only the newest
  Duration mark_above = Duration::max();  // ECN: packets that wait longer are marked
  double host_drop = 0;                   // share of arrived packets that the receiver's socket drops
  // A policer before the queue: a token bucket that drops what finds no token. Zero: none.
  Bandwidth policer_rate = {};
  ByteCount policer_burst = {};
  uint64_t seed = 1;
};

// Whether the samples of what leaves after a stall of the sender's CPU are marked application-limited.
enum class StallMarks : uint8_t {
  kNever,
  kPacer,  // where the pacer forfeited credit, as a connection does
           // (transport/core/connection/flight_control.cc)
  kAlways,
};

struct FlowOptions {
  Instant start;
  RateOptions rate;       // its max_datagram is the size of every packet
  Duration extra_rtt{0};  // beyond the link's
  // The application. 0: always something to send. Else rounds of so many packets; the next starts round_gap
  // after every packet of the last one is acknowledged or lost.
  int round_packets = 0;
  Duration round_gap = std::chrono::milliseconds(100);
  Bandwidth app_rate;  // produces so much; zero: always something to send
  Duration on{0};      // produces for `on`, is silent for `off`, and so on; zero: always on
  Duration off{0};
  bool offload = false;  // a burst begins only with a whole quantum of credit (one GSO send)
  StallMarks stall_marks = StallMarks::kAlways;
};

struct FlowStats {
  ByteCount sent;
  ByteCount arrived;
  ByteCount queue_drops;    // own loss
  ByteCount policer_drops;  // own loss
  uint64_t spurious = 0;
  uint64_t probe_timeouts = 0;
  std::vector<Duration> rounds;  // first packet sent to last settled
  double OwnLoss() const { return sent.value() == 0 ? 0 : (queue_drops + policer_drops) / sent; }
};

}  // namespace longhaul::transport::sim
