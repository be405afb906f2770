// A whole worker without sockets, clock and threads: one connection to a parameter server and what is said on
// it.
//
//   Start(now, server) -> joined() -> Declare, Push, Pull, PushPull, Barrier -> Leave
//
// Drive it like any DatagramCore. Tensors are encoded, handed to the connection and settled in Work, a slice
// a call: no other method takes longer for a larger tensor. Callbacks run inside of Work and of the event
// methods, after everything else of the event, and may make further requests. Every request's callback runs
// exactly once, also when the server dies or the job ends; when the core itself is destroyed the rest is
// dropped without a call. Not thread-safe.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/random.h"
#include "codec/fec/erasure_coder.h"
#include "transport/core/datagram_core.h"
#include "transport/core/endpoint/endpoint.h"
#include "worker/client/worker_options.h"
#include "worker/client/worker_session.h"

namespace longhaul::worker {

class WorkerCore final : public transport::DatagramCore {
 public:
  using State = WorkerSession::State;
  using Callback = WorkerSession::Callback;
  using DeclareCallback = WorkerSession::DeclareCallback;

  // `coder` must outlive the core.
  WorkerCore(const WorkerCoreOptions& options, codec::ErasureCoder* coder, Random random);
  ~WorkerCore() override;

  // Called after every event that changed state(), before the callbacks of what ended with it. Set before
  // Start.
  void SetStateListener(std::function<void(State)> listener) {
    session_.SetStateListener(std::move(listener));
  }
  // Begins to join. Once.
  void Start(Instant now, const Address& server);
  // Where the next connection goes (WorkerCoreOptions::ask_address).
  void SetServer(const Address& server) {
    if (std::exchange(server_, server) != server) session_.OnServerMoved();
  }

  // --- Questions ---
  State state() const { return session_.state(); }
  bool ended() const { return session_.ended(); }
  // Nothing is left to be sent either: the core may be destroyed without the peer noticing.
  bool finished() const { return session_.ended() && endpoint_.connection_count() == 0; }
  const Status& failure() const { return session_.failure(); }
  bool joined() const { return session_.welcomed(); }
  const JobSpec& settings() const { return session_.settings(); }
  uint64_t job() const { return session_.job(); }
  const std::string& first_server() const { return session_.first_server(); }
  // With what the endpoint dropped before it reached the connection.
  ClientStats stats() const;
  transport::EndpointStats endpoint_stats() const { return endpoint_.stats(); }
  const WorkerSession& session() const { return session_; }
  // See WorkerSession.
  std::string JoinHint(std::string probe) {
    session_.NoteProbe(std::move(probe));
    return session_.JoinHint();
  }

  // --- Requests; see WorkerSession for what they require of their arguments ---
  void Declare(const Declaration& declaration, DeclareCallback callback);
  void Push(TensorHandle tensor, std::span<const float> gradient, Callback callback, float weight = 0);
  void PushPull(TensorHandle tensor, std::span<const float> gradient, std::span<float> out, Callback callback,
                float weight = 0);
  void Pull(TensorHandle tensor, std::span<float> out, const PullOptions& options, Callback callback);
  void Clock(TensorHandle tensor, WorkerSession::ClockCallback callback);
  void SetScores(TensorHandle tensor, std::vector<float> scores) {
    session_.SetScores(tensor, std::move(scores));
  }
  void Owe(TensorHandle tensor, uint64_t first, std::span<const float> values) {
    session_.Owe(tensor, first, values);
  }
  void Barrier(const std::string& name, Callback callback);
  void AnswerHandOver(uint32_t phase, uint64_t round) { session_.AnswerHandOver(phase, round); }
  void Leave(const Status& why = Status::Ok());
  // Gives up at once: everything pending ends with `why`.
  void Fail(const Status& why);

  // --- DatagramCore ---
  void HandleDatagram(Instant now, const Address& from, MutableByteSpan datagram,
                      const transport::ReceiveInfo& info) override;
  void HandleTimeout(Instant now) override;
  void HandleSendRefused(Instant now, const Address& destination, size_t datagram_bytes) override;
  std::optional<transport::Transmit> PollTransmit(Instant now, MutableByteSpan buffer) override;
  Instant NextTimeout() const override;
  bool HasWork() const override { return session_.HasWork(); }
  void Work(Instant now) override;
  bool WantsPort() const override;
  void HandlePort(Instant now) override;
  void HandleLongestEvent(Duration cpu) override { longest_event_ = cpu; }

 private:
  // The session hears what happened on the connection.
  void Drain();

  WorkerSession session_;
  transport::Endpoint endpoint_;
  Address server_;
  Duration longest_event_{0};
};

}  // namespace longhaul::worker
