// A load generator without sockets, clock and threads: one connection to a parameter server that takes
// windows back to back and counts them (bench/load/sink.h). It measures the transport, not the
// learning: chunks carry noise, and the sender never runs out of them.
//
//   Start(now, server) -> kRunning -> length is over, or Stop() -> kLeaving -> kEnded
//
// Goodput is what the server reports about distinct chunks between two of its reports, on the server's clock;
// so neither retransmissions nor headers nor what is still on the way count. Everything else is the sender's
// view of the same time. Drive it like any DatagramCore. Not thread-safe.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/random.h"
#include "bench/load/thinned_samples.h"
#include "codec/fec/erasure_coder.h"
#include "proto/control_codec.h"
#include "transport/core/datagram_core.h"
#include "transport/core/endpoint/endpoint.h"

namespace longhaul::load {

struct FlowOptions {
  std::string site = {};
  wire::ReliabilityClass reliability = wire::ReliabilityClass::kHigh;
  ByteCount window_bytes{16 << 20};   // of one window; rounded up to whole chunks, bounded by the server
  std::optional<uint8_t> fec_k = {};  // source symbols per block; nothing: the server's setting
  Duration length = std::chrono::seconds(10);  // from the server's welcome to the end
  Duration warmup{0};                          // at the start, not measured; < length
  uint32_t max_windows = 0;                    // the run ends when so many are closed; 0 = no such end
  Duration series_interval{0};                 // a FlowPoint every so often; zero: none
  Duration connect_timeout = std::chrono::seconds(10);
  Duration leave_timeout = std::chrono::seconds(2);
  transport::ConnectionOptions connection = {};
  transport::Security* security = nullptr;  // null: none; else it must outlive the core
};

// One moment of the run, for plots.
struct FlowPoint {
  Duration at{0};      // since the welcome
  uint64_t bytes = 0;  // by the latest report
  transport::ConnectionStats connection;
};

// What was measured: after the warm-up, until now or until the end.
struct FlowReport {
  Duration time{0};    // between the two reports that count, on the server's clock
  uint64_t bytes = 0;  // distinct chunk bytes of the flow's class in that time
  uint64_t repaired = 0;
  uint64_t windows = 0;  // closed by the server
  // The sender's counters as differences; what has no difference (RTT, rate, fit) as it is now.
  transport::ConnectionStats connection;
  ThinnedSamples rtt_ms;
  ThinnedSamples queue_ms;   // RTT above the connection's minimum
  ThinnedSamples window_ms;  // from opening a window to hearing that it is closed
  uint16_t symbol_bytes = 0;
  ByteCount datagram;
  uint8_t fec_k = 0;

  double goodput_mbps() const;
  double loss() const;  // share of packets declared lost, spurious ones taken back
};

class FlowCore final : public transport::DatagramCore {
 public:
  enum class State : uint8_t { kConnecting, kRunning, kLeaving, kEnded };
  // RTT and queue are looked at so often.
  static constexpr Duration kSampleInterval = std::chrono::milliseconds(10);
  static constexpr size_t kMaxPoints = 100'000;

  // coder may be null: then there is no FEC. REQUIRES: options.warmup < options.length.
  FlowCore(FlowOptions options, codec::ErasureCoder* coder, Random random);
  ~FlowCore() override;

  void Start(Instant now, const Address& server);
  // Ends the measurement here, in order.
  void Stop(Instant now);

  // --- Questions ---
  State state() const { return state_; }
  // Ended, and nothing is left to be sent.
  bool finished() const { return state_ == State::kEnded && endpoint_.connection_count() == 0; }
  // Whether the server ever let it in.
  bool welcomed() const { return welcomed_at_.has_value(); }
  // Ok, or why the run could not go on.
  const Status& outcome() const { return outcome_; }
  Duration elapsed(Instant now) const { return welcomed_at_ ? now - *welcomed_at_ : Duration(0); }
  FlowReport report() const;
  // The whole run until now, warm-up included: for progress.
  FlowPoint Now() const;
  const std::vector<FlowPoint>& series() const { return series_; }

  // --- DatagramCore ---
  void HandleDatagram(Instant now, const Address& from, MutableByteSpan datagram,
                      const transport::ReceiveInfo& info) override;
  void HandleTimeout(Instant now) override;
  void HandleSendRefused(Instant now, const Address& destination, size_t datagram_bytes) override;
  std::optional<transport::Transmit> PollTransmit(Instant now, MutableByteSpan buffer) override;
  Instant NextTimeout() const override;

 private:
  void Drain();
  void Handle(const transport::Event& event);
  void OnConnected();
  void OnClosed(const Status& why);
  void OnControlBytes(ByteSpan bytes);
  void OnWindowClosed(transport::WindowKey key, wire::CloseReason reason);

  void OnMessage(const control::ControlMessage& message);
  void OnWelcome(const control::BenchWelcome& welcome);
  void OnReport(const control::BenchReport& report);
  uint64_t BytesIn(const control::BenchReport& report) const;
  void Advance(Instant now);
  void BeginMeasuring();
  void Sample();
  void FillPipe();
  Status OpenNext();
  void Leave();
  void Fail(const Status& why);
  void End(const Status& outcome);
  std::string Silence() const;

  const FlowOptions options_;
  const bool has_coder_;
  Random random_;
  State state_ = State::kConnecting;
  Status outcome_;
  Instant now_;
  std::string server_name_;
  transport::Connection* connection_ = nullptr;  // null before Start and after Closed
  bool connected_ = false;
  wire::ControlReader reader_;
  control::BenchWelcome welcome_;
  std::optional<Instant> welcomed_at_;
  Instant connect_deadline_ = Instant::Infinite();
  Instant leave_deadline_ = Instant::Infinite();
  Instant next_sample_ = Instant::Infinite();
  Instant next_point_ = Instant::Infinite();

  std::vector<uint8_t> noise_;  // what every window consists of; borrowed by the connection
  uint32_t chunks_per_window_ = 0;
  uint16_t symbol_bytes_ = 0;
  uint8_t fec_k_ = 0;
  std::map<transport::WindowKey, Instant> windows_;  // open ones, and since when
  uint32_t next_window_ = 1;

  bool measuring_ = false;               // the warm-up is over
  transport::ConnectionStats at_begin_;  // of the measurement
  std::optional<transport::ConnectionStats> at_end_;
  transport::ConnectionStats last_stats_;  // kept when the connection is gone
  ByteCount datagram_;
  std::optional<control::BenchReport> first_report_;  // of the measurement
  control::BenchReport latest_report_;
  uint64_t windows_closed_ = 0;
  ThinnedSamples rtt_ms_;
  ThinnedSamples queue_ms_;
  ThinnedSamples window_ms_;
  std::vector<FlowPoint> series_;

  transport::Endpoint endpoint_;
};

}  // namespace longhaul::load
