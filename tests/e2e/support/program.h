// A program under test: a child process, everything it said, and when and how it ended.
#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "cli/child_process.h"

namespace longhaul::e2e {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;
using std::chrono::seconds;

// Sanitizers slow programs down, and start-up most.
inline constexpr int kSlowness = LONGHAUL_SLOWNESS;
// For what must happen, whenever it is; not a bound that a test is about.
inline constexpr Duration kPatience = seconds(25) * kSlowness;

// Waits for `condition`, taking in meanwhile what all programs say (one whose output is unread would block).
// False when `limit` has passed.
bool Eventually(const std::function<bool()>& condition, Duration limit = kPatience);

// Lets time pass; takes in what programs say.
void Pause(Duration time);

// "--rounds" -> "30"; a switch has an empty value.
using Flags = std::map<std::string, std::string>;
// `more` wins.
Flags Merged(Flags flags, const Flags& more);

class Program {
 public:
  // Starts the program of this name from the build (or by its path). What it writes on standard error goes
  // to a file in `directory`. `before_exec` runs in the child.
  Program(const std::string& name, const std::vector<std::string>& arguments, const std::string& directory,
          const std::function<int()>& before_exec = {});
  Program(const std::string& name, const Flags& flags, const std::string& directory,
          const std::function<int()>& before_exec = {});
  // Ends it, if need be by force.
  ~Program();
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;

  pid_t pid() const { return process_.pid(); }
  bool running();
  void Signal(int signal) const { process_.Signal(signal); }

  // The exit code, or nullopt when it has not ended within `limit`.
  std::optional<int> WaitForEnd(Duration limit = kPatience);
  // REQUIRES: it has ended.
  Clock::time_point ended_at() const { return ended_at_; }
  // False also when it ended without saying so.
  bool WaitForLine(const std::string& part, Duration limit = kPatience);
  // Of standard error, which a daemon writes in a thread of its own: what it said first may come last.
  bool WaitForError(const std::string& part, Duration limit = kPatience);
  // The first line of standard output that is a JSON object with this "event".
  std::optional<nlohmann::json> WaitForEvent(const std::string& event, Duration limit = kPatience);
  std::optional<nlohmann::json> FindEvent(const std::string& event) const;

  // So far: standard output, standard error, and both for messages.
  std::string Output() const;
  std::string Errors() const;
  std::string Everything() const;

 private:
  friend bool Eventually(const std::function<bool()>& condition, Duration limit);
  void TakeIn();

  std::string errors_file_;
  cli::ChildProcess process_;
  std::vector<std::string> lines_;
  bool ended_ = false;
  Clock::time_point ended_at_{};
};

// Processes that descend from `pid`, as (pid, start time): pids are used again.
std::map<pid_t, uint64_t> Descendants(pid_t pid);
// How many of them still run (zombies do not).
size_t CountAlive(const std::map<pid_t, uint64_t>& processes);
// The words of a process' command line, "" when it is gone.
std::string CommandLine(pid_t pid);
// Whole content; empty when it cannot be read.
std::string ReadFile(const std::string& path);

}  // namespace longhaul::e2e
