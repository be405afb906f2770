// The tensors of a site's relay: what its ranks ask of each, one thing at a time per tensor.
//
//   declare   all ranks, then the values of the first that has any, then the server
//   step      all ranks, then their sum, then the server, then the result for those that want it
//   pull      one for all that ask at about the same time
//   scores    of one rank; the last one counts
//
// A step that was asked of an earlier leader counts once: where its round has ended, what came of that is
// what the rank is given; else it is a step like others.
//
// Not thread-safe.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "longhaul/client.h"
#include "worker/site/aside.h"
#include "worker/site/collectives.h"
#include "worker/site/mailbox.h"
#include "worker/site/rank_desk.h"

namespace longhaul::site {

class RelayTensors {
 public:
  // A rank that another one does not answer in time is given up by this.
  using Drop = std::function<void(uint8_t rank, const Status& why)>;
  // memory: a name for what all ranks share, of this leader's own. patience: for collectives that end again
  // and again though no rank is known to be gone.
  RelayTensors(Mailbox* mailbox, RankDesk* desk, Collectives* collectives, Aside* aside,
               const std::string& memory, Duration patience, Drop drop)
      : mailbox_(*mailbox),
        desk_(*desk),
        collectives_(*collectives),
        aside_(*aside),
        patience_(patience),
        drop_(std::move(drop)),
        results_(memory) {}
  // Gives the memory back, as far as nothing uses it any more.
  ~RelayTensors();

  // Before anything is asked. followed: a successor may have replaced the client when it fails.
  void SetClient(std::shared_ptr<Client> client, bool followed) {
    client_ = std::move(client);
    followed_ = followed;
  }
  // What ends with the client, and may go on with a successor's.
  bool MayGoOn(const Status& outcome) const { return !outcome.ok() && followed_ && !client_->status().ok(); }
  // A new request of one of the kinds above.
  void Take(const SiteMessage& message);
  // The request, or all of the rank's, are not waited for any more.
  void Forget(uint8_t rank, std::optional<uint64_t> seq);
  // What waits for all ranks may have them now.
  void AdvanceAll();
  // Collectives that have ended without a reason that is known here begin anew. From time to time: where a
  // rank of another node has died, the news of it come after the collective's end.
  void Retry();

 private:
  struct Part {
    uint64_t seq = 0;
    bool wants = false;  // the result; of a declaration: has values
  };
  using Parts = std::map<uint8_t, Part>;
  struct Waiting {
    uint8_t rank = 0;
    uint64_t seq = 0;
    uint64_t value = 0;  // min_round; number of scores; rounds that the rank has
    bool wants = false;
  };
  // What is under way for a tensor.
  struct Job {
    Parts parts;
    bool fetch = false;
    bool taking = false;  // delivered: until all have taken it
    std::vector<Waiting> again;
    Instant failing = Instant::Infinite();  // since
    OperationStats stats;
  };
  // The last values of the tensor that came here.
  struct Fetched {
    bool valid = false;
    uint64_t version = 0;
    Instant at;
    uint64_t served = 0;  // ranks that have had them
  };
  struct State {
    std::string name;
    std::vector<uint8_t> body;  // of the declarations
    TensorOptions options;
    std::optional<Tensor> tensor;  // once it is declared
    Arena::Piece sum;
    Arena::Piece result;
    Parts collecting;  // declarations, then steps
    std::deque<Waiting> pulls;
    std::deque<Waiting> scores;
    std::vector<Waiting> again;  // steps that were asked of an earlier leader
    std::optional<Job> job;
    Fetched fetched;
  };

  void TakeDeclare(const SiteMessage& message);
  Status AddTensor(const SiteMessage& message, uint32_t* index);
  void Advance(uint32_t index);
  bool AllAreIn(const State& state) const;
  void ShowMissing(const State& state);

  void Declare(uint32_t index);
  void AskServer(uint32_t index, bool with_values);
  void OnDeclared(uint32_t index, const Result<Tensor>& tensor);
  void EndDeclared(uint32_t index, uint8_t rank, uint64_t seq);
  void Sum(uint32_t index);
  void OnSum(uint32_t index, const offload::Completion& completion, uint64_t ranks);
  void Push(uint32_t index);
  void Fetch(uint32_t index);
  void AwaitServer(uint32_t index, const Operation& operation);
  void OnServer(uint32_t index, const Status& outcome, const OperationStats& stats);
  void GiveOut(uint32_t index);
  void Deliver(uint32_t index);
  void OnDelivered(uint32_t index, const offload::Completion& completion, uint64_t ranks);
  void SetScores(uint32_t index);
  void AskWhatCameOf(uint32_t index);
  void SplitAgain(State& state, uint64_t rounds);
  void Upload(uint32_t index, uint8_t rank, uint64_t elements, std::function<void()> then);
  // A collective that failed is made anew, if it has lost a rank, or may have.
  void OnFailed(uint32_t index, const offload::Completion& completion, uint64_t ranks,
                std::function<void()> anew);
  void EndJob(uint32_t index, const Status& outcome);
  void Finish(uint32_t index);

  static uint64_t RanksOf(const Parts& parts);
  uint64_t BytesOf(const State& state, uint64_t more = 0) const {
    return (state.options.count + more) * sizeof(float);
  }

  Mailbox& mailbox_;
  RankDesk& desk_;
  Collectives& collectives_;
  Aside& aside_;
  SiteMessage Answer(SiteKind kind, uint32_t mid, uint64_t ranks, uint8_t rank) const;

  const Duration patience_;
  const Drop drop_;
  std::shared_ptr<Client> client_;
  bool followed_ = false;
  Arena sums_{""};
  Arena results_;
  std::vector<std::function<void()>> retries_;
  offload::MemorySlice zeros_;  // what the relay adds
  uint64_t zero_bytes_ = 0;
  std::map<std::string, uint32_t> by_name_;
  std::deque<State> tensors_;
};

}  // namespace longhaul::site
