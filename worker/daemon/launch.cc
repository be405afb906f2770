#include "worker/daemon/launch.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <netinet/in.h>
#include <signal.h>
#include <spdlog/spdlog.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <sstream>
#include <string_view>

#include "base/process/spawn.h"

namespace longhaul::worker {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr auto kLook = milliseconds(20);  // the longest that a process has ended and is not noticed
// Between a rank's end and its start again: its predecessor's rank is free after the first (the server asks
// it, for one or two seconds), and one that fails at once costs little. Doubled each time.
constexpr auto kFirstPause = milliseconds(1000);
constexpr auto kLongestPause = milliseconds(30'000);

struct Rank {
  pid_t pid = -1;    // -1: none runs
  pid_t group = -1;  // of the last one that ran
  int code = 0;      // of the last one that ended
  uint32_t restarted = 0;
  std::optional<Clock::time_point> starts_at;
};

// In the child: the program finds the signals as a shell would give them, and no terminal to read from.
int AsFromAShell() {
  ::signal(SIGPIPE, SIG_DFL);
  ::signal(SIGXFSZ, SIG_DFL);
  const int null = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
  return null < 0 || ::dup2(null, STDIN_FILENO) < 0 ? -1 : 0;
}

class Launcher {
 public:
  Launcher(const LaunchOptions& options, const EndingSignals& signals)
      : options_(options), signals_(signals), ranks_(options.place.ranks) {}

  int Run() {
    for (Rank& rank : ranks_) rank.starts_at = Clock::now();
    if (ranks_.size() > 1 && std::getenv("OMP_NUM_THREADS") == nullptr)
      spdlog::info("OMP_NUM_THREADS is not set: it is 1 for each of {} ranks", ranks_.size());
    while (std::ranges::any_of(ranks_, [](const Rank& r) { return r.pid > 0 || r.starts_at; })) {
      Start();
      if (const int signal = signals_.Take(kLook); signal != 0) HandOn(signal);
      Reap();
      if (kill_at_ && Clock::now() >= *kill_at_) {
        kill_at_.reset();
        Tell(SIGKILL);
      }
    }
    return code_;
  }

 private:
  uint32_t Number(const Rank& rank) const {
    return options_.place.first_rank + static_cast<uint32_t>(&rank - ranks_.data());
  }

  void Start() {
    for (Rank& rank : ranks_) {
      if (!rank.starts_at || Clock::now() < *rank.starts_at) continue;
      rank.starts_at.reset();
      if (rank.group > 0) ::kill(-rank.group, SIGKILL);  // what did not end with its predecessor
      const auto local = static_cast<uint32_t>(&rank - ranks_.data());
      const auto pid =
          process::Spawn(options_.command, {.die_with_parent = true,
                                            .environment = EnvironmentOfRank(options_, local, rank.restarted),
                                            .own_group = true,
                                            .before_exec = AsFromAShell});
      if (!pid.ok()) {
        spdlog::error("rank {}: {}", Number(rank), pid.status().message());
        return GiveUp(kExitNoCommand);
      }
      rank.pid = rank.group = *pid;
      spdlog::info("rank {} is process {}", Number(rank), rank.pid);
    }
  }

  void HandOn(int signal) {
    const bool ends = signal != SIGUSR1 && signal != SIGUSR2;
    if (ends && signalled_) {
      spdlog::warn("signal {}, the second one: what is left is killed", signal);
      if (code_ == 0) code_ = 128 + signal;
      return Tell(SIGKILL);
    }
    spdlog::info("signal {} goes to all ranks", signal);
    Tell(signal);
    if (!ends) return;
    signalled_ = true;
    for (Rank& rank : ranks_) {
      // It has failed, and is not started again.
      if (rank.starts_at && code_ == 0) code_ = rank.code;
      rank.starts_at.reset();
    }
  }

  void Reap() {
    int status = 0;
    for (pid_t pid = 0; (pid = ::waitpid(-1, &status, WNOHANG)) > 0;) {
      const auto rank = std::ranges::find(ranks_, pid, &Rank::pid);
      if (rank == ranks_.end()) continue;  // a child that this process had before it became the launcher
      rank->pid = -1;
      const int code = rank->code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
      if (code != 0) ::kill(-pid, SIGTERM);  // what one that failed has left behind
      const std::string how = WIFEXITED(status) ? "exit code " + std::to_string(code)
                                                : "signal " + std::to_string(WTERMSIG(status));
      if (code == 0) {
        spdlog::info("rank {} has ended", Number(*rank));
      } else if (signalled_ || given_up_) {
        spdlog::info("rank {} has ended by {}", Number(*rank), how);
        if (code_ == 0) code_ = code;
      } else if (rank->restarted < options_.restarts) {
        const auto pause = std::min(kLongestPause, kFirstPause * (1u << std::min(rank->restarted, 5u)));
        ++rank->restarted;
        rank->starts_at = Clock::now() + pause;
        spdlog::warn("rank {} ended by {}; it is started again in {:.0f} s ({} of {})", Number(*rank), how,
                     std::chrono::duration<double>(pause).count(), rank->restarted, options_.restarts);
      } else {
        spdlog::error("rank {} ended by {}: the others end, too", Number(*rank), how);
        GiveUp(code);
      }
    }
  }

  void GiveUp(int code) {
    code_ = code;
    given_up_ = true;
    for (Rank& rank : ranks_) rank.starts_at.reset();
    Tell(SIGTERM);
    kill_at_ = Clock::now() + options_.grace;
  }

  void Tell(int signal) const {
    for (const Rank& rank : ranks_) {
      if (rank.pid > 0) ::kill(-rank.pid, signal);
    }
  }

  const LaunchOptions& options_;
  const EndingSignals& signals_;
  std::vector<Rank> ranks_;
  std::optional<Clock::time_point> kill_at_;
  bool signalled_ = false, given_up_ = false;
  int code_ = 0;
};

}  // namespace

Result<Place> PlaceFromHostfile(const std::string& file, const std::vector<std::string>& names) {
  std::ifstream input(file);
  if (!input || std::filesystem::is_directory(file))
    return Status(StatusCode::kNotFound, "cannot read " + file);
  Place place{.first_rank = 0, .ranks = 0, .world_size = 0};
  uint32_t hosts = 0;
  std::string line;
  for (int number = 1; std::getline(input, line); ++number) {
    const auto bad = [&](const std::string& why) {
      return Status(StatusCode::kInvalidArgument, file + ", line " + std::to_string(number) + ": " + why);
    };
    std::istringstream words(line.substr(0, line.find('#')));
    std::string host;
    if (!(words >> host)) continue;
    uint32_t slots = 1;
    for (std::string word; words >> word;) {
      if (word.starts_with("max_slots=") || word.starts_with("max-slots=")) continue;
      const std::string_view text = std::string_view(word).substr(std::min(word.size(), size_t{6}));
      const auto parsed = std::from_chars(text.data(), text.data() + text.size(), slots);
      if (!word.starts_with("slots=") || parsed.ec != std::errc() ||
          parsed.ptr != text.data() + text.size() || slots == 0 || slots > 65536)
        return bad("'" + word + "': wanted is HOST slots=N, with N in 1..65536");
    }
    // A host that does not know its domain is meant by its name with any.
    const bool bare = names.front().find('.') == std::string::npos;
    if (std::ranges::find(names, host) != names.end() || (bare && host.starts_with(names.front() + "."))) {
      if (place.ranks > 0) return bad("this host is here twice");
      place.first_rank = place.world_size;
      place.ranks = slots;
      place.host = hosts;
    }
    ++hosts;
    place.world_size += slots;
    if (place.world_size > 65536) return bad("more than 65536 ranks");
  }
  if (place.ranks > 0) return place;
  return Status(StatusCode::kInvalidArgument,
                file + " does not name this host (" + names.front() + "): give its name there with --host");
}

std::vector<std::string> NamesOfThisHost() {
  char name[256] = {};
  (void)::gethostname(name, sizeof name - 1);
  std::vector<std::string> names = {name, "localhost"};
  if (const size_t dot = names[0].find('.'); dot != std::string::npos)
    names.push_back(names[0].substr(0, dot));
  ifaddrs* all = nullptr;
  if (::getifaddrs(&all) != 0) return names;
  for (const ifaddrs* each = all; each != nullptr; each = each->ifa_next) {
    if (each->ifa_addr == nullptr) continue;
    const int family = each->ifa_addr->sa_family;
    const void* address = nullptr;
    if (family == AF_INET) address = &reinterpret_cast<const sockaddr_in*>(each->ifa_addr)->sin_addr;
    if (family == AF_INET6) address = &reinterpret_cast<const sockaddr_in6*>(each->ifa_addr)->sin6_addr;
    char text[INET6_ADDRSTRLEN];
    if (address != nullptr && ::inet_ntop(family, address, text, sizeof text) != nullptr)
      names.emplace_back(text);
  }
  ::freeifaddrs(all);
  return names;
}

std::vector<std::string> EnvironmentOfRank(const LaunchOptions& options, uint32_t local_rank,
                                           uint32_t restarted) {
  std::map<std::string, std::string> variables;
  for (char** each = environ; *each != nullptr; ++each) {
    const std::string text = *each;
    const size_t equals = text.find('=');
    if (equals != std::string::npos) variables[text.substr(0, equals)] = text.substr(equals + 1);
  }
  for (const auto& [name, value] : options.environment) variables[name] = value;
  const Place& place = options.place;
  const uint32_t locally = options.local_size > 0 ? options.local_size : place.ranks;
  const std::string rank = std::to_string(place.first_rank + local_rank);
  const std::string world_size = std::to_string(place.world_size);
  const std::string local = std::to_string(options.first_local + local_rank);
  const std::string locals = std::to_string(locally);
  for (const char* name : {"LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK"}) variables[name] = local;
  for (const char* name : {"LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE"}) variables[name] = locals;
  // A launcher around this one knows hosts with unequal numbers of ranks.
  const auto group = variables.find("GROUP_RANK");
  const std::string group_rank = options.local_size > 0 && group != variables.end()
                                     ? group->second
                                     : std::to_string(place.host.value_or(place.first_rank / locally));
  const std::pair<const char*, const std::string&> of_job[] = {{"RANK", rank},
                                                               {"OMPI_COMM_WORLD_RANK", rank},
                                                               {"DMLC_WORKER_ID", rank},
                                                               {"WORLD_SIZE", world_size},
                                                               {"OMPI_COMM_WORLD_SIZE", world_size},
                                                               {"DMLC_NUM_WORKER", world_size},
                                                               {"ROLE_RANK", rank},
                                                               {"ROLE_WORLD_SIZE", world_size},
                                                               {"GROUP_RANK", group_rank}};
  for (const auto& [name, value] : of_job) {
    if (!options.join.empty()) {
      variables[name] = value;
    } else if (place.ranks > 1) {
      variables.erase(name);  // one value is not that of several ranks
    }
  }
  variables.try_emplace("ROLE_NAME", "default");
  const auto job = variables.find("LONGHAUL_JOB");
  variables.try_emplace("TORCHELASTIC_RUN_ID", job == variables.end() ? "none" : job->second);
  if (place.ranks > 1) variables.try_emplace("OMP_NUM_THREADS", "1");
  variables["DMLC_ROLE"] = "worker";
  variables["DMLC_NUM_SERVER"] = "1";
  variables["TORCHELASTIC_RESTART_COUNT"] = std::to_string(restarted);
  variables["TORCHELASTIC_MAX_RESTARTS"] = std::to_string(options.restarts);
  if (options.join.empty()) {
    variables["LONGHAUL_SITE_RANK"] = local;
  } else {
    variables["LONGHAUL_RANK"] = rank;
    variables["LONGHAUL_WORLD_SIZE"] = world_size;
    const size_t colon = options.join.rfind(':');
    std::string host = options.join.substr(0, colon);
    const std::string port = colon == std::string::npos ? "" : options.join.substr(colon + 1);
    variables["DMLC_PS_ROOT_URI"] = host;
    variables["DMLC_PS_ROOT_PORT"] = port;
    if (host.starts_with('[') && host.ends_with(']')) host = host.substr(1, host.size() - 2);
    variables.try_emplace("MASTER_ADDR", host);
    variables.try_emplace("MASTER_PORT", port);
  }
  std::vector<std::string> lines;
  for (const auto& [name, value] : variables) lines.push_back(name + "=" + value);
  return lines;
}

int Launch(const LaunchOptions& options, const EndingSignals& signals) {
  return Launcher(options, signals).Run();
}

}  // namespace longhaul::worker
