// A worker's session on its one connection: joining, leaving, failing, and which of its parts an event or a
// message is for. Every operation ends exactly once. Everything of WorkerCore but the endpoint and its
// timers.
//
//   Join -> Welcome -> Start -> { Declare | gradient windows | PullRequest | Barrier }* -> Leave
//
// With a reconnect_timeout a lost connection is followed by others, until the job goes on: the same from Join
// on, and what was pending is asked for again (decision 0028).
//
//   ServerLink     what the parts share       Pushes    gradients on their way to the server
//   Declarations   the tensors                Results   what comes back: results, pulls, reports
//
// AdvanceTo gives the time before anything else happens. Not thread-safe.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "base/instant.h"
#include "longhaul/options.h"
#include "longhaul/stats.h"
#include "longhaul/status.h"
#include "proto/control_codec.h"
#include "transport/core/connection/events.h"
#include "worker/client/barrier_requests.h"
#include "worker/client/clock_requests.h"
#include "worker/client/deadlines.h"
#include "worker/client/declarations.h"
#include "worker/client/pushes.h"
#include "worker/client/results.h"
#include "worker/client/server_link.h"

namespace longhaul::worker {

class WorkerSession {
 public:
  enum class State : uint8_t {
    kConnecting,  // no Welcome yet
    kJoined,      // Welcome is here; waiting for the other workers
    kStarted,
    kReconnecting,  // the server is lost; requests are taken and wait
    kLeaving,       // said Leave; waiting for the server's goodbye
    kLeft,          // orderly end
    kFailed,        // failure() says why
  };
  using DeclareCallback = Declarations::Callback;
  using Callback = Operations::Callback;
  using ClockCallback = ClockRequests::Callback;

  explicit WorkerSession(WorkerCoreOptions options);
  ~WorkerSession();

  // See WorkerCore.
  void SetStateListener(std::function<void(State)> listener) { state_listener_ = std::move(listener); }
  // The connection has been asked for; its events follow. It must outlive the session or be closed before.
  void Start(Instant now, transport::Connection* connection);
  // The server is looked for elsewhere: an attempt that is not answered yet ends.
  void OnServerMoved();
  // Another connection is due (NextTimeout), and Reopen is to be called with it, as with Start.
  bool WantsConnection() const;
  void Reopen(transport::Connection* connection);

  // --- Questions ---
  State state() const { return state_; }
  bool ended() const { return state_ == State::kLeft || state_ == State::kFailed; }
  const transport::Connection* connection() const { return link_.connection(); }
  // Ok unless state() is kFailed.
  const Status& failure() const { return failure_; }
  // REQUIRES: the Welcome was here.
  const JobSpec& settings() const { return link_.settings; }
  uint64_t job() const { return job_; }  // of the server's; 0: it does not say
  bool welcomed() const { return welcomed_; }
  const std::string& first_server() const { return link_.first_server; }
  ClientStats stats() const;
  size_t pending_operations() const { return link_.operations.pending(); }
  // What of a tensor waits for repayment, by element; empty without residual.
  std::span<const float> residual(TensorHandle handle) const;
  // Adds to it. REQUIRES: the tensor is declared and no push of it has begun.
  void Owe(TensorHandle handle, uint64_t first, std::span<const float> values) {
    tensors_.at(handle).pipeline->Owe(first, values);
  }
  Instant NextTimeout() const;
  // What the network says of the server, "" for nothing: joins go on, messages name it.
  void NoteProbe(std::string said) { probe_ = std::move(said); }
  // Why there may be no answer; empty once there was one.
  std::string JoinHint() const;

  // --- Requests. Callbacks run in RunCallbacks, in the order in which things ended. ---
  void Declare(const Declaration& declaration, DeclareCallback callback);
  // REQUIRES of the spans: the tensor's count of elements (else kInvalidArgument); borrowed until the
  // callback. Nothing is encoded before the next Work. weight: of this contribution; 0: the connection's.
  void Push(TensorHandle handle, std::span<const float> gradient, Callback callback, float weight = 0);
  void PushPull(TensorHandle handle, std::span<const float> gradient, std::span<float> out, Callback callback,
                float weight = 0);
  void Pull(TensorHandle handle, std::span<float> out, const PullOptions& options, Callback callback);
  void Clock(TensorHandle handle, ClockCallback callback);
  // See PushPipeline::SetScores. Of no effect on a tensor that is not declared.
  void SetScores(TensorHandle handle, std::vector<float> scores);
  void Barrier(const std::string& name, Callback callback);
  // This worker is there, as HandOver of that phase says.
  void AnswerHandOver(uint32_t phase, uint64_t round);
  // Ok: the orderly end, to be called when nothing is pending (what is, ends with kCancelled). Else the
  // server learns why this worker gives up.
  void Leave(const Status& why);
  // Ends everything pending with `why` and closes the connection.
  void Fail(const Status& why);

  // --- Events ---
  void AdvanceTo(Instant now) { link_.now = now; }
  // Its packets leave by another port.
  void TakeNewPath();
  // What happened on the connection.
  void Handle(const transport::Event& event);
  void HandleTimeout();
  // To be called after all events of a datagram: starts what can start and runs callbacks.
  void FinishEvent();
  // A slice of encoding, submitting and settling is due, or callbacks wait.
  bool HasWork() const;
  // Does one, of WorkBudget::kSliceElements.
  void Work();

 private:
  void OnConnected();
  void OnClosed(const Status& why);
  // The server is waited for, and a connection is tried again.
  bool Reconnects(const Status& why) const;
  void BeginReconnecting(const Status& why);
  void HandleReconnectTimeout();
  // Ok: it is the server of the job that this worker is in.
  Status CheckGoesOn(const control::Welcome& welcome) const;
  bool paused() const { return state_ == State::kReconnecting || resuming_; }
  void OnControlBytes(ByteSpan bytes);
  void HandleMessage(const control::ControlMessage& message);
  void OnDeclared(const control::Declared& declared);
  void OnWelcome(const control::Welcome& welcome);
  void OnStart(const control::Start& start);
  void OnWaiting(const control::Waiting& waiting);
  void OnServerLeave(const control::Leave& leave);

  // Ok while requests are taken; else why not.
  Status CheckRunning() const;
  // Ok when an operation on this tensor can be accepted now.
  Status CheckRequest(TensorHandle handle, size_t elements) const;
  Status CheckPush(TensorHandle handle, size_t elements, float weight) const;
  float WeightOr(float weight) const { return weight > 0 ? weight : link_.options.weight; }
  // Begins what has its turn; nothing before the job has started.
  void StartWaiting();
  // Fails when a part has failed.
  void TakeFailure();
  void End(State state, const Status& outcome);
  // No answer from the server within `limit`, and what may be the reason.
  Status Silence(Duration limit) const;

  State state_ = State::kConnecting;
  State reported_state_ = State::kConnecting;  // what the listener knows
  std::function<void(State)> state_listener_;
  Status failure_;
  std::string probe_;
  Instant connect_deadline_ = Instant::Infinite();
  Instant leave_deadline_ = Instant::Infinite();
  // While the server is lost: when that is given up, when a connection is due, and when it is given up.
  Instant reconnect_deadline_ = Instant::Infinite();
  Instant next_attempt_ = Instant::Infinite();
  Instant attempt_deadline_ = Instant::Infinite();
  Instant lost_at_;
  bool resuming_ = false;  // from the loss on, until the job has started again
  bool started_ = false;   // once
  bool connected_ = false;
  bool welcomed_ = false;
  uint64_t job_ = 0;
  wire::ControlReader reader_;
  void Say(const std::string& text) const;

  ServerLink link_;
  Declarations tensors_{&link_};
  Pushes pushes_{&link_, &tensors_};
  Results results_{&link_, &tensors_, &pushes_};
  ClockRequests clocks_{&link_, &tensors_};
  Deadlines deadlines_{&link_};
  BarrierRequests barriers_{&link_, &deadlines_};
};

}  // namespace longhaul::worker
