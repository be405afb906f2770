// A file descriptor that becomes readable at a notification, or at a time: an epoll over an eventfd and a
// timerfd, so that a rank which sleeps does not miss its deadlines.
#pragma once

#include "base/instant.h"
#include "longhaul/status.h"

namespace longhaul::offload {

class WakeUp {
 public:
  WakeUp() = default;
  ~WakeUp();
  WakeUp(const WakeUp&) = delete;
  WakeUp& operator=(const WakeUp&) = delete;

  // Errors: kInternal.
  Status Open();
  int fd() const { return epoll_; }
  // Readable from now on, until Clear.
  void Notify();
  // Readable at `at` of the steady clock; never when it is infinite.
  void SetTimer(Instant at);
  void Clear();

 private:
  int epoll_ = -1;
  int event_ = -1;
  int timer_ = -1;
  bool notified_ = false;
  Instant timer_at_ = Instant::Infinite();
};

}  // namespace longhaul::offload
