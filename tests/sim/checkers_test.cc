// The checkers can fail: each kind of harm, done on purpose, is found and named.

#include "tests/sim/checkers.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <utility>

#include "tests/sim/policy_models.h"
#include "tests/sim/round_model.h"
#include "tests/sim/scenarios.h"

namespace longhaul::sim {
namespace {

using testing::Conditional;
using testing::Contains;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

RunPlan Sabotaged(Sabotage sabotage) {
  RunPlan plan = QuietPlan(3);
  plan.idle_timeout = std::chrono::seconds(3);
  plan.sabotage = sabotage;
  return plan;
}

TEST(Checkers, FindNothingInAQuietRun) {
  const RunResult result = RunCluster(Sabotaged(Sabotage::kNone));
  EXPECT_THAT(result.violations, IsEmpty());
  EXPECT_EQ(result.rounds_checked, 8u);  // two tensors, four rounds
  EXPECT_EQ(result.chunks_lost, 0u);
}

TEST(Checkers, FindAContributionThatIsInTwice) {
  const RunResult result = RunCluster(Sabotaged(Sabotage::kDoubledContribution));
  EXPECT_THAT(result.violations, Contains(HasSubstr("rank 2 is in it 2 times")));
}

TEST(Checkers, FindReplicasThatDisagree) {
  const RunResult result = RunCluster(Sabotaged(Sabotage::kWrongOutput));
  EXPECT_THAT(result.violations, Contains(HasSubstr("differ at element 3")));
}

TEST(Checkers, FindAResidualThatIsGone) {
  RunPlan plan = Sabotaged(Sabotage::kLostResidual);
  plan.jobs[0].policy = LossPolicy::kResidual;
  // All that the last round loses has to be in the residual.
  for (wan::LinkOptions& link : plan.up) link.loss = 0.25;
  plan.jobs[0].close_ratio = 0.5;
  plan.jobs[0].high_share = 0.05;
  std::vector<std::string> violations;
  for (plan.seed = 1; plan.seed <= 8; ++plan.seed) {  // with some of them the last round loses nothing
    for (const std::string& violation : RunCluster(plan).violations) violations.push_back(violation);
  }
  EXPECT_THAT(violations, Contains(HasSubstr("applied plus held back is not what was produced")));
}

TEST(Checkers, FindAHostThatLosesItsTimers) {
  const RunResult result = RunCluster(Sabotaged(Sabotage::kForgottenTimer));
  EXPECT_THAT(result.violations, Contains(HasSubstr("waits without an armed timer")));
}

TEST(Checkers, FindAGateBehindWhichRoundsAreSlow) {
  RunPlan plan = QuietPlan(3);
  plan.jobs[0].gate = 2;
  const RunResult result = RunCluster(plan);
  EXPECT_THAT(result.violations, IsEmpty());
  EXPECT_EQ(result.quick_processes, 3u);
  JobLedger ledger = result.ledgers.front();
  ledger.processes[1].all_done += std::chrono::seconds(40);
  ledger.processes[1].ended += std::chrono::seconds(40);
  RunResult judged;
  CheckJob(plan, 0, ledger, &judged);
  EXPECT_THAT(judged.violations, Contains(HasSubstr("s for the last 2 rounds on a sound network")));
}

TEST(Checkers, FindAGoodbyeThatComesLate) {
  RunPlan plan = QuietPlan(3);
  plan.jobs[0].gate = 2;
  JobLedger ledger = RunCluster(plan).ledgers.front();
  ledger.processes[2].ended += std::chrono::seconds(2);
  RunResult judged;
  CheckJob(plan, 0, ledger, &judged);
  EXPECT_THAT(judged.violations, Contains(HasSubstr("for the server's goodbye")));
}

TEST(Checkers, FindABarrierThatIsLeftEarly) {
  RunPlan plan = QuietPlan(3);
  plan.jobs[0].barriers = true;
  JobLedger ledger = RunCluster(plan).ledgers.front();
  const auto early = std::ranges::find(ledger.operations, "barrier tensor0 round 2", &OperationRecord::what);
  early->ended = early->issued - std::chrono::milliseconds(50);
  RunResult judged;
  CheckJob(plan, 0, ledger, &judged);
  EXPECT_THAT(judged.violations, Contains(HasSubstr("barrier tensor0 round 2 was left before all")));
}

// A worker that comes back to a server which has missed it learns so at its first try, where none is lost.
TEST(Checkers, FindAWorkerThatIsRefusedLate) {
  for (const double loss : {0.0, 0.4}) {
    RunPlan plan = QuietPlan(3);
    JobLedger ledger = RunCluster(plan).ledgers.front();
    plan.down[1].loss = loss;
    ProcessRecord& late = ledger.processes[1];
    late.finished = false;
    late.failure =
        Status(StatusCode::kAborted, "server a, which is back, has another job: this worker's is gone");
    ledger.losses.push_back({.when = late.ended, .rank = 1, .why = Status(StatusCode::kPeerDead, "silent")});
    ledger.first_death = late.ended;
    late.ended += plan.idle_timeout + std::chrono::seconds(20);
    RunResult judged;
    CheckJob(plan, 0, ledger, &judged);
    const auto said = Contains(HasSubstr("rank 1 incarnation 0 ended 30000 ms after what has ended it"));
    EXPECT_THAT(judged.violations, Conditional(loss > 0, Not(said), said));
    late.ended += kReconnectTimeout;
    judged = {};
    CheckJob(plan, 0, ledger, &judged);
    EXPECT_THAT(judged.violations, Contains(HasSubstr("ms after what has ended it")));
  }
}

TEST(Checkers, FindAWrongValueWithAdam) {
  const RunPlan& plan = FindScenario("AdamsStepsAreAdams")->plan;
  const RunResult result = RunCluster(plan);
  for (const auto& [version, off] : {std::pair(1, 1e-3f), std::pair(3, 1e-4f)}) {
    JobLedger ledger = result.ledgers.front();
    ledger.versions.at({0, version}).values[500] += off;
    RunResult judged;
    CheckJob(plan, 0, ledger, &judged);
    EXPECT_THAT(judged.violations, Contains(HasSubstr("no set of contributions"))) << version;
  }
}

// The marker of one rank among many, in values of a thousand: what was lost is not taken to be in.
TEST(Checkers, FindWhatIsLostInALargeJob) {
  RunPlan plan = QuietPlan(60);
  JobPlan& job = plan.jobs[0];
  job.rounds = 1;
  job.tensors.resize(1);
  TensorPlan& tensor = job.tensors[0];
  tensor = {.chunks = 8, .tail = 168, .sgd = true, .lr = 0.25f, .initial_offers = uint64_t{1} << 58};
  tensor.ranks = kMostRanks;
  job.policy = LossPolicy::kResidual;
  job.close_ratio = 0.9;
  job.high_share = 0.3;
  for (wan::LinkOptions& link : plan.up) link.loss = 0.2;
  const RunResult result = RunCluster(plan);
  EXPECT_THAT(result.violations, IsEmpty());
  EXPECT_GT(result.chunks_lost, 0u);
}

// A server that was started again may go on without a worker, to the job's end; only then is that refused.
TEST(Checkers, FindAWorkerThatAJobForgot) {
  RunPlan plan = QuietPlan(3);
  JobLedger ledger = RunCluster(plan).ledgers.front();
  EXPECT_EQ(ledger.fewest_started, 3u);
  ProcessRecord& process = ledger.processes[1];
  process.finished = false;
  process.failure =
      Status(StatusCode::kAborted, "server a, which is back, has another job now: this worker's is gone");
  ledger.first_death = process.ended;
  const auto violations = [&] {
    RunResult judged;
    CheckJob(plan, 0, ledger, &judged);
    return judged.violations;
  };
  const auto said = Contains(HasSubstr("did not finish, though nothing deadly has happened"));
  ledger.server_restarts = 1;
  EXPECT_THAT(violations(), said) << "it has started with all";
  ledger.fewest_started = 2;
  EXPECT_THAT(violations(), Not(said));
  ledger.jobs_finished = 0;
  EXPECT_THAT(violations(), said) << "nor has it gone on to the end";
  ledger.jobs_finished = 1;
  ledger.server_restarts = 0;
  EXPECT_THAT(violations(), said);
}

// Where a server that was started again goes on without a worker, the others' steps count for more.
TEST(Checkers, SumsAreOfJobsThatStartWithAll) {
  const RunPlan& plan = FindScenario("WhatTopKHoldsBackIsNotLost")->plan;
  JobLedger ledger = RunCluster(plan).ledgers.front();
  EXPECT_EQ(CheckTensor(plan.jobs[0], 0, 0, ledger).rounds_checked, plan.jobs[0].rounds);
  ledger.fewest_started = plan.jobs[0].workers - 1;
  ledger.residuals.at(1).values[40] += 2;
  EXPECT_THAT(CheckTensor(plan.jobs[0], 0, 0, ledger).violations, IsEmpty());
}

// Signs of life that a server asks for say nothing of the Joins, but that many come only while Joins are
// lost.
TEST(Checkers, FindAWorkerThatIsNotLetIn) {
  RunPlan plan = QuietPlan(3);
  JobLedger ledger = RunCluster(plan).ledgers.front();
  ProcessRecord& process = ledger.processes[1];
  process.finished = false;
  process.failure = Status(StatusCode::kUnavailable, "server a did not let this worker join within 6.0 s");
  const auto judge = [&](double up, double down, uint32_t heard) {
    plan.up[1].loss = up;
    plan.down[1].loss = down;
    process.heard_lately = heard;
    RunResult judged;
    CheckJob(plan, 0, ledger, &judged);
    return std::ranges::any_of(judged.violations, [](const std::string& violation) {
      return violation.find("but the server had answered") != std::string::npos;
    });
  };
  EXPECT_FALSE(judge(0.12, 0.03, 14));
  EXPECT_TRUE(judge(0.12, 0.03, 20));
  EXPECT_TRUE(judge(0.01, 0, 8));
  EXPECT_TRUE(judge(0.001, 0, 6)) << "an ACCEPT, its acknowledgement and signs of life: no Join was lost";
  EXPECT_TRUE(judge(0, 0, 3));
}

// What a worker has passed over may be in the divisor: none of it had arrived when a server, which died,
// closed the round. More than that it may not be.
TEST(Checkers, ExplainAPushThatIsPassedOverAndInTheDivisor) {
  RunPlan plan = QuietPlan(3);
  plan.jobs[0].rounds = 1;
  plan.jobs[0].tensors = {{.chunks = 2, .tail = 100, .sgd = true, .lr = 1}};
  plan.jobs[0].policy = LossPolicy::kZero;
  JobLedger ledger = RunCluster(plan).ledgers.front();
  PushRecord& passed = ledger.pushes[1];
  passed.passed_over = true;
  ledger.server_restarts = 1;
  const auto violations = [&] { return CheckTensor(plan.jobs[0], 0, 0, ledger).violations; };
  EXPECT_THAT(violations(), Contains(HasSubstr("is in it 1 times, possible were 0(absent) 0(lost)")));
  std::vector<float>& values = ledger.versions.at({0, 1}).values;
  for (size_t e = 0; e < values.size(); ++e) {
    values[e] += static_cast<float>(GradientValue(passed.id, e, {})) / 3.0f;
  }
  EXPECT_THAT(violations(), IsEmpty());
  for (float& value : values) value *= 3.0f / 2.0f;
  EXPECT_THAT(violations(), IsEmpty());
  for (float& value : values) value *= 2.0f / 3.0f;
  const auto none = Contains(HasSubstr("no set of contributions"));
  passed.round = 1;
  EXPECT_THAT(violations(), none) << "of another round";
  passed.round = 0;
  ledger.server_restarts = 0;
  EXPECT_THAT(violations(), none);
}

// How many are in the divisor of an Adam step its size does not tell.
TEST(Checkers, SayNothingOfAnAdamStepWithAPushThatIsPassedOver) {
  const RunPlan& plan = FindScenario("AdamsStepsAreAdams")->plan;
  JobLedger ledger = RunCluster(plan).ledgers.front();
  EXPECT_EQ(CheckTensor(plan.jobs[0], 0, 0, ledger).rounds_checked, plan.jobs[0].rounds);
  PushRecord& passed = *std::ranges::find_if(
      ledger.pushes, [](const PushRecord& push) { return push.id.rank == 1 && push.round == 1; });
  passed.passed_over = true;
  ledger.server_restarts = 1;
  const ModelOutcome outcome = CheckTensor(plan.jobs[0], 0, passed.id.tensor, ledger);
  EXPECT_THAT(outcome.violations, IsEmpty());
  EXPECT_EQ(outcome.rounds_checked, 1u);
}

// All are dead before the fault starts the process that is too old.
TEST(Cluster, IsNotOverWhileAFaultHasAProcessToStart) {
  RunPlan plan = FindScenario("OlderIncarnationIsRefusedAfterALoss")->plan;
  plan.jobs[0].think = Duration(0);
  plan.jobs[0].rounds = 20;
  Fault kill = plan.faults[0];
  kill.kind = FaultKind::kKillForGood;
  kill.delay = std::chrono::milliseconds(400);
  for (kill.rank = 0; kill.rank < 3; ++kill.rank) plan.faults.push_back(kill);
  const RunResult result = RunCluster(plan);
  EXPECT_THAT(result.violations, IsEmpty());
  EXPECT_EQ(result.ledgers.front().processes.size(), 5u);
}

// The server goes on without rank 1, which is cut off, and is back when it starts once more.
TEST(Cluster, KnowsTheStartWithTheFewestWorkers) {
  RunPlan plan = FindScenario("JobGoesOnOverServersThatStartAgain")->plan;
  plan.jobs[0].min_workers = 2;
  plan.jobs[0].think = std::chrono::seconds(1);
  plan.jobs[0].rounds = 30;
  Fault cut = plan.faults[0];
  cut.kind = FaultKind::kFullOutage;
  cut.duration = std::chrono::seconds(16);
  for (Fault& restart : plan.faults) restart.rank = 0;
  plan.faults[1].after_push = 50;
  plan.faults.push_back(cut);
  const RunResult result = RunCluster(plan);
  EXPECT_THAT(result.violations, IsEmpty());
  EXPECT_EQ(result.ledgers.front().server_restarts, 2u);
  EXPECT_EQ(result.ledgers.front().fewest_started, 2u);
}

// A server that ends behind a round: of most pushes it is open whether they are in.
TEST(Checkers, ExplainALargeJobWhoseWorkersDidNotHearTheResult) {
  RunPlan plan = QuietPlan(60);
  plan.jobs[0].rounds = 1;
  plan.jobs[0].tensors = {{.chunks = 2, .tail = 100, .sgd = true, .ranks = kMostRanks}};
  JobLedger ledger = RunCluster(plan).ledgers.front();
  for (PushRecord& push : ledger.pushes) {
    if (push.id.rank >= 20) push.outcome = Status(StatusCode::kAborted, "the operator ended the server");
  }
  EXPECT_THAT(CheckTensor(plan.jobs[0], 0, 0, ledger).violations, IsEmpty());
  EXPECT_EQ(CheckTensor(plan.jobs[0], 0, 0, ledger).rounds_checked, 1u);
  // Half of those are in the round, and in its mean.
  JobLedger fewer = ledger;
  for (float& value : fewer.versions.at({0, 1}).values) value *= 60.0f / 40.0f;
  for (size_t e = 0; e < fewer.versions.at({0, 1}).values.size(); ++e) {
    float sum = 0;
    for (const PushRecord& push : ledger.pushes) {
      if (push.id.rank >= 40) sum += static_cast<float>(GradientValue(push.id, e, {.ranks = kMostRanks}));
    }
    fewer.versions.at({0, 1}).values[e] += plan.jobs[0].tensors[0].lr * sum / 40.0f;
  }
  EXPECT_THAT(CheckTensor(plan.jobs[0], 0, 0, fewer).violations, IsEmpty());
  // One that has counted twice is found, and so is a divisor of less than are in.
  JobLedger twice = ledger;
  twice.versions.at({0, 1}).values[30] *= 2;
  EXPECT_THAT(CheckTensor(plan.jobs[0], 0, 0, twice).violations,
              Contains(HasSubstr("rank 30 is in it 2 times")));
  JobLedger divided = ledger;
  for (float& value : divided.versions.at({0, 1}).values) value *= 60.0f / 50.0f;
  EXPECT_THAT(CheckTensor(plan.jobs[0], 0, 0, divided).violations, Not(IsEmpty()));
}

TEST(Checkers, FindAnElementThatTopKForgets) {
  const RunPlan& plan = FindScenario("WhatTopKHoldsBackIsNotLost")->plan;
  JobLedger ledger = RunCluster(plan).ledgers.front();
  ledger.residuals.at(1).values[40] += 2;
  RunResult judged;
  CheckJob(plan, 0, ledger, &judged);
  EXPECT_THAT(judged.violations, Contains(HasSubstr("is what the workers no longer have")));
}

TEST(Checkers, FindAWrongValueAmongSixtyFourRanks) {
  const RunPlan& plan = FindScenario("SixtyFourRanksAreExact")->plan;
  JobLedger ledger = RunCluster(plan).ledgers.front();
  ledger.versions.at({0, 1}).values[63] += 0.01f;
  RunResult judged;
  CheckJob(plan, 0, ledger, &judged);
  EXPECT_THAT(judged.violations, Contains(HasSubstr("no set of contributions")));
}

TEST(Checkers, FindAnOperationThatEndsTwice) {
  const RunResult result = RunCluster(Sabotaged(Sabotage::kCallbackTwice));
  EXPECT_THAT(result.violations, Contains(HasSubstr("ended 2 times")));
}

TEST(Checkers, FindARunThatDoesNotEnd) {
  RunPlan plan = QuietPlan(2);
  plan.jobs[0].think = std::chrono::seconds(30);
  plan.time_limit = std::chrono::seconds(20);
  EXPECT_THAT(RunCluster(plan).violations, Contains(HasSubstr("no end after 20 s")));
}

// Of policies with models of their own: a lossy run is explained, and no longer so with one value changed.
template <typename Check>
void ExpectOneWrongValueFound(LossPolicy policy, Check check) {
  RunPlan plan = QuietPlan(3);
  plan.jobs[0].policy = policy;
  plan.jobs[0].close_ratio = 0.5;
  for (wan::LinkOptions& link : plan.up) link.loss = 0.2;
  const RunResult result = RunCluster(plan);
  EXPECT_THAT(result.violations, IsEmpty());
  EXPECT_GT(result.chunks_lost, 0u);
  JobLedger ledger = result.ledgers.front();
  EXPECT_EQ(check(plan.jobs[0], 0, ledger).rounds_checked, plan.jobs[0].rounds);
  for (const uint64_t element : {0u, 1u, 2u, 6u}) {  // three markers and a fill
    JobLedger wrong = ledger;
    wrong.versions.at({0, 3}).values[element] += 20;
    EXPECT_THAT(check(plan.jobs[0], 0, wrong).violations, Contains(HasSubstr("round 2"))) << element;
  }
  std::erase_if(ledger.pushes, [](const PushRecord& push) { return push.id.rank == 1 && push.round == 2; });
  EXPECT_THAT(check(plan.jobs[0], 0, ledger).violations, Contains(HasSubstr("round 2")));
}

TEST(Checkers, FindAWrongValueWithShift) { ExpectOneWrongValueFound(LossPolicy::kShift, CheckShift); }
TEST(Checkers, FindAWrongValueWithIpw) { ExpectOneWrongValueFound(LossPolicy::kIpw, CheckIpw); }

TEST(Checkers, FindADoubledContributionWithShift) {
  RunPlan plan = Sabotaged(Sabotage::kDoubledContribution);
  plan.jobs[0].policy = LossPolicy::kShift;
  EXPECT_THAT(RunCluster(plan).violations, Contains(HasSubstr("no set of contributions explains")));
}

// On ledgers of real runs, with one entry changed.
class LedgerTest : public testing::Test {
 protected:
  LedgerTest() : plan_(QuietPlan(2)), ledger_(RunCluster(plan_).ledgers.front()) {}

  std::vector<std::string> Violations() {
    RunResult result;
    CheckJob(plan_, 0, ledger_, &result);
    return result.violations;
  }

  RunPlan plan_;
  JobLedger ledger_;
};

TEST_F(LedgerTest, IsFineAsItIs) { EXPECT_THAT(Violations(), IsEmpty()); }

TEST_F(LedgerTest, OneWrongElementIsFound) {
  ledger_.versions.at({0, 2}).values[1000] += 0.5f;
  EXPECT_THAT(Violations(), Contains(HasSubstr("round 1 chunk 2: no set of contributions")));
}

// Six rounds over a lossy downlink, hashes in rounds 2 and 5.
class ReplicaLedgerTest : public LedgerTest {
 protected:
  ReplicaLedgerTest() {
    plan_ = QuietPlan(3);
    JobPlan& job = plan_.jobs[0];
    job.rounds = 6;
    job.downlink = Downlink::kLossy;
    job.hash_rounds = 3;
    for (TensorPlan& tensor : job.tensors) tensor.sgd = true;
    for (wan::LinkOptions& link : plan_.down) link.loss = 0.2;
    result_ = RunCluster(plan_);
    ledger_ = result_.ledgers.front();
  }
  std::vector<float>& Replica(uint64_t version) {
    const auto found = std::ranges::find_if(ledger_.replicas, [&](const ReplicaRecord& replica) {
      return replica.tensor == 0 && replica.rank == 1 && replica.version == version;
    });
    return found->values;
  }
  // The first chunk of that version becomes what another version has.
  void MakeChunkOf(uint64_t version, uint64_t other) {
    const std::vector<float>& values = ledger_.versions.at({0, other}).values;
    std::copy_n(values.begin(), ledger_.chunk_elements, Replica(version).begin());
  }
  RunResult result_;
};

TEST_F(ReplicaLedgerTest, ReplicasAreCheckedAndSomeAreBehind) {
  EXPECT_THAT(result_.violations, IsEmpty());
  EXPECT_EQ(result_.replicas_checked, 2u * 3 * 6);
  EXPECT_GT(result_.chunks_behind, 0u);
  EXPECT_THAT(Violations(), IsEmpty());
}

TEST_F(ReplicaLedgerTest, AReplicaOfItsOwnIsFound) {
  Replica(4)[5] += 1;
  EXPECT_THAT(Violations(), Contains(HasSubstr("rank 1: chunk 0 is neither")));
}

TEST_F(ReplicaLedgerTest, AReplicaThatIsTwoRoundsBehindIsFound) {
  MakeChunkOf(4, 3);
  MakeChunkOf(5, 4);
  EXPECT_THAT(Violations(),
              Contains(HasSubstr("version 5, the replica of rank 1: chunk 0 is behind for the second")));
}

TEST_F(ReplicaLedgerTest, AReplicaThatIsBehindInAHashRoundIsFound) {
  MakeChunkOf(3, 2);
  EXPECT_THAT(Violations(), Contains(HasSubstr("chunk 0 is behind in a hash round")));
}

// What is heard in vain while the Welcome is lost, time and again: the more, the lossier the way.
TEST_F(LedgerTest, HowOftenAWorkerMayBeAnsweredAndNotGetInGrowsWithLoss) {
  const auto fine = [&](double loss, uint32_t heard) {
    ledger_.processes[1].finished = false;
    ledger_.processes[1].failure = Status(StatusCode::kUnavailable, "no");
    ledger_.processes[1].heard_lately = heard;
    for (wan::LinkOptions* link : {&plan_.up[1], &plan_.down[1]}) link->loss = loss;
    for (const std::string& violation : Violations()) {
      if (violation.find("but the server had answered") != std::string::npos) return false;
    }
    return true;
  };
  EXPECT_TRUE(fine(0, 2));
  EXPECT_FALSE(fine(0, 3));
  EXPECT_TRUE(fine(0.05, 12));
  EXPECT_FALSE(fine(0.05, 13));
  EXPECT_TRUE(fine(0.15, 24));
  EXPECT_FALSE(fine(0.15, 25));
}

TEST_F(LedgerTest, AnOperationThatNeverEndsIsFound) {
  ledger_.pushes.back().ends = 0;
  EXPECT_THAT(Violations(), Contains(HasSubstr("never ended")));
}

TEST_F(LedgerTest, AFailureThatFitsNothingIsFound) {
  ledger_.processes[1].finished = false;
  ledger_.processes[1].failure = Status(StatusCode::kProtocolViolation, "?");
  EXPECT_THAT(Violations(), Contains(HasSubstr("fits nothing that has happened")));
}

TEST_F(LedgerTest, APeerTakenForDeadThoughItWasHeardIsFound) {
  ledger_.processes[1].finished = false;
  ledger_.processes[1].failure = Status(StatusCode::kPeerDead, "server was silent");
  ledger_.processes[1].heard_lately = 5;
  EXPECT_THAT(Violations(), Contains(HasSubstr("had heard the server")));
}

TEST_F(LedgerTest, AMemberThatMovedBehindAnOutageOfTheWayDownIsSilent) {
  ledger_.processes[1].finished = false;
  ledger_.processes[1].failure = Status(StatusCode::kPeerDead, "server was silent");
  ledger_.losses.push_back(
      {.when = {}, .rank = 1, .why = Status(StatusCode::kPeerDead, "was silent"), .heard_lately = 5});
  EXPECT_THAT(Violations(), Contains(HasSubstr("took rank 1 for dead")));
  plan_.faults.push_back({.kind = FaultKind::kAddressChange, .rank = 1});
  EXPECT_THAT(Violations(), Contains(HasSubstr("took rank 1 for dead")));
  plan_.faults.push_back({.kind = FaultKind::kDownlinkOutage, .rank = 1, .duration = plan_.idle_timeout * 2});
  EXPECT_THAT(Violations(), Not(Contains(HasSubstr("took rank 1 for dead"))));
}

TEST_F(LedgerTest, ALossThatIsNotReportedIsFound) {
  ledger_.pushes.front().lost_chunks = 1;
  EXPECT_THAT(Violations(),
              Contains(HasSubstr("was told that 1 of its chunks were lost, but 0 are missing")));
}

TEST_F(LedgerTest, AServerThatCountsOtherwiseIsFound) {
  ++ledger_.chunks_by_rank[0];
  EXPECT_THAT(Violations(), Contains(HasSubstr("counts other contributions")));
}

}  // namespace
}  // namespace longhaul::sim
