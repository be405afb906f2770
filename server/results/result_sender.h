// Sends values to the workers: the result of a round, chunk by chunk as the chunks become final, and pulls.
//
// One outgoing window per result. Bodies are borrowed, values or codes: of a round's result from the
// parameters (stable until the round after the next one writes them), of a pull from a snapshot. A worker
// that rounds do not wait for may take longer than that: its result keeps the values, and the round writes
// elsewhere. That is one result per worker and tensor at most. More results than a connection has windows for
// wait in line. A worker that takes no window of a result's size is disconnected by name.
//
// A large tensor's chunks are handed over in slices: what an event leaves undone is Work. The budget is the
// owner's, of the event in progress.
//
// With a lossy downlink a round's result has a low class as well (server/results/lossy_downlink.h). Its
// window opens with the round's first final chunk and not before: until then the CLOSE of the result before,
// which says what the worker has, has had the time to come. Not thread-safe.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "base/pages.h"
#include "base/work_budget.h"
#include "server/member/peer.h"
#include "server/results/lossy_downlink.h"
#include "server/tensor/tensor.h"

namespace longhaul::server {

class ResultSender {
 public:
  struct Options {
    uint8_t fec_k = 0;
    uint8_t fec_depth = 0;  // 0: as the connection advises
    std::optional<LossyDownlink::Options> lossy = std::nullopt;
  };
  struct Stats {
    uint64_t outdated = 0;  // the worker had gone on, but its close was still on its way two rounds later
    LossyDownlink::Stats chunks = {};  // downlink lossy
  };

  // budget must outlive this.
  ResultSender(Options options, WorkBudget* budget) : options_(options), budget_(budget) {}

  // What results say about the shift epoch (server/tensor/shift_epochs.h).
  struct Epoch {
    uint32_t number;
    uint64_t change_round;  // 0: no change is announced
  };
  // The worker wants the result of the tensor's round in progress.
  void SendRound(Peer& peer, Tensor& tensor, Epoch epoch);
  // The worker wants the current values; `request` is its name for this.
  void SendPull(Peer& peer, Tensor& tensor, uint32_t request);
  // Earlier events have left something; Work() does it, until the budget is spent.
  bool HasWork() const { return !behind_.empty(); }
  void Work();
  // A chunk of the round in progress is final: it leaves for every worker that wants it.
  void OnChunkFinal(Tensor& tensor, uint32_t chunk);
  // The round in progress is finished and the next one is about to begin: what is sent of the one before has
  // left by now, or is handed over whole.
  void EndRound(Tensor& tensor);
  // To be called before the first chunk of a new round is written: results of the round before the previous
  // one would lose their values. They keep them, unless their worker has gone on. kResourceExhausted: there
  // is no memory for that.
  Status BeginRound(Tensor& tensor);
  // A window of ours is over.
  void OnWindowClosed(Peer& peer, transport::WindowKey key, const transport::WindowReceipt& receipt);
  // The peer is gone: nothing is sent to it any more.
  void OnPeerGone(Peer& peer);

  // As LossyDownlink::ReplicaHash; none with a reliable downlink.
  std::optional<uint32_t> ReplicaHash(const Tensor& tensor, uint32_t rank, uint64_t round) const;

  // Unfinished answers to this peer's pulls.
  size_t pulls(const Peer& peer) const;
  size_t pulls(const Peer& peer, const Tensor& tensor) const;
  // Bytes of the snapshots that unfinished answers to pulls hold; each counts once.
  uint64_t pinned_bytes() const;
  Stats stats() const;

 private:
  struct Result {
    Peer* peer = nullptr;
    transport::WindowKey key;
    bool queued = false;  // open, or waits for a free window
    bool open = false;
    uint64_t round = 0;
    uint32_t request = 0;
    Epoch epoch{};
    uint32_t fed = 0;                // chunks that were submitted, in the order of Feed
    Parameters::Held snapshot;       // of a pull
    Parameters::Held kept;           // of a round, once the parameters have other values
    transport::ChunkBitmap low;      // chunks that may be lost
    PagedVector<uint32_t> low_sent;  // of them, those submitted, in this order
  };
  using Results = std::vector<std::unique_ptr<Result>>;

  static size_t Pulls(const Results& results, const Peer& peer);
  // False: no window is free now, or the connection ends.
  bool TryOpen(Result& result, Tensor& tensor);
  void Add(std::unique_ptr<Result> result, Tensor& tensor);
  void Enqueue(Result& result, Tensor& tensor);
  // Null: nothing of this tensor's results may be lost.
  LossyDownlink* Downlink(const Tensor& tensor);
  void LearnReceipt(const Result& result, uint32_t key, const transport::WindowReceipt& receipt);
  // Submits what is there and was not yet. False: the budget was spent first.
  bool Feed(Result& result, Tensor& tensor, WorkBudget& budget);
  void FeedOrRemember(Result& result, Tensor& tensor);
  bool WorkOn(Tensor& tensor);
  void EnqueueWaiting(Tensor& tensor);
  void SubmitFinal(Result& result, Tensor& tensor, uint32_t chunk);
  void ScoreChange(Tensor& tensor, uint32_t chunk);
  void Submit(Result& result, Tensor& tensor, uint32_t chunk);
  void OpenWaiting(Peer& peer);
  static bool IsOutdated(const Result& result, const Tensor& tensor);
  static bool HasGoneOn(const Result& result, const Results& all);
  void DropOrKeepOutdated(Tensor& tensor);
  void Drop(Tensor& tensor, const Result* result);

  Options options_;
  WorkBudget* budget_;
  std::map<uint32_t, Tensor*> behind_;           // by tensor key: of which something waits for Work
  uint32_t worked_on_ = UINT32_MAX;              // the latest of them
  std::map<uint32_t, Results> results_;          // by tensor key
  std::map<uint32_t, LossyDownlink> downlinks_;  // by tensor key; empty with a reliable downlink
  // Results that wait for a window, per connection, oldest first.
  std::map<Peer*, std::deque<std::pair<Tensor*, Result*>>> waiting_;
  std::vector<float> room_[2];  // for values as they arrive
  Stats stats_;
};

}  // namespace longhaul::server
