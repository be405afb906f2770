// Whether the path carries ECN marks (RFC 9000 §13.4.2 and §A.4). The first packets are marked ECT(0); when
// the peer's counts account for all of them, the rest is marked too and CE counts as congestion. A path that
// bleaches the marks, turns them into others or drops what is marked is left alone.
//
//   TESTING --[kTestingPackets sent]--> UNKNOWN --[counts right]--> CAPABLE
//      +-----------[counts right]-----------------------------------^  |
//      +-----------[counts wrong, or every marked packet lost]--> FAILED <-- counts wrong, at any time
#pragma once

#include <cstdint>
#include <string_view>

namespace longhaul::transport {

class EcnValidator {
 public:
  enum class State : uint8_t { kOff, kTesting, kUnknown, kCapable, kFailed };
  static constexpr uint64_t kTestingPackets = 10;  // RFC 9000 §A.4

  explicit EcnValidator(bool on) : state_(on ? State::kTesting : State::kOff) {}

  State state() const { return state_; }
  static std::string_view Name(State state);
  // Whether packets that leave now are to be marked.
  bool marks() const { return state_ == State::kTesting || state_ == State::kCapable; }
  // CE marks that were reported and believed.
  uint64_t ce() const { return ce_; }

  // The path has changed: what was learned, and what the peer has counted so far, is of the old one.
  void Restart();
  void OnMarkedSent();
  void OnMarkedLost();
  // newest: the ACK is newer than every one before, the only kind whose counts are compared. newly_acked:
  // marked packets among those it acknowledges for the first time. ect0, ce: the peer's totals. Returns new
  // CE marks.
  uint64_t OnAck(bool newest, uint64_t newly_acked, uint64_t ect0, uint64_t ce);

 private:
  State state_;
  uint64_t sent_ = 0;        // marked
  uint64_t test_start_ = 0;  // sent_ when this path's test began
  uint64_t lost_ = 0;        // since then
  bool rebase_ = false;      // the next counts are where this path begins
  uint64_t ect0_ = 0;        // the peer's totals, as of the newest ACK
  uint64_t ce_ = 0;
};

}  // namespace longhaul::transport
