// The site of a machine's ranks that are processes: one thread with the engines, a listening socket, and a
// session per rank. A rank ends by closing its socket or by its process' end, whichever is first; its session
// ends then, and the others learn of it as of any dead rank.
//
//   while there is something to do   turn after turn: requests, sums, completions
//   then for `spin`                  looks at the rings
//   then                             sleeps until a rank, a deadline or a newcomer wakes it
//
// When not: ranks that are threads of one process (inproc: is faster), or ranks of several users.
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/files.h"
#include "base/token_bucket.h"
#include "offload/shm/control.h"
#include "offload/shm/rank_session.h"
#include "offload/shm/socket_file.h"

namespace longhaul::offload {

struct DaemonOptions {
  std::string path;  // of the socket
  SiteOptions site = {};
  // To other machines, which have the other nodes; none: all of them are here. A node without ranks (an
  // aggregator) listens on no socket.
  std::shared_ptr<NodeLink> link = nullptr;
  uint64_t rank_memory_bytes = uint64_t{4} << 30;  // that one rank may have registered
  Duration spin = std::chrono::microseconds(20);
  // A line for people, for every rank that comes or goes. In the daemon's thread.
  std::function<void(std::string_view)> log;
  // A rank has come, or is gone; then before the engine ends anything for it. In the daemon's thread.
  std::function<void(uint8_t node, uint8_t rank, bool here)> on_rank = {};
};

class SiteDaemon {
 public:
  // Listens. Errors: kInvalidArgument, those of SocketFile::Listen, kInternal (a system call).
  static Result<std::unique_ptr<SiteDaemon>> Start(const DaemonOptions& options);
  // Every rank's session ends.
  ~SiteDaemon();
  SiteDaemon(const SiteDaemon&) = delete;
  SiteDaemon& operator=(const SiteDaemon&) = delete;

  // Works until Stop.
  void Run();
  // Any thread.
  void Stop();
  // Runs `question` on the daemon's thread, between turns, and waits for it. One thread at a time, not the
  // daemon's. Errors: kDeadlineExceeded (not by `limit`, and not later either), kFailedPrecondition (it
  // stops).
  Status Ask(const std::function<void()>& question, Duration limit);
  bool Has(uint8_t node) const { return engines_.Has(node); }
  // After Run, or in Ask. REQUIRES: Has(node).
  OffloadStats stats(uint8_t node) const { return engines_.engine(node).stats(); }

 private:
  // A process that has connected; with a session once it has said which rank it is.
  struct Guest {
    FileDescriptor control;
    FileDescriptor process;  // readable when it is dead
    FileDescriptor wake_up;
    std::unique_ptr<RankSession> session;
  };
  using GuestId = uint64_t;
  struct Rank {
    GuestId id = 0;
    Guest* guest = nullptr;
    RankSession* session = nullptr;
  };

  SiteDaemon(const DaemonOptions& options, std::optional<SocketFile> socket);
  Status Open();

  bool Turn(Instant now);
  void EndBroken();
  void Sleep(Instant now);
  // Takes what has happened; waits for it for at most `milliseconds` (-1: as long as it takes).
  void HandleEvents(Duration most);
  void HandleEvent(uint64_t what);
  bool Watch(int fd, GuestId guest, uint32_t part);
  void Wake();
  void AnswerQuestion();

  void Accept();
  void PauseAccepting(bool pause);
  void Admit(FileDescriptor control);
  void OnControl(GuestId id);
  void OnWakeUp(GuestId id);
  void Notify(Guest& guest);
  // False: the guest has to go.
  bool Answer(GuestId id, Guest& guest, const ControlRequest& request);
  bool Hello(GuestId id, Guest& guest, const ControlRequest& request);
  Status CheckHello(const ControlRequest& request) const;
  uint8_t FirstNode() const { return options_.link != nullptr ? options_.link->node() : uint8_t{0}; }
  bool Allocate(Guest& guest, const ControlRequest& request);
  void End(GuestId id, std::string_view why);
  void EndSession(GuestId id, Guest& guest);
  size_t strangers() const { return guests_.size() - ranks_.size(); }
  void EndOldestStranger();
  void Log(const std::string& line);

  DaemonOptions options_;
  std::optional<SocketFile> socket_;
  SiteEngines engines_;
  SharedRegions shared_;
  FileDescriptor epoll_;
  FileDescriptor wake_event_;
  std::unordered_map<GuestId, Guest> guests_;
  std::vector<Rank> ranks_;  // guests with a session
  Instant timers_looked_;
  GuestId next_ = 1;
  bool more_ = true;  // the engines have work left; a link has to say hello
  bool accepting_ = true;
  TokenBucket lines_{10, 100};
  uint64_t lines_left_out_ = 0;
  std::atomic<bool> stop_{false};
  std::mutex mutex_;  // guards the next
  std::condition_variable answered_;
  const std::function<void()>* question_ = nullptr;
};

}  // namespace longhaul::offload
