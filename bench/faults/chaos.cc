#include "bench/faults/chaos.h"

#include <signal.h>

#include <algorithm>
#include <cstdio>
#include <regex>

#include "base/placement.h"
#include "base/quantile.h"
#include "base/random.h"
#include "base/units_text.h"
#include "bench/faults/job.h"
#include "bench/faults/ledger.h"
#include "server/store/checkpoint.h"
#include "server/store/shards.h"

namespace longhaul::bench::faults {
namespace {

using nlohmann::json;
using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr int kIdleTimeout = 4;  // s
// Of a server: two files of its round log (64 MiB) and checkpoints.
constexpr uint64_t kDiskBytes = uint64_t{192} << 20;
// Pushes of all members that prove that the job is back.
constexpr size_t kBackPushes = 8;
// After a fault's end, with everything that it may cost: two idle time-outs, a reconnection's attempt, and a
// busy host.
constexpr Duration kRecoveryLimit = seconds(30);

enum class Kind : uint8_t {
  kKillMember,
  kKillServer,
  kStopMember,
  kStopServer,
  kCutMember,
  kCutUp,
  kCutDown,
  kAddress,
  kDiskFull
};
struct Fault {
  Kind kind;
  const char* name;
  double least, most;  // s
  // Of a line that says it. Those that last less than an idle time-out need none; empty: none has to.
  const char* named;
};
constexpr Fault kFaults[] = {
    {Kind::kKillMember, "kill -9 of a member", 0.2, 8, "replace|silent|lost|\"event\":\"(leave|join)\""},
    {Kind::kKillServer, "kill -9 of a server", 0.2, 5, "is back after"},
    {Kind::kStopMember, "SIGSTOP of a member", 1, 20, "silent|lost"},
    {Kind::kStopServer, "SIGSTOP of a server", 1, 10, ""},
    {Kind::kCutMember, "a member's link is cut", 5, 30, "silent|lost"},
    {Kind::kCutUp, "a member's link is cut towards the server", 5, 15, "silent|lost"},
    {Kind::kCutDown, "a member's link is cut from the server", 5, 15, "silent|lost"},
    {Kind::kAddress, "a member's host takes another address", 0, 0, ""},
    {Kind::kDiskFull, "the servers' disk is full", 1, 8, "could not be written, training goes on"},
};

class Chaos {
 public:
  // REQUIRES: some fault is called so.
  Chaos(const ChaosOptions& options, Job& job) : options_(options), job_(job), random_(options.seed) {
    std::ranges::copy_if(kFaults, std::back_inserter(faults_), [&](const Fault& fault) {
      return std::string_view(fault.name).find(options.only) != std::string_view::npos;
    });
  }

  void Run() {
    const auto begun = Clock::now();
    if (!Progress(kRecoveryLimit)) return Miss("the job does not begin");
    while (Clock::now() - begun < FromSeconds(60 * options_.minutes)) {
      RunFor(FromSeconds(0.5 + 4 * random_.Uniform()));
      Disturb(faults_[random_.Below(faults_.size())]);
      if (!misses_.empty()) return;
    }
    seconds_ = Seconds(Clock::now() - begun);
  }
  json Result() {
    Compare();
    json out = {{"seed", options_.seed},
                {"minutes", seconds_ / 60},
                {"workers", job_.workers()},
                {"servers", job_.servers()},
                {"faults", counts_},
                {"acked", acked_},
                {"acked_in_part", owed_},
                {"in_doubt", in_doubt_},
                {"in_doubt_counted", in_doubt_counted_},
                {"rounds", rounds_},
                {"restarts_of_members_that_ended", ended_},
                {"miss", misses_}};
    for (auto& [name, times] : recovery_) {
      std::ranges::sort(times);
      out["recovery"][name] = {{"p50", Quantile(times, 0.5)}, {"max", times.back()}};
    }
    return out;
  }

 private:
  std::string LedgerOf(size_t rank) const { return job_.LedgerOf(rank); }
  size_t Acked() const {
    size_t count = 0;
    for (size_t rank = 0; rank < job_.workers(); ++rank) count += ReadLedger(LedgerOf(rank)).acked.size();
    return count;
  }
  void Miss(const std::string& why) {
    std::fprintf(stderr, "MISS: %s\n", why.c_str());
    misses_.push_back(why);
  }
  // As a supervisor does: what has ended begins again.
  void RunFor(Duration time) {
    const auto until = Clock::now() + time;
    while (Clock::now() < until) {
      job_.RunFor(std::min<Duration>(milliseconds(100), until - Clock::now()));
      for (size_t rank = 0; rank < job_.workers(); ++rank) {
        if (!job_.WorkerEnded(rank)) continue;
        ++ended_;
        job_.StartWorkerAgain(rank);
      }
    }
  }
  // Every member has a push acknowledged that it had not before.
  bool Progress(Duration limit) {
    std::vector<size_t> before;
    for (size_t rank = 0; rank < job_.workers(); ++rank)
      before.push_back(ReadLedger(LedgerOf(rank)).acked.size());
    const auto until = Clock::now() + limit;
    while (Clock::now() < until) {
      RunFor(milliseconds(100));
      bool all = true;
      for (size_t rank = 0; rank < job_.workers(); ++rank) {
        all = all && ReadLedger(LedgerOf(rank)).acked.size() >= before[rank] + kBackPushes / job_.workers();
      }
      if (all) return true;
    }
    return false;
  }
  void Disturb(const Fault& fault) {
    const bool of_server = fault.kind == Kind::kKillServer || fault.kind == Kind::kStopServer;
    const size_t victim = random_.Below(of_server ? job_.servers() : job_.workers());
    const double length = fault.least + (fault.most - fault.least) * random_.Uniform();
    std::fprintf(stderr, "%s (%zu) for %.1f s\n", fault.name, victim, length);
    ++counts_[fault.name];
    const size_t lines = job_.lines().size();
    const bool kills = fault.kind == Kind::kKillMember;
    switch (fault.kind) {
      case Kind::kKillMember:
        job_.SignalWorker(victim, SIGKILL);
        job_.RunFor(FromSeconds(length));
        job_.StartWorkerAgain(victim);
        break;
      case Kind::kKillServer:
        job_.SignalServer(SIGKILL, victim);
        RunFor(FromSeconds(length));
        job_.StartServerAgain(victim);
        break;
      case Kind::kStopMember:
        job_.SignalWorker(victim, SIGSTOP);
        RunFor(FromSeconds(length));
        job_.SignalWorker(victim, SIGCONT);
        break;
      case Kind::kStopServer:
        job_.SignalServer(SIGSTOP, victim);
        RunFor(FromSeconds(length));
        job_.SignalServer(SIGCONT, victim);
        break;
      case Kind::kCutMember:
      case Kind::kCutUp:
      case Kind::kCutDown:
        if (fault.kind != Kind::kCutDown) job_.SetUp(victim, kCut);
        if (fault.kind != Kind::kCutUp) job_.SetDown(victim, kCut);
        RunFor(FromSeconds(length));
        job_.HealLinks();
        break;
      case Kind::kAddress:
        job_.ChangeAddress(victim);
        break;
      case Kind::kDiskFull:
        job_.FillDisk();
        RunFor(FromSeconds(length));
        // Training goes on meanwhile.
        if (!Progress(kRecoveryLimit)) return Miss(std::string(fault.name) + ": a member does not go on");
        job_.EmptyDisk();
        break;
    }
    const auto ended = Clock::now();
    if (!Progress(kRecoveryLimit)) return Miss(std::string(fault.name) + ": a member does not go on");
    recovery_[fault.name].push_back(Seconds(Clock::now() - ended));
    // Shorter ones are repaired and need no words.
    const bool long_enough = kills || fault.kind == Kind::kKillServer || fault.kind == Kind::kDiskFull ||
                             length > kIdleTimeout + 1;
    if (*fault.named == 0 || !long_enough) return;
    const std::regex named(fault.named);
    const auto& said = job_.lines();
    if (std::none_of(said.begin() + static_cast<ptrdiff_t>(lines), said.end(),
                     [&](const Line& line) { return std::regex_search(line.text, named); })) {
      Miss(std::string(fault.name) + ": no line names it");
    }
  }

  // What a push adds to its element: all members were in the round, or one was not. Two of these are more.
  bool IsShare(float value) const {
    const auto workers = static_cast<float>(job_.workers());
    return value == kPushed / workers || value == kPushed / (workers - 1);
  }

  // Which of the servers was given this place: those after the first have them in the order in which they
  // came.
  size_t ProcessAt(uint32_t place) const {
    for (size_t server = 1; server < job_.servers(); ++server) {
      const auto stored = server::store::ReadPlace(SystemFiles(), job_.checkpoints(server));
      if (stored.ok() && *stored && (*stored)->server == place) return server;
    }
    return place;
  }

  // What the servers' last checkpoints hold. Empty: Miss.
  std::vector<float> Values() {
    const uint64_t count = kPushesPerRank * job_.workers();
    const auto servers = static_cast<uint32_t>(job_.servers());
    std::vector<float> values(count);
    const std::vector<Shard> shards = PlaceTensor("ledger", count, servers);
    for (const Shard& shard : shards) {
      const std::string directory = job_.checkpoints(ProcessAt(shard.server));
      const auto newest = server::store::LoadNewestCheckpoint(SystemFiles(), directory);
      if (!newest.ok() || !newest->loaded || newest->loaded->image.tensors.size() != 1 ||
          newest->loaded->image.tensors[0].count != shard.count) {
        Miss("no checkpoint of the part in " + directory + ": " + newest.status().ToString());
        return {};
      }
      const server::TensorImage& tensor = newest->loaded->image.tensors[0];
      rounds_ = tensor.rounds;
      std::copy_n(tensor.values->data(), shard.count, values.begin() + static_cast<ptrdiff_t>(shard.first));
    }
    return values;
  }

  // What the servers' last checkpoints hold, against what the members know.
  void Compare() {
    for (size_t server = 0; server < job_.servers(); ++server) job_.SignalServer(SIGTERM, server);
    if (!job_.RunUntil(Clock::now() + kRecoveryLimit, [&] {
          bool ended = true;
          for (size_t server = 0; server < job_.servers(); ++server) ended &= !job_.server_running(server);
          return ended;
        })) {
      return Miss("a server does not end");
    }
    for (size_t rank = 0; rank < job_.workers(); ++rank) job_.SignalWorker(rank, SIGKILL);
    const std::vector<float> values = Values();
    if (values.empty()) return;
    for (size_t rank = 0; rank < job_.workers(); ++rank) {
      const Ledger ledger = ReadLedger(LedgerOf(rank));
      acked_ += ledger.acked.size();
      for (uint64_t number = 0; number < kPushesPerRank; ++number) {
        // sgd with rate 1 subtracts.
        const float value = -values[rank * kPushesPerRank + number];
        const auto ack = ledger.acked.find(number);
        const std::string name = "push " + std::to_string(number) + " of rank " + std::to_string(rank);
        if (ack == ledger.acked.end()) {
          const bool begun = number > 0 && number <= ledger.begun;
          if (begun) ++in_doubt_, in_doubt_counted_ += value != 0;
          if (!begun && value != 0) Miss(name + " counts and was never begun");
          if (begun && value != 0 && !IsShare(value)) Miss(name + " counts " + std::to_string(value));
          continue;
        }
        if (ack->second.lost_chunks > 0) {
          ++owed_;  // the rest of it was the worker's to send again, and may have died with it
          continue;
        }
        const std::string round = " in round " + std::to_string(ack->second.round);
        if (value == 0) Miss(name + " was acknowledged" + round + " and is lost");
        if (value != 0 && !IsShare(value)) Miss(name + " counts " + std::to_string(value) + round);
      }
    }
  }

  ChaosOptions options_;
  Job& job_;
  Random random_;
  std::vector<Fault> faults_;
  std::map<std::string, int> counts_;
  std::map<std::string, std::vector<double>> recovery_;  // s
  std::vector<std::string> misses_;
  double seconds_ = 0;
  size_t acked_ = 0, owed_ = 0, in_doubt_ = 0, in_doubt_counted_ = 0;
  int ended_ = 0;
  uint64_t rounds_ = 0;
};

}  // namespace

Result<json> RunChaos(const ChaosOptions& options) {
  if (std::ranges::none_of(kFaults, [&](const Fault& fault) {
        return std::string_view(fault.name).find(options.only) != std::string_view::npos;
      })) {
    return Status(StatusCode::kInternal, "no fault's name contains \"" + options.only + "\"");
  }
  JobOptions job_options{
      .workers = options.workers,
      .servers = options.servers,
      .link = kLink,
      .idle_timeout = kIdleTimeout,
      .server_words = {"--round-log", "--checkpoint-every", "500"},
      .job_words = {"--min-workers", std::to_string(options.workers - 1), "--high-share", "1"},
      .member = "ledger",
      .all_members = true,
      .keeps_state = true,
      .disk_bytes = options.servers * kDiskBytes,
      .seed = options.seed};
  auto job = Job::Start(job_options);
  if (!job.ok()) return job.status();
  Chaos chaos(options, **job);
  chaos.Run();
  json result = chaos.Result();
  if (options.verbose || !result["miss"].empty()) {
    for (const Line& line : (*job)->lines())
      std::fprintf(stderr, "%s: %s\n", line.program.c_str(), line.text.c_str());
  }
  return result;
}

}  // namespace longhaul::bench::faults
