// What a rank has asked of its site's relay and the relay has not closed: each is said again until it is
// answered. As many as the relay has room for are unanswered at a time; the others wait for their turn.
//
// Not thread-safe; time is an argument.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/instant.h"
#include "worker/client/operation_state.h"
#include "worker/site/mailbox.h"

namespace longhaul::site {

inline constexpr uint32_t kNoTensor = UINT32_MAX;

struct Request {
  // A datagram is lost where a queue is full, so the first repetition comes when it has drained.
  static constexpr Duration kFirstRepeat = std::chrono::milliseconds(5);
  static constexpr Duration kLongestRepeat = std::chrono::milliseconds(250);

  SiteMessage message;  // as it is said
  std::shared_ptr<internal::Completion> promise;
  uint32_t tensor = kNoTensor;
  std::span<const float> values;  // gradient, or initial values
  std::vector<float> scores;
  std::span<float> out;
  float weight = 1;
  Arena::Piece send;  // of a declaration
  std::function<Status(const SiteMessage&)> on_end;
  uint32_t mid = 0;                    // of the collective that is under way
  Instant full = Instant::Infinite();  // since when the device has no room for it
  std::optional<SiteMessage> refused;  // said along with it: the device does not take part
  OperationStats stats;
  // Numbers of a leader's collectives grow: what is said twice, or was overtaken, is no news.
  bool IsNews(uint32_t number) const { return mid == 0 || static_cast<int32_t>(number - mid) > 0; }
  bool ended = false;       // the relay has to learn it
  bool held = false;        // until its tensor is declared to the leader
  bool asked = false;       // it was said, to this leader or another
  bool unanswered = false;  // since it was said last
  Instant next;
  Duration repeat = kFirstRepeat;
  uint64_t missing = 0;  // ranks that are waited for, since
  Instant since;
};

class SiteRequests {
 public:
  SiteRequests(Mailbox* mailbox, const SiteShape& shape, Place own, uint64_t session)
      : mailbox_(*mailbox), shape_(shape), own_(own), session_(session) {}

  Place own() const { return own_; }
  Place relay() const { return {NodeOfLeader(leader_), shape_.relay_slot()}; }
  // Whose requests these are now; 0: not known.
  uint64_t leader() const { return leader_; }
  // Nothing is said until Resume.
  // What is not over will be told to it. Collectives of the one before are cancelled.
  void SetLeader(uint64_t leader);
  void Resume() { paused_ = false; }
  uint64_t session() const { return session_; }

  // A message in this rank's name, to the relay that leads, or to that of the own node. False: there is no
  // room.
  bool Send(SiteMessage message);
  bool SendToOwnNode(SiteMessage message);
  // Gives it a number. References stay good until it is closed.
  Request& Add(Request request);
  // Null: none of that number.
  Request* Find(uint64_t seq);
  void Close(uint64_t seq);
  // False: there is no room, it stays due.
  bool Say(Instant now, Request& request);
  void OnAnswered(Request& request);
  struct Collective {
    offload::Opcode opcode = offload::Opcode::kReduce;
    Place root;
    uint64_t length = 0;
    offload::MemorySlice send;
    offload::MemorySlice receive;
  };
  // Takes part in a collective that the relay has begun, unless it does already. `deadline`: for the others.
  void Join(Request& request, const SiteMessage& begun, const Collective& what, Duration deadline);
  // The request whose collective has ended well; null: none. Where the device refuses one, the relay learns
  // why; what ends otherwise the relay sees as well, and says how to go on.
  Request* OnCompletion(Instant now, const offload::Completion& completion);
  // It is over here, and the relay has to learn that.
  void End(Instant now, Request& request);
  // Says what is due.
  void Repeat(Instant now);
  Instant NextDue() const;
  // Those that have waited for other ranks for so long.
  std::vector<uint64_t> Late(Instant now, Duration limit) const;
  // Forgets all; `each` sees them before.
  void Clear(const std::function<void(Request&)>& each);

 private:
  void Sign(SiteMessage* message) const;

  Mailbox& mailbox_;
  const SiteShape shape_;
  const Place own_;
  const uint64_t session_;
  uint64_t leader_ = 0;
  bool paused_ = false;
  uint64_t next_seq_ = 1;
  uint32_t unanswered_ = 0;
  std::map<uint64_t, Request> requests_;
};

}  // namespace longhaul::site
