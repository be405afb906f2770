// Workers that ask for a rank that another one holds: which of the two lives (decision 0020).
//
//   Join for a rank that is held -> its holder is pinged -> it answers: the newcomer is refused
//                                                        -> it is silent: the newcomer takes over
//
// A process that was restarted by the same command line thus replaces itself in little more than a second,
// and no process replaces a worker that lives. What was on its way before the question is no answer: at first
// nothing that comes counts. Not thread-safe.
#pragma once

#include <optional>
#include <vector>

#include "base/instant.h"
#include "proto/control_codec.h"
#include "server/member/peer.h"

namespace longhaul::server {

class Successions {
 public:
  // What comes in this time, or in one round trip when that is longer, may have been on its way.
  static constexpr Duration kDrain = std::chrono::milliseconds(100);
  // Then the holder has this long, and four round trips, kMost at most: it is pinged every kEvery, so that
  // ten packets and their answers would have to be lost.
  static constexpr Duration kSilence = std::chrono::seconds(1);
  static constexpr Duration kMost = std::chrono::seconds(2);
  static constexpr Duration kEvery = std::chrono::milliseconds(100);

  enum class Answer : uint8_t {
    kLives,
    kSilent,
    kChanged,  // the rank is another's by now, or free
  };
  struct Verdict {
    Peer* newcomer = nullptr;
    control::Join join;
    Answer answer = Answer::kLives;
    Duration after{0};  // since the question
  };

  // The newcomer waits for Decide's verdict. It must not wait already.
  void Begin(Peer& newcomer, const control::Join& join, Peer& holder, Instant now);
  bool IsWaiting(const Peer& peer) const;
  // The holder's connection is over: the newcomer that has asked first need not wait. None: none has asked.
  std::optional<Verdict> HolderGone(const Peer& holder, Instant now);
  // The connection is over, or about to be.
  void Forget(const Peer& peer);
  // One verdict that is due, each once; ask until there is none. by_rank: who holds what now, also after the
  // verdict before: of two newcomers the second meets the first.
  std::optional<Verdict> Decide(const std::vector<Peer*>& by_rank, Instant now);
  Instant NextTimeout() const { return next_; }

 private:
  struct Claim {
    Peer* newcomer = nullptr;
    control::Join join;
    Peer* holder = nullptr;
    Instant holder_since;  // two peers of one address in memory are not the same
    Instant asked;
    Instant listen_from;
    Instant decide_at;
    bool listening = false;
    uint64_t packets = 0;  // of the holder, when listening began
  };
  bool Judge(const std::vector<Peer*>& by_rank, Instant now, Claim& claim, Answer* answer) const;

  std::vector<Claim> claims_;
  Instant next_ = Instant::Infinite();
};

}  // namespace longhaul::server
