// Which numbers of one sender have been here: the newest and those shortly before it, a bit each.
//
// When not: numbers with gaps beyond the window that must all be told apart; what is older counts as seen.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>

namespace longhaul::offload {

class ReplayWindow {
 public:
  // What a switch or several receive queues put out of order is a few batches of 64 datagrams; 512 bytes.
  static constexpr uint64_t kNumbers = 4096;

  // Has been here, or is too old to tell.
  bool Seen(uint64_t number) const {
    if (number >= next_) return false;
    return next_ - number > kNumbers || (words_[IndexOf(number)] & BitOf(number)) != 0;
  }
  void Mark(uint64_t number) {
    if (number >= next_) MoveTo(number);
    if (next_ - number <= kNumbers) words_[IndexOf(number)] |= BitOf(number);
  }

 private:
  static constexpr size_t IndexOf(uint64_t number) { return number % kNumbers / 64; }
  static constexpr uint64_t BitOf(uint64_t number) { return uint64_t{1} << number % 64; }

  void MoveTo(uint64_t number) {
    if (number - next_ >= kNumbers) {
      words_.fill(0);
    } else {
      for (uint64_t n = next_; n <= number; ++n) words_[IndexOf(n)] &= ~BitOf(n);
    }
    next_ = number + 1;
  }

  uint64_t next_ = 0;  // beyond the newest
  std::array<uint64_t, kNumbers / 64> words_{};
};

}  // namespace longhaul::offload
