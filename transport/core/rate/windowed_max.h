// The largest value of a sliding window in O(1) space (K. Nichols' filter, as draft-ietf-ccwg-bbr uses it):
// the three best of the window, each of a later part of it.
#pragma once

#include <array>
#include <cstddef>

#include "base/check.h"

namespace longhaul::transport {

// Value: ordered, default is the smallest that counts. Time: unsigned, never decreases.
template <typename Value, typename Time>
class WindowedMax {
 public:
  explicit WindowedMax(Time length) : length_(length) {}

  void SetLength(Time length) { length_ = length; }

  void Update(Value value, Time now) {
    const Sample sample{value, now};
    LH_CHECK(empty_ || now >= best_[2].time);
    if (empty_ || value >= best_[0].value || now - best_[2].time > length_) {
      best_ = {sample, sample, sample};
      empty_ = false;
      return;
    }
    if (value >= best_[1].value) {
      best_[1] = best_[2] = sample;
    } else if (value >= best_[2].value) {
      best_[2] = sample;
    }
    Expire(sample);
    LH_CHECK(best_[0].value >= best_[1].value && best_[1].value >= best_[2].value);
  }

  Value Best() const { return empty_ ? Value() : best_[0].value; }
  void Reset() { empty_ = true; }

 private:
  struct Sample {
    Value value{};
    Time time{};
  };

  void Expire(const Sample& sample) {
    if (sample.time - best_[0].time > length_) {
      best_ = {best_[1], best_[2], sample};
      if (sample.time - best_[0].time > length_) best_ = {best_[1], best_[2], sample};
    } else if (best_[1].time == best_[0].time && sample.time - best_[1].time > length_ / 4) {
      best_[1] = best_[2] = sample;
    } else if (best_[2].time == best_[1].time && sample.time - best_[2].time > length_ / 2) {
      best_[2] = sample;
    }
  }

  Time length_;
  bool empty_ = true;
  std::array<Sample, 3> best_{};
};

}  // namespace longhaul::transport
