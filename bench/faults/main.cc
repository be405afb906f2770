// longhaul_faults_bench: what faults do to a job of the shipped daemons over an emulated WAN, and what a user
// sees.
//
// Exit codes: 0 all is as it has to be, 1 something is not, 2 usage, 3 no emulated link can be made here.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/files.h"
#include "bench/faults/chaos.h"
#include "bench/faults/member.h"
#include "bench/faults/pace.h"
#include "bench/faults/scale.h"
#include "bench/faults/scenario.h"

namespace longhaul::bench::faults {
namespace {

using nlohmann::json;

constexpr int kMissed = 1, kUsage = 2, kNoLink = 3;

struct Flags {
  std::string only;
  std::string json_file;
  uint64_t seed = 1;
  bool list = false, verbose = false;
};

json ToJson(const Report& report) {
  return {{"name", report.name},
          {"fault", report.fault},
          {"outcome", report.outcome},
          {"line", report.line},
          {"seconds_to_name", report.seconds_to_name},
          {"seconds_to_recover", report.seconds_to_recover},
          {"pause", report.pause},
          {"rounds_before", report.rounds_before},
          {"rounds_lost", report.rounds_lost},
          {"exits", report.exits},
          {"miss", report.miss}};
}

void Print(const Report& report) {
  const auto number = [](double value) {
    return value < 0 ? std::string("-") : std::to_string(value).substr(0, 5);
  };
  std::printf(
      "%-30s %-15s named after %5s s, recovered after %5s s, %6.1f rounds lost of %.1f/s; %s%s%s\n    %s\n",
      report.name.c_str(), report.outcome.c_str(), number(report.seconds_to_name).c_str(),
      number(report.seconds_to_recover).c_str(), report.rounds_lost, report.rounds_before,
      report.exits.c_str(), report.miss.empty() ? "" : "; NOT AS IT HAS TO BE: ", report.miss.c_str(),
      report.line.c_str());
  std::fflush(stdout);
}

int RunAll(const Flags& flags) {
  json reports = json::array();
  int missed = 0;
  for (const Scenario& scenario : Scenarios()) {
    if (scenario.name.find(flags.only) == std::string::npos) continue;
    if (flags.list) {
      std::printf("%-30s %s\n", scenario.name.c_str(), scenario.fault.c_str());
      continue;
    }
    const Result<Report> report = Run(scenario, flags.seed, flags.verbose);
    if (!report.ok()) {
      std::fprintf(stderr, "longhaul_faults_bench: %s\n", report.status().ToString().c_str());
      return report.status().code() == StatusCode::kInternal ? kMissed : kNoLink;
    }
    Print(*report);
    reports.push_back(ToJson(*report));
    missed += report->miss.empty() ? 0 : 1;
  }
  if (flags.list) return 0;
  std::printf("%zu scenarios, %d not as they have to be\n", reports.size(), missed);
  if (flags.json_file.empty()) return missed > 0 ? kMissed : 0;
  const Status written = WriteFileAtomically(flags.json_file, reports.dump(1) + "\n");
  if (!written.ok()) std::fprintf(stderr, "longhaul_faults_bench: --json: %s\n", written.message().c_str());
  return missed > 0 || !written.ok() ? kMissed : 0;
}

// The exit code of one that has one result.
int Finish(const Flags& flags, const Result<json>& result) {
  if (!result.ok()) {
    std::fprintf(stderr, "longhaul_faults_bench: %s\n", result.status().ToString().c_str());
    return result.status().code() == StatusCode::kInternal ? kMissed : kNoLink;
  }
  std::printf("%s\n", result->dump(1).c_str());
  const Status written =
      flags.json_file.empty() ? Status() : WriteFileAtomically(flags.json_file, result->dump(1) + "\n");
  if (!written.ok()) std::fprintf(stderr, "longhaul_faults_bench: --json: %s\n", written.message().c_str());
  return written.ok() && result->value("miss", json::array()).empty() ? 0 : kMissed;
}

int Main(int argc, char** argv) {
  CLI::App app(
      "What faults do to a job of real daemons over an emulated WAN: 100 Mbit/s, RTT 20 ms, 1 % loss; three "
      "workers, idle time-out 4 s. For each one: the line that names it, and when; when rounds go on; what "
      "is lost.",
      "longhaul_faults_bench");
  Flags flags;
  app.add_option("--only", flags.only, "only those whose name contains this");
  app.add_option("--seed", flags.seed, "of the links")->capture_default_str();
  app.add_option("--json", flags.json_file, "write everything to this file")->type_name("FILE");
  app.add_flag("--list", flags.list, "only say what there is");
  app.add_flag("--verbose", flags.verbose, "show what all programs have said");
  MemberOptions member;
  CLI::App* as_member =
      app.add_subcommand("member", "(started by the bench itself) a member of the job that misbehaves");
  as_member->add_option("kind", member.kind)
      ->required()
      ->check(CLI::IsMember(std::vector<std::string>(std::begin(kMemberKinds), std::end(kMemberKinds))));
  as_member->add_option("--join", member.join);
  as_member->add_option("--offload", member.offload);
  as_member->add_option("--key", member.key_file);
  as_member->add_option("--rank", member.rank)->required();
  as_member->add_option("--world-size", member.world_size);
  as_member->add_option("--idle-timeout", member.idle_timeout);
  as_member->add_option("--ledger", member.ledger);
  as_member->add_option("--elements", member.elements);
  ChaosOptions chaos;
  CLI::App* as_chaos = app.add_subcommand("chaos",
                                          "faults of all processes and links, one after the other, by "
                                          "chance: members push numbers, and at the end "
                                          "each number that was acknowledged is in the parameters, once");
  as_chaos->add_option("--minutes", chaos.minutes, "that faults go on")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  as_chaos->add_option("--seed", chaos.seed, "of the faults and the links")->capture_default_str();
  as_chaos->add_option("--workers", chaos.workers, "members of the job")
      ->check(CLI::Range(3, 4))
      ->capture_default_str();
  as_chaos->add_option("--servers", chaos.servers, "servers of the job")
      ->check(CLI::Range(1, 8))
      ->capture_default_str();
  as_chaos->add_option("--only", chaos.only, "only faults whose name contains this, e.g. \"of a server\"");
  as_chaos->add_option("--json", flags.json_file, "write the result to this file")->type_name("FILE");
  as_chaos->add_flag("--verbose", chaos.verbose, "show what all programs have said");
  PaceOptions pace;
  CLI::App* as_pace = app.add_subcommand(
      "pace", "what a job keeps of its pace when each span begins with a fault, beside spans without one");
  as_pace->add_option("--minutes", pace.minutes, "with faults, and as many without")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  as_pace->add_option("--every", pace.every, "length of a span, s")
      ->check(CLI::Range(20, 600))
      ->capture_default_str();
  as_pace->add_option("--workers", pace.workers, "members of the job")
      ->check(CLI::Range(2, 64))
      ->capture_default_str();
  as_pace->add_option("--servers", pace.servers, "servers of the job")
      ->check(CLI::Range(1, 8))
      ->capture_default_str();
  as_pace
      ->add_option("--sites", pace.sites,
                   "that the members stand in, each behind two offload engines; 0: each has a connection")
      ->check(CLI::Range(0, 8))
      ->capture_default_str();
  as_pace->add_flag("--of-servers", pace.of_servers, "faults of servers in place of those of members");
  as_pace->add_option("--seed", pace.seed, "of the faults and the links")->capture_default_str();
  as_pace->add_flag("--verbose", pace.verbose, "show what all programs have said");
  uint32_t start_workers = 64;
  int start_repetitions = 5;
  CLI::App* as_start =
      app.add_subcommand("start", "from the last member's Connect to the end of the first round");
  as_start->add_option("--workers", start_workers, "members of the job")
      ->check(CLI::Range(1, 128))
      ->capture_default_str();
  as_start->add_option("--repetitions", start_repetitions)->check(CLI::PositiveNumber)->capture_default_str();
  KillsOptions kills;
  CLI::App* as_kills = app.add_subcommand(
      "kills", "the demo's training, undisturbed and with a server that is killed again and again");
  as_kills->add_option("--kills", kills.kills)->check(CLI::Range(0, 1000))->capture_default_str();
  as_kills->add_option("--rounds", kills.rounds)->check(CLI::Range(10, 100'000))->capture_default_str();
  as_kills->add_option("--workers", kills.workers)->check(CLI::Range(1, 16))->capture_default_str();
  as_kills->add_option("--seed", kills.seed, "of the links")->capture_default_str();
  as_kills->add_flag("--verbose", kills.verbose, "show what all programs have said");
  int checkpoint_blocks = 4, checkpoint_rounds = 100;
  CLI::App* as_checkpoints = app.add_subcommand(
      "checkpoints", "how long rounds of 4 MB a member last with checkpoints, and without");
  as_checkpoints->add_option("--blocks", checkpoint_blocks, "of each")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  as_checkpoints->add_option("--rounds", checkpoint_rounds, "of a block")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  ScaleOptions scale;
  CLI::App* as_scale = app.add_subcommand(
      "scale",
      "what each further member costs the server: bytes, packets, CPU time, memory, time of a round");
  as_scale->add_option("--workers", scale.workers, "members of a job, one number for each job")
      ->delimiter(',')
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  as_scale->add_option("--bytes", scale.bytes, "of the tensor")
      ->check(CLI::Range(uint64_t{4}, uint64_t{1} << 30))
      ->capture_default_str();
  as_scale->add_option("--rounds", scale.rounds, "of a block")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  as_scale->add_option("--blocks", scale.blocks, "of each number of members, in turn")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  as_scale->add_option("--rate", scale.rate, "of each member's link, each way")->capture_default_str();
  as_scale->add_option("--path", scale.path, "what else the links do (words as of longhaul-wan)")
      ->capture_default_str();
  as_scale->add_flag("--simulated", scale.simulated,
                     "cores in virtual time behind a link of all their rates, in place of processes");
  as_scale->add_option("--seed", scale.seed, "of the first block's links")->capture_default_str();
  for (CLI::App* command : {as_pace, as_start, as_kills, as_checkpoints, as_scale})
    command->add_option("--json", flags.json_file, "write the result to this file")->type_name("FILE");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : kUsage;
  }
  if (as_member->parsed()) return RunMember(member);
  if (as_chaos->parsed()) return Finish(flags, RunChaos(chaos));
  if (as_pace->parsed()) return Finish(flags, RunPace(pace));
  if (as_start->parsed()) return Finish(flags, RunStart(start_workers, start_repetitions, flags.seed));
  if (as_checkpoints->parsed())
    return Finish(flags, RunCheckpoints(checkpoint_blocks, checkpoint_rounds, flags.seed));
  if (as_scale->parsed()) return Finish(flags, RunScale(scale));
  return as_kills->parsed() ? Finish(flags, RunKills(kills)) : RunAll(flags);
}

}  // namespace
}  // namespace longhaul::bench::faults

int main(int argc, char** argv) { return longhaul::bench::faults::Main(argc, argv); }
