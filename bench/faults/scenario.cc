#include "bench/faults/scenario.h"

#include <signal.h>

#include <algorithm>
#include <cstdio>
#include <regex>

#include "base/units_text.h"

namespace longhaul::bench::faults {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

// Before the fault: the job has its rate by then.
constexpr size_t kWarmRounds = 20;
constexpr Duration kPatience = seconds(60);
// Beyond an idle time-out nothing may be unnamed, or stand still, for longer than this.
constexpr Duration kSlack = seconds(2);
// Of rounds after the recovery that prove it.
constexpr Duration kAfter = seconds(2);
constexpr size_t kLineLength = 160;

// The text that a person reads: of a JSON line its words, of a log line what follows the time.
std::string Readable(const std::string& text) {
  std::string line = text;
  if (const auto object = nlohmann::json::parse(text, nullptr, false); object.is_object()) {
    line = object.value("event", "");
    for (const char* key : {"who", "reason", "message"}) {
      if (const std::string value =
              object.contains(key) && object[key].is_string() ? object[key].get<std::string>() : "";
          !value.empty()) {
        line += (line.empty() ? "" : ": ") + value;
      }
    }
  } else {
    line = std::regex_replace(line, std::regex(R"(^\[[0-9: .-]+\] (\[[^\]]*\] )*)"), "");
  }
  std::ranges::replace(line, '|', '/');
  return line.size() > kLineLength ? line.substr(0, kLineLength) + " ..." : line;
}

class Watch {
 public:
  Watch(const Scenario& scenario, Job& job) : scenario_(scenario), job_(job), named_(scenario.named) {}

  // Until the job trains.
  bool Warm() {
    return job_.RunUntil(Clock::now() + kPatience, [&] { return job_.rounds().size() >= kWarmRounds; });
  }
  void Fault() {
    lines_before_ = job_.lines().size();
    rounds_before_ = job_.rounds().size();
    const auto& rounds = job_.rounds();
    rate_ = static_cast<double>(kWarmRounds / 2) /
            Seconds(rounds.back() - rounds[rounds.size() - 1 - kWarmRounds / 2]);
    began_ = ended_ = Clock::now();
    scenario_.begin(job_);
    if (scenario_.end) {
      job_.RunFor(scenario_.length);
      scenario_.end(job_);
      ended_ = Clock::now();
    }
    deadline_ = ended_ + FromSeconds(Limit());
    if (scenario_.outcome == Outcome::kEnds) {
      job_.RunUntil(deadline_, [&] { return job_.AllWorkersEnded() && Named() != nullptr; });
    } else {
      job_.RunUntil(deadline_ + kAfter, [&] { return Recovered(); });
    }
    job_.RunFor(milliseconds(100));
  }
  Report Result() {
    Report report;
    report.name = scenario_.name;
    report.fault = scenario_.fault;
    report.outcome = scenario_.outcome == Outcome::kEnds ? "the job ends" : "the job goes on";
    report.rounds_before = rate_;
    report.exits = job_.ExitCodes();
    if (const Line* line = Named()) {
      report.line = line->program + ": " + Readable(line->text);
      report.seconds_to_name = Seconds(line->at - began_);
    }
    if (scenario_.outcome == Outcome::kGoesOn) AddPause(&report);
    report.miss = Miss(report);
    return report;
  }

 private:
  double Limit() const { return scenario_.options.idle_timeout * scenario_.idle_timeouts + Seconds(kSlack); }
  const Line* Named() const {
    if (scenario_.named.empty()) return nullptr;
    for (size_t i = lines_before_; i < job_.lines().size(); ++i) {
      if (std::regex_search(job_.lines()[i].text, named_)) return &job_.lines()[i];
    }
    return nullptr;
  }
  // Rounds of a second at half of the rate of before or more, and what has to be named is.
  bool Recovered() const {
    const auto now = Clock::now();
    if (now < ended_ + kAfter || (!scenario_.named.empty() && Named() == nullptr)) return false;
    const auto since = std::ranges::lower_bound(job_.rounds(), std::max(now - seconds(1), ended_));
    return static_cast<double>(job_.rounds().end() - since) >= std::max(1.0, rate_ / 2);
  }
  void AddPause(Report* report) const {
    auto before = job_.rounds()[rounds_before_ - 1];
    auto end_of_longest = began_;
    Clock::duration longest{0};
    for (size_t i = rounds_before_; i < job_.rounds().size(); ++i) {
      const auto at = job_.rounds()[i];
      if (at - before > longest) longest = at - before, end_of_longest = at;
      before = at;
    }
    if (job_.rounds().size() == rounds_before_) return;  // none came
    report->pause = Seconds(longest);
    report->seconds_to_recover = std::max(0.0, Seconds(end_of_longest - ended_));
    report->rounds_lost = std::max(0.0, report->pause * rate_ - 1);
  }
  std::string Miss(const Report& report) {
    const double limit = Limit();
    if (!scenario_.named.empty() && report.seconds_to_name < 0) return "nothing names it";
    if (report.seconds_to_name > scenario_.options.idle_timeout + Seconds(kSlack)) return "named late";
    if (scenario_.outcome == Outcome::kEnds) return job_.AllWorkersEnded() ? "" : "workers still run";
    if (report.seconds_to_recover < 0) return "no round any more";
    if (report.seconds_to_recover > limit) return "recovers late";
    // The last ones: a job that stopped after its recovery.
    if (Clock::now() - job_.rounds().back() > milliseconds(1500)) return "stands still at the end";
    return "";
  }

  const Scenario& scenario_;
  Job& job_;
  std::regex named_;
  size_t lines_before_ = 0, rounds_before_ = 0;
  double rate_ = 0;
  Clock::time_point began_, ended_, deadline_;
};

}  // namespace

Result<Report> Run(const Scenario& scenario, uint64_t seed, bool verbose) {
  JobOptions options = scenario.options;
  options.seed = seed;
  auto job = Job::Start(options);
  if (!job.ok()) return job.status();
  Watch watch(scenario, **job);
  const bool warm = watch.Warm();
  if (warm) watch.Fault();
  if (verbose || !warm) {
    for (const Line& line : (*job)->lines())
      std::fprintf(stderr, "%s: %s\n", line.program.c_str(), line.text.c_str());
  }
  if (!warm) return Status(StatusCode::kInternal, scenario.name + ": the job does not train");
  return watch.Result();
}

}  // namespace longhaul::bench::faults
