// A worker's session whose server is the test: messages and windows go in by hand, what it did is looked at.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "codec/chunk/chunk.h"
#include "codec/chunk/window_metadata.h"
#include "tests/transport/fake_connection.h"
#include "worker/client/worker_session.h"

namespace longhaul::worker {

using transport::FakeConnection;

// How an operation ended; empty while it has not.
struct Outcome {
  int calls = 0;
  Status status;
  OperationStats stats;
  TensorHandle handle = UINT32_MAX;

  WorkerSession::Callback Callback() {
    return [this](const Status& s, const OperationStats& st) {
      ++calls;
      status = s;
      stats = st;
    };
  }
  WorkerSession::DeclareCallback DeclareCallback() {
    return [this](const Result<TensorHandle>& result) {
      ++calls;
      status = result.status();
      if (result.ok()) handle = *result;
    };
  }
  bool done() const { return calls > 0; }
};

class SessionHarness {
 public:
  static constexpr uint32_t kSymbolBytes = 1392;

  explicit SessionHarness(WorkerCoreOptions options = {}) : session(std::move(options)) {
    session.Start(At(0), &connection);
  }

  // After an event or a request: what it starts is done, whatever it takes.
  void FinishEvent() {
    session.FinishEvent();
    while (session.HasWork()) session.Work();
  }
  Instant At(int64_t ms) const { return Instant::FromNanoseconds(ms * 1'000'000); }
  void Advance(int64_t ms) {
    now += ms;
    session.AdvanceTo(At(now));
    session.HandleTimeout();
    FinishEvent();
  }

  // --- The server's side ---
  void Happens(const transport::Event& event) {
    session.Handle(event);
    FinishEvent();
  }
  void Send(const control::ControlMessage& message) {
    Happens(transport::event::ControlBytes{wire::EncodeControlMessage(message)});
  }
  void Connect() { Happens(transport::event::Connected{}); }
  JobSpec spec = {.fec_depth = 4};  // the job's, but what Welcome is given
  void Welcome(LossPolicy policy = LossPolicy::kResidual, double high_share = 0.25) {
    spec.policy = policy;
    spec.high_share = high_share;
    control::ControlMessage m;
    wire::EncodeJobSpec(spec, m.mutable_welcome()->mutable_job_spec());
    Send(m);
  }
  void SendStart() {
    control::ControlMessage m;
    m.mutable_start()->set_symbol_bytes(kSymbolBytes);
    m.mutable_start()->set_members(1);
    Send(m);
  }
  void SendRoundReport(uint64_t round, uint32_t key = 0, std::optional<uint32_t> state_hash = {}) {
    control::ControlMessage m;
    m.mutable_round_report()->set_key(key);
    m.mutable_round_report()->set_round(round);
    m.mutable_round_report()->set_contributors(1);
    m.mutable_round_report()->set_has_state_hash(state_hash.has_value());
    m.mutable_round_report()->set_state_hash(state_hash.value_or(0));
    Send(m);
  }
  // Of the worker's n-th window.
  void SendPushTaken(uint64_t round, uint32_t key = 0, size_t n = 0) {
    control::ControlMessage m;
    m.mutable_push_taken()->set_key(key);
    m.mutable_push_taken()->set_round(round);
    m.mutable_push_taken()->set_window(Window(n).options.key.id);
    m.mutable_push_taken()->set_generation(Window(n).options.key.generation);
    Send(m);
  }
  void SendLeave(StatusCode code, const std::string& text) {
    control::ControlMessage m;
    m.mutable_leave()->set_code(static_cast<uint32_t>(code));
    m.mutable_leave()->set_message(text);
    Send(m);
  }
  void SendDeclared(uint32_t request, uint32_t key, uint64_t next_round = 0, bool send_initial = false) {
    control::ControlMessage m;
    control::Declared& d = *m.mutable_declared();
    d.set_request(request);
    d.set_key(key);
    d.set_next_round(next_round);
    d.set_send_initial(send_initial);
    Send(m);
  }
  void JoinAndStart(LossPolicy policy = LossPolicy::kResidual, double high_share = 0.25) {
    Connect();
    Welcome(policy, high_share);
    SendStart();
  }
  // Declares a tensor and answers for the server.
  TensorHandle DeclareTensor(const std::string& name, uint64_t count, uint32_t key = 0,
                             uint64_t next_round = 0) {
    Outcome declared;
    session.Declare({.name = name, .count = count, .initial = {}}, declared.DeclareCallback());
    FinishEvent();
    SendDeclared(connection.sent.back().declare().request(), key, next_round);
    EXPECT_TRUE(declared.status.ok()) << declared.status.ToString();
    return declared.handle;
  }

  // The worker's n-th window, in the order in which they were opened.
  FakeConnection::Window& Window(size_t n) {
    auto it = connection.outgoing.begin();
    std::advance(it, n);
    return it->second;
  }
  static codec::WindowMetadata Metadata(const FakeConnection::Window& window) {
    Result<codec::WindowMetadata> metadata = codec::DecodeWindowMetadata(window.options.metadata);
    EXPECT_TRUE(metadata.ok());
    return *metadata;
  }
  // Closes a window of the worker's: the low chunks in `lost` did not arrive. One that wants no result was
  // taken into its round, unless it is refused.
  void CloseGradient(size_t n, const std::vector<uint32_t>& lost_low = {}, bool high_complete = true,
                     wire::CloseReason reason = wire::CloseReason::kRatio) {
    FakeConnection::Window& window = Window(n);
    const codec::WindowMetadata metadata = Metadata(window);
    if (metadata.kind == codec::WindowKind::kGradient && !metadata.wants_result &&
        reason != wire::CloseReason::kExcluded) {
      SendPushTaken(metadata.round, metadata.key, n);
    }
    CloseWindow(n, lost_low, high_complete, reason);
  }
  void CloseWindow(size_t n, const std::vector<uint32_t>& lost_low = {}, bool high_complete = true,
                   wire::CloseReason reason = wire::CloseReason::kRatio) {
    FakeConnection::Window& window = Window(n);
    transport::WindowReceipt receipt;
    receipt.high_complete = high_complete;
    receipt.low = transport::ChunkBitmap(window.options.low_count);
    for (uint32_t i = 0; i < window.options.low_count; ++i) {
      if (std::find(lost_low.begin(), lost_low.end(), i) == lost_low.end()) receipt.low.Set(i);
    }
    transport::WindowTxStats stats;
    stats.high_sent = window.options.high_count;
    stats.low_sent = window.options.low_count;
    window.open = false;
    Happens(transport::event::WindowClosed{window.options.key, reason, &receipt, stats});
  }

  // A result window that the server opens.
  Status OpenResult(uint32_t id, const codec::WindowMetadata& metadata, uint32_t chunks, uint32_t low = 0) {
    const std::vector<uint8_t> bytes = codec::EncodeWindowMetadata(metadata);
    connection.incoming_now[{id, 0}] = transport::IncomingWindow::Opened(chunks - low, low);
    const wire::WindowOpenFrame open{.window_id = id,
                                     .high_count = chunks - low,
                                     .low_count = low,
                                     .symbol_bytes = kSymbolBytes,
                                     .metadata = bytes};
    Happens(transport::event::WindowOpened{{id, 0}, open});
    if (connection.incoming_now.contains({id, 0})) return {};
    EXPECT_EQ(connection.closed_windows.back(),
              std::pair(transport::WindowKey{id}, wire::CloseReason::kExcluded));
    return connection.closed.value_or(Status(StatusCode::kNotFound, "it was refused"));
  }
  codec::WindowMetadata ResultMetadata(uint64_t count, uint64_t round, uint32_t key = 0) const {
    codec::WindowMetadata metadata{.kind = codec::WindowKind::kAggregate,
                                   .key = key,
                                   .round = round,
                                   .count = count,
                                   .chunk_elements = codec::ChunkElementsFor(kSymbolBytes)};
    return metadata;
  }
  void SendResultChunk(uint32_t id, uint32_t chunk, std::span<const float> values, bool repaired = false) {
    const auto header = codec::EncodeDenseHeader(chunk, static_cast<uint32_t>(values.size()));
    std::vector<uint8_t> bytes(header.begin(), header.end());
    const auto* body = reinterpret_cast<const uint8_t*>(values.data());
    bytes.insert(bytes.end(), body, body + values.size_bytes());
    if (repaired) bytes.resize(kSymbolBytes, 0);
    Happens(transport::event::Chunk{{id, 0}, wire::ReliabilityClass::kHigh, chunk, bytes, repaired});
  }
  void Die(const Status& why) { Happens(transport::event::Closed{why}); }

  FakeConnection connection;
  WorkerSession session;
  int64_t now = 0;
};

// A session that has started and declared the tensor "w".
struct TensorHarness : SessionHarness {
  explicit TensorHarness(uint64_t count, LossPolicy policy = LossPolicy::kResidual)
      : gradient(count, 1.0f), model(count, 0.0f) {
    JoinAndStart(policy);
    w = DeclareTensor("w", count);
  }
  void Push(Outcome& outcome) {
    session.Push(w, gradient, outcome.Callback());
    FinishEvent();
  }
  void PushPull(Outcome& outcome) {
    session.PushPull(w, gradient, model, outcome.Callback());
    FinishEvent();
  }

  TensorHandle w = 0;
  std::vector<float> gradient, model;
};

}  // namespace longhaul::worker
