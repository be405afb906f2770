// The ranks of a site as their relay sees them: who is here, and what each has asked and not closed. Every
// request is taken once, however often it is repeated, and has one answer at a time.
//
// Sans-I/O. Not thread-safe.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <set>

#include "base/instant.h"
#include "worker/site/site_message.h"

namespace longhaul::site {

class RankDesk {
 public:
  static constexpr uint8_t kMaxRanks = 63;
  // A client has 4096 operations at most, and as many again that it has not closed.
  static constexpr size_t kMostOpen = 8192;

  using Send = std::function<void(uint8_t rank, const SiteMessage&)>;
  // REQUIRES: ranks <= kMaxRanks.
  RankDesk(uint8_t ranks, Send send)
      : ranks_(ranks), expected_((uint64_t{1} << ranks) - 1), send_(std::move(send)) {}

  // Ranks that take part now.
  uint64_t here() const { return here_; }
  // Those that are waited for until all that are expected have been here at the same time: all of the site's,
  // or those that were here under another leader.
  uint64_t missing_at_start() const { return complete_ ? 0 : expected_ & ~here_; }
  bool complete() const { return complete_; }
  void Expect(uint64_t ranks) { expected_ = ranks; }
  // Before it was here. True: it was waited for.
  bool ExpectNoMore(uint8_t rank);
  bool any_left() const { return any_left_; }

  // A client says hello. True: it is a new one; what its predecessor asked is forgotten.
  bool Hello(uint8_t rank, uint64_t session, Instant now);
  // Whether the message is of the client that is here; notes that it lives.
  bool IsCurrent(const SiteMessage& message, Instant now);
  // True: a new request, whose answer is "pending" until Answer. Else the answer is repeated.
  bool Take(const SiteMessage& message);
  // The request is over on both sides. True: it was open.
  bool Close(uint8_t rank, uint64_t seq);
  // Nothing happens if it is not open.
  void Answer(uint8_t rank, uint64_t seq, SiteMessage answer);
  // Only what a repetition is told.
  void SetMissing(uint8_t rank, uint64_t seq, uint64_t missing);
  void End(uint8_t rank, uint64_t seq, const Status& outcome);

  // The rank takes part no more; its later messages are answered with `why`, unless that is Ok.
  void Remove(uint8_t rank, const Status& why);
  void SetLeft() { any_left_ = true; }
  // All that are here are told, and take part no more.
  void FailAll(const Status& why);
  // A message that belongs to no request.
  void Tell(uint8_t rank, SiteMessage message) { Reply(rank, 0, std::move(message)); }
  // Those that have said nothing for so long.
  uint64_t SilentSince(Instant then) const;
  // As if all had been heard now: what they have said may not have been read yet.
  void ForgiveSilence(Instant now);

 private:
  struct Rank {
    uint64_t session = 0;
    Status gone;  // why it is not here
    Instant heard;
    uint64_t open_from = 0;
    uint64_t highest = 0;
    std::set<uint64_t> gaps;               // below the highest: not heard of yet
    std::map<uint64_t, SiteMessage> open;  // with their answers
  };
  // True: it is heard of for the first time.
  static bool Note(Rank& rank, uint64_t seq);
  void Reply(uint8_t rank, uint64_t seq, SiteMessage message);

  const uint8_t ranks_;
  uint64_t expected_;
  const Send send_;
  std::array<Rank, kMaxRanks> rank_;
  uint64_t here_ = 0;
  bool complete_ = false;
  bool any_left_ = false;
};

}  // namespace longhaul::site
