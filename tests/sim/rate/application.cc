#include "tests/sim/rate/application.h"

#include <algorithm>
#include <utility>

namespace longhaul::transport::sim {

bool Application::HasData(Instant now, bool idle) {
  if (paused_ || now < options_.start) return false;
  if (options_.round_packets > 0) return HasRound(now, idle);
  if (options_.app_rate.IsZero()) return IsOn(now);
  Produce(now);
  return produced_ >= static_cast<double>(options_.rate.max_datagram.value());
}

bool Application::HasRound(Instant now, bool idle) {
  if (in_round_) {
    if (left_ > 0) return true;
    if (!idle) return false;
    in_round_ = false;
    rounds_.push_back(now - round_start_);
    resume_ = now + options_.round_gap;
  }
  if (now < resume_) return false;
  in_round_ = started_ = true;
  round_start_ = now;
  left_ = options_.round_packets;
  return true;
}

void Application::OnSent() {
  if (left_ > 0) --left_;
  produced_ = std::max(0.0, produced_ - static_cast<double>(options_.rate.max_datagram.value()));
}

Instant Application::NextData(Instant now) const {
  if (paused_) return Instant::Infinite();
  if (now < options_.start) return options_.start;
  if (options_.round_packets > 0)
    return in_round_ ? Instant::Infinite() : std::max(resume_, now + Duration(1));
  if (!IsOn(now)) return NextOn(now);
  if (options_.app_rate.IsZero()) return now;
  const double missing = static_cast<double>(options_.rate.max_datagram.value()) - produced_;
  return now + options_.app_rate.TransferTime(ByteCount(static_cast<int64_t>(std::max(missing, 0.0)) + 1)) +
         Duration(1);
}

bool Application::TakeStarted() { return std::exchange(started_, false); }

void Application::SetRate(Bandwidth rate, Instant now) {
  if (!options_.app_rate.IsZero()) Produce(now);
  updated_ = std::max(now, options_.start);
  options_.app_rate = rate;
}

std::vector<Duration> Application::TakeRounds() { return std::exchange(rounds_, {}); }

void Application::Produce(Instant now) {
  produced_ += options_.app_rate.bytes_per_second() *
               static_cast<double>((OnTime(now) - OnTime(updated_)).count()) / 1e9;
  updated_ = now;
}

bool Application::IsOn(Instant now) const {
  if (options_.on.count() == 0) return true;
  return (now - options_.start) % (options_.on + options_.off) < options_.on;
}

Instant Application::NextOn(Instant now) const {
  const Duration period = options_.on + options_.off;
  return options_.start + ((now - options_.start) / period + 1) * period;
}

// Time spent on, from the start.
Duration Application::OnTime(Instant until) const {
  const Duration time = std::max<Duration>(until - options_.start, Duration(0));
  if (options_.on.count() == 0) return time;
  const Duration period = options_.on + options_.off;
  return time / period * options_.on + std::min<Duration>(time % period, options_.on);
}

}  // namespace longhaul::transport::sim
