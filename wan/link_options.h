// What one direction of a link does to packets, and its text form (netem's names).
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "longhaul/status.h"
#include "longhaul/units.h"

namespace longhaul::wan {

// The link carries nothing that enters at from <= t < to.
struct Outage {
  Duration from{0};  // since the link's start (the Instant zero of its model)
  Duration to{0};
  bool operator==(const Outage&) const = default;
};

struct LinkOptions {
  // Zero: unlimited, and then nothing ever queues.
  Bandwidth rate = Bandwidth::Zero();
  // One way. A round trip costs the delay of both directions.
  Duration delay{0};
  // Every packet's delay is uniform in delay - jitter .. delay + jitter; at most `delay`.
  Duration jitter{0};
  // False: a packet never overtakes an earlier one, it waits for it (what routers do). True: it may.
  bool jitter_reorders = false;

  // Average share of packets lost before the queue, 0..1.
  double loss = 0;
  // 0: independent losses. >= 1: Gilbert-Elliott with bursts of this many packets on average.
  double loss_burst = 0;

  // Bound of the drop-tail queue in front of the rate, as waiting time (rate * queue_time bytes)...
  Duration queue_time = std::chrono::milliseconds(50);
  // ... or in bytes, which wins when it is not zero. Neither has an effect at unlimited rate.
  ByteCount queue_bytes{0};

  // Chance that a packet skips the delay and so overtakes those in flight (netem's reorder). Needs a delay.
  double reorder = 0;
  // Chance that a packet is delivered twice; the copy takes its own place in the queue.
  double duplicate = 0;
  // Chance that one random bit of the packet is flipped.
  double corrupt = 0;
  // Larger packets vanish without a message, as in a path-MTU black hole. Zero: no bound.
  ByteCount mtu{0};
  std::vector<Outage> outages;

  bool operator==(const LinkOptions&) const = default;

  // kInvalidArgument with the reason when a value is out of range or two contradict each other.
  Status Validate() const;
  // Words that ParseLinkOptions() reads back to the same options.
  std::string ToString() const;
};

// How a share without a percent sign is read: "0.02" as 2 % (kRatio), or refused, since tc reads it as 0.02
// %.
enum class BareShares { kRefused, kRatio };

// Reads words such as
//   rate 200mbit delay 25ms 2ms loss 2% queue 50ms
//   rate=1gbit,delay=40ms,loss=gemodel,5%,burst,10,outage=3s..5s
// on top of `base`: what is not mentioned stays. Words are separated by spaces, commas or equal signs; units
// are those of base/units_text.h.
//   rate R | unlimited
//   delay T [J]  jitter J   `jitter-reorders` lets jitter change the order
//   loss P (drop P)         percent; `burst N`: drops come in bursts of N packets on average
//   gemodel P burst N       the same as `loss P burst N`; also `gemodel P N`, `loss gemodel P burst N`
//   queue T|B (limit T|B)   a time, or a size with its unit
//   reorder P  duplicate P (dup P)  corrupt P  mtu B  outage T..T (may be repeated)
// Errors: kInvalidArgument naming the word, the value and what would be right; also for a word given twice.
Result<LinkOptions> ParseLinkOptions(std::string_view words, const LinkOptions& base = {},
                                     BareShares bare = BareShares::kRefused);

}  // namespace longhaul::wan
