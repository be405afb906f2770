// A job of the shipped daemons over an emulated WAN, and everything that they say, with the time.
//
//   site A: server        sites W0, W1, W2: a worker each (Fashion-MNIST), and strangers
//
// or, of a job with `sites`, several in each:
//
//   site A: servers       site W0: engine 0, with half of the site's workers, and engine 1, with the others
//
// Every site's link can be changed while the job runs; every process can be signalled, replaced or joined by
// another one. Needs what wan::TunWan needs. Not thread-safe.
#pragma once

#include <chrono>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "bench/wan/programs.h"
#include "bench/wan/protection.h"
#include "cli/child_process.h"
#include "wan/tun/tun_wan.h"

namespace longhaul::bench::faults {

using Clock = std::chrono::steady_clock;
using Words = std::vector<std::string>;

inline double Seconds(Clock::duration time) { return std::chrono::duration<double>(time).count(); }

// Of the benches that go on for minutes: a link, and one that is cut.
inline constexpr const char* kLink = "rate 200mbit delay 10ms loss 1%";
inline constexpr const char* kCut = "rate 200mbit delay 10ms loss 100%";

// A line of a program, on standard output or standard error.
struct Line {
  Clock::time_point at;
  std::string program;
  std::string text;
};

// A WAN has 64 sites; worker 63 is in the first one's, and so on.
inline constexpr size_t kWorkerSites = 63;
// Of a site whose workers are one member: longhaul-offload processes.
inline constexpr size_t kEnginesOfSite = 2;

struct JobOptions {
  uint32_t workers = 3;
  uint32_t servers = 1;  // all in site A, at one port after the other
  // Not 0: the workers stand in so many sites, each of which is a member of the job. All of them are of the
  // kind `member`; kEnginesOfSite divides the workers of a site.
  uint32_t sites = 0;
  std::string link = "rate 100mbit delay 10ms loss 1%";
  // All programs have the same one, in seconds.
  int idle_timeout = 4;
  int rounds = 100'000;     // of the daemons that train
  Words server_words = {};  // of every server
  Words job_words = {};     // of the first server, which has the job's settings
  // Of each worker; those of `worker_words_of` follow them.
  Words worker_words = {};
  std::vector<Words> worker_words_of = {};
  // The last worker is a member of this kind (member.h) in place of the daemon.
  std::string member = {};
  bool all_members = false;  // so are all the others
  Words member_words = {};   // of each
  bool keeps_state = false;  // servers keep their checkpoints in checkpoints()
  // Of the disk that those are on, which is the job's alone; 0: the directory is as any other.
  uint64_t disk_bytes = 0;
  uint64_t seed = 1;
};

class Job {
 public:
  // The WAN and the server are up, and the workers started. Errors: those of TunWan::Up and of the programs.
  static Result<std::unique_ptr<Job>> Start(const JobOptions& options);
  ~Job();

  // Takes in what the programs say, for this long or until `done`.
  template <typename Done>
  bool RunUntil(Clock::time_point limit, Done done) {
    for (;;) {
      TakeIn();
      if (done()) return true;
      if (Clock::now() >= limit) return false;
    }
  }
  void RunFor(Duration time) {
    RunUntil(Clock::now() + time, [] { return false; });
  }

  // --- Faults ---
  // Of the link between the worker's site and the server, each way.
  void SetLink(size_t worker, const std::string& words) { SetUp(worker, words), SetDown(worker, words); }
  void SetUp(size_t worker, const std::string& words);
  void SetDown(size_t worker, const std::string& words);
  void SetAllLinks(const std::string& words);
  void HealLinks() { SetAllLinks(options_.link); }
  void HealLink(size_t worker) { SetLink(worker, options_.link); }
  void SignalServer(int signal, size_t server = 0) { servers_[server]->Signal(signal); }
  void SignalWorker(size_t worker, int signal) { workers_[worker]->Signal(signal); }
  // Starts the worker's own command line once more, as a supervisor does, and `more`.
  void StartWorkerAgain(size_t worker, const Words& more = {});
  void StartServerAgain(size_t server = 0);
  // Engines count on from site to site.
  void SignalEngine(size_t engine, int signal) { engines_[engine]->Signal(signal); }
  void StartEngineAgain(size_t engine);
  // The worker's host takes another address of its site's network.
  void ChangeAddress(size_t worker);
  // No byte fits on the disk until then. REQUIRES: disk_bytes > 0.
  void FillDisk();
  void EmptyDisk();
  // A program of this tree in a worker's site. Its exit code and its lines are not the job's.
  void StartStranger(size_t site, const std::string& name, const Words& words);
  void RunInSite(const std::string& site, const Words& words);
  // From now on the server's standard output is not read.
  void StopReadingServer() { read_server_ = false; }
  std::string WorkerSite(size_t worker) const { return "W" + std::to_string(SiteOf(worker)); }
  size_t SiteOf(size_t worker) const {
    return options_.sites == 0 ? worker % kWorkerSites : worker * options_.sites / options_.workers;
  }
  // REQUIRES: the job has `sites`.
  size_t EngineOf(size_t worker) const { return worker / WorkersOfEngine(); }
  size_t WorkersOfEngine() const { return options_.workers / options_.sites / kEnginesOfSite; }
  std::string key_file() const { return protection_->key_file(); }
  std::string File(const std::string& name) const { return scratch_.File(name); }
  std::string checkpoints(size_t server = 0) const { return File("disk/server" + std::to_string(server)); }
  // Of a member (ledger.h).
  std::string LedgerOf(size_t worker) const { return File("ledger" + std::to_string(worker)); }

  // --- What happened ---
  // When worker 0, which no fault ends alone, said that it had a round's result.
  const std::vector<Clock::time_point>& rounds() const { return rounds_; }
  const std::deque<Line>& lines() const { return lines_; }
  // Workers and server that have ended, by the latest of each.
  bool AllEnded();
  bool AllWorkersEnded();
  bool WorkerEnded(size_t worker) { return workers_[worker]->Poll(); }
  bool server_running(size_t server = 0) { return !servers_[server]->Poll(); }
  // "server 1, worker0 1": who ended with which code.
  std::string ExitCodes();
  std::vector<int> WorkerExitCodes();
  size_t workers() const { return workers_.size(); }
  size_t servers() const { return servers_.size(); }
  pid_t server_pid(size_t server = 0) const { return servers_[server]->pid(); }
  size_t sites() const { return options_.sites; }

 private:
  explicit Job(const JobOptions& options) : options_(options) {}
  Status Begin();
  Status MakeDisk();
  bool IsListening(const std::string& name, size_t count);
  std::string SocketOf(size_t engine) const { return File("engine" + std::to_string(engine) + ".sock"); }
  Words WorkerCommand(size_t worker) const;
  Words MemberCommand(size_t worker) const;
  Status StartWorker(size_t worker, const Words& words);
  void TakeIn();
  void OnLine(const std::string& program, const std::string& text);
  void ReadLogs();
  void Set(const std::string& from, const std::string& to, const std::string& words);

  // A log that grows.
  struct Log {
    std::string program;
    std::string file;
    size_t read = 0;
  };

  JobOptions options_;
  std::optional<Protection> protection_;
  Scratch scratch_;
  std::unique_ptr<wan::TunWan> wan_;
  std::vector<std::optional<cli::ChildProcess>> servers_;
  std::vector<std::optional<cli::ChildProcess>> engines_;
  std::vector<std::optional<cli::ChildProcess>> workers_;
  std::vector<int> addresses_;             // of each worker's host in its site, the last number of it
  std::vector<cli::ChildProcess> others_;  // strangers, and what was replaced
  std::vector<Log> logs_;
  std::deque<Line> lines_;
  std::vector<Clock::time_point> rounds_;
  bool read_server_ = true;
  int starts_ = 0;
};

}  // namespace longhaul::bench::faults
