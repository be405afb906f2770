// What the server sends a worker of its tensors: the windows that carry the results of pushes and the answers
// to pulls, when they are enough, and the reports of the rounds.
//
// Not thread-safe.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <span>

#include "codec/chunk/window_metadata.h"
#include "longhaul/status.h"
#include "transport/core/connection/events.h"
#include "transport/core/window/close_rule.h"
#include "worker/client/declarations.h"
#include "worker/client/pull_assembler.h"
#include "worker/client/pushes.h"
#include "worker/client/server_link.h"

namespace longhaul::worker {

class Results {
 public:
  struct Pull {
    OperationId operation = 0;
    TensorHandle handle = 0;
    std::span<float> out;
    uint64_t min_round = 0;
    bool of_push = false;     // that has counted, and whose result was lost with a connection; or is a step
    uint32_t own_pushes = 0;  // of this connection, that are to have counted
    std::optional<uint32_t> max_staleness = {};
    // Once the server was asked; and once it has answered.
    std::optional<PullAssembler> assembler = {};
    std::optional<transport::WindowKey> window = {};
  };

  Results(ServerLink* link, Declarations* tensors, Pushes* pushes)
      : link_(*link), tensors_(*tensors), pushes_(*pushes) {}

  void AddPull(const Pull& pull) {
    pull.of_push ? waiting_pulls_.push_front(pull) : waiting_pulls_.push_back(pull);
  }
  // Of the pull that the server was asked for; 0: it has not been.
  uint32_t RequestOf(OperationId operation) const;
  // One that the server was not asked for ends.
  void DropPull(OperationId operation, const Status& outcome);
  // Asks for as many as may be under way; for results of pushes in any case, on which other pulls may wait.
  // REQUIRES: the job is started.
  void StartWaiting();
  // What the server was asked for is to be asked for again.
  void OnConnectionLost();
  // The job is over: forgets everything.
  void End();
  Instant NextTimeout() const;
  void HandleTimeout();

  // False refuses the window.
  bool OnWindowOpened(const transport::event::WindowOpened& opened);
  transport::ChunkVerdict OnChunk(const transport::event::Chunk& chunk);
  void OnWindowState(const transport::event::WindowState& state);
  void OnPullRefused(const control::PullRefused& refused);
  void OnRoundReport(const control::RoundReport& report);

 private:
  // The push has ended: nothing is pulled for it any more.
  void DropPullOfPush(OperationId operation);
  // What an incoming window serves: a pull (request != 0) or the push of a tensor.
  struct Use {
    TensorHandle handle = 0;
    uint32_t request = 0;
    OperationId operation = 0;
    PullAssembler* assembler = nullptr;  // the pull's or the push's, which end after the window
    bool partial = false;                // it has chunks that may be lost
    transport::WindowCloser closer = {};
  };

  // None when nothing waits for the window (any more).
  std::optional<Use> FindUse(const codec::WindowMetadata& metadata);
  // Ok when the window fits the tensor and its chunks may be lost where they can be.
  Status CheckWindow(const TensorState& tensor, const codec::WindowMetadata& metadata,
                     const wire::WindowOpenFrame& open) const;
  // When a result that may lose chunks is enough: by the rule for gradients, but not before the server is
  // finished with it. Until then chunks may be left that are not even final, and so the round may not be
  // over.
  void CheckClose(transport::WindowKey key);
  // The result is here as far as it will come.
  void Close(transport::WindowKey key, wire::CloseReason reason);

  ServerLink& link_;
  Declarations& tensors_;
  Pushes& pushes_;
  std::deque<Pull> waiting_pulls_;
  std::map<uint32_t, Pull> active_pulls_;  // by request
  std::map<transport::WindowKey, Use> incoming_;
};

}  // namespace longhaul::worker
