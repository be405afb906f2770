// A connection without a network: it keeps what a PushPipeline submits until the round's windows are judged.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "transport/core/connection/connection.h"

namespace longhaul::bench {

class CaptureConnection final : public transport::Connection {
 public:
  struct Chunk {
    std::array<uint8_t, 16> header;
    size_t header_bytes = 0;
    ByteSpan body;  // borrowed from the pipeline until its window is closed
  };
  struct Window {
    transport::WindowOptions options;
    std::vector<Chunk> high;
    std::vector<Chunk> low;
  };

  // The window under this id, in which chunks are in sending order.
  const Window& window(uint32_t id) const { return windows_.at(id); }

  State state() const override { return State::kConnected; }
  wire::ConnectionId local_id() const override { return {1}; }
  Address peer() const override { return Address::V4(127, 0, 0, 1, 7700); }
  const transport::PeerIdentity& identity() const override { return no_identity_; }
  transport::ConnectionStats stats() const override { return {}; }
  Duration smoothed_rtt() const override { return Duration(0); }
  ByteCount max_datagram() const override { return ByteCount(1452); }
  size_t MaxChunkBytes() const override { return 1392; }
  ByteCount backlog() const override { return {}; }
  void Admit(bool) override {}
  Status SendControl(ByteSpan) override { return Status::Ok(); }
  // Opens the window, or opens it again: ids are used round after round.
  Status OpenWindow(const transport::WindowOptions& options) override;
  Status SubmitChunk(transport::WindowKey key, wire::ReliabilityClass reliability, ByteSpan header,
                     ByteSpan body) override;
  void CancelWindow(transport::WindowKey key) override { windows_.erase(key.id); }
  void RefuseChunk(transport::WindowKey, wire::ReliabilityClass, uint32_t) override {}
  void CloseWindow(transport::WindowKey, wire::CloseReason) override {}
  void RequestMissing(transport::WindowKey) override {}
  void Grant(Bandwidth, ByteCount) override {}
  void SetRateBounds(Bandwidth, Bandwidth) override {}
  void SetLossLimits(const transport::LossLimits&) override {}
  void Probe() override {}
  void Close(const Status&) override {}

 private:
  transport::PeerIdentity no_identity_;
  std::map<uint32_t, Window> windows_;
};

}  // namespace longhaul::bench
