// A connection that remembers what it was asked for and delivers nothing by itself: the test plays the peer.
#pragma once

#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "base/check.h"
#include "proto/control_codec.h"
#include "transport/core/connection/connection.h"

namespace longhaul::transport {

class FakeConnection : public Connection {
 public:
  struct Chunk {
    wire::ReliabilityClass reliability = wire::ReliabilityClass::kHigh;
    std::vector<uint8_t> header;
    ByteSpan body;  // borrowed, as the contract says: a test sees when it changes
    std::vector<uint8_t> Bytes() const {
      std::vector<uint8_t> all = header;
      all.insert(all.end(), body.begin(), body.end());
      return all;
    }
  };
  struct Window {
    WindowOptions options;
    std::vector<Chunk> chunks;     // in the order in which they were submitted
    std::vector<Chunk> high, low;  // the same, by class
    bool cancelled = false;
    bool open = true;  // a test may keep a window that it has closed
  };

  explicit FakeConnection(Address peer = Address::V4(127, 0, 0, 1, 7700)) : peer_(peer) {}

  // --- What a test sets ---
  State state_now = State::kConnected;
  ConnectionStats stats_now;
  PeerIdentity identity_now;
  size_t max_chunk_bytes = 1392;
  size_t max_open_windows = 64;
  uint64_t max_window_bytes = UINT64_MAX;
  bool refuse_control = false;
  std::map<WindowKey, IncomingWindow> incoming_now;

  // --- What a test looks at ---
  std::map<WindowKey, Window> outgoing;
  std::vector<std::pair<WindowKey, wire::CloseReason>> closed_windows;
  std::vector<WindowKey> requested_missing;
  int refused_chunks = 0;
  int probes = 0;
  std::optional<Duration> keepalive;
  std::optional<Status> closed;
  bool admitted_now = false;
  LossLimits loss_limits;
  Bandwidth rate_floor;
  Bandwidth rate_cap = Bandwidth::Max();
  std::optional<std::pair<Bandwidth, ByteCount>> grant;
  std::vector<control::ControlMessage> sent;
  // Every control message since the last call.
  std::vector<control::ControlMessage> TakeControl() { return std::exchange(sent, {}); }

  // --- Connection ---
  State state() const override { return state_now; }
  wire::ConnectionId local_id() const override { return {1}; }
  Address peer() const override { return peer_; }
  const PeerIdentity& identity() const override { return identity_now; }
  ConnectionStats stats() const override { return stats_now; }
  Duration smoothed_rtt() const override { return stats_now.smoothed_rtt; }
  ByteCount max_datagram() const override { return ByteCount(1452); }
  size_t MaxChunkBytes() const override { return max_chunk_bytes; }
  ByteCount backlog() const override { return ByteCount(0); }
  void Admit(bool admitted) override { admitted_now = admitted; }
  Status SendControl(ByteSpan bytes) override {
    if (refuse_control) return {StatusCode::kResourceExhausted, "full"};
    const auto messages = reader_.Append(bytes);
    LH_CHECK(messages.ok());
    sent.insert(sent.end(), messages->begin(), messages->end());
    return {};
  }
  Status OpenWindow(const WindowOptions& options) override {
    if (uint64_t{options.high_count + options.low_count} * options.symbol_bytes > max_window_bytes)
      return {StatusCode::kInvalidArgument, "window is larger than the peer accepts"};
    size_t open = 0;
    for (const auto& [key, window] : outgoing) open += window.open ? 1 : 0;
    if (open >= max_open_windows) return {StatusCode::kResourceExhausted, "too many windows"};
    if (outgoing.contains(options.key)) return {StatusCode::kAlreadyExists, "window"};
    outgoing[options.key].options = options;
    return {};
  }
  Status SubmitChunk(WindowKey key, wire::ReliabilityClass reliability, ByteSpan header,
                     ByteSpan body) override {
    const auto it = outgoing.find(key);
    if (it == outgoing.end()) return {StatusCode::kNotFound, "window"};
    Window& window = it->second;
    const bool high = reliability == wire::ReliabilityClass::kHigh;
    auto& of_class = high ? window.high : window.low;
    LH_CHECK_OP(of_class.size(), <, high ? window.options.high_count : window.options.low_count);
    LH_CHECK_OP(header.size(), <=, 16u);
    LH_CHECK_OP(header.size() + body.size(), <=, window.options.symbol_bytes);
    of_class.push_back({reliability, {header.begin(), header.end()}, body});
    window.chunks.push_back(of_class.back());
    return {};
  }
  void CancelWindow(WindowKey key) override {
    const auto it = outgoing.find(key);
    if (it == outgoing.end()) return;
    it->second.cancelled = true;
    it->second.open = false;
  }
  void RefuseChunk(WindowKey, wire::ReliabilityClass, uint32_t) override { ++refused_chunks; }
  void CloseWindow(WindowKey key, wire::CloseReason reason) override {
    if (incoming_now.erase(key) > 0) closed_windows.emplace_back(key, reason);
  }
  void RequestMissing(WindowKey key) override { requested_missing.push_back(key); }
  void Grant(Bandwidth rate, ByteCount receive_window) override { grant = {rate, receive_window}; }
  void SetRateBounds(Bandwidth floor, Bandwidth cap) override { rate_floor = floor, rate_cap = cap; }
  void SetLossLimits(const LossLimits& limits) override { loss_limits = limits; }
  void Probe() override { ++probes; }
  void SetKeepalive(Duration to) override { keepalive = to; }
  void Close(const Status& why) override {
    if (!closed) closed = why;
    state_now = State::kClosing;
  }

 private:
  Address peer_;
  wire::ControlReader reader_;
};

}  // namespace longhaul::transport
