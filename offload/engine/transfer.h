// What leaves for other engines: segs, in the order in which they became ready, and short answers before
// them. Bounded; a seg that finds no place is sent by its timer, an answer when the other side asks again.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <vector>

#include "base/instant.h"
#include "offload/engine/seg_pool.h"
#include "offload/engine/wire.h"

namespace longhaul::offload {

class Transfer {
 public:
  // Between two tries.
  static constexpr Duration kMostTimeout = std::chrono::milliseconds(250);

  struct Send {
    uint16_t slot = 0;
    uint32_t epoch = 0;
    uint32_t sid = 0;
    uint8_t target = 0;  // of a sum: named when it leaves
    PacketKind kind = PacketKind::kPartial;
    SegRef unit = {};  // a sum that is passed on
  };
  struct Answer {
    uint8_t target = 0;
    Header header;
  };

  explicit Transfer(uint32_t sends) : sends_(sends), answers_(kAnswers) {}

  // False: no room.
  bool QueueSend(const Send& send) { return sends_.Push(send); }
  bool QueueAnswer(uint8_t target, const Header& header) { return answers_.Push({target, header}); }
  std::optional<Answer> NextAnswer() { return answers_.Pop(); }
  std::optional<Send> NextSend() { return sends_.Pop(); }
  bool empty() const { return sends_.empty() && answers_.empty(); }

  // A round trip of a seg that was sent once (Karn's rule).
  void OnRoundTrip(Duration rtt) {
    least_rtt_ = least_rtt_ == Duration(0) ? rtt : std::min(least_rtt_, rtt);
    if (smoothed_rtt_ == Duration(0)) {
      smoothed_rtt_ = rtt;
      rtt_variance_ = rtt / 2;
      return;
    }
    const Duration deviation = rtt > smoothed_rtt_ ? rtt - smoothed_rtt_ : smoothed_rtt_ - rtt;
    rtt_variance_ = (3 * rtt_variance_ + deviation) / 4;
    smoothed_rtt_ = (7 * smoothed_rtt_ + rtt) / 8;
  }
  // Of a sum to another node that has time for it: half of the least round trip.
  Duration OneWay() const { return least_rtt_ / 2; }
  // RFC 6298, doubled with every try.
  Duration TimeoutOf(uint8_t tries) const {
    const Duration first = smoothed_rtt_ == Duration(0)
                               ? kFirstTimeout
                               : std::max(kLeastTimeout, smoothed_rtt_ + 4 * rtt_variance_);
    return std::min(kMostTimeout, first * (1 << std::clamp(int{tries} - 1, 0, 8)));
  }

 private:
  static constexpr uint32_t kAnswers = 4096;
  // A datagram and its answer inside a datacenter, and a peer's thread that is not running.
  static constexpr Duration kLeastTimeout = std::chrono::microseconds(500);
  static constexpr Duration kFirstTimeout = std::chrono::milliseconds(5);

  template <typename T>
  class Ring {
   public:
    explicit Ring(uint32_t size) : items_(size) {}
    bool empty() const { return count_ == 0; }
    bool Push(const T& item) {
      if (count_ == items_.size()) return false;
      items_[(first_ + count_++) % items_.size()] = item;
      return true;
    }
    std::optional<T> Pop() {
      if (count_ == 0) return std::nullopt;
      const T item = items_[first_];
      first_ = (first_ + 1) % items_.size();
      --count_;
      return item;
    }

   private:
    std::vector<T> items_;
    size_t first_ = 0;
    size_t count_ = 0;
  };

  Ring<Send> sends_;
  Ring<Answer> answers_;
  Duration smoothed_rtt_{0};
  Duration least_rtt_{0};
  Duration rtt_variance_{0};
};

}  // namespace longhaul::offload
