#include "bench/faults/pace.h"

#include <signal.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <span>
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

// With the time since the first line.
void Show(const Job& job) {
  for (const Line& line : job.lines())
    std::fprintf(stderr, "%8.3f %s: %s\n", Seconds(line.at - job.lines().front().at), line.program.c_str(),
                 line.text.c_str());
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
  // The longest time without one, or without a step of the member, s.
  double LongestGap(Clock::time_point from, Clock::time_point to, const std::string& member = "") const {
    double longest = 0;
    auto before = from;
    const auto& times = TimesOf(member);
    for (auto at = std::ranges::lower_bound(times, from); at != times.end() && *at < to; before = *at++)
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
    const auto& times = TimesOf(member);
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
  const std::vector<Clock::time_point>& TimesOf(const std::string& member) const {
    static const std::vector<Clock::time_point> none;
    if (member.empty()) return at_;
    const auto of = steps_.find(member);
    return of == steps_.end() ? none : of->second;
  }

  const Job& job_;
  size_t read_ = 0;
  long long last_ = -1;
  std::vector<Clock::time_point> at_;
  std::map<std::string, std::vector<Clock::time_point>> steps_;
};

enum class How : uint8_t { kKill, kStop, kCut, kKillLeader };
struct Disturbance {
  const char* name;
  How how;
  double least, most;  // s
};
constexpr Disturbance kOfMembers[] = {{"kill -9 of a member", How::kKill, 0.5, 0.5},
                                      {"SIGSTOP of a member", How::kStop, 1, 10},
                                      {"a member's link is cut", How::kCut, 5, 15}};
constexpr Disturbance kOfServers[] = {{"kill -9 of a server", How::kKill, 0.5, 0.5},
                                      {"SIGSTOP of a server", How::kStop, 1, 5}};
// Of a job in sites: its members are those, and these are their ranks.
constexpr Disturbance kOfSites[] = {{"kill -9 of a rank", How::kKill, 0.5, 0.5},
                                    {"SIGSTOP of a rank", How::kStop, 1, 10},
                                    {"a site's link is cut", How::kCut, 5, 15},
                                    {"kill -9 of a site's leading engine", How::kKillLeader, 0.5, 3}};

std::span<const Disturbance> DisturbancesOf(const PaceOptions& options) {
  if (options.of_servers) return kOfServers;
  return options.sites == 0 ? std::span<const Disturbance>(kOfMembers) : kOfSites;
}

// Node 0's at first; a takeover says so.
size_t LeadingEngine(const Job& job, size_t site) {
  size_t engine = site * kEnginesOfSite;
  for (const Line& line : job.lines()) {
    for (size_t of = site * kEnginesOfSite; of < (site + 1) * kEnginesOfSite; ++of) {
      if (line.program == "engine" + std::to_string(of) &&
          line.text.find("\"takeover\"") != std::string::npos)
        engine = of;
    }
  }
  return engine;
}

std::string NameOf(size_t worker) { return "worker" + std::to_string(worker); }

// A fault that is over.
struct Disturbed {
  double seconds = 0;
  std::vector<std::string> members;  // whose next steps are its end; none: the next round is
  std::vector<std::string> beside;   // in its site, and not hit by it
};
Disturbed Disturb(const PaceOptions& options, const Disturbance& what, Random& random, Job& job) {
  const bool leader = what.how == How::kKillLeader;
  const size_t site = leader ? random.Below(job.sites()) : 0;
  const size_t victim = leader               ? LeadingEngine(job, site)
                        : options.of_servers ? random.Below(job.servers())
                                             : random.Below(job.workers());
  const double length = what.least + (what.most - what.least) * random.Uniform();
  std::fprintf(stderr, "%s (%zu) for %.1f s\n", what.name, victim, length);
  const int signal = what.how == How::kStop ? SIGSTOP : SIGKILL;
  if (leader) {
    job.SignalEngine(victim, signal);
  } else if (options.of_servers) {
    job.SignalServer(signal, victim);
  } else if (what.how == How::kCut) {
    job.SetLink(victim, kCut);
  } else {
    job.SignalWorker(victim, signal);
  }
  job.RunFor(FromSeconds(length));
  if (leader) {
    job.StartEngineAgain(victim);
  } else if (options.of_servers) {
    what.how == How::kKill ? job.StartServerAgain(victim) : job.SignalServer(SIGCONT, victim);
  } else if (what.how == How::kCut) {
    job.HealLink(victim);
  } else {
    what.how == How::kKill ? job.StartWorkerAgain(victim) : job.SignalWorker(victim, SIGCONT);
  }
  Disturbed disturbed{.seconds = length, .members = {}, .beside = {}};
  if (options.of_servers) return disturbed;
  for (size_t worker = 0; worker < job.workers(); ++worker) {
    const bool same_site = job.sites() > 0 && job.SiteOf(worker) == (leader ? site : job.SiteOf(victim));
    const bool hit = leader                  ? job.EngineOf(worker) == victim
                     : what.how == How::kCut ? worker == victim || same_site
                                             : worker == victim;
    if (hit) {
      disturbed.members.push_back(NameOf(worker));
    } else if (same_site) {
      disturbed.beside.push_back(NameOf(worker));
    }
  }
  return disturbed;
}

// As a supervisor does: what has ended begins again. How many did.
int Supervise(Job& job, Clock::time_point until) {
  int started = 0;
  while (Clock::now() < until) {
    job.RunFor(std::min<Duration>(std::chrono::milliseconds(100), until - Clock::now()));
    for (size_t worker = 0; worker < job.workers(); ++worker) {
      if (!job.WorkerEnded(worker)) continue;
      job.StartWorkerAgain(worker);
      ++started;
    }
  }
  return started;
}

struct Span {
  const Disturbance* disturbance = nullptr;  // at its beginning
  double seconds = 0;
  size_t rounds = 0, steps = 0;
};
struct Cost {
  std::vector<double> gap,
      recovery;                // s: the longest without a round; from the fault's end to the next round
  std::vector<double> beside;  // s: the longest that a rank beside the one that was hit was without a step
  int ended = 0;               // members that ended and were started again
};

// What a round takes in the spans without a fault that are a span's neighbours, s: machines that others use
// as well change from minute to minute.
double UsualBeside(const std::vector<Span>& spans, size_t span) {
  const Span &before = spans[span - 1], &after = spans[span + 1];
  return (before.seconds + after.seconds) / static_cast<double>(before.rounds + after.rounds);
}

class PaceRun {
 public:
  PaceRun(const PaceOptions& options, Job& job)
      : options_(options), job_(job), rounds_(job), random_(options.seed) {}

  Status Run() {
    const auto is_underway = [&] { return rounds_.TakeIn(), rounds_.count() >= 20; };
    if (!job_.RunUntil(Clock::now() + kLimit, is_underway))
      return {StatusCode::kInternal, "the job does not begin"};
    const auto faults = DisturbancesOf(options_);
    const auto pairs = static_cast<size_t>(std::max(1.0, std::round(60 * options_.minutes / options_.every)));
    for (size_t pair = 0; pair <= pairs; ++pair) {
      if (Status s = RunSpan(nullptr); !s.ok() || pair == pairs) return s;
      if (Status s = RunSpan(&faults[pair % faults.size()]); !s.ok()) return s;
    }
    return {};
  }

  json Result() const {
    Span quiet, disturbed;
    double lost = 0, expected = 0;
    for (size_t i = 0; i < spans_.size(); ++i) {
      Span& total = spans_[i].disturbance == nullptr ? quiet : disturbed;
      total.seconds += spans_[i].seconds, total.rounds += spans_[i].rounds, total.steps += spans_[i].steps;
      if (spans_[i].disturbance == nullptr) continue;
      lost += spans_[i].seconds - static_cast<double>(spans_[i].rounds) * UsualBeside(spans_, i);
      expected += spans_[i].seconds / UsualBeside(spans_, i);
    }
    const double usual = quiet.seconds / static_cast<double>(quiet.rounds);
    json out = {{"workers", job_.workers()},
                {"servers", job_.servers()},
                {"sites", job_.sites()},
                {"seed", options_.seed},
                {"of", options_.of_servers ? "servers"
                       : job_.sites() > 0  ? "sites"
                                           : "members"},
                {"every", options_.every},
                {"minutes", disturbed.seconds / 60},
                {"rounds_quiet", quiet.rounds},
                {"rounds_disturbed", disturbed.rounds},
                {"steps_quiet", quiet.steps},
                {"steps_disturbed", disturbed.steps},
                {"steps_kept", static_cast<double>(disturbed.steps) / disturbed.seconds * quiet.seconds /
                                   static_cast<double>(quiet.steps)},
                {"usual", usual},
                {"kept", static_cast<double>(disturbed.rounds) / expected},
                {"lost_seconds", lost},
                {"down_seconds", down_}};
    for (const auto& [name, cost] : costs_) {
      const auto in_rounds = [&](const std::vector<double>& gaps) {
        std::vector<double> missing;
        for (const double gap : gaps) missing.push_back(std::max(0.0, gap / usual - 1));
        return missing.empty() ? json() : Spread(missing);
      };
      out["faults"][name] = {{"times", cost.gap.size()},
                             {"gap_in_rounds", in_rounds(cost.gap)},
                             {"beside_in_rounds", in_rounds(cost.beside)},
                             {"ended", cost.ended},
                             {"recovery", cost.recovery.empty() ? json() : Spread(cost.recovery)}};
    }
    return out;
  }

 private:
  Status RunSpan(const Disturbance* disturbance) {
    const auto begun = Clock::now(), until = begun + FromSeconds(options_.every);
    Cost& cost = costs_[disturbance == nullptr ? "none" : disturbance->name];
    Disturbed disturbed;
    if (disturbance != nullptr) disturbed = Disturb(options_, *disturbance, random_, job_);
    const auto ended = Clock::now();
    cost.ended += Supervise(job_, until);
    rounds_.TakeIn();
    down_ += disturbed.seconds;
    cost.gap.push_back(rounds_.LongestGap(begun, until));
    if (!disturbed.beside.empty()) {
      double longest = 0;
      for (const std::string& member : disturbed.beside)
        longest = std::max(longest, rounds_.LongestGap(begun, until, member));
      cost.beside.push_back(longest);
    }
    if (disturbance != nullptr) {
      double latest = disturbed.members.empty() ? rounds_.FirstAfter(ended, until) : 0;
      for (const std::string& member : disturbed.members)
        latest = std::max(latest, rounds_.FirstAfter(ended, until, member));
      cost.recovery.push_back(latest);
    }
    spans_.push_back({disturbance, Seconds(until - begun), rounds_.Between(begun, until),
                      rounds_.StepsBetween(begun, until)});
    if (spans_.back().rounds > 0) return {};
    return {StatusCode::kInternal, "no round in " + std::to_string(options_.every) + " s"};
  }

  const PaceOptions& options_;
  Job& job_;
  Rounds rounds_;
  Random random_;
  std::vector<Span> spans_;  // one without a fault, and one with, in turn; the last is one without
  std::map<std::string, Cost> costs_;
  double down_ = 0;
};

}  // namespace

Result<json> RunPace(const PaceOptions& options) {
  const uint32_t members = options.sites == 0 ? options.workers : options.sites;
  if (options.sites > 0 && options.workers % (options.sites * kEnginesOfSite) != 0) {
    return Status(StatusCode::kInvalidArgument, "the engines of all sites do not divide the workers");
  }
  const auto started =
      Job::Start({.workers = options.workers,
                  .servers = options.servers,
                  .sites = options.sites,
                  .link = kLink,
                  .server_words = {"--round-log"},
                  .job_words = {"--min-workers", "1", "--quorum", std::to_string(std::max(1u, members - 1))},
                  .member = "pace",
                  .all_members = true,
                  .keeps_state = true,
                  .seed = options.seed});
  if (!started.ok()) return started.status();
  PaceRun pace(options, **started);
  const Status ran = pace.Run();
  if (options.verbose || !ran.ok()) Show(**started);
  if (!ran.ok()) return ran;
  return pace.Result();
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
