// What one direction of a link does to packets, and the words that say so (netem's names).
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

// Reads words such as
//   rate 200mbit delay 25ms 2ms loss 2% queue 50ms
//   rate=1gbit,delay=40ms,loss=gemodel,5%,burst,10,outage=3s..5s
// on top of `base`: what is not mentioned stays. Words are separated by spaces, commas or equal signs.
//   rate R | unlimited      bit kbit mbit gbit (bits per second)
//   delay T [J]  jitter J   ns us ms s; `jitter-reorders` lets jitter change the order
//   loss P [burst N]        percent; `loss gemodel P burst N` is the same as `loss P burst N`
//   gemodel P burst N       also `gemodel P N`
//   queue T|B, limit T|B    a time, or bytes: b kb mb (1000), kib mib (1024)
//   reorder P  duplicate P  corrupt P  mtu B  outage T..T (may be repeated)
// A number without its unit is refused, since tc reads such numbers in three different ways.
// Errors: kInvalidArgument naming the word, the value and what would be right.
Result<LinkOptions> ParseLinkOptions(std::string_view words, const LinkOptions& base = {});

// The parsers of single values, for command lines.
Result<Bandwidth> ParseRate(std::string_view text);
Result<Duration> ParseTime(std::string_view text);
Result<ByteCount> ParseBytes(std::string_view text);
Result<double> ParsePercent(std::string_view text);  // "2%" -> 0.02

}  // namespace longhaul::wan
