// The pushes of a worker's session, from the request to the end: their turn, encoding, the window towards the
// server, what it lost, and the result's way to the caller's memory.
//
//   Add -> [turn] -> Encode -> [window] -> Submit -> OnWindowClosed -> Settle -> [result | PushTaken] -> end
//
// Work does all that grows with a tensor, a slice at a time. Not thread-safe.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <span>
#include <utility>
#include <vector>

#include "codec/chunk/window_metadata.h"
#include "transport/core/connection/events.h"
#include "worker/client/declarations.h"
#include "worker/client/server_link.h"

namespace longhaul::worker {

class Pushes {
 public:
  struct Request {
    OperationId operation = 0;
    TensorHandle handle = 0;
    std::span<const float> gradient;
    std::span<float> out;  // empty: no result wanted
    float weight = 0;
  };

  Pushes(ServerLink* link, Declarations* tensors) : link_(*link), tensors_(*tensors) {}

  void Add(const Request& request) { waiting_.push_back(request); }
  // The server wants the initial values of a tensor: a window of their own carries them.
  void StartInitial(TensorHandle handle);
  // Begins what has its turn and opens windows for what is encoded. REQUIRES: the job is started.
  void StartWaiting();
  // Windows that were open are to be opened again, with what they carried.
  void OnConnectionLost();
  // The server of the new connection knows the tensor, which was declared before.
  void OnDeclaredAgain(TensorHandle handle, const control::Declared& declared);
  // The round of the next push, unless one is on its way, is a later one: the server went on without it.
  void GoOnWith(TensorHandle handle, uint64_t round);
  void OnResultFetched(TensorHandle handle, const Status& outcome);
  // Gives up the windows that are open: nothing reads the callers' memory any more.
  void CancelWindows();
  // The job is over: forgets everything.
  void End();

  // Pushes whose windows are open now and whose results are to be pulled (asynchronous tensors), and those
  // that ended without one: since the last call.
  std::vector<TensorHandle> TakeWanted() { return std::exchange(wanted_, {}); }
  // Pushes that are settled and whose results are to be pulled (OnResultFetched), since the last call.
  std::vector<TensorHandle> TakeFetched() { return std::exchange(fetched_, {}); }
  std::vector<OperationId> TakeUnwanted() { return std::exchange(unwanted_, {}); }

  bool HasWork() const { return !copying_.empty() || !settling_.empty() || !encoding_.empty(); }
  void Work();  // one slice

  void OnWindowClosed(const transport::event::WindowClosed& closed);
  void OnPushTaken(const control::PushTaken& taken);

  // --- The result's side ---
  // Whether a push of the tensor waits for a result of this round.
  bool Awaits(TensorHandle handle, uint64_t round) const;
  void OnResultOpened(TensorHandle handle, transport::WindowKey window,
                      const codec::WindowMetadata& metadata);
  // The result is here as far as it will come; its window is closed.
  void OnResultOver(TensorHandle handle);

 private:
  void StartPush(const Request& request);
  // Says which round the tensor's next push is for.
  void Note(TensorHandle handle);
  // The push is for a round that is over, and rounds wait for all: see round_alignment.h.
  static bool IsPassed(const TensorState& tensor);
  void PassOver(TensorHandle handle);
  // Nothing more is sent of the push; these chunks of it have counted. Its result is to be pulled.
  void Conclude(TensorHandle handle, transport::ChunkBitmap counted);
  // False: no window is free, or the connection is ending.
  bool OpenWindow(TensorHandle handle);
  // One tensor's work. True when it has nothing more to do before the next event.
  bool WorkOnPush(TensorHandle handle, WorkBudget& budget);
  bool WorkOnResult(TensorHandle handle, WorkBudget& budget);
  void OnEncoded(TensorHandle handle);
  void BeginEncoding(TensorHandle handle);
  // What the window carried is the server's alone from now on: the loss policy learns it.
  void Settle(TensorHandle handle);
  // A push that came too late for its round counts in the one that was in progress.
  void CountIn(TensorHandle handle, uint64_t round);
  void SetRound(const TensorPush& push);
  void EndIfOver(TensorHandle handle);
  void EndPush(TensorHandle handle, const Status& outcome);

  ServerLink& link_;
  Declarations& tensors_;
  std::deque<Request> waiting_;
  size_t active_ = 0;  // begun and not ended, but for initial values
  // Tensors with work to do. What is over goes first: callers wait for it.
  std::deque<TensorHandle> copying_;
  std::deque<TensorHandle> settling_;
  std::deque<TensorHandle> encoding_;  // and submitting, in the order of the requests
  std::deque<TensorHandle> waiting_for_window_;
  std::map<transport::WindowKey, TensorHandle> outgoing_;
  uint32_t next_window_ = 1;
  std::vector<TensorHandle> wanted_;
  std::vector<TensorHandle> fetched_;
  std::vector<OperationId> unwanted_;
};

}  // namespace longhaul::worker
