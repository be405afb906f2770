// A transport::Connection for tests of those who use one: records every request, delivers nothing by itself.
#pragma once

#include <cstring>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/check.h"
#include "proto/control_codec.h"
#include "transport/core/connection.h"

namespace longhaul::transport {

class FakeConnection final : public Connection {
 public:
  struct Chunk {
    wire::ReliabilityClass reliability = wire::ReliabilityClass::kHigh;
    std::vector<uint8_t> header;
    ByteSpan body;  // borrowed, as the contract says: a test sees when it changes
    std::vector<uint8_t> bytes() const {
      std::vector<uint8_t> all = header;
      all.insert(all.end(), body.begin(), body.end());
      return all;
    }
  };
  struct Outgoing {
    WindowOptions options;
    std::vector<Chunk> chunks;
    bool cancelled = false;
  };

  explicit FakeConnection(Address peer) : peer_(peer) {}

  // --- What a test sets ---
  State state_now = State::kConnected;
  ConnectionStats stats_now;
  PeerIdentity identity_now;
  size_t max_chunk_bytes = 1392;
  size_t max_open_windows = 64;
  std::map<WindowKey, IncomingWindow> incoming_now;

  // --- What a test looks at ---
  std::map<WindowKey, Outgoing> outgoing;
  std::vector<std::pair<WindowKey, wire::CloseReason>> closed_windows;
  std::vector<WindowKey> requested_missing;
  std::optional<Status> closed;
  bool admitted_now = false;
  std::optional<std::pair<Bandwidth, ByteCount>> grant;
  // Every control message since the last call.
  std::vector<control::ControlMessage> TakeControl() { return std::exchange(control_, {}); }

  // --- Connection ---
  State state() const override { return state_now; }
  wire::ConnectionId local_id() const override { return {}; }
  Address peer() const override { return peer_; }
  const PeerIdentity& identity() const override { return identity_now; }
  ConnectionStats stats() const override { return stats_now; }
  ByteCount max_datagram() const override { return ByteCount(1452); }
  size_t MaxChunkBytes() const override { return max_chunk_bytes; }
  std::optional<IncomingWindow> incoming(WindowKey key) const override {
    const auto it = incoming_now.find(key);
    return it == incoming_now.end() ? std::nullopt : std::optional(it->second);
  }
  ByteCount backlog() const override { return ByteCount(0); }
  void Admit(bool admitted) override { admitted_now = admitted; }
  Status SendControl(ByteSpan bytes) override {
    auto messages = reader_.Append(bytes);
    LH_CHECK(messages.ok());
    for (auto& message : *messages) control_.push_back(std::move(message));
    return {};
  }
  Status OpenWindow(const WindowOptions& options) override {
    if (outgoing.size() >= max_open_windows)
      return Status(StatusCode::kResourceExhausted, "too many windows");
    const bool fresh = outgoing.try_emplace(options.key, Outgoing{.options = options, .chunks = {}}).second;
    return fresh ? Status() : Status(StatusCode::kAlreadyExists, "window");
  }
  Status SubmitChunk(WindowKey key, wire::ReliabilityClass reliability, ByteSpan header,
                     ByteSpan body) override {
    const auto it = outgoing.find(key);
    if (it == outgoing.end()) return Status(StatusCode::kNotFound, "window");
    LH_CHECK_OP(header.size() + body.size(), <=, it->second.options.symbol_bytes);
    it->second.chunks.push_back({reliability, {header.begin(), header.end()}, body});
    return {};
  }
  void CancelWindow(WindowKey key) override {
    if (const auto it = outgoing.find(key); it != outgoing.end()) it->second.cancelled = true;
  }
  void CloseWindow(WindowKey key, wire::CloseReason reason) override {
    if (incoming_now.erase(key) > 0) closed_windows.emplace_back(key, reason);
  }
  void RequestMissing(WindowKey key) override { requested_missing.push_back(key); }
  void Grant(Bandwidth rate, ByteCount receive_window) override { grant = {rate, receive_window}; }
  void Close(const Status& why) override {
    if (!closed) closed = why;
    state_now = State::kClosing;
  }

 private:
  Address peer_;
  wire::ControlReader reader_;
  std::vector<control::ControlMessage> control_;
};

}  // namespace longhaul::transport
