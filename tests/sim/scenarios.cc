#include "tests/sim/scenarios.h"

#include <algorithm>
#include <sstream>

namespace longhaul::sim {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

using Expectation = std::function<std::string(const RunResult&)>;

const JobLedger& Job(const RunResult& result) { return result.ledgers.front(); }

std::string Missing(bool fine, const std::string& what) { return fine ? "" : "expected: " + what; }

Expectation Finished(uint32_t processes) {
  return [processes](const RunResult& result) {
    std::ostringstream what;
    what << processes << " processes that do all rounds and leave, not " << result.FinishedProcesses();
    return Missing(result.FinishedProcesses() == processes && Job(result).jobs_finished == 1, what.str());
  };
}

// Everyone who was not killed failed with this code, and the text names this.
Expectation Failed(StatusCode code, const std::string& word) {
  return [code, word](const RunResult& result) {
    for (const ProcessRecord& process : Job(result).processes) {
      if (process.killed) continue;
      const bool named = process.failure.message().find(word) != std::string::npos;
      if (process.failure.code() != code || !named) {
        return "expected: " + std::string(StatusCodeName(code)) + " with \"" + word + "\" at rank " +
               std::to_string(process.rank) + ", not " + process.failure.ToString();
      }
    }
    return std::string();
  };
}

Expectation Both(const Expectation& a, const Expectation& b) {
  return [a, b](const RunResult& result) {
    const std::string missing = a(result);
    return missing.empty() ? b(result) : missing;
  };
}

// Ends at the latest so long after the death.
Expectation EndedWithin(Duration limit) {
  return [limit](const RunResult& result) {
    for (const ProcessRecord& process : Job(result).processes) {
      if (!process.killed && process.ended - Job(result).first_death > limit) {
        return "expected: an end within " + std::to_string(limit.count() / 1'000'000) + " ms of the death";
      }
    }
    return std::string();
  };
}

void SetLinks(RunPlan* plan, const std::function<void(wan::LinkOptions*)>& change) {
  for (auto* links : {&plan->up, &plan->down}) {
    for (wan::LinkOptions& link : *links) change(&link);
  }
}

RunPlan WithFault(uint32_t workers, Fault fault) {
  RunPlan plan = QuietPlan(workers);
  plan.idle_timeout = seconds(5);
  plan.faults = {fault};
  return plan;
}

Fault MakeFault(FaultKind kind, Duration duration, uint32_t after_push = 3) {
  Fault fault;
  fault.kind = kind;
  fault.rank = 1;
  fault.after_push = after_push;
  fault.delay = milliseconds(12);  // the push is on its way
  fault.duration = duration;
  return fault;
}

void AddNetworks(std::vector<Scenario>* all) {
  all->push_back({"QuietRunIsExact", QuietPlan(4), Finished(4)});

  RunPlan lossy = QuietPlan(3);
  SetLinks(&lossy, [](wan::LinkOptions* link) { link->loss = 0.15; });
  all->push_back({"LostLowChunksAreRepaidInLaterRounds", lossy, [](const RunResult& result) {
                    const std::string missing = Finished(3)(result);
                    if (!missing.empty()) return missing;
                    return Missing(result.chunks_lost > 0 && result.chunks_repaid > 0,
                                   "losses, and repayment");
                  }});

  RunPlan troubled = QuietPlan(3);
  troubled.datagram = ByteCount(1200);
  SetLinks(&troubled, [](wan::LinkOptions* link) {
    link->loss = 0.05;
    link->duplicate = 0.1;
    link->reorder = 0.1;
    link->corrupt = 0.02;
    link->jitter = milliseconds(8);
    link->jitter_reorders = true;
  });
  all->push_back({"DuplicatesReorderingAndDamageChangeNothing", troubled, Finished(3)});

  RunPlan two = QuietPlan(2);
  two.jobs.push_back(two.jobs.front());
  all->push_back({"TwoServersShareTheLinks", two, [](const RunResult& result) {
                    return Missing(result.FinishedProcesses() == 4, "both jobs finish");
                  }});

  RunPlan initial = QuietPlan(3);
  initial.jobs[0].tensors[1].initial_offers = 6;
  initial.jobs[0].tensors[1].momentum = 0.5f;
  initial.jobs[0].tensors[1].pull_apart = true;
  all->push_back({"InitialValuesOfExactlyOneWorkerAreUsed", initial, Finished(3)});

  RunPlan late = QuietPlan(3);
  late.idle_timeout = seconds(5);
  late.jobs[0].start_delays[2] = seconds(12);
  all->push_back({"EverybodyWaitsForALateJoiner", late, Finished(3)});
}

// A third of its path's size is gone: chunks travel in parts, with loss, and every sum is as it should be.
void AddMtuSteps(std::vector<Scenario>* all) {
  for (const int64_t mtu : {1300, 1000, 700}) {
    RunPlan plan = WithFault(3, MakeFault(FaultKind::kWeather, Duration(0)));
    SetLinks(&plan, [](wan::LinkOptions* link) { link->loss = 0.05; });
    plan.faults[0].weather.mtu = mtu;
    all->push_back({"JobGoesOnWhereThePathShrinksTo" + std::to_string(mtu), plan, Finished(3)});
  }
}

void AddOutages(std::vector<Scenario>* all) {
  const auto add = [all](const char* name, FaultKind kind, Duration duration, const Expectation& expect) {
    all->push_back({name, WithFault(3, MakeFault(kind, duration)), expect});
  };
  add("ShortOutageIsSurvived", FaultKind::kFullOutage, seconds(2), Finished(3));
  add("ShortUplinkOutageIsSurvived", FaultKind::kUplinkOutage, seconds(2), Finished(3));
  add("ShortDownlinkOutageIsSurvived", FaultKind::kDownlinkOutage, seconds(2), Finished(3));
  const Expectation dead = [](const RunResult& result) {
    for (const ProcessRecord& process : Job(result).processes) {
      const StatusCode wanted = process.rank == 1 ? StatusCode::kPeerDead : StatusCode::kAborted;
      if (process.failure.code() != wanted) return "unexpected end: " + process.failure.ToString();
    }
    return std::string();
  };
  add("OutageLongerThanTheIdleTimeoutIsDeathForBothSides", FaultKind::kFullOutage, seconds(9), dead);
}

void AddDeaths(std::vector<Scenario>* all) {
  all->push_back({"DeadWorkerAbortsTheJobByName",
                  WithFault(3, MakeFault(FaultKind::kKillForGood, Duration(0))),
                  Both(Failed(StatusCode::kAborted, "worker rank 1 (site site1, 10.0.2.1:4001): PeerDead: "),
                       EndedWithin(seconds(6)))});

  RunPlan fewer = WithFault(3, MakeFault(FaultKind::kKillForGood, Duration(0)));
  fewer.jobs[0].min_workers = 2;
  all->push_back({"JobGoesOnWithoutADeadWorkerWhenEnoughAreLeft", fewer, Finished(2)});

  // It has joined, so the job has started, but what it would have declared is awaited.
  Fault early = MakeFault(FaultKind::kKillForGood, Duration(0), 0);
  early.delay = milliseconds(35);
  RunPlan undeclared = WithFault(2, early);
  undeclared.jobs[0].min_workers = 1;
  undeclared.jobs[0].tensors[1].initial_offers = 2;
  all->push_back({"PullsAreAnsweredWhenAWorkerDiesBeforeItDeclares", undeclared, Finished(1)});

  all->push_back({"RestartedWorkerTakesItsRankBackInMidRound",
                  WithFault(3, MakeFault(FaultKind::kKillAndRestart, seconds(1))), Finished(3)});
  all->push_back({"RestartAtOnceReplacesTheOldIncarnation",
                  WithFault(3, MakeFault(FaultKind::kKillAndRestart, milliseconds(1), 1)), Finished(3)});
  all->push_back({"PartitionedWorkerIsReplacedAndStaysOut",
                  WithFault(3, MakeFault(FaultKind::kPartitionAndReplace, seconds(1))),
                  [](const RunResult& result) {
                    const std::string missing = Finished(3)(result);
                    if (!missing.empty()) return missing;
                    return Missing(!Job(result).processes[1].failure.ok(), "the replaced process fails");
                  }});
  all->push_back({"StaleIncarnationIsRefused",
                  [] {
                    RunPlan plan = WithFault(3, MakeFault(FaultKind::kStaleIncarnation, milliseconds(300)));
                    plan.jobs[0].think = seconds(1);  // the job lasts long enough for it to come
                    return plan;
                  }(),
                  [](const RunResult& result) {
                    const std::string missing = Finished(3)(result);
                    if (!missing.empty()) return missing;
                    const auto& processes = Job(result).processes;
                    return Missing(std::ranges::any_of(processes,
                                                       [](const ProcessRecord& process) {
                                                         return process.meant_to_be_refused &&
                                                                process.failure.code() ==
                                                                    StatusCode::kAlreadyExists;
                                                       }),
                                   "AlreadyExists for the stale incarnation");
                  }});
  all->push_back({"ServersDeathEndsEveryOperationWithinTheIdleTimeout",
                  WithFault(3, MakeFault(FaultKind::kServerKill, Duration(0))),
                  Both(Failed(StatusCode::kPeerDead, "server 10.0.0.1:7700"), EndedWithin(seconds(6)))});
  all->push_back({"RandomDatagramsChangeNothing",
                  [] {
                    RunPlan plan = WithFault(3, MakeFault(FaultKind::kRandomDatagrams, seconds(2), 1));
                    plan.jobs[0].think = milliseconds(300);
                    return plan;
                  }(),
                  Finished(3)});
}

// A process that is not to be let in is refused by this name, and the others finish.
Expectation Refused(uint32_t finished) {
  return [finished](const RunResult& result) {
    const std::string missing = Finished(finished)(result);
    if (!missing.empty()) return missing;
    const auto refused = [](const ProcessRecord& process) {
      return process.meant_to_be_refused && process.failure.code() == StatusCode::kAlreadyExists;
    };
    return Missing(std::ranges::any_of(Job(result).processes, refused),
                   "AlreadyExists for the process too many");
  };
}

void AddIncarnations(std::vector<Scenario>* all) {
  RunPlan twin = WithFault(3, MakeFault(FaultKind::kTwin, Duration(0)));
  twin.jobs[0].think = seconds(1);
  all->push_back({"TwinIsRefusedWhileTheFirstOneLives", twin, Refused(3)});

  RunPlan stale = WithFault(3, MakeFault(FaultKind::kStaleAfterLoss, milliseconds(200)));
  stale.jobs[0].min_workers = 2;
  stale.jobs[0].think = seconds(4);
  stale.jobs[0].rounds = 8;
  all->push_back({"OlderIncarnationIsRefusedAfterALoss", stale, Refused(2)});
}

void AddReturns(std::vector<Scenario>* all) {
  RunPlan lost = WithFault(3, MakeFault(FaultKind::kKillAndRestart, seconds(6)));
  lost.jobs[0].min_workers = 2;
  lost.jobs[0].think = seconds(2);
  lost.jobs[0].rounds = 10;
  all->push_back({"LostWorkerComesBackIntoTheRunningJob", lost, Finished(3)});
}

void AddPauses(std::vector<Scenario>* all) {
  const auto add = [all](const char* name, FaultKind kind, Duration duration, bool other,
                         const Expectation& expect) {
    Fault fault = MakeFault(kind, duration);
    fault.other = other;
    all->push_back({name, WithFault(3, fault), expect});
  };
  add("WorkerThatStandsStillForTwoSecondsGoesOn", FaultKind::kWorkerPause, seconds(2), false, Finished(3));
  add("WorkerThatStandsStillGoesOnWithItsTimersFirst", FaultKind::kWorkerPause, seconds(2), true,
      Finished(3));
  add("ServerThatStandsStillForTwoSecondsGoesOn", FaultKind::kServerPause, seconds(2), false, Finished(3));
  add("ServerThatStandsStillGoesOnWithItsTimersFirst", FaultKind::kServerPause, seconds(2), true,
      Finished(3));
  add("WorkerThatStandsStillForTooLongIsDead", FaultKind::kWorkerPause, seconds(12), false,
      [](const RunResult& result) {
        const auto ended = [](const ProcessRecord& process) { return !process.failure.ok(); };
        return Missing(std::ranges::all_of(Job(result).processes, ended), "an end of all by name");
      });
  add("AnotherPortIsFollowed", FaultKind::kAddressChange, Duration(0), false, Finished(3));
  add("AnotherAddressIsFollowed", FaultKind::kAddressChange, Duration(0), true, Finished(3));
}

void AddShutdowns(std::vector<Scenario>* all) {
  all->push_back(
      {"ServerThatIsAskedToEndSaysSo", WithFault(3, MakeFault(FaultKind::kServerShutdown, Duration(0))),
       Both(Failed(StatusCode::kAborted, "the operator ended the server"), EndedWithin(seconds(1)))});
  Fault early = MakeFault(FaultKind::kServerShutdown, Duration(0), 0);
  early.delay = seconds(1);
  RunPlan gathering = WithFault(3, early);
  gathering.jobs[0].start_delays[2] = seconds(2);
  all->push_back(
      {"ServerThatIsAskedToEndBeforeTheStartHasNoMembersAnyMore", gathering,
       [](const RunResult& result) { return Missing(result.FinishedProcesses() == 0, "nobody trains"); }});
}

// As many processes finish, over so many servers.
Expectation FinishedOverRestarts(uint32_t processes, uint32_t restarts) {
  return Both(Finished(processes), [restarts](const RunResult& result) {
    return Missing(Job(result).server_restarts == restarts, "every restart strikes");
  });
}

void AddRestarts(std::vector<Scenario>* all) {
  RunPlan twice = WithFault(3, MakeFault(FaultKind::kServerRestart, milliseconds(300)));
  twice.faults.push_back(MakeFault(FaultKind::kServerRestart, seconds(2), 6));
  twice.jobs[0].durable = true;
  twice.jobs[0].rounds = 8;
  twice.jobs[0].tensors[1].momentum = 0.5f;
  all->push_back({"JobGoesOnOverServersThatStartAgain", twice, FinishedOverRestarts(3, 2)});

  // They are on the disk before their worker lets go of them.
  RunPlan initial = twice;
  initial.faults.resize(1);
  initial.faults[0].after_push = 1;
  initial.faults[0].delay = milliseconds(4);
  initial.jobs[0].tensors[1].initial_offers = 2;
  all->push_back({"InitialValuesOutliveTheirServer", initial, FinishedOverRestarts(3, 1)});

  // A worker looks for the path's MTU for longer than an attempt to connect may take without an answer.
  RunPlan shrunk = twice;
  shrunk.faults[1] = shrunk.faults[0];
  shrunk.faults[0].kind = FaultKind::kWeather;
  shrunk.faults[0].duration = Duration(0);
  shrunk.faults[0].weather.mtu = 1400;
  shrunk.faults[0].delay = milliseconds(1);
  all->push_back(
      {"JobGoesOnWhereAServerStartsAgainBehindAPathThatHasShrunk", shrunk, FinishedOverRestarts(3, 1)});
}

// The same, with keys.
void AddEncrypted(std::vector<Scenario>* all) {
  for (const char* name : {"QuietRunIsExact", "DuplicatesReorderingAndDamageChangeNothing",
                           "AnotherAddressIsFollowed", "RestartedWorkerTakesItsRankBackInMidRound",
                           "RandomDatagramsChangeNothing", "JobGoesOnOverServersThatStartAgain"}) {
    Scenario scenario = *std::ranges::find(*all, name, &Scenario::name);
    scenario.name += "Encrypted";
    scenario.plan.protection = Protection::kSharedKey;
    scenario.plan.key_update_packets = 30;
    all->push_back(scenario);
    scenario.name = std::string(name) + "WithCertificates";
    scenario.plan.protection = Protection::kCertificates;
    all->push_back(std::move(scenario));
  }
}

void AddOptimizers(std::vector<Scenario>* all) {
  RunPlan adam = QuietPlan(3);
  for (TensorPlan& tensor : adam.jobs[0].tensors) {
    tensor.sgd = true;
    tensor.adam = TensorPlan::Adam::kL2;
    tensor.weight_decay = 0.01;
  }
  adam.jobs[0].tensors[1].adam = TensorPlan::Adam::kDecoupled;
  all->push_back({"AdamsStepsAreAdams", adam, Finished(3)});

  RunPlan topk = QuietPlan(3);
  topk.jobs[0].priority = Priority::kTopK;
  topk.jobs[0].topk_share = 0.1;
  all->push_back({"WhatTopKHoldsBackIsNotLost", topk, [](const RunResult& result) {
                    const std::string missing = Finished(3)(result);
                    if (!missing.empty()) return missing;
                    return Missing(result.rounds_checked == 8,
                                   "two tensors of four rounds whose sums are exact");
                  }});

  RunPlan large = QuietPlan(kMostRanks);
  large.jobs[0].tensors.resize(1);
  large.jobs[0].tensors[0] = {.chunks = 6, .tail = 0, .sgd = true, .ranks = kMostRanks};
  large.jobs[0].rounds = 2;
  all->push_back({"SixtyFourRanksAreExact", large, Finished(kMostRanks)});

  RunPlan meeting = QuietPlan(4);
  meeting.jobs[0].barriers = true;
  meeting.jobs[0].think =
      milliseconds(300);  // else all come together, and one that is let go alone meets them
  all->push_back({"BarriersBeforeEveryRound", meeting, Finished(4)});
}

}  // namespace

const std::vector<Scenario>& Scenarios() {
  static const std::vector<Scenario> scenarios = [] {
    std::vector<Scenario> all;
    AddNetworks(&all);
    AddMtuSteps(&all);
    AddOutages(&all);
    AddDeaths(&all);
    AddIncarnations(&all);
    AddReturns(&all);
    AddPauses(&all);
    AddShutdowns(&all);
    AddRestarts(&all);
    AddEncrypted(&all);
    AddOptimizers(&all);
    return all;
  }();
  return scenarios;
}

const Scenario* FindScenario(const std::string& name) {
  for (const Scenario& scenario : Scenarios()) {
    if (scenario.name == name) return &scenario;
  }
  return nullptr;
}

}  // namespace longhaul::sim
