// What a worker says and hears on its one connection: joins, declares, pushes, pulls, and ends what it was
// asked for exactly once. Everything of WorkerCore but the endpoint and its timers.
//
//   Join -> Welcome -> Start -> { Declare | gradient windows | PullRequest | Barrier }* -> Leave
//
// Time is told by AdvanceTo before anything else happens. Not thread-safe.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/instant.h"
#include "codec/window_metadata.h"
#include "longhaul/options.h"
#include "longhaul/stats.h"
#include "longhaul/status.h"
#include "proto/control_codec.h"
#include "transport/core/connection.h"
#include "worker/operations.h"
#include "worker/tensor_state.h"
#include "worker/worker_options.h"

namespace longhaul::worker {

// Names a declared tensor within one worker.
using TensorHandle = uint32_t;

struct Declaration {
  std::string name;
  DType dtype = DType::kFloat32;
  DType wire_dtype = DType::kFloat32;    // of gradients in chunks
  DType result_dtype = DType::kFloat32;  // of results in chunks
  int priority = 0;                      // lower leaves first; among equals, those declared first
  std::vector<TensorOptions::Range> high_ranges = {};
  std::optional<double> high_share = std::nullopt;  // none: the job's
  std::optional<double> high_energy = std::nullopt;
  uint64_t count = 0;
  std::string optimizer = "aggregate";
  std::span<const float> initial = {};  // empty or `count` values, borrowed until the callback
};

class WorkerSession final : public transport::ConnectionObserver {
 public:
  enum class State : uint8_t {
    kConnecting,  // no Welcome yet
    kJoined,      // Welcome is here; waiting for the other workers
    kStarted,
    kLeaving,  // said Leave; waiting for the server's goodbye
    kLeft,     // orderly end
    kFailed,   // failure() says why
  };
  using DeclareCallback = std::function<void(const Result<TensorHandle>&)>;
  using Callback = Operations::Callback;

  explicit WorkerSession(WorkerCoreOptions options);
  ~WorkerSession() override;

  // See WorkerCore.
  void SetStateListener(std::function<void(State)> listener) { state_listener_ = std::move(listener); }
  // The connection has been asked for; its events follow. It must outlive the session or be closed before.
  void Start(Instant now, transport::Connection* connection);

  // --- Questions ---
  State state() const { return state_; }
  bool ended() const { return state_ == State::kLeft || state_ == State::kFailed; }
  // Ok unless state() is kFailed.
  const Status& failure() const { return failure_; }
  // REQUIRES: the Welcome was here.
  const JobSettings& settings() const { return settings_; }
  bool welcomed() const { return welcomed_; }
  ClientStats stats() const;
  size_t pending_operations() const { return operations_.pending(); }
  // Bytes of a tensor's residual that wait for repayment; empty without residual. For checkers.
  std::span<const float> residual(TensorHandle handle) const;
  Instant NextTimeout() const;

  // --- Requests. Callbacks run in RunCallbacks, in the order in which things ended. ---
  void Declare(const Declaration& declaration, DeclareCallback callback);
  // REQUIRES of the spans: the tensor's count of elements (else kInvalidArgument); borrowed until the
  // callback.
  void Push(TensorHandle handle, std::span<const float> gradient, Callback callback);
  void PushPull(TensorHandle handle, std::span<const float> gradient, std::span<float> out,
                Callback callback);
  void Pull(TensorHandle handle, std::span<float> out, uint64_t min_round, Callback callback);
  // See PushPipeline::SetScores. Of no effect on a tensor that is not declared.
  void SetScores(TensorHandle handle, std::span<const float> scores);
  void Barrier(const std::string& name, Callback callback);
  // Ok: the orderly end, to be called when nothing is pending (what is, ends with kCancelled). Else the
  // server learns why this worker gives up.
  void Leave(const Status& why);
  // Ends everything pending with `why` and closes the connection.
  void Fail(const Status& why);

  // --- Events ---
  void AdvanceTo(Instant now) { now_ = now; }
  void HandleTimeout();
  // To be called after every event and request: starts what can start and runs callbacks.
  void Settle();

  // transport::ConnectionObserver
  void OnConnected(transport::Connection& connection) override;
  void OnClosed(transport::Connection& connection, const Status& why) override;
  void OnControlData(transport::Connection& connection, ByteSpan bytes) override;
  void OnControlWritable(transport::Connection& connection) override;
  Status OnWindowOpened(transport::Connection& connection, transport::WindowKey key,
                        const wire::WindowOpenFrame& open) override;
  transport::ChunkVerdict OnChunk(transport::Connection& connection, transport::WindowKey key,
                                  wire::ReliabilityClass reliability, uint32_t sequence, ByteSpan chunk,
                                  bool repaired) override;
  void OnWindowProgress(transport::Connection& connection, transport::WindowKey key) override;
  void OnWindowClosed(transport::Connection& connection, transport::WindowKey key, wire::CloseReason reason,
                      const transport::WindowReceipt& receipt,
                      const transport::WindowTxStats& stats) override;

 private:
  // A push that waits for its turn or is on its way.
  struct PushRequest {
    OperationId operation = 0;
    TensorHandle handle = 0;
    std::span<const float> gradient;
    std::span<float> out;  // empty: no result wanted
  };
  struct ActivePull {
    OperationId operation = 0;
    TensorHandle handle = 0;
    PullAssembler assembler;
    std::optional<transport::WindowKey> window;
  };
  struct WaitingPull {
    OperationId operation = 0;
    TensorHandle handle = 0;
    std::span<float> out;
    uint64_t min_round = 0;
  };
  // Whom an incoming window serves: a pull (request != 0) or the active push of a tensor.
  struct IncomingUse {
    TensorHandle handle = 0;
    uint32_t request = 0;
    bool partial = false;                    // it has chunks that may be lost
    Instant finished = Instant::Infinite();  // when the server was first seen finished with it
    Instant check_at = Instant::Infinite();  // when time alone may close it
    Instant nack_at = Instant::Infinite();   // when to ask for what is missing of the high class
  };

  void HandleMessage(const control::ControlMessage& message);
  void OnWelcome(const control::Welcome& welcome);
  void OnStart(const control::Start& start);
  void OnDeclared(const control::Declared& declared);
  void OnPullRefused(const control::PullRefused& refused);
  void OnPushTaken(const control::PushTaken& taken);
  void OnRoundReport(const control::RoundReport& report);
  void OnServerLeave(const control::Leave& leave);

  void SendMessage(const control::ControlMessage& message);
  void FlushOutbox();
  void SendJoin();
  void SendDeclare(TensorHandle handle);
  void FinishDeclare(TensorState& tensor, const Status& outcome);

  // Ok while requests are taken; else why not.
  Status CheckRunning() const;
  Status Unexpected(const std::string& message) const;
  // Ok when an operation on this tensor can be accepted now.
  Status CheckRequest(TensorHandle handle, size_t elements) const;
  void StartWaiting();
  void SendInitial(TensorHandle handle);
  bool OpenPrepared(TensorHandle handle, ActivePush* push);
  // False: it could not start now.
  bool StartPush(const PushRequest& request);
  void StartPull(const WaitingPull& waiting);
  // The result is here as far as it will come; its window is closed.
  void OnResultOver(const IncomingUse& use);
  void EndPushResult(TensorHandle handle);
  void FailReplica(const TensorState& tensor, const Status& why);
  // Ok when a window with chunks that may be lost can be taken.
  Status CheckPartial(const TensorState& tensor, const codec::WindowMetadata& metadata) const;
  Instant NextWindowCheck() const;
  void CountIn(TensorState& tensor, uint64_t round);
  void FinishPushIfDone(TensorHandle handle);
  void EndPush(TensorHandle handle, const Status& outcome);
  // Whom an incoming window is for; kNotFound when nobody waits for it (any more).
  Result<IncomingUse> FindUse(const codec::WindowMetadata& metadata);
  PullAssembler* AssemblerOf(const IncomingUse& use);
  OperationId OperationOf(const IncomingUse& use) const;
  void End(State state, const Status& outcome);
  Duration rtt() const;
  std::string ServerName() const;
  std::string Silence(Duration limit) const;

  const WorkerCoreOptions options_;
  State state_ = State::kConnecting;
  State told_state_ = State::kConnecting;  // what the listener knows
  std::function<void(State)> state_listener_;
  Status failure_;
  Instant now_;
  Instant connect_deadline_ = Instant::Infinite();
  Instant leave_deadline_ = Instant::Infinite();
  transport::Connection* connection_ = nullptr;  // null before Start and after OnClosed
  std::string server_name_;
  bool connected_ = false;
  bool welcomed_ = false;
  JobSettings settings_;
  uint16_t symbol_bytes_ = 0;  // from Start
  wire::ControlReader reader_;
  std::deque<std::vector<uint8_t>> outbox_;  // refused for lack of room; bounded by max_operations

  Operations operations_;
  std::vector<std::unique_ptr<TensorState>> tensors_;  // by handle
  std::unordered_map<std::string, TensorHandle> handle_by_name_;
  std::unordered_map<uint32_t, TensorHandle> handle_by_key_;
  std::deque<PushRequest> waiting_pushes_;
  std::deque<WaitingPull> waiting_pulls_;
  size_t active_pushes_ = 0;
  std::map<uint32_t, ActivePull> active_pulls_;         // by request
  std::unordered_map<uint32_t, OperationId> barriers_;  // by request
  std::deque<control::ControlMessage> before_start_;    // barriers that came too early
  std::map<transport::WindowKey, TensorHandle> outgoing_;
  std::map<transport::WindowKey, IncomingUse> incoming_;
  uint32_t next_request_ = 1;
  uint32_t next_window_ = 1;
  ClientStats totals_;                                        // what has no better place
  mutable transport::ConnectionStats last_connection_stats_;  // kept when the connection is gone
};

}  // namespace longhaul::worker
