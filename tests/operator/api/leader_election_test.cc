// One leader at a time, whatever the clocks, the network and the processes do; handed over within 20 s.
#include "operator/api/core/leader_election.h"

#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/random.h"
#include "tests/operator/api/answers.h"

namespace longhaul::kube::api {
namespace {

// The lease at the API server: writes are compared by resourceVersion.
class LeaseServer {
 public:
  ApiResult Answer(const ApiRequest& request) {
    if (request.verb == Verb::kGet) return lease_.is_null() ? MakeError(ApiCode::kNotFound, "x") : Stored();
    if (request.verb == Verb::kCreate) {
      if (!lease_.is_null()) return MakeError(ApiCode::kAlreadyExists, "x");
      return Store(request.body);
    }
    EXPECT_EQ(request.verb, Verb::kReplace);
    if (lease_.is_null()) return MakeError(ApiCode::kNotFound, "x");
    const std::string_view version = TextAt(request.body, {"metadata", "resourceVersion"});
    EXPECT_FALSE(version.empty()) << "a replace without a version is no compare-and-swap";
    if (version != TextAt(lease_, {"metadata", "resourceVersion"})) return MakeError(ApiCode::kConflict, "x");
    return Store(request.body);
  }
  const Json& lease() const { return lease_; }
  void Delete() { lease_ = nullptr; }

 private:
  ApiResult Stored() const {
    ApiResult result = Ok();
    result.body = lease_;
    return result;
  }
  ApiResult Store(Json lease) {
    lease_ = std::move(lease);
    lease_["metadata"]["resourceVersion"] = std::to_string(++version_);
    lease_["metadata"]["uid"] = "uid-1";
    return Stored();
  }
  Json lease_;
  int version_ = 0;
};

LeaseOptions Named(const std::string& identity) {
  LeaseOptions options;
  options.name_space = "longhaul";
  options.name = "operator";
  options.identity = identity;
  return options;
}

// A process with its own clock, which begins elsewhere, and its own opinion of the wall's time.
struct Process {
  Process(const std::string& name, double offset_in) : election(Named(name)), offset(offset_in) {}
  Instant Mine(double now) const { return At(now + offset); }
  bool Leads(double now) const { return alive && election.Leads(Mine(now)); }

  LeaderElection election;
  double offset;
  int64_t wall = 0;
  bool alive = true;
};

// All that is due now, answered at once.
void Settle(Process* process, LeaseServer* server, double now) {
  for (int i = 0; i < 10; ++i) {
    const auto request = process->election.Poll(process->Mine(now), process->wall);
    if (!request.has_value()) return;
    process->election.OnAnswer(server->Answer(*request), process->Mine(now), 1);
  }
  FAIL() << "it never comes to rest";
}

TEST(LeaderElection, TheFirstMakesTheLeaseAndLeads) {
  LeaseServer server;
  Process a("a", 0);
  Settle(&a, &server, 1);
  EXPECT_TRUE(a.Leads(1));
  const Json& spec = server.lease()["spec"];
  EXPECT_EQ(spec["holderIdentity"], "a");
  EXPECT_EQ(spec["leaseDurationSeconds"], 15);
  EXPECT_EQ(spec["leaseTransitions"], 0);
  EXPECT_EQ(server.lease()["metadata"]["namespace"], "longhaul");
  EXPECT_EQ(a.election.counters().acquired, 1u);
  EXPECT_GE(a.election.NextDue(), At(3));
  EXPECT_LE(a.election.NextDue(), At(3.4));
}

TEST(LeaderElection, TheHolderRenewsEachTwoSecondsAndTheOtherWaits) {
  LeaseServer server;
  Process a("a", 0), b("b", 1000);
  for (double now = 0; now < 120; now += 0.1) {
    Settle(&a, &server, now);
    Settle(&b, &server, now);
    EXPECT_TRUE(a.Leads(now));
    EXPECT_FALSE(b.Leads(now));
    a.wall += 100'000;
  }
  EXPECT_GE(a.election.counters().renewed, 45u);
  EXPECT_EQ(b.election.holder(), "a");
}

TEST(LeaderElection, AHolderThatCannotRenewStopsAfterTenSeconds) {
  LeaseServer server;
  Process a("a", 0);
  Settle(&a, &server, 0);
  for (double now = 0.05; now < 30; now += 0.1) {
    const auto request = a.election.Poll(a.Mine(now), 0);
    if (request) {
      a.election.OnAnswer(MakeError(ApiCode::kTimedOut, "x"), a.Mine(now), 0);
      EXPECT_EQ(a.election.trouble(), "TimedOut: x");
    }
    EXPECT_EQ(a.Leads(now), now < 10) << now;
  }
  Settle(&a, &server, 31);
  EXPECT_EQ(a.election.trouble(), "");
  EXPECT_EQ(a.election.counters().lost, 1u);
}

TEST(LeaderElection, TheTenSecondsCountFromWhenTheRenewalWasSent) {
  LeaseServer server;
  Process a("a", 0);
  Settle(&a, &server, 0);
  const auto renewal = a.election.Poll(At(3), 0);
  ASSERT_TRUE(renewal.has_value());
  const ApiResult answer = server.Answer(*renewal);
  a.election.OnAnswer(answer, At(7), 0);  // it took 4 s
  EXPECT_TRUE(a.election.Leads(At(12.9)));
  EXPECT_FALSE(a.election.Leads(At(13)));
}

TEST(LeaderElection, AnothersLeaseCountsFromWhenItWasSeenToChangeNotByItsClock) {
  LeaseServer server;
  Process a("a", 0), b("b", 5000);
  a.wall = 0;  // its wall clock says 1970
  Settle(&a, &server, 0);
  b.wall = int64_t{4'000'000'000} * 1'000'000;  // and this one 2096
  for (double now = 0; now < 14.9; now += 0.1) {
    Settle(&b, &server, now);
    EXPECT_FALSE(b.Leads(now)) << now;
  }
  Settle(&b, &server, 15);
  EXPECT_TRUE(b.Leads(15));
  EXPECT_FALSE(a.Leads(15));
  EXPECT_EQ(server.lease()["spec"]["leaseTransitions"], 1);
}

TEST(LeaderElection, ALeaseForLongerIsWaitedForOneForEverIsNot) {
  LeaseServer server;
  ApiRequest create;
  create.verb = Verb::kCreate;
  create.body = {{"metadata", Json::object()},
                 {"spec", {{"holderIdentity", "x"}, {"renewTime", "y"}, {"leaseDurationSeconds", 30}}}};
  server.Answer(create);
  Process b("b", 0);
  for (double now = 0; now < 29.9; now += 0.1) Settle(&b, &server, now);
  EXPECT_FALSE(b.Leads(29.9));
  Settle(&b, &server, 30);
  EXPECT_TRUE(b.Leads(30));
  server.Delete();
  create.body["spec"]["leaseDurationSeconds"] = 2'000'000'000;
  server.Answer(create);
  Process c("c", 0);
  for (double now = 0; now < 59.9; now += 0.1) Settle(&c, &server, now);
  EXPECT_FALSE(c.Leads(59.9));
  Settle(&c, &server, 60);
  EXPECT_TRUE(c.Leads(60));
}

TEST(LeaderElection, ALeaseThatChangedMeanwhileIsNotTaken) {
  LeaseServer server;
  Process a("a", 0), b("b", 0);
  Settle(&a, &server, 0);
  Settle(&b, &server, 0);
  // b hears nothing more of a's renewals and tries at 15 s: the server says that it is behind.
  a.wall = 14'000'000;
  const auto renewal = a.election.Poll(At(9), a.wall);
  ASSERT_TRUE(renewal.has_value());
  a.election.OnAnswer(server.Answer(*renewal), At(9), 0);
  for (double now = 2; now < 15; now += 1) {
    const auto get = b.election.Poll(At(now), 0);
    if (get) b.election.OnAnswer(MakeError(ApiCode::kUnreachable, "x"), At(now), 0);
  }
  Settle(&b, &server, 17.5);
  EXPECT_FALSE(b.Leads(17.5));
  EXPECT_EQ(server.lease()["spec"]["holderIdentity"], "a");
}

TEST(LeaderElection, AReleasedLeaseIsTakenAtOnce) {
  LeaseServer server;
  Process a("a", 0), b("b", 0);
  Settle(&a, &server, 0);
  Settle(&b, &server, 0);
  a.election.Release(At(1));
  EXPECT_FALSE(a.election.released());
  Settle(&a, &server, 1);
  EXPECT_TRUE(a.election.released());
  EXPECT_FALSE(a.Leads(1));
  EXPECT_EQ(server.lease()["spec"]["holderIdentity"], "");
  EXPECT_EQ(a.election.Poll(At(5), 0), std::nullopt) << "it takes it no more";
  double now = 1;
  while (!b.Leads(now) && now < 10) Settle(&b, &server, now += 0.1);
  EXPECT_LE(now, 2.5);
  EXPECT_EQ(a.election.counters().lost, 0u);
}

TEST(LeaderElection, ReleaseWhileTheLeaseIsBeingTakenGivesItUpThen) {
  LeaseServer server;
  Process a("a", 0);
  auto request = a.election.Poll(At(0), 0);
  a.election.OnAnswer(server.Answer(*request), At(0), 0);
  request = a.election.Poll(At(0), 0);
  ASSERT_EQ(request->verb, Verb::kCreate);
  a.election.Release(At(0.1));
  a.election.OnAnswer(server.Answer(*request), At(0.2), 0);
  EXPECT_FALSE(a.election.released());
  Settle(&a, &server, 0.2);
  EXPECT_TRUE(a.election.released());
  EXPECT_EQ(server.lease()["spec"]["holderIdentity"], "");
}

TEST(LeaderElection, AReleaseThatCannotBeSentIsNotTriedForEver) {
  LeaseServer server;
  Process a("a", 0);
  Settle(&a, &server, 0);
  a.election.Release(At(1));
  const auto request = a.election.Poll(At(1), 0);
  ASSERT_TRUE(request.has_value());
  a.election.OnAnswer(MakeError(ApiCode::kUnreachable, "x"), At(1), 0);
  EXPECT_TRUE(a.election.released());
}

TEST(LeaderElection, ALeaseThatWasDeletedIsMadeAgainByOneOfThem) {
  LeaseServer server;
  Process a("a", 0), b("b", 0);
  Settle(&a, &server, 0);
  Settle(&b, &server, 0);
  server.Delete();
  double now = 0;
  for (; now < 20; now += 0.1) {
    Settle(&b, &server, now);
    Settle(&a, &server, now);
  }
  EXPECT_TRUE(a.Leads(now) != b.Leads(now));
}

TEST(LeaderElection, AnAnswerThatIsNoLeaseIsAFailure) {
  for (const Json& body : {Json::object(), Json{{"metadata", "x"}},
                           Json{{"metadata", {{"resourceVersion", 5}}}}, Json{{"spec", 5}}}) {
    SCOPED_TRACE(body.dump());
    LeaderElection election(Named("a"));
    ASSERT_TRUE(election.Poll(At(0), 0).has_value());
    ApiResult answer = Ok();
    answer.body = body;
    election.OnAnswer(answer, At(0), 0);
    EXPECT_FALSE(election.Leads(At(0)));
    EXPECT_EQ(election.counters().failures, 1u);
    EXPECT_EQ(election.trouble(), "the answer has no resourceVersion");
    EXPECT_EQ(election.NextDue(), At(2));
  }
}

TEST(LeaderElection, ALeaseWithOddFieldsIsTakenWhenItIsOver) {
  LeaderElection election(Named("a"));
  election.Poll(At(0), 0);
  ApiResult answer = Ok();
  answer.body = {
      {"metadata", {{"resourceVersion", "5"}}},
      {"spec", {{"leaseTransitions", std::numeric_limits<int64_t>::max()}, {"leaseDurationSeconds", "x"}}}};
  election.OnAnswer(answer, At(0), 0);
  const auto take = election.Poll(At(0), 0);
  ASSERT_TRUE(take.has_value());
  EXPECT_EQ(take->verb, Verb::kReplace);
  EXPECT_EQ(take->body["spec"]["leaseTransitions"], 2147483647);
  answer.body["spec"] = 7;
  LeaderElection other(Named("b"));
  other.Poll(At(0), 0);
  other.OnAnswer(answer, At(0), 0);
  EXPECT_EQ(other.Poll(At(0), 0)->body["spec"]["holderIdentity"], "b");
}

TEST(LeaderElection, MicroTimeIsRfc3339) {
  EXPECT_EQ(MicroTime(0), "1970-01-01T00:00:00.000000Z");
  EXPECT_EQ(MicroTime(int64_t{1'795'852'111} * 1'000'000 + 42), "2026-11-28T07:48:31.000042Z");
}

// Three processes on a network that delays requests and answers by up to a second, or loses either; any dies
// or stands still.
struct World {
  explicit World(uint64_t seed) : random(seed) {
    for (int i = 0; i < 3; ++i)
      processes.push_back(
          std::make_unique<Process>(std::string(1, static_cast<char>('a' + i)), random.Uniform() * 1e5));
  }

  struct Message {
    double at;
    size_t process;
    std::optional<ApiRequest> request;  // on its way to the server, else `answer` on its way back
    ApiResult answer;
    uint64_t sequence;
  };

  void Tick(bool faults) {
    now += 0.05;
    for (size_t i = 0; i < processes.size(); ++i) {
      Process& p = *processes[i];
      if (!p.alive || now < stands_until[i]) continue;
      p.wall = static_cast<int64_t>(now * 1e6) + static_cast<int64_t>(i) * 3'600'000'000;
      if (waiting[i] && now >= limit[i]) {
        waiting[i] = false;
        p.election.OnAnswer(MakeError(ApiCode::kTimedOut, "x"), p.Mine(now), random.Uniform());
      }
      if (auto request = p.election.Poll(p.Mine(now), p.wall)) {
        waiting[i] = true;
        limit[i] = now + SecondsOf(request->time_limit);
        messages.push_back({now + random.Uniform(), i, std::move(request), {}, ++sequence[i]});
        if (faults && random.Chance(0.05))
          messages.back().at += random.Uniform() * 30;  // a packet that lay around
        if (faults && random.Chance(0.05)) messages.pop_back();
      }
    }
    for (size_t k = 0; k < messages.size();) {
      if (messages[k].at > now) {
        ++k;
        continue;
      }
      Message message = std::move(messages[k]);
      messages.erase(messages.begin() + static_cast<ptrdiff_t>(k));
      const size_t i = message.process;
      if (message.request) {
        message.answer = server.Answer(*message.request);
        message.request.reset();
        message.at = now + random.Uniform();
        if (!faults || !random.Chance(0.05)) messages.push_back(std::move(message));
      } else if (waiting[i] && message.sequence == sequence[i] && processes[i]->alive &&
                 now >= stands_until[i]) {
        waiting[i] = false;
        processes[i]->election.OnAnswer(message.answer, processes[i]->Mine(now), random.Uniform());
      }
    }
  }
  int Leaders() const {
    int leaders = 0;
    for (size_t i = 0; i < processes.size(); ++i) leaders += processes[i]->Leads(now) ? 1 : 0;
    return leaders;
  }

  Random random;
  LeaseServer server;
  std::vector<std::unique_ptr<Process>> processes;
  double stands_until[3] = {};
  bool waiting[3] = {};
  double limit[3] = {};
  uint64_t sequence[3] = {};
  std::vector<Message> messages;
  double now = 0;
};

TEST(LeaderElection, NeverTwoLeadersWhateverIsLostLateOrStandsStill) {
  for (uint64_t seed = 1; seed <= 60; ++seed) {
    SCOPED_TRACE(seed);
    World world(seed);
    int led = 0;
    for (int tick = 0; tick < 6000; ++tick) {  // 300 s
      if (world.random.Chance(0.002))
        world.stands_until[world.random.Below(3)] = world.now + world.random.Uniform() * 40;
      world.Tick(true);
      ASSERT_LE(world.Leaders(), 1) << "at " << world.now << " s";
      led += world.Leaders();
    }
    EXPECT_GT(led, 3000) << "for half of the time there is one";
  }
}

TEST(LeaderElection, ADeadHoldersLeaseIsTakenWithinTwentySeconds) {
  double longest = 0;
  for (uint64_t seed = 1; seed <= 100; ++seed) {
    SCOPED_TRACE(seed);
    World world(seed);
    const double settled = 30 + world.random.Uniform() * 5;
    while (world.now < settled) world.Tick(false);
    ASSERT_EQ(world.Leaders(), 1);
    for (const auto& p : world.processes) p->alive = p->alive && !p->Leads(world.now);
    const double died = world.now;
    while (world.Leaders() == 0 && world.now < died + 40) {
      world.Tick(false);
      ASSERT_LE(world.Leaders(), 1);
    }
    longest = std::max(longest, world.now - died);
  }
  EXPECT_LE(longest, 20) << "with answers that take up to two seconds";
  EXPECT_GE(longest, 13);
}

}  // namespace
}  // namespace longhaul::kube::api
