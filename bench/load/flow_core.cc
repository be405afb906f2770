#include "bench/load/flow_core.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "base/counters.h"
#include "base/units_text.h"
#include "proto/utf8.h"

namespace longhaul::load {
namespace {

using control::ControlMessage;
using transport::ConnectionStats;

// Unsent chunk bytes beyond which no further window is opened: enough for some milliseconds at any rate.
constexpr ByteCount kEnoughBacklog{4 << 20};

double Milliseconds(Duration d) { return std::chrono::duration<double, std::milli>(d).count(); }

transport::EndpointOptions EndpointOptionsOf(const FlowOptions& options, codec::ErasureCoder* coder) {
  transport::EndpointOptions endpoint;
  endpoint.connection = options.connection;
  endpoint.connection.rate.max_datagram = options.connection.max_datagram;
  endpoint.coder = coder;
  endpoint.security = options.security;
  return endpoint;
}

// Counters as differences; everything else as in `end`.
ConnectionStats Since(const ConnectionStats& begin, const ConnectionStats& end) {
  ConnectionStats d =
      CountsSince(std::span<const Counter<ConnectionStats>>(transport::kConnectionCounters), begin, end);
  for (size_t i = 0; i < d.limited.size(); ++i) d.limited[i] -= begin.limited[i];
  return d;
}

}  // namespace

double FlowReport::goodput_mbps() const {
  if (time <= Duration(0)) return 0;
  return static_cast<double>(bytes) * 8e-6 / std::chrono::duration<double>(time).count();
}

double FlowReport::loss() const {
  if (connection.packets_sent == 0 || connection.packets_lost <= connection.packets_spurious) return 0;
  return static_cast<double>(connection.packets_lost - connection.packets_spurious) /
         static_cast<double>(connection.packets_sent);
}

FlowCore::FlowCore(FlowOptions options, codec::ErasureCoder* coder, Random random)
    : options_(std::move(options)),
      has_coder_(coder != nullptr),
      random_(random.Fork(1)),
      endpoint_(EndpointOptionsOf(options_, coder), random) {
  LH_CHECK(options_.warmup < options_.length);
  LH_CHECK_OP(options_.window_bytes.value(), >, 0);
}

FlowCore::~FlowCore() = default;

void FlowCore::Start(Instant now, const Address& server) {
  LH_CHECK(connection_ == nullptr && state_ == State::kConnecting);
  now_ = now;
  server_name_ = server.ToString();
  connect_deadline_ = now + options_.connect_timeout;
  connection_ = endpoint_.Connect(now, server);
}

void FlowCore::Stop(Instant now) {
  now_ = now;
  if (state_ == State::kRunning) Leave();
  if (state_ != State::kConnecting) return;
  outcome_ = Status(StatusCode::kCancelled, "stopped before " + server_name_ + " had answered");
  if (connection_ != nullptr) connection_->Close(outcome_);
  End(outcome_);
}

// --- Connection ---

void FlowCore::Drain() {
  while (const auto happened = endpoint_.PollEvent()) Handle(happened->event);
}

void FlowCore::Handle(const transport::Event& event) {
  namespace ev = transport::event;
  if (std::holds_alternative<ev::Connected>(event)) return OnConnected();
  if (const auto* control = std::get_if<ev::ControlBytes>(&event)) return OnControlBytes(control->bytes);
  if (const auto* closed = std::get_if<ev::WindowClosed>(&event)) {
    return OnWindowClosed(closed->key, closed->reason);
  }
  if (const auto* over = std::get_if<ev::Closed>(&event)) return OnClosed(over->why);
  if (const auto* window = std::get_if<ev::WindowOpened>(&event)) {  // a load generator takes none
    connection_->CloseWindow(window->key, wire::CloseReason::kExcluded);
  }
}

void FlowCore::OnConnected() {
  connected_ = true;
  if (state_ != State::kConnecting) return;
  ControlMessage message;
  message.mutable_bench_join()->set_site(wire::Printable(options_.site, wire::kMaxNameBytes));
  (void)connection_->SendControl(wire::EncodeControlMessage(message));
}

void FlowCore::OnClosed(const Status& why) {
  last_stats_ = connection_->stats();
  connection_ = nullptr;
  if (state_ == State::kEnded) return;
  if (state_ == State::kLeaving) return End(Status::Ok());
  const bool silence = why.code() == StatusCode::kPeerDead || why.code() == StatusCode::kUnavailable;
  if (!connected_ && silence) return End(Status(StatusCode::kUnavailable, Silence()));
  if (why.code() == StatusCode::kPeerDead) {
    return End(Status(StatusCode::kPeerDead, "server " + server_name_ + " was silent for " +
                                                 SecondsText(options_.connection.idle_timeout)));
  }
  End(why.ok() ? Status(StatusCode::kAborted, "server " + server_name_ + " closed the connection") : why);
}

std::string FlowCore::Silence() const {
  return "no answer from server " + server_name_ + " within " + SecondsText(options_.connect_timeout) +
         "; is longhaul-server running there, with the same key (or both without one), and does a firewall "
         "let UDP through?";
}

void FlowCore::OnControlBytes(ByteSpan bytes) {
  if (state_ == State::kEnded) return;
  const auto messages = reader_.Append(bytes);
  if (!messages.ok()) return Fail(messages.status());
  for (const ControlMessage& message : *messages) OnMessage(message);
}

void FlowCore::OnMessage(const ControlMessage& message) {
  if (state_ == State::kEnded) return;
  if (message.has_bench_report()) return OnReport(message.bench_report());
  if (message.has_leave()) {
    if (state_ == State::kLeaving) {
      if (connection_ != nullptr) connection_->Close(Status::Ok());
      return End(Status::Ok());
    }
    return Fail(Status(StatusCode::kAborted,
                       "server " + server_name_ + " ended the run: " + message.leave().message()));
  }
  if (state_ == State::kLeaving) return;
  if (message.has_bench_welcome() && state_ == State::kConnecting) return OnWelcome(message.bench_welcome());
  if (message.has_refused()) {
    return Fail(
        Status(static_cast<StatusCode>(message.refused().code()),
               "server " + server_name_ + " refuses this load generator: " + message.refused().message()));
  }
  Fail(Status(StatusCode::kProtocolViolation, "server " + server_name_ + " sent an unexpected message"));
}

void FlowCore::OnWelcome(const control::BenchWelcome& welcome) {
  welcome_ = welcome;
  welcomed_at_ = now_;
  state_ = State::kRunning;
  connect_deadline_ = Instant::Infinite();
  next_sample_ = now_;
  if (options_.warmup == Duration(0)) BeginMeasuring();
  if (options_.series_interval > Duration(0)) next_point_ = now_ + options_.series_interval;
  symbol_bytes_ = static_cast<uint16_t>(connection_->MaxChunkBytes());
  datagram_ = connection_->max_datagram();
  fec_k_ = has_coder_ ? options_.fec_k.value_or(static_cast<uint8_t>(welcome.fec_k())) : uint8_t{0};
  const uint64_t bytes =
      std::min(static_cast<uint64_t>(options_.window_bytes.value()), welcome.max_open_bytes());
  chunks_per_window_ = static_cast<uint32_t>(std::clamp<uint64_t>(
      (bytes + symbol_bytes_ - 1) / symbol_bytes_, 1,
      std::min<uint64_t>(std::max<uint64_t>(welcome.max_open_bytes() / symbol_bytes_, 1), 1u << 20)));
  noise_.resize(size_t{chunks_per_window_} * symbol_bytes_);
  for (size_t at = 0; at < noise_.size(); at += sizeof(uint64_t)) {
    const uint64_t word = random_.Next();
    std::memcpy(noise_.data() + at, &word, sizeof word);  // symbols are multiples of 16 bytes
  }
  FillPipe();
}

uint64_t FlowCore::BytesIn(const control::BenchReport& report) const {
  return options_.reliability == wire::ReliabilityClass::kHigh ? report.high_bytes() : report.low_bytes();
}

void FlowCore::OnReport(const control::BenchReport& report) {
  if (!welcomed_at_) return;
  // After the end it would count the silence of leaving; but a run too short for a report has only this one.
  if (state_ == State::kLeaving && first_report_ &&
      latest_report_.elapsed_us() > first_report_->elapsed_us()) {
    return;
  }
  latest_report_ = report;
  const auto warmup = std::chrono::duration_cast<std::chrono::microseconds>(options_.warmup).count();
  if (!first_report_ && report.elapsed_us() >= static_cast<uint64_t>(warmup)) {
    first_report_ = warmup == 0 ? control::BenchReport() : report;
  }
}

// --- Windows ---

// Opens windows while the connection has little left to send. Cheap when there is nothing to do.
void FlowCore::FillPipe() {
  const ByteCount window(static_cast<int64_t>(noise_.size()));
  while (state_ == State::kRunning && connection_ != nullptr) {
    const bool enough = options_.max_windows > 0 && next_window_ > options_.max_windows;
    const uint64_t open_bytes = windows_.size() * noise_.size();
    if (enough || connection_->backlog() >= std::min(window, kEnoughBacklog)) return;
    if (windows_.size() >= welcome_.max_open_windows()) return;
    if (open_bytes + noise_.size() > welcome_.max_open_bytes() && !windows_.empty()) return;
    if (Status opened = OpenNext(); !opened.ok()) {
      if (opened.code() != StatusCode::kResourceExhausted) Fail(opened);
      return;
    }
  }
}

Status FlowCore::OpenNext() {
  transport::WindowOptions window;
  window.key = {next_window_, 0};
  const bool high = options_.reliability == wire::ReliabilityClass::kHigh;
  (high ? window.high_count : window.low_count) = chunks_per_window_;
  window.symbol_bytes = symbol_bytes_;
  window.fec_k = high ? fec_k_ : uint8_t{0};
  window.fec_depth = static_cast<uint8_t>(welcome_.fec_depth());
  if (Status s = connection_->OpenWindow(window); !s.ok()) return s;
  ++next_window_;
  windows_[window.key] = now_;
  for (uint32_t i = 0; i < chunks_per_window_; ++i) {
    const ByteSpan body = ByteSpan(noise_).subspan(size_t{i} * symbol_bytes_, symbol_bytes_);
    if (Status s = connection_->SubmitChunk(window.key, options_.reliability, {}, body); !s.ok()) return s;
  }
  return {};
}

void FlowCore::OnWindowClosed(transport::WindowKey key, wire::CloseReason reason) {
  const auto it = windows_.find(key);
  if (it == windows_.end()) return;
  const Duration took = now_ - it->second;
  windows_.erase(it);
  if (state_ != State::kRunning) return;
  if (reason == wire::CloseReason::kExcluded) {
    return Fail(
        Status(StatusCode::kResourceExhausted, "server " + server_name_ + " refuses windows of this size"));
  }
  if (measuring_) {
    ++windows_closed_;
    window_ms_.Add(Milliseconds(took));
  }
  if (options_.max_windows > 0 && next_window_ > options_.max_windows && windows_.empty()) Leave();
}

// --- Ends ---

void FlowCore::Leave() {
  state_ = State::kLeaving;
  next_sample_ = next_point_ = Instant::Infinite();
  leave_deadline_ = now_ + options_.leave_timeout;
  if (connection_ == nullptr) return End(Status::Ok());
  at_end_ = connection_->stats();
  for (const auto& [key, since] : windows_) connection_->CancelWindow(key);
  windows_.clear();
  ControlMessage message;
  message.mutable_leave();
  (void)connection_->SendControl(wire::EncodeControlMessage(message));
}

void FlowCore::Fail(const Status& why) {
  if (state_ == State::kEnded) return;
  if (connection_ != nullptr) {
    if (!at_end_) at_end_ = connection_->stats();
    connection_->Close(why);
  }
  End(why);
}

void FlowCore::End(const Status& outcome) {
  state_ = State::kEnded;
  outcome_ = outcome;
  windows_.clear();
  connect_deadline_ = leave_deadline_ = next_sample_ = next_point_ = Instant::Infinite();
}

// --- Time ---

void FlowCore::Advance(Instant now) {
  now_ = now;
  if (now >= connect_deadline_) {
    return Fail(Status(StatusCode::kUnavailable,
                       connected_ ? "server " + server_name_ + " did not let this load generator in within " +
                                        SecondsText(options_.connect_timeout)
                                  : Silence()));
  }
  if (now >= leave_deadline_) {
    if (connection_ != nullptr) connection_->Close(Status::Ok());
    return End(Status::Ok());
  }
  if (state_ != State::kRunning) return;
  if (now >= next_sample_) Sample();
  if (now >= *welcomed_at_ + options_.length) return Leave();
  FillPipe();
}

void FlowCore::BeginMeasuring() {
  measuring_ = true;
  if (connection_ != nullptr) at_begin_ = connection_->stats();
}

void FlowCore::Sample() {
  const ConnectionStats stats = connection_ != nullptr ? connection_->stats() : last_stats_;
  next_sample_ = std::max(next_sample_ + kSampleInterval, now_);
  if (!measuring_ && now_ >= *welcomed_at_ + options_.warmup) BeginMeasuring();
  if (measuring_ && stats.latest_rtt > Duration(0)) {
    rtt_ms_.Add(Milliseconds(stats.latest_rtt));
    queue_ms_.Add(Milliseconds(std::max(stats.latest_rtt - stats.min_rtt, Duration(0))));
  }
  if (now_ < next_point_) return;
  next_point_ = next_point_ + options_.series_interval;
  if (series_.size() < kMaxPoints) {
    series_.push_back({now_ - *welcomed_at_, BytesIn(latest_report_), stats});
  }
}

FlowPoint FlowCore::Now() const {
  return {.at = std::chrono::microseconds(static_cast<int64_t>(latest_report_.elapsed_us())),
          .bytes = BytesIn(latest_report_),
          .connection = connection_ != nullptr ? connection_->stats() : last_stats_};
}

FlowReport FlowCore::report() const {
  FlowReport report;
  report.symbol_bytes = symbol_bytes_;
  report.datagram = datagram_;
  report.fec_k = fec_k_;
  report.windows = windows_closed_;
  report.rtt_ms = rtt_ms_;
  report.queue_ms = queue_ms_;
  report.window_ms = window_ms_;
  if (measuring_) {
    const ConnectionStats now = connection_ != nullptr ? connection_->stats() : last_stats_;
    report.connection = Since(at_begin_, at_end_.value_or(now));
  }
  if (!first_report_) return report;
  report.time = std::chrono::microseconds(
      static_cast<int64_t>(latest_report_.elapsed_us() - first_report_->elapsed_us()));
  report.bytes = BytesIn(latest_report_) - BytesIn(*first_report_);
  report.repaired = latest_report_.chunks_repaired() - first_report_->chunks_repaired();
  return report;
}

// --- DatagramCore ---

void FlowCore::HandleDatagram(Instant now, const Address& from, MutableByteSpan datagram,
                              const transport::ReceiveInfo& info) {
  now_ = now;
  endpoint_.HandleDatagram(now, from, datagram, info);
  Drain();
  FillPipe();
}

void FlowCore::HandleTimeout(Instant now) {
  now_ = now;
  endpoint_.HandleTimeout(now);
  Drain();
  Advance(now);
}

void FlowCore::HandleSendRefused(Instant now, const Address& destination, size_t datagram_bytes) {
  now_ = now;
  endpoint_.HandleSendRefused(now, destination, datagram_bytes);
  Drain();
}

std::optional<transport::Transmit> FlowCore::PollTransmit(Instant now, MutableByteSpan buffer) {
  now_ = now;
  Drain();  // Stop may have ended the connection
  FillPipe();
  return endpoint_.PollTransmit(now, buffer);
}

Instant FlowCore::NextTimeout() const {
  Instant next = std::min({endpoint_.NextTimeout(), connect_deadline_, leave_deadline_});
  if (state_ != State::kRunning) return next;
  return std::min({next, next_sample_, *welcomed_at_ + options_.length});
}

}  // namespace longhaul::load
