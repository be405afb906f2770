// What is in flight, whether more may be, and what holds it back: round-trip time, fates of packets,
// acknowledgements in both directions, delivery-rate samples, the rate controller, the pacer and the peer's
// receive window.
//
// It knows packets, not their content. A set of fates is taken in two steps, between which the owner hands
// the content of each packet back to where it came from: TakeFates updates the loss model by which repair is
// planned, Conclude lets the rate controller react.
//
// Not thread-safe; lives inside one connection.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "base/instant.h"
#include "base/random.h"
#include "longhaul/status.h"
#include "longhaul/units.h"
#include "proto/frames.h"
#include "transport/core/rate/delivery_rate.h"
#include "transport/core/rate/pacer.h"
#include "transport/core/rate/rate_controller.h"
#include "transport/core/recovery/ack_tracker.h"
#include "transport/core/recovery/loss_detection.h"
#include "transport/core/recovery/path_rtt.h"
#include "transport/core/recovery/rtt_estimator.h"
#include "transport/core/window/fec_policy.h"
#include "transport/core/window/window_tx.h"

namespace longhaul::transport {

struct ConnectionStats;

class FlightControl {
 public:
  // Packets that a probe timeout lets go whatever the pacer and the windows say (RFC 9002 §6.2.4).
  static constexpr int kProbes = 2;

  // options.max_datagram: the largest that the path may ever carry.
  FlightControl(Instant now, const RateOptions& options, Random random);

  // --- Questions ---
  const RttEstimator& rtt() const { return rtt_; }
  // Zero before the first sample.
  Duration smoothed_rtt() const { return rtt_.has_sample() ? rtt_.smoothed_rtt() : Duration(0); }
  // Probe timeout without back-off.
  Duration Pto() const { return rtt_.PtoBase(AckTracker::kMaxAckDelay); }
  const LossDetection& loss() const { return loss_; }
  ByteCount bytes_in_flight() const { return loss_.bytes_in_flight(); }
  // Of the next packet.
  wire::PacketNumber next_number() const { return next_number_; }
  // By what repair symbols are planned. datagram_bytes: what one packet fills.
  PathView path_view(Instant now, int64_t datagram_bytes) const;
  // Interleaving depth of a window that opens now.
  uint8_t FecDepth() const { return static_cast<uint8_t>(fec_.Depth()); }
  Instant last_eliciting_sent() const { return last_eliciting_sent_; }
  Instant LossDeadline() const { return loss_.Deadline(); }
  // When the pacer lets the packet go that it alone holds back; Infinite(): none.
  Instant NextPacing(Instant now) const {
    return waits_for_pacer_ ? pacer_.NextSendTime(now) : Instant::Infinite();
  }
  void AddTo(ConnectionStats* stats, Instant now) const;

  // Acknowledgements of what the peer sends.
  AckTracker& acks() { return acks_; }
  const AckTracker& acks() const { return acks_; }

  // --- May a packet leave? ---
  // To be called before the questions below: whatever waited for the pacer asks again.
  void OnPoll() { waits_for_pacer_ = false; }
  // Whether an ack-eliciting packet of up to `bytes` may leave now; has_data: one waits. Accounts the time
  // since the last call to the limiter that it found.
  bool MaySend(Instant now, size_t bytes, bool has_data);
  // The windows (congestion, receive, packets in flight) have room for so many bytes.
  bool WindowAllows(size_t bytes) const;
  // As MaySend for a probe of the path, whose waiting is accounted to no limiter.
  bool MayProbePath(Instant now, size_t bytes);
  // Neither frames nor chunks wait: samples and pacing credit of what follows are the application's.
  void OnNothingToSend(Instant now);
  int probes_due() const { return probes_due_; }
  // From the second timeout in a row on, the last of its probes is one that every path carries: were they all
  // large, a path that swallows large datagrams would look like a dead one.
  bool NextProbeIsSmall() const { return probes_due_ == 1 && loss_.pto_count() >= 2; }
  void OnProbeBuilt() { --probes_due_; }
  // As many as at a probe timeout.
  void ProbeNow() { probes_due_ = kProbes; }

  // --- Events ---
  // sent.number must be next_number(). Once connected, a number is left out after one packet in
  // LossDetection::kPacketsPerSkip.
  void OnPacketSent(SentPacket sent, Instant now);
  // A packet whose fate does not matter took the next number.
  void SkipNumber() { ++next_number_; }
  void OnHandshakeRtt(Duration sample, Instant now);
  // skip_seed: of the chance by which numbers are left out; the peer must not know it.
  void OnConnected(int64_t datagram_bytes, Instant now, uint64_t skip_seed);
  void OnWindowStart(Instant now);
  void SetMaxDatagram(int64_t bytes) { pacer_.SetMaxDatagram(ByteCount(bytes)); }
  // Bytes in flight that the peer takes.
  void SetReceiveWindow(uint64_t bytes) { receive_window_ = bytes; }
  // In the packet with that number. One that newer grants have overtaken is ignored: it would stay for as
  // long as the peer believes the newer in force.
  void OnGrant(const wire::GrantFrame& grant, wire::PacketNumber number, Instant now);
  // RateOptions::loss_limits, also of later paths.
  void SetLossLimits(const LossLimits& limits);
  // RateOptions::floor and cap, also of later paths.
  void SetRateBounds(Bandwidth floor, Bandwidth cap);
  // The peer's address is another, by which it has answered.
  void ResetPtoBackoff() { loss_.ResetPtoBackoff(); }
  // Another path, the `index`th of the connection: what was learned of the old one does not hold.
  void OnNewPath(Instant now, uint64_t index);
  // The same, between the same two hosts: their round trip stays a guess of what the new one's is, so that a
  // server that comes back is asked as often as by the old port (RFC 9002 §6.2.2 on resumed connections).
  void OnNewPort(Instant now, uint64_t index);

  // received: when the ACK arrived, which for a busy host is before it is read. Errors: kProtocolViolation
  // (acknowledged what was never sent); nothing is changed.
  Result<LossDetection::Outcome> OnAckReceived(const wire::AckFrame& ack, Instant received) {
    return loss_.OnAckReceived(ack, received);
  }
  LossDetection::Outcome OnTimeout(Instant now) { return loss_.OnTimeout(now); }
  void TakeFates(Instant now, const LossDetection::Outcome& outcome, int64_t datagram_bytes);
  // REQUIRES: TakeFates of the same outcome. new_ce: new CE marks; host_drops: the peer's total. False:
  // nothing has changed.
  bool Conclude(Instant now, const LossDetection::Outcome& outcome, uint64_t new_ce,
                std::optional<uint64_t> host_drops);

 private:
  void SkipNow();
  double PacketsPerRecoveryTime(int64_t datagram_bytes) const;
  Duration MinRtt() const { return rtt_.has_sample() ? rtt_.min_rtt() : Duration(0); }
  // What keeps the next packet of the application from leaving.
  std::optional<RateLimiter> Limiter(bool has_data, bool window_allows, bool pacer_allows) const;
  void UpdatePacer(Instant now);

  RateOptions options_;
  RttEstimator rtt_;
  PathRtt path_rtt_;
  LossDetection loss_{&rtt_};
  AckTracker acks_;
  DeliveryRateSampler sampler_;
  std::unique_ptr<RateController> rate_;
  Pacer pacer_;
  FecAdvisor fec_;
  Random random_;
  std::optional<Random> skips_;  // none before the connection is made

  wire::PacketNumber next_number_ = 0;
  wire::PacketNumber path_first_number_ = 0;  // earlier packets went another path
  uint64_t numbers_skipped_ = 0;
  uint64_t receive_window_ = 0;
  Bandwidth grant_;                      // zero: no bound
  wire::PacketNumber grant_number_ = 0;  // of the packet that brought it
  int probes_due_ = 0;
  bool waits_for_pacer_ = false;
  Instant last_eliciting_sent_;
  uint64_t peer_host_drops_ = 0;
  uint64_t pto_fired_ = 0;

  CongestionEvent event_;                 // of the fates under way
  std::vector<LostPacket> lost_packets_;  // likewise
  std::optional<RateLimiter> limiter_;    // since limited_since_; nullopt: none
  Instant limited_since_;
  std::array<Duration, kRateLimiters> limited_{};
};

}  // namespace longhaul::transport
