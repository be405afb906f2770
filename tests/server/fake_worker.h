// A worker as the coordinator sees it: a fake connection and the observer calls that a real one would make.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "codec/chunk.h"
#include "codec/window_metadata.h"
#include "server/coordinator.h"
#include "tests/server/fake_connection.h"

namespace longhaul::server {

inline Instant At(int64_t ms) { return Instant::FromNanoseconds(ms * 1000000); }

class FakeWorker {
 public:
  FakeWorker(Coordinator& coordinator, uint32_t rank, uint16_t port = 0)
      : connection(Address::V4(127, 0, 0, 1, port != 0 ? port : static_cast<uint16_t>(40000 + rank))),
        coordinator_(coordinator),
        rank_(rank) {}

  // --- Control ---
  void Connect() {
    ASSERT_NE(coordinator_.Accept(connection), nullptr);
    coordinator_.OnConnected(connection);
  }
  void Say(const control::ControlMessage& message) {
    coordinator_.OnControlData(connection, wire::EncodeControlMessage(message));
    coordinator_.AfterEvent();
  }
  void Join(uint32_t world_size, uint64_t incarnation = 0, const std::string& job = "default") {
    Connect();
    control::ControlMessage message;
    control::Join& join = *message.mutable_join();
    join.set_job(job);
    join.set_rank(rank_);
    join.set_world_size(world_size);
    join.set_incarnation(incarnation);
    join.set_site("B");
    join.set_weight(1);
    Say(message);
  }
  void Declare(const std::string& name, uint64_t count, const std::string& optimizer,
               bool has_initial = false, uint32_t request = 1) {
    control::ControlMessage message;
    control::Declare& declare = *message.mutable_declare();
    declare.set_request(request);
    declare.set_name(name);
    declare.set_count(count);
    declare.set_optimizer(optimizer);
    declare.set_has_initial(has_initial);
    Say(message);
  }
  void Pull(uint32_t key, uint64_t min_round, uint32_t request) {
    control::ControlMessage message;
    message.mutable_pull_request()->set_key(key);
    message.mutable_pull_request()->set_min_round(min_round);
    message.mutable_pull_request()->set_request(request);
    Say(message);
  }
  void Barrier(const std::string& name, uint32_t request) {
    control::ControlMessage message;
    message.mutable_barrier()->set_name(name);
    message.mutable_barrier()->set_request(request);
    Say(message);
  }
  void Leave() {
    control::ControlMessage message;
    message.mutable_leave();
    Say(message);
  }
  // The connection ends as the endpoint would tell it.
  void Die(const Status& why) {
    connection.state_now = transport::Connection::State::kClosed;
    coordinator_.OnClosed(connection, why);
    coordinator_.AfterEvent();
  }

  // Every message of a kind since the last look; others are dropped.
  std::vector<control::ControlMessage> Heard(control::ControlMessage::MessageCase kind) {
    std::vector<control::ControlMessage> found;
    for (auto& message : connection.TakeControl()) {
      if (message.message_case() == kind) found.push_back(std::move(message));
    }
    return found;
  }

  // --- Windows ---
  struct Push {
    transport::WindowKey key;
    uint32_t high = 0;
    uint32_t low = 0;
  };

  // A gradient window; the first `high` chunks to be sent are of the high class.
  Status Open(Push push, uint32_t tensor, uint64_t round, uint64_t count, uint32_t chunk_elements,
              bool wants_result = true, codec::WindowKind kind = codec::WindowKind::kGradient,
              float weight = 1) {
    codec::WindowMetadata metadata;
    metadata.kind = kind;
    metadata.key = tensor;
    metadata.round = round;
    metadata.count = count;
    metadata.chunk_elements = chunk_elements;
    metadata.weight = weight;
    metadata.wants_result = wants_result;
    const std::vector<uint8_t> bytes = EncodeMetadata(metadata);
    wire::WindowOpenFrame open;
    open.window_id = push.key.id;
    open.high_count = push.high;
    open.low_count = push.low;
    open.symbol_bytes = static_cast<uint16_t>(connection.max_chunk_bytes);
    open.metadata = bytes;
    transport::IncomingWindow window;
    window.high_count = push.high;
    window.low_count = push.low;
    connection.incoming_now[push.key] = window;
    Status status = coordinator_.OnWindowOpened(connection, push.key, open);
    if (!status.ok()) connection.incoming_now.erase(push.key);
    coordinator_.AfterEvent();
    return status;
  }
  // One chunk in a datagram of its own.
  transport::ChunkVerdict Send(transport::WindowKey key, wire::ReliabilityClass reliability, uint32_t chunk,
                               const std::vector<float>& values, bool repaired = false) {
    auto& window = connection.incoming_now.at(key);
    uint32_t& received = reliability == wire::ReliabilityClass::kHigh
                             ? (repaired ? window.stats.high_repaired : window.stats.high_received)
                             : window.stats.low_received;
    ++received;
    Update(window);
    const auto verdict =
        coordinator_.OnChunk(connection, key, reliability, 0, EncodeChunk(chunk, values), repaired);
    Progress(key);
    return verdict;
  }
  // The sender has nothing new to send any more.
  void Finish(transport::WindowKey key) {
    connection.incoming_now.at(key).sender_finished = true;
    Progress(key);
  }
  void Progress(transport::WindowKey key) {
    coordinator_.OnWindowProgress(connection, key);
    coordinator_.AfterEvent();
  }
  // The worker has everything of a window of ours, but these low chunks (by sequence number).
  void CloseResult(transport::WindowKey key, const std::vector<uint32_t>& lost_low = {}) {
    const auto window = connection.outgoing.find(key);
    transport::WindowReceipt receipt{.high_complete = true, .low = {}, .high = {}};
    if (window != connection.outgoing.end()) {
      receipt.low = transport::ChunkBitmap(window->second.options.low_count);
      for (uint32_t i = 0; i < receipt.low.size(); ++i) {
        if (std::ranges::find(lost_low, i) == lost_low.end()) receipt.low.Set(i);
      }
      connection.outgoing.erase(window);
    }
    const auto reason = lost_low.empty() ? wire::CloseReason::kComplete : wire::CloseReason::kSoft;
    coordinator_.OnWindowClosed(connection, key, reason, receipt, {});
    coordinator_.AfterEvent();
  }

  static std::vector<uint8_t> EncodeChunk(uint32_t chunk, const std::vector<float>& values);
  static std::vector<uint8_t> EncodeMetadata(const codec::WindowMetadata& metadata);
  static codec::WindowMetadata MetadataOf(const transport::FakeConnection::Outgoing& window) {
    return *codec::DecodeWindowMetadata(window.options.metadata);
  }
  // The values in a window of ours, by chunk, in the order in which they were submitted.
  static std::vector<std::pair<uint32_t, std::vector<float>>> ChunksOf(
      const transport::FakeConnection::Outgoing& window);
  // The one window towards this worker that is open.
  transport::FakeConnection::Outgoing& Result() { return connection.outgoing.rbegin()->second; }

  transport::FakeConnection connection;

 private:
  static void Update(transport::IncomingWindow& window) {
    const auto share = [](uint32_t part, uint32_t whole) {
      return whole == 0 ? 1.0 : static_cast<double>(part) / static_cast<double>(whole);
    };
    window.high_ratio = share(window.stats.high_received + window.stats.high_repaired, window.high_count);
    window.low_ratio = share(window.stats.low_received, window.low_count);
    window.high_complete = window.high_ratio == 1;
    window.complete = window.high_complete && window.low_ratio == 1;
  }

  Coordinator& coordinator_;
  uint32_t rank_;
};

}  // namespace longhaul::server
