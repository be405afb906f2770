#include "transport/core/rate/pacer.h"

#include <algorithm>

#include "base/check.h"

namespace longhaul::transport {
namespace {

constexpr Duration kQuantumTime =
    std::chrono::milliseconds(1);  // a timer per packet would cost more than it spreads
constexpr Duration kCreditTime =
    std::chrono::milliseconds(2);  // a quantum, and a timer that is a quantum late
constexpr int64_t kStallCredits =
    2;  // half of what accrued is forfeited: the samples would be off by as much
constexpr ByteCount kMaxQuantum{64 << 10};  // one GSO send
// Above any link; keeps products of rate and time far from the end of 64 bits.
constexpr Bandwidth kMaxRate = Bandwidth::BitsPerSecond(10'000'000'000'000);
static_assert(kQuantumTime < kCreditTime && kStallCredits > 1);

}  // namespace

ByteCount Pacer::Quantum() const {
  const ByteCount two = max_datagram_ * int64_t{2};
  return std::min(std::max(two, std::min(rate_ * kQuantumTime, kMaxQuantum)), max_quantum_);
}

ByteCount Pacer::MaxCredit() const { return std::max(max_datagram_ * int64_t{2}, rate_ * kCreditTime); }

ByteCount Pacer::Accrued(Instant now) const {
  if (now <= updated_) return ByteCount();
  return rate_ * (now - updated_);
}

ByteCount Pacer::Credit(Instant now) const {
  if (!started_) return ByteCount();
  const ByteCount credit = credit_ + Accrued(now);
  if (blocked_elsewhere_) return std::min(credit, Quantum());
  if (credit <= MaxCredit()) return credit;
  // A timer that fires late finds its credit; one that was not needed for this long was not late: idle.
  const bool idle = !rate_.IsZero() && now - last_used_ > 2 * rate_.TransferTime(MaxCredit());
  return idle ? Quantum() : MaxCredit();
}

void Pacer::AccrueUntil(Instant now) {
  const ByteCount accrued = Accrued(now);
  const ByteCount credit = Credit(now);
  if (credit < credit_ + accrued) {
    updated_ = now;  // capped: the surplus is gone
  } else if (accrued.value() > 0) {
    // Only whole bytes are taken out of the time that has passed, so that many short steps lose nothing.
    updated_ = std::min(now, updated_ + rate_.TransferTime(accrued));
  }
  credit_ = credit;
  LH_CHECK_OP(credit_.value(), <=, MaxCredit().value());
}

void Pacer::SetRate(Bandwidth rate, Instant now) {
  rate = std::clamp(rate, Bandwidth::Zero(), kMaxRate);
  if (!started_) {
    started_ = true;
    rate_ = rate;
    updated_ = last_used_ = now;
    credit_ = Quantum();
    return;
  }
  if (rate == rate_) return;
  AccrueUntil(now);
  if (rate_.IsZero()) updated_ = std::max(updated_, now);  // time at rate zero earned nothing
  rate_ = rate;
}

bool Pacer::Stalled(Instant now) const {
  return started_ && !blocked_elsewhere_ && credit_ + Accrued(now) > MaxCredit() * kStallCredits;
}

void Pacer::OnBlockedElsewhere(Instant now) {
  if (!started_ || blocked_elsewhere_) return;
  AccrueUntil(now);
  blocked_elsewhere_ = true;
}

void Pacer::OnSent(ByteCount bytes, Instant now) {
  AccrueUntil(now);
  LH_CHECK_OP(bytes.value(), >=, 0);
  credit_ -= bytes;
  blocked_elsewhere_ = false;
  last_used_ = now;
}

Instant Pacer::NextSendTime(Instant now) const {
  if (!started_) return Instant::Infinite();
  const ByteCount quantum = Quantum();
  if (Credit(now) >= quantum) return now;
  if (rate_.IsZero()) return Instant::Infinite();
  // Two nanoseconds for the truncation of each of the two conversions between time and bytes.
  const Instant ready = updated_ + rate_.TransferTime(quantum - credit_) + Duration(2);
  return std::max(now, ready);
}

}  // namespace longhaul::transport
