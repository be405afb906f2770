// A worker as the coordinator sees it: a fake connection and the events that a real one would have.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <optional>
#include <string>
#include <vector>

#include "codec/chunk/chunk.h"
#include "codec/chunk/window_metadata.h"
#include "server/job/coordinator.h"
#include "tests/transport/fake_connection.h"

namespace longhaul::server {

inline Instant At(int64_t ms) { return Instant::FromNanoseconds(ms * 1000000); }

// What the server tells its owner.
struct Recorder final : ServerEvents {
  void OnRefused(const Address&, const std::string&, const Status& why) override {
    refused.push_back(why.ToString());
  }
  void OnStart(uint32_t workers, uint32_t) override {
    ++starts;
    started_with = workers;
  }
  void OnRound(const JobRound& round, const ServerStats&) override { rounds.push_back(round); }
  void OnLeftOut(const LeftOut& worker, const std::string& who) override {
    left_out.push_back(who + " in round " + std::to_string(worker.round));
  }
  void OnWaiting(const std::string& text, const std::vector<uint32_t>&) override { waiting.push_back(text); }
  void OnJobOver(const Status& outcome, const ServerStats&) override { over.push_back(outcome); }
  void OnRejected(const Rejection& rejection, const std::string& who) override {
    rejections.push_back(rejection);
    rejected.push_back(who);
  }
  void OnWeightBounded(const std::string&, float, float counted) override {
    char text[32];
    std::snprintf(text, sizeof text, "%g", static_cast<double>(counted));
    bounded.emplace_back(text);
  }
  void OnLeave(uint32_t rank, const std::string&, const Status& why) override {
    left.push_back(std::to_string(rank) + " " + why.ToString());
  }
  void OnKick(uint32_t rank, const std::string& who, const std::string& by) override {
    kicked.push_back(std::to_string(rank) + " " + who + " by " + by);
  }
  void OnExpiring(const std::string& who, int64_t seconds) override {
    expiring.push_back(who + " " + std::to_string(seconds));
  }
  void OnBench(const Address&, const std::string&, const std::string&, const GuestTotals* totals) override {
    ++(totals == nullptr ? came : gone);
    if (totals != nullptr) last = *totals;
  }

  std::vector<std::string> left_out;
  std::vector<std::string> waiting;
  std::vector<std::string> refused, left, kicked, expiring;
  std::vector<JobRound> rounds;
  std::vector<Status> over;
  std::vector<Rejection> rejections;
  std::vector<std::string> rejected;  // who
  std::vector<std::string> bounded;   // weights as they count
  uint32_t started_with = 0;
  int starts = 0, came = 0, gone = 0;
  GuestTotals last;
};

class FakeWorker {
 public:
  FakeWorker(Coordinator& coordinator, uint32_t rank, uint16_t port = 0)
      : connection(Address::V4(127, 0, 0, 1, port != 0 ? port : static_cast<uint16_t>(40000 + rank))),
        coordinator_(coordinator),
        rank_(rank) {}

  void Happens(const transport::Event& event) { coordinator_.Handle(&connection, event); }

  // --- Control ---
  void Connect() {
    Happens(transport::event::Accepted{});
    Happens(transport::event::Connected{});
  }
  void Say(const control::ControlMessage& message) {
    Happens(transport::event::ControlBytes{wire::EncodeControlMessage(message)});
    coordinator_.AfterEvent();
  }
  // Without an incarnation it says none, as a process does that is started again.
  void Join(uint32_t world_size, std::optional<uint64_t> incarnation = 0,
            const std::string& job = "default") {
    Connect();
    SayJoin(world_size, incarnation, job);
  }
  void SayJoin(uint32_t world_size, std::optional<uint64_t> incarnation, const std::string& job = "default") {
    control::ControlMessage message;
    control::Join& join = *message.mutable_join();
    join.set_job(job);
    join.set_rank(rank_);
    join.set_world_size(world_size);
    if (incarnation) join.set_incarnation(*incarnation);
    join.set_site("B");
    join.set_weight(1);
    join.set_session(session);
    join.set_knows_shards(knows_shards);
    join.set_takes_membership(takes_membership);
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
    declare.set_result_dtype(static_cast<uint32_t>(result_dtype));
    Say(message);
  }
  void Pull(uint32_t key, uint64_t min_round, uint32_t request) {
    control::ControlMessage message;
    message.mutable_pull_request()->set_key(key);
    message.mutable_pull_request()->set_min_round(min_round);
    message.mutable_pull_request()->set_request(request);
    Say(message);
  }
  void Ask(const control::PullRequest& pull) {
    control::ControlMessage message;
    *message.mutable_pull_request() = pull;
    Say(message);
  }
  void AskClock(uint32_t key) {
    control::ControlMessage message;
    message.mutable_clock_request()->set_key(key);
    Say(message);
  }
  void Barrier(const std::string& name, uint32_t request) {
    control::ControlMessage message;
    message.mutable_barrier()->set_name(name);
    message.mutable_barrier()->set_request(request);
    Say(message);
  }
  void GiveUp(uint32_t request) {
    control::ControlMessage message;
    message.mutable_give_up()->set_request(request);
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
    Happens(transport::event::Closed{why});
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
    codec::WindowMetadata metadata{.kind = kind,
                                   .wants_result = wants_result,
                                   .key = tensor,
                                   .round = round,
                                   .count = count,
                                   .chunk_elements = chunk_elements,
                                   .weight = weight};
    const std::vector<uint8_t> bytes = EncodeMetadata(metadata);
    const wire::WindowOpenFrame open{.window_id = push.key.id,
                                     .high_count = push.high,
                                     .low_count = push.low,
                                     .symbol_bytes = static_cast<uint16_t>(connection.max_chunk_bytes),
                                     .metadata = bytes};
    connection.incoming_now[push.key] = transport::IncomingWindow::Opened(push.high, push.low);
    Happens(transport::event::WindowOpened{push.key, open});
    coordinator_.AfterEvent();
    return connection.incoming_now.contains(push.key) ? Status()
                                                      : Status(StatusCode::kUnavailable, "it was refused");
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
    const auto verdict = SendWithoutState(key, reliability, EncodeChunk(chunk, values), repaired);
    Progress(key);
    return verdict;
  }
  // A chunk alone, of which the window's state says nothing.
  transport::ChunkVerdict SendWithoutState(transport::WindowKey key, wire::ReliabilityClass reliability,
                                           ByteSpan bytes, bool repaired = false) {
    const int before = connection.refused_chunks;
    Happens(transport::event::Chunk{key, reliability, 0, bytes, repaired});
    return connection.refused_chunks > before ? transport::ChunkVerdict::kRefused
                                              : transport::ChunkVerdict::kTaken;
  }
  // The sender has nothing new to send any more.
  void Finish(transport::WindowKey key) {
    connection.incoming_now.at(key).sender_finished = true;
    Progress(key);
  }
  void Progress(transport::WindowKey key) {
    const auto window = connection.incoming_now.find(key);
    if (window != connection.incoming_now.end()) {
      Happens(transport::event::WindowState{key, window->second, connection.stats_now.smoothed_rtt});
    }
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
    Happens(transport::event::WindowClosed{key, reason, &receipt, {}});
    coordinator_.AfterEvent();
  }

  static std::vector<uint8_t> EncodeChunk(uint32_t chunk, const std::vector<float>& values);
  static std::vector<uint8_t> EncodeMetadata(const codec::WindowMetadata& metadata);
  static codec::WindowMetadata MetadataOf(const transport::FakeConnection::Window& window) {
    return *codec::DecodeWindowMetadata(window.options.metadata);
  }
  // The values in a window of ours, by chunk, in the order in which they were submitted.
  static std::vector<std::pair<uint32_t, std::vector<float>>> ChunksOf(
      const transport::FakeConnection::Window& window);
  // The one window towards this worker that is open.
  transport::FakeConnection::Window& Result() { return connection.outgoing.rbegin()->second; }

  transport::FakeConnection connection;
  DType result_dtype = DType::kFloat32;  // of what it declares
  uint64_t session = 0;
  bool knows_shards = true;
  bool takes_membership = false;

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
