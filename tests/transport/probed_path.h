// Rounds of a sender that probes a bottleneck, for the tests of the fit:
//
//   s = gain * estimate --> [random loss l0] --> drop-tail queue of B --> C
//
// In packets per round trip of the empty path. C is what the path carries in sent packets: random loss takes
// its share before or after the bottleneck, which looks the same. The queue outlives the round; what does not
// fit is lost. The sender reads its estimate of C from what arrives, as BBR does, so s follows a path that
// changes.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>

#include "base/random.h"
#include "transport/core/rate/target_loss_fit.h"

namespace longhaul::transport {

struct ProbedPath {
  double loss = 0;        // l0
  double capacity = 200;  // C, packets per round trip
  double buffer = 0.1;    // B, round trips at C
  double timing = 0.005;  // standard deviation of the measured rates
  double walk = 0;        // standard deviation per round of the logarithm of C
  bool follows = true;    // the estimate follows deliveries; else it stays 0.975 of the first C
};

class Prober {
 public:
  static constexpr Duration kMinRtt = std::chrono::milliseconds(40);
  static constexpr int64_t kPacketBits = 1452 * 8;

  Prober(const ProbedPath& initial, uint64_t seed)
      : path(initial), random_(seed), estimate_(0.975 * initial.capacity) {}

  ProbedPath path;

  static Bandwidth Rate(double packets) {
    return Bandwidth::BitsPerSecond(static_cast<int64_t>(packets * kPacketBits * 1e9 / kMinRtt.count()));
  }

  // UP, DOWN, and six CRUISE: a probe every eight rounds.
  RateRound Next() {
    const int step = round_++ % 8;
    return Send(step == 0 ? RatePhase::kUp : step == 1 ? RatePhase::kDown : RatePhase::kCruise);
  }

  RateRound Send(RatePhase phase) {
    constexpr double kGain[] = {0.9, 1.0, 1.25};
    path.capacity *= std::exp(path.walk * random_.Normal());
    const double c = path.capacity;
    const double s = estimate_ * kGain[static_cast<size_t>(phase)] * (1 + 0.02 * random_.Normal());
    const double room = path.buffer * c + c - queue_;
    const double overflow = std::max(0.0, s - room) / s;
    queue_ = std::clamp(queue_ + s - c, 0.0, path.buffer * c);
    const auto packets = std::max(1, static_cast<int>(s));
    int lost = 0;
    for (int i = 0; i < packets; ++i) lost += random_.Chance(1 - (1 - path.loss) * (1 - overflow)) ? 1 : 0;
    const double loss = static_cast<double>(lost) / packets;
    // What arrived, no faster than the bottleneck lets it: the queue's share comes later.
    const double arrived = std::min(s * (1 - loss), c * (1 - loss) / (1 - overflow));
    const double delivered = arrived * (1 + path.timing * random_.Normal());
    if (path.follows) Follow(delivered / (1 - path.loss));
    RateRound r;
    r.sent = Rate(s);
    r.delivered = Rate(delivered);
    r.loss = loss;
    r.packets = packets;
    r.queue = Duration(static_cast<int64_t>(queue_ / c * static_cast<double>(kMinRtt.count())));
    r.phase = phase;
    return r;
  }

 private:
  // The largest of the last ten rounds, a little below it: chance makes some too large.
  void Follow(double delivered) {
    recent_[static_cast<size_t>(next_++ % recent_.size())] = delivered;
    if (next_ >= recent_.size()) estimate_ = 0.98 * *std::ranges::max_element(recent_);
  }

  Random random_;
  double estimate_;
  double queue_ = 0;
  int round_ = 0;
  size_t next_ = 0;
  std::array<double, 10> recent_{};
};

}  // namespace longhaul::transport
