// What the relay that leads does for a site: the client on the WAN, and what ranks ask. One leadership; a
// later one begins with another object.
//
// Not thread-safe, but for stats() and client().
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "longhaul/client.h"
#include "worker/site/aside.h"
#include "worker/site/collectives.h"
#include "worker/site/leadership.h"
#include "worker/site/mailbox.h"
#include "worker/site/rank_desk.h"
#include "worker/site/relay_tensors.h"

namespace longhaul::site {

class SiteLeader {
 public:
  struct Options {
    ConnectOptions connect;
    SiteShape shape;
    uint64_t leader = 0;
    // Of a successor: ranks that were here. All of them turn to it before anything is summed.
    std::optional<uint64_t> expected = {};
    bool any_left = false;
    // How long a client may have failed before it counts: a successor may have replaced it.
    Duration grace{0};
  };
  // wake: any thread.
  SiteLeader(const Options& options, Mailbox* mailbox, std::function<void()> wake);
  // Leaves the job, if it has not; once it is retired, without a word. Waits for a Connect that is under way.
  ~SiteLeader();

  void Connect();
  // What aside has found.
  void RunDone() { aside_.RunDone(); }
  void OnMessage(const SiteMessage& message);
  void OnCompletion(const offload::Completion& completion) { collectives_.OnCompletion(completion); }
  // A rank's device has closed, or its node is silent.
  void OnGone(uint8_t rank, const std::string& how);
  void Look(Instant now);
  // The relay was late itself: the ranks' silence begins anew.
  void OnLate(Instant now) { desk_.ForgiveSilence(now); }
  void Fail(const Status& why);
  // Says nothing any more: another one leads. False: destroying it would wait for its Connect.
  bool Retire();

  // The smaller one of the site's and, as soon as that is known, the server's.
  Duration idle_timeout() const;
  bool complete() const { return desk_.complete(); }
  bool any_left() const { return desk_.any_left(); }
  // Ranks have been told the end, at that time.
  Instant over() const { return over_; }
  Status end() const { return failure_.ok() ? end_ : failure_; }
  ClientStats stats() const;
  // On the WAN; null until it has joined. Any thread.
  std::shared_ptr<Client> client() const;

 private:
  struct BarrierPart {
    uint64_t seq = 0;
    bool again = false;   // it was asked of an earlier leader
    uint32_t passed = 0;  // barriers that the rank has passed before
  };
  struct Passed {
    std::string name;
    uint32_t times = 0;
  };

  void OnConnected(Result<Client> client);
  void OnHello(const SiteMessage& message);
  void Welcome(uint8_t rank);
  // Than the ranks are in; then everything fails.
  bool IsAnotherJob();
  void Send(uint8_t rank, SiteMessage message);
  void Remove(uint8_t rank, const Status& why, bool told);
  void ForgetAllOf(uint8_t rank);
  void TakeRefusal(const SiteMessage& message);
  void TakeLeave(const SiteMessage& message);
  void TakeBarrier(const SiteMessage& message);
  void AdvanceBarriers();
  void EndPassed(const std::string& name, std::map<uint8_t, BarrierPart>& parts);
  void LeaveIfEmpty();
  uint8_t ranks() const { return static_cast<uint8_t>(options_.shape.ranks()); }
  void Log(LogLevel level, const std::string& text) const {
    if (options_.connect.log) options_.connect.log(level, text);
  }

  const Options options_;
  Mailbox& mailbox_;
  Aside aside_;
  mutable std::mutex mutex_;
  std::shared_ptr<Client> client_;  // written under the lock
  Collectives collectives_;
  RankDesk desk_;
  RelayTensors tensors_;
  std::map<std::string, std::map<uint8_t, BarrierPart>> barriers_;
  std::map<uint8_t, Passed> passed_;  // the last barrier of each
  uint64_t job_ = 0;                  // that the ranks are in; 0: none yet
  Status end_;                        // of the site's part in the job
  Status failure_;
  bool connecting_ = false;
  bool leaving_ = false;
  bool retired_ = false;
  Instant began_;
  Instant failing_ = Instant::Infinite();  // the client, since
  Instant over_ = Instant::Infinite();
};

}  // namespace longhaul::site
