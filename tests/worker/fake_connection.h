// A connection that only remembers what it was asked for: the test plays the peer.
#pragma once

#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "proto/control_codec.h"
#include "transport/core/connection.h"

namespace longhaul::worker {

class FakeConnection final : public transport::Connection {
 public:
  struct Chunk {
    wire::ReliabilityClass reliability;
    std::vector<uint8_t> header;
    ByteSpan body;  // borrowed, as in the real one: reading it late shows a broken promise under ASan

    std::vector<uint8_t> Bytes() const {
      std::vector<uint8_t> all = header;
      all.insert(all.end(), body.begin(), body.end());
      return all;
    }
  };
  struct Window {
    transport::WindowOptions options;
    std::vector<Chunk> high;
    std::vector<Chunk> low;
    bool open = true;
  };

  State state() const override { return state_; }
  wire::ConnectionId local_id() const override { return {1}; }
  Address peer() const override { return Address::V4(127, 0, 0, 1, 7700); }
  const transport::PeerIdentity& identity() const override { return identity_now; }
  transport::ConnectionStats stats() const override { return connection_stats; }
  ByteCount max_datagram() const override { return ByteCount(1452); }
  size_t MaxChunkBytes() const override { return max_chunk_bytes; }
  std::optional<transport::IncomingWindow> incoming(transport::WindowKey key) const override {
    const auto it = incoming_now.find(key);
    return it == incoming_now.end() ? std::nullopt : std::optional(it->second);
  }
  ByteCount backlog() const override { return {}; }

  void Admit(bool) override {}
  Status SendControl(ByteSpan bytes) override {
    if (refuse_control) return {StatusCode::kResourceExhausted, "full"};
    Result<std::vector<control::ControlMessage>> messages = reader_.Append(bytes);
    LH_CHECK(messages.ok());
    sent.insert(sent.end(), messages->begin(), messages->end());
    return Status::Ok();
  }
  Status OpenWindow(const transport::WindowOptions& options) override {
    size_t open = 0;
    for (const auto& [key, window] : windows) open += window.open ? 1 : 0;
    if (open >= max_open) return {StatusCode::kResourceExhausted, "too many windows"};
    if (windows.contains(options.key)) return {StatusCode::kAlreadyExists, "window exists"};
    windows[options.key].options = options;
    return Status::Ok();
  }
  Status SubmitChunk(transport::WindowKey key, wire::ReliabilityClass reliability, ByteSpan header,
                     ByteSpan body) override {
    const auto it = windows.find(key);
    if (it == windows.end()) return {StatusCode::kNotFound, "no such window"};
    Window& window = it->second;
    const bool high = reliability == wire::ReliabilityClass::kHigh;
    auto& chunks = high ? window.high : window.low;
    if (chunks.size() >= (high ? window.options.high_count : window.options.low_count)) {
      return {StatusCode::kFailedPrecondition, "class full"};
    }
    if (header.size() > 16 || header.size() + body.size() > window.options.symbol_bytes) {
      return {StatusCode::kInvalidArgument, "chunk too long"};
    }
    chunks.push_back({reliability, {header.begin(), header.end()}, body});
    return Status::Ok();
  }
  void CancelWindow(transport::WindowKey key) override { windows[key].open = false; }
  void CloseWindow(transport::WindowKey key, wire::CloseReason reason) override {
    closed_incoming[key] = reason;
  }
  void RequestMissing(transport::WindowKey key) override { requested_missing.push_back(key); }
  void Grant(Bandwidth, ByteCount) override {}
  void Close(const Status& why) override {
    state_ = State::kClosing;
    closed_with = why;
  }

  // What the test looks at and plays with.
  std::vector<control::ControlMessage> sent;
  std::map<transport::WindowKey, Window> windows;
  std::map<transport::WindowKey, wire::CloseReason> closed_incoming;
  std::map<transport::WindowKey, transport::IncomingWindow> incoming_now;
  std::vector<transport::WindowKey> requested_missing;
  std::optional<Status> closed_with;
  transport::ConnectionStats connection_stats;
  transport::PeerIdentity identity_now;
  size_t max_chunk_bytes = 1392;
  size_t max_open = 64;
  bool refuse_control = false;

 private:
  State state_ = State::kConnected;
  wire::ControlReader reader_;
};

}  // namespace longhaul::worker
