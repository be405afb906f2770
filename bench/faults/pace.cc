#include "bench/faults/pace.h"

#include <signal.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "base/quantile.h"
#include "base/random.h"
#include "base/units_text.h"
#include "bench/faults/job.h"
#include "bench/faults/member.h"
#include "server/store/checkpoint.h"

namespace longhaul::bench::faults {
namespace {

using nlohmann::json;
using std::chrono::seconds;

constexpr Duration kLimit = seconds(60);  // without a round
// What a supervisor takes to start a process again.
constexpr Duration kRestart = std::chrono::milliseconds(500);

json Spread(const std::vector<double>& values) {
  return {{"p50", Quantile(values, 0.5)}, {"p99", Quantile(values, 0.99)}, {"max", Quantile(values, 1.0)}};
}

void Show(const Job& job) {
  for (const Line& line : job.lines())
    std::fprintf(stderr, "%s: %s\n", line.program.c_str(), line.text.c_str());
}

// When each round of a job of "pace" members was over, by the first member that said so.
class Rounds {
 public:
  explicit Rounds(const Job& job) : job_(job) {}
  void TakeIn() {
    for (; read_ < job_.lines().size(); ++read_) {
      const Line& line = job_.lines()[read_];
      if (!line.text.starts_with(kInRound)) continue;
      steps_[line.program].push_back(line.at);
      const auto round = std::strtoll(line.text.c_str() + std::strlen(kInRound), nullptr, 10);
      if (round > last_) at_.push_back(line.at), last_ = round;
    }
  }
  size_t Between(Clock::time_point from, Clock::time_point to) const {
    return static_cast<size_t>(std::ranges::lower_bound(at_, to) - std::ranges::lower_bound(at_, from));
  }
  // The longest time without one, s.
  double LongestGap(Clock::time_point from, Clock::time_point to) const {
    double longest = 0;
    auto before = from;
    for (auto at = std::ranges::lower_bound(at_, from); at != at_.end() && *at < to; before = *at++)
      longest = std::max(longest, Seconds(*at - before));
    return std::max(longest, Seconds(to - before));
  }
  // Steps of all members that a round had in that time.
  size_t StepsBetween(Clock::time_point from, Clock::time_point to) const {
    size_t sum = 0;
    for (const auto& [member, at] : steps_)
      sum += static_cast<size_t>(std::ranges::lower_bound(at, to) - std::ranges::lower_bound(at, from));
    return sum;
  }
  // A step of the member, or a round; s; none came: until `end`.
  double FirstAfter(Clock::time_point time, Clock::time_point end, const std::string& member = "") const {
    const std::vector<Clock::time_point> none;
    const auto of = steps_.find(member);
    const auto& times = member.empty() ? at_ : of == steps_.end() ? none : of->second;
    const auto at = std::ranges::lower_bound(times, time);
    return Seconds((at == times.end() ? end : *at) - time);
  }
  size_t count() const { return at_.size(); }
  // Of the last `count`, s.
  std::vector<double> Lengths(size_t count) const {
    std::vector<double> lengths;
    for (size_t i = at_.size() - count; i < at_.size(); ++i) lengths.push_back(Seconds(at_[i] - at_[i - 1]));
    return lengths;
  }

 private:
  const Job& job_;
  size_t read_ = 0;
  long long last_ = -1;
  std::vector<Clock::time_point> at_;
  std::map<std::string, std::vector<Clock::time_point>> steps_;
};

struct Disturbance {
  const char* name;
  double least, most;  // s
};
constexpr Disturbance kOfMembers[] = {
    {"kill -9 of a member", 0.5, 0.5}, {"SIGSTOP of a member", 1, 10}, {"a member's link is cut", 5, 15}};
constexpr Disturbance kOfServers[] = {{"kill -9 of a server", 0.5, 0.5}, {"SIGSTOP of a server", 1, 5}};

struct Disturbed {
  double seconds = 0;
  std::string member;  // empty: a server
};
Disturbed Disturb(const PaceOptions& options, size_t which, Random& random, Job& job) {
  const Disturbance& what = options.of_servers ? kOfServers[which] : kOfMembers[which];
  const size_t victim = random.Below(options.of_servers ? job.servers() : job.workers());
  const double length = what.least + (what.most - what.least) * random.Uniform();
  std::fprintf(stderr, "%s (%zu) for %.1f s\n", what.name, victim, length);
  const int signal = which == 0 ? SIGKILL : SIGSTOP;
  if (options.of_servers) {
    job.SignalServer(signal, victim);
  } else if (which < 2) {
    job.SignalWorker(victim, signal);
  } else {
    job.SetLink(victim, kCut);
  }
  job.RunFor(FromSeconds(length));
  if (options.of_servers) {
    which == 0 ? job.StartServerAgain(victim) : job.SignalServer(SIGCONT, victim);
  } else if (which < 2) {
    which == 0 ? job.StartWorkerAgain(victim) : job.SignalWorker(victim, SIGCONT);
  } else {
    job.HealLink(victim);
  }
  return {length, options.of_servers ? "" : "worker" + std::to_string(victim)};
}

struct Span {
  double seconds = 0;
  size_t rounds = 0, steps = 0;
};
struct Cost {
  std::vector<double> gap,
      recovery;  // s: the longest without a round; from the fault's end to the next round
};

}  // namespace

Result<json> RunPace(const PaceOptions& options) {
  const auto started =
      Job::Start({.workers = options.workers,
                  .servers = options.servers,
                  .link = kLink,
                  .server_words = {"--round-log"},
                  .job_words = {"--min-workers", "1", "--quorum", std::to_string(options.workers - 1)},
                  .member = "pace",
                  .all_members = true,
                  .keeps_state = true,
                  .seed = options.seed});
  if (!started.ok()) return started.status();
  Job& job = **started;
  Rounds rounds(job);
  const auto is_underway = [&] { return rounds.TakeIn(), rounds.count() >= 20; };
  if (!job.RunUntil(Clock::now() + kLimit, is_underway)) {
    Show(job);
    return Status(StatusCode::kInternal, "the job does not begin");
  }
  Random random(options.seed);
  Span quiet, disturbed;
  std::map<std::string, Cost> costs;
  double down = 0;
  for (int span = 0; quiet.seconds < 60 * options.minutes || disturbed.seconds < 60 * options.minutes;
       ++span) {
    const auto begun = Clock::now(), until = begun + FromSeconds(options.every);
    Span& total = span % 2 == 0 ? quiet : disturbed;
    if (span % 2 == 1) {
      const size_t which = static_cast<size_t>(span / 2) %
                           (options.of_servers ? std::size(kOfServers) : std::size(kOfMembers));
      const Disturbed disturbance = Disturb(options, which, random, job);
      down += disturbance.seconds;
      const auto ended = Clock::now();
      job.RunFor(until - ended);
      rounds.TakeIn();
      Cost& cost = costs[options.of_servers ? kOfServers[which].name : kOfMembers[which].name];
      cost.gap.push_back(rounds.LongestGap(begun, until));
      cost.recovery.push_back(rounds.FirstAfter(ended, until, disturbance.member));
    } else {
      job.RunFor(until - begun);
      rounds.TakeIn();
      costs["none"].gap.push_back(rounds.LongestGap(begun, until));
    }
    total.seconds += Seconds(until - begun);
    total.rounds += rounds.Between(begun, until);
    total.steps += rounds.StepsBetween(begun, until);
    if (rounds.Between(begun, until) == 0) {
      Show(job);
      return Status(StatusCode::kInternal, "no round in " + std::to_string(options.every) + " s");
    }
  }
  if (options.verbose) Show(job);
  const double usual = quiet.seconds / static_cast<double>(quiet.rounds);
  json out = {{"workers", job.workers()},
              {"servers", job.servers()},
              {"seed", options.seed},
              {"of", options.of_servers ? "servers" : "members"},
              {"every", options.every},
              {"minutes", disturbed.seconds / 60},
              {"rounds_quiet", quiet.rounds},
              {"rounds_disturbed", disturbed.rounds},
              {"steps_quiet", quiet.steps},
              {"steps_disturbed", disturbed.steps},
              {"usual", usual},
              {"kept", static_cast<double>(disturbed.rounds) / disturbed.seconds * usual},
              {"lost_seconds", disturbed.seconds - static_cast<double>(disturbed.rounds) * usual},
              {"down_seconds", down}};
  for (auto& [name, cost] : costs) {
    std::vector<double> lost;
    for (const double gap : cost.gap) lost.push_back(std::max(0.0, gap / usual - 1));
    out["faults"][name] = {{"times", lost.size()},
                           {"gap_in_rounds", Spread(lost)},
                           {"recovery", cost.recovery.empty() ? json() : Spread(cost.recovery)}};
  }
  return out;
}

Result<json> RunStart(uint32_t workers, int repetitions, uint64_t seed) {
  std::vector<double> times;
  for (int repetition = 0; repetition < repetitions; ++repetition) {
    const auto started = Job::Start(
        {.workers = workers, .link = kLink, .member = "pace", .all_members = true, .seed = seed++});
    if (!started.ok()) return started.status();
    Job& job = **started;
    Rounds rounds(job);
    if (!job.RunUntil(Clock::now() + kLimit, [&] { return rounds.TakeIn(), rounds.count() > 0; })) {
      Show(job);
      return Status(StatusCode::kInternal, "the job does not begin");
    }
    std::vector<Clock::time_point> connects;
    for (const Line& line : job.lines()) {
      if (line.text == kConnects) connects.push_back(line.at);
    }
    times.push_back(rounds.FirstAfter(std::ranges::max(connects), Clock::now()));
    std::fprintf(stderr, "%u members, %.2f s\n", workers, times.back());
  }
  return json{{"workers", workers}, {"times", times}, {"p50", Quantile(times, 0.5)}};
}

namespace {

struct Training {
  double accuracy = 0;
  double seconds = 0;
  uint64_t rounds = 0;           // in the last checkpoint
  std::vector<double> recovery;  // s, from the start of a server to the next round
};

Result<Training> Train(const KillsOptions& options, int kills) {
  const auto started = Job::Start({.workers = options.workers,
                                   .rounds = options.rounds,
                                   .server_words = {"--round-log"},
                                   .worker_words = {"--reconnect-timeout", "60"},
                                   .keeps_state = true,
                                   .seed = options.seed});
  if (!started.ok()) return started.status();
  Job& job = **started;
  Training training;
  const auto begun = Clock::now();
  const auto fails = [&](const std::string& why) {
    Show(job);
    return Status(StatusCode::kInternal, why + " (" + job.ExitCodes() + ")");
  };
  for (int kill = 1; kill <= kills; ++kill) {
    const auto due =
        static_cast<size_t>(options.rounds) * static_cast<size_t>(kill) / static_cast<size_t>(kills + 1);
    if (!job.RunUntil(Clock::now() + kLimit, [&] { return job.rounds().size() >= due; })) {
      return fails("no round after kill " + std::to_string(kill - 1));
    }
    job.SignalServer(SIGKILL);
    job.RunFor(kRestart);
    const auto from = Clock::now();
    const size_t before = job.rounds().size();
    job.StartServerAgain();
    if (!job.RunUntil(from + kLimit, [&] { return job.rounds().size() > before; })) {
      return fails("no round after kill " + std::to_string(kill));
    }
    training.recovery.push_back(Seconds(job.rounds()[before] - from));
  }
  for (size_t before = 0; !job.AllWorkersEnded(); before = job.rounds().size()) {
    if (!job.RunUntil(Clock::now() + kLimit,
                      [&] { return job.AllWorkersEnded() || job.rounds().size() > before; }))
      return fails("no round any more");
  }
  job.SignalServer(SIGTERM);
  if (!job.RunUntil(Clock::now() + kLimit, [&] { return job.AllEnded(); }))
    return fails("the server does not end");
  training.seconds = Seconds(Clock::now() - begun);
  if (std::ranges::any_of(job.WorkerExitCodes(), [](int code) { return code != 0; }))
    return fails("a worker failed");
  if (options.verbose) Show(job);
  for (const Line& line : job.lines()) {
    const auto object = json::parse(line.text, nullptr, false);
    if (object.is_object() && object.value("event", "") == "finished" && object.contains("accuracy"))
      training.accuracy = object["accuracy"].get<double>();
  }
  const auto newest = server::store::LoadNewestCheckpoint(SystemFiles(), job.checkpoints());
  if (!newest.ok() || !newest->loaded) return fails("no checkpoint: " + newest.status().ToString());
  const auto& tensors = newest->loaded->image.tensors;
  if (tensors.empty()) return fails("no tensor");
  training.rounds = tensors.front().rounds;
  const auto same = [&](const server::TensorImage& tensor) { return tensor.rounds == training.rounds; };
  if (!std::ranges::all_of(tensors, same)) return fails("tensors have other numbers of rounds");
  return training;
}

}  // namespace

Result<json> RunKills(const KillsOptions& options) {
  const auto undisturbed = Train(options, 0);
  if (!undisturbed.ok()) return undisturbed.status();
  const auto killed = Train(options, options.kills);
  if (!killed.ok()) return killed.status();
  return json{{"workers", options.workers},
              {"rounds_asked", options.rounds},
              {"kills", options.kills},
              {"seed", options.seed},
              {"accuracy_undisturbed", undisturbed->accuracy},
              {"accuracy_killed", killed->accuracy},
              {"seconds_undisturbed", undisturbed->seconds},
              {"seconds_killed", killed->seconds},
              {"rounds_undisturbed", undisturbed->rounds},
              {"rounds_killed", killed->rounds},
              {"recovery", Spread(killed->recovery)}};
}

Result<json> RunCheckpoints(int blocks, int rounds, uint64_t seed) {
  constexpr size_t kWarm = 10;
  std::vector<double> lengths[2];
  for (int block = 0; block < 2 * blocks; ++block) {
    const bool with = block % 2 == 1;
    const auto started = Job::Start({.workers = 3,
                                     .link = kLink,
                                     .server_words = with ? Words{"--checkpoint-every", "5"} : Words(),
                                     .member = "pace",
                                     .all_members = true,
                                     .member_words = {"--elements", "1000000"},
                                     .keeps_state = with,
                                     .seed = seed});
    if (!started.ok()) return started.status();
    Job& job = **started;
    Rounds done(job);
    const size_t all = kWarm + static_cast<size_t>(rounds);
    for (size_t before = 0; done.count() < all; before = done.count()) {
      if (job.RunUntil(Clock::now() + kLimit, [&] { return done.TakeIn(), done.count() > before; })) continue;
      Show(job);
      return Status(StatusCode::kInternal, "no round any more");
    }
    const auto more = done.Lengths(static_cast<size_t>(rounds));
    lengths[with].insert(lengths[with].end(), more.begin(), more.end());
    std::fprintf(stderr, "%s: p50 %.0f ms, p99 %.0f ms\n", with ? "with" : "without",
                 1e3 * Quantile(more, 0.5), 1e3 * Quantile(more, 0.99));
  }
  return json{{"rounds", lengths[0].size()}, {"without", Spread(lengths[0])}, {"with", Spread(lengths[1])}};
}

}  // namespace longhaul::bench::faults
