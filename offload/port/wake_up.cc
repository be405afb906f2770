#include "offload/port/wake_up.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>

namespace longhaul::offload {
namespace {

bool Watch(int epoll, int fd) {
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.fd = fd;
  return epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event) == 0;
}

}  // namespace

WakeUp::~WakeUp() {
  for (const int fd : {epoll_, event_, timer_}) {
    if (fd >= 0) close(fd);
  }
}

Status WakeUp::Open() {
  epoll_ = epoll_create1(EPOLL_CLOEXEC);
  event_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  timer_ = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
  const bool open = epoll_ >= 0 && event_ >= 0 && timer_ >= 0;
  if (open && Watch(epoll_, event_) && Watch(epoll_, timer_)) return Status::Ok();
  return Status(StatusCode::kInternal, "offload: no file descriptors for notifications");
}

void WakeUp::Notify() {
  if (notified_) return;
  const uint64_t one = 1;
  notified_ = write(event_, &one, sizeof one) == sizeof one;
}

void WakeUp::SetTimer(Instant at) {
  if (at == timer_at_) return;
  timer_at_ = at;
  itimerspec spec{};
  if (!at.IsInfinite()) {
    const int64_t ns = std::max<int64_t>(1, at.nanoseconds());
    spec.it_value.tv_sec = ns / 1'000'000'000;
    spec.it_value.tv_nsec = ns % 1'000'000'000;
  }
  timerfd_settime(timer_, TFD_TIMER_ABSTIME, &spec, nullptr);
}

void WakeUp::Clear() {
  SetTimer(Instant::Infinite());
  uint64_t count;
  if (notified_ && read(event_, &count, sizeof count) == sizeof count) notified_ = false;
}

}  // namespace longhaul::offload
