#include "transport/core/path/ecn_validator.h"

namespace longhaul::transport {

std::string_view EcnValidator::Name(State state) {
  switch (state) {
    case State::kOff:
      return "off";
    case State::kTesting:
      return "testing";
    case State::kUnknown:
      return "unknown";
    case State::kCapable:
      return "capable";
    case State::kFailed:
      return "failed";
  }
  return "unknown";
}

void EcnValidator::Restart() {
  if (state_ == State::kOff) return;
  state_ = State::kTesting;
  test_start_ = sent_;
  lost_ = 0;
  rebase_ = true;
}

void EcnValidator::OnMarkedSent() {
  ++sent_;
  if (state_ == State::kTesting && sent_ - test_start_ >= kTestingPackets) state_ = State::kUnknown;
}

void EcnValidator::OnMarkedLost() {
  ++lost_;
  // Not one of them was acknowledged, or the state would be another.
  if (state_ == State::kUnknown && lost_ >= sent_ - test_start_) state_ = State::kFailed;
}

uint64_t EcnValidator::OnAck(bool newest, uint64_t newly_acked, uint64_t ect0, uint64_t ce) {
  if (!newest || state_ == State::kOff || state_ == State::kFailed) return 0;
  if (rebase_) {
    rebase_ = false;
    ect0_ = ect0;
    ce_ = ce;
    return 0;
  }
  const bool backwards = ect0 < ect0_ || ce < ce_;
  // More than was ever marked, compared without overflow.
  const bool invented = ect0 > sent_ || ce > sent_ - ect0;
  if (backwards || invented || ect0 - ect0_ + (ce - ce_) < newly_acked) {
    state_ = State::kFailed;
    return 0;
  }
  const uint64_t marks = ce - ce_;
  ect0_ = ect0;
  ce_ = ce;
  if (newly_acked > 0) state_ = State::kCapable;
  return marks;
}

}  // namespace longhaul::transport
