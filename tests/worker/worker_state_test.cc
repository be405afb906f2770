// What a worker keeps on its own disk: files against faults, then the public API with a worker that dies.
#include "worker/client/worker_state.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <thread>

#include "tests/server/store/faulty_files.h"
#include "tests/worker/client_harness.h"
#include "worker/client/client_impl.h"

namespace longhaul::internal {
namespace {

using server::store::FaultyFiles;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Fault = FaultyFiles::Fault;

constexpr uint64_t kJob = 77;
constexpr uint64_t kCount = 2 * WorkerState::kRun + 5;  // in three runs

std::string ReadAll(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}
void WriteAll(const std::string& path, const std::string& text) {
  std::ofstream(path, std::ios::binary | std::ios::trunc) << text;
}

class Directory {
 public:
  Directory() {
    char pattern[] = "/tmp/longhaul-state-XXXXXX";
    EXPECT_NE(mkdtemp(pattern), nullptr);
    path = pattern;
    WriteAll(path + "/boot", std::string(36, 'a'));
  }
  ~Directory() { std::filesystem::remove_all(path); }
  std::string path;
};

class WorkerStateTest : public ::testing::Test {
 protected:
  // One process: its state, and tensor w, which owes nothing yet.
  struct Process {
    explicit Process(const WorkerState::Options& options) : state(options), owes(kCount) {}
    void Declare(const std::string& name = "w", uint64_t count = kCount) {
      state.OnDeclared({name, count,
                        [this](uint64_t first, size_t most) -> Result<std::vector<float>> {
                          if (on_owed) on_owed();
                          const std::span<const float> rest = std::span(owes).subspan(first);
                          const auto part = rest.first(std::min(rest.size(), most));
                          return std::vector<float>(part.begin(), part.end());
                        },
                        [this](uint64_t first, const std::vector<float>& values) {
                          for (size_t i = 0; i < values.size(); ++i) owes[first + i] += values[i];
                        }});
    }
    Status Save(const std::string& blob) {
      return state.Save({reinterpret_cast<const uint8_t*>(blob.data()), blob.size()});
    }
    void Push() {
      state.BeginPush();
      state.EndPush();
    }
    WorkerState state;
    std::vector<float> owes;
    std::function<void()> on_owed;
  };

  WorkerState::Options Options() {
    return {.directory = directory.path,
            .rank = 3,
            .job = [] { return kJob; },
            .warn = [this](const std::string& text) { warnings += text + "\n"; },
            .files = &files,
            .boot_id = directory.path + "/boot"};
  }
  // Of a process that has saved `blob` and owes these elements of w.
  void Saved(const std::string& blob, float first = 1, float last = 2) {
    Process process(Options());
    process.Declare();
    process.owes.front() = first;
    process.owes.back() = last;
    ASSERT_EQ(process.Save(blob), Status());
  }
  std::string Path(const char* end) const { return directory.path + "/rank-3" + end; }

  Directory directory;
  FaultyFiles files;
  std::string warnings;
};

TEST_F(WorkerStateTest, TheNextProcessHasTheBlobAndOwesWhatTheLastOneOwed) {
  Saved("place 17");
  Process next(Options());
  EXPECT_EQ(next.state.blob(), "place 17");
  next.Declare("other", 4);
  EXPECT_EQ(next.owes.front(), 0);
  next.Declare();
  next.Declare();  // once
  EXPECT_EQ(next.owes.front(), 1);
  EXPECT_EQ(next.owes.back(), 2);
  EXPECT_EQ(warnings, "");
  EXPECT_LT(std::filesystem::file_size(Path(".residuals")), 2 * 4 * WorkerState::kRun)
      << "zeros are left out";
}

TEST_F(WorkerStateTest, NothingIsThereAtFirst) {
  Process first(Options());
  EXPECT_EQ(first.state.blob(), "");
  first.Declare();
  first.Push();
  EXPECT_EQ(warnings, "");
}

TEST_F(WorkerStateTest, WhatAPushMayHaveCarriedIsNotOwedAgain) {
  {
    Process process(Options());
    process.Declare();
    process.owes.front() = 1;
    ASSERT_EQ(process.Save("a"), Status());
    process.state.BeginPush();  // and dies
  }
  Process next(Options());
  EXPECT_EQ(next.state.blob(), "a");
  next.Declare();
  EXPECT_EQ(next.owes.front(), 0);
}

TEST_F(WorkerStateTest, TheSuccessorsFirstPushMakesItVoidAsWell) {
  Saved("a");
  {
    Process next(Options());
    next.Declare();
    next.Push();
  }
  Process third(Options());
  third.Declare();
  EXPECT_EQ(third.owes.front(), 0);
}

TEST_F(WorkerStateTest, WhatIsOwedOfATensorThatIsNotDeclaredYetIsSavedOn) {
  Saved("a");
  {
    Process next(Options());
    ASSERT_EQ(next.Save("b"), Status());
  }
  Process third(Options());
  third.Declare();
  EXPECT_EQ(third.owes.back(), 2);
}

TEST_F(WorkerStateTest, ResidualsOfAnotherJobOrLengthOrOfBeforeTheMachinesStartAreNamedAndNotUsed) {
  Saved("a");
  WorkerState::Options other = Options();
  other.job = [] { return kJob + 1; };
  Process another(other);
  another.Declare();
  EXPECT_EQ(another.state.blob(), "a");
  EXPECT_THAT(warnings, HasSubstr("rank-3.residuals is of another job"));
  warnings.clear();

  Process longer(Options());
  longer.owes.resize(kCount + 1);
  longer.Declare("w", kCount + 1);
  EXPECT_THAT(warnings, HasSubstr("tensor w has another length now"));
  warnings.clear();

  WriteAll(directory.path + "/boot", std::string(36, 'b'));
  Process rebooted(Options());
  rebooted.Declare();
  EXPECT_EQ(rebooted.state.blob(), "a");
  EXPECT_THAT(warnings, HasSubstr("from before this machine's start"));
  for (const float owed : {another.owes.front(), longer.owes.front(), rebooted.owes.front()})
    EXPECT_EQ(owed, 0);
}

// Else a push that was lost with the power could be repaid though it had counted.
TEST_F(WorkerStateTest, WithoutAJobOrAMachinesStartOnlyTheBlobIsKept) {
  WorkerState::Options no_job = Options(), no_boot = Options();
  no_job.job = [] { return uint64_t{0}; };
  no_boot.boot_id = directory.path + "/none";
  for (const WorkerState::Options& options : {no_job, no_boot}) {
    Process process(options);
    process.Declare();
    process.owes.front() = 1;
    ASSERT_EQ(process.Save("a"), Status());
    EXPECT_FALSE(std::filesystem::exists(Path(".residuals")));
    EXPECT_EQ(Process(options).state.blob(), "a");
  }
}

TEST_F(WorkerStateTest, AStateIsSavedBetweenPushes) {
  Saved("a");
  Process process(Options());
  process.Declare();
  process.state.BeginPush();
  EXPECT_EQ(process.Save("b").code(), StatusCode::kFailedPrecondition);
  process.state.EndPush();
  process.on_owed = [&] { process.Push(); };
  EXPECT_EQ(process.Save("b").code(), StatusCode::kFailedPrecondition) << "it began and ended meanwhile";
  EXPECT_EQ(Process(Options()).state.blob(), "a");
  process.on_owed = {};
  EXPECT_EQ(process.Save("b"), Status());
  EXPECT_EQ(Process(Options()).state.blob(), "b");
  EXPECT_EQ(process.Save(""), Status());
  EXPECT_EQ(Process(Options()).state.blob(), "") << "not the one before";
}

TEST_F(WorkerStateTest, AStateThatIsCutOrFlippedAnywhereIsNamedAndTheOneBeforeIsUsed) {
  Saved("the one before");
  Saved("the last");
  const std::string whole = ReadAll(Path(".state"));
  for (size_t at = 0; at < whole.size(); ++at) {
    for (const bool cut : {true, false}) {
      std::string damaged = cut ? whole.substr(0, at) : whole;
      if (!cut) damaged[at] = static_cast<char>(damaged[at] ^ 0x10);
      WriteAll(Path(".state"), damaged);
      warnings.clear();
      EXPECT_EQ(Process(Options()).state.blob(), "the one before") << at;
      EXPECT_THAT(warnings, HasSubstr("rank-3.state is damaged: not used"));
    }
  }
}

TEST_F(WorkerStateTest, ResidualsThatAreCutOrFlippedAnywhereAreNamedAndNotUsed) {
  Saved("a");
  const std::string whole = ReadAll(Path(".residuals"));
  for (size_t at = 0; at < whole.size(); at += at < 100 ? 1 : 4999) {
    for (const bool cut : {true, false}) {
      std::string damaged = cut ? whole.substr(0, at) : whole;
      if (!cut) damaged[at] = static_cast<char>(damaged[at] ^ 0x01);
      WriteAll(Path(".residuals"), damaged);
      warnings.clear();
      Process next(Options());
      next.Declare();
      EXPECT_EQ(next.owes.front(), 0);
      EXPECT_EQ(next.owes.back(), 0);
      EXPECT_EQ(next.state.blob(), "a");
      EXPECT_THAT(warnings, HasSubstr("rank-3.residuals is damaged: not used")) << at;
    }
  }
}

// A full disk (one call fails) and a machine that stops (all after it do), at each call of a save.
TEST_F(WorkerStateTest, AfterASaveThatFailsAnywhereThereIsAStateAndNothingIsOwedTwice) {
  for (const Fault fault : {Fault::kFails, Fault::kDies}) {
    bool failed = true;
    for (size_t call = 0; failed; ++call) {
      ASSERT_LT(call, 40u);
      files = {};
      Saved("old", 1, 2);
      Status saved;
      {
        Process process(Options());
        process.Declare();
        process.Push();
        process.owes.front() = 3;
        files.FailAt(call, fault);
        saved = process.Save("new");
        failed = files.failed();
        EXPECT_TRUE(saved.ok() || (failed && saved.code() == StatusCode::kResourceExhausted)) << call;
      }
      files = {};
      Process next(Options());
      EXPECT_TRUE(next.state.blob() == "new" || (!saved.ok() && next.state.blob() == "old")) << call;
      next.Declare();
      EXPECT_TRUE(next.owes.front() == 3 || (!saved.ok() && next.owes.front() == 0)) << call;
      EXPECT_TRUE(saved.ok() || fault == Fault::kDies || !std::filesystem::exists(Path(".state.part")))
          << call;
    }
  }
  EXPECT_EQ(warnings, "");
}

TEST_F(WorkerStateTest, ResidualsThatCannotBeRemovedAreAWarning) {
  Saved("a");
  Process process(Options());
  process.Declare();
  files.FailAt(0, Fault::kFails, {StatusCode::kPermissionDenied, "Read-only file system"});
  process.Push();
  EXPECT_THAT(warnings, HasSubstr("cannot remove"));
  EXPECT_THAT(warnings, HasSubstr("repays it twice"));
  process.Push();  // tries again
  EXPECT_FALSE(std::filesystem::exists(Path(".residuals")));
}

TEST_F(WorkerStateTest, ABlobHasABound) {
  Process process(Options());
  const std::vector<uint8_t> blob(WorkerState::kMostBlobBytes + 1);
  EXPECT_EQ(process.state.Save(blob).code(), StatusCode::kResourceExhausted);
}

// --- With a server: of each gradient only the largest tenth travels at first, the rest is owed ---

constexpr size_t kElements = 20'000;  // in parts, where there are three servers

class OwedOnce : public ::testing::TestWithParam<uint32_t> {
 protected:
  void SetUp() override {
    ServerOptions options = EverythingReliable();
    options.servers = GetParam();
    options.job_spec.priority = Priority::kTopK;
    options.job_spec.topk_share = 0.1;
    servers.push_back(StartServer(2, options));
    ServerOptions more;
    more.first_server = servers.front().address();
    for (uint32_t i = 1; i < GetParam(); ++i) servers.push_back(StartServer(1, more));
    for (size_t i = 0; i < kElements; ++i) gradient.push_back(static_cast<float>(i % 97) - 48);
  }
  ConnectOptions With(uint32_t rank, uint64_t incarnation = 0) {
    ConnectOptions options = OptionsFor(servers.front(), rank, 2);
    options.incarnation = incarnation;
    if (rank == 0) options.state_dir = directory.path;
    options.log = [this](LogLevel, std::string_view text) {
      const std::lock_guard lock(mutex);
      log += std::string(text) + "\n";
    };
    return options;
  }
  Tensor MustDeclare(Client& client) {
    Result<Tensor> w = client.Declare("w", {.count = kElements});
    EXPECT_TRUE(w.ok()) << w.status().ToString();
    return *w;
  }
  // A round in which rank 0 pushes this, and rank 1 nothing but zeros: adds what came of it.
  void Round(Client& client, const Tensor& w, const std::vector<float>& pushed) {
    std::vector<float> out(kElements), other(kElements), zeros(kElements);
    const Operation first = client.PushPull(w, pushed, out), second = peer->PushPull(peer_w, zeros, other);
    ASSERT_EQ(first.Wait(), Status());
    ASSERT_EQ(second.Wait(), Status());
    for (size_t i = 0; i < kElements; ++i) sum[i] += 2 * out[i];
  }
  // Rank 0 pushes the gradient, saves its state, pushes `more` times and dies; its successor pushes zeros.
  void Run(int more) {
    peer.emplace(MustConnect(With(1)));
    {
      std::thread peer_declares([&] { peer_w = MustDeclare(*peer); });
      Client client = MustConnect(With(0, 1));
      EXPECT_THAT(client.LoadedState(), IsEmpty());
      const Tensor w = MustDeclare(client);
      peer_declares.join();
      Round(client, w, gradient);
      const std::vector<std::byte> blob = {std::byte{4}, std::byte{2}};
      ASSERT_EQ(client.SaveState(blob), Status());
      for (int i = 0; i < more; ++i) Round(client, w, std::vector<float>(kElements));
      ClientImpl::Of(client).Vanish();
    }
    Client next = MustConnect(With(0, 2));
    EXPECT_THAT(next.LoadedState(), ElementsAre(std::byte{4}, std::byte{2}));
    const Tensor w = MustDeclare(next);
    for (int i = 0; i < 30 && sum != gradient; ++i) Round(next, w, std::vector<float>(kElements));
    EXPECT_EQ(next.Leave(), Status());
  }

  Directory directory;
  std::vector<Server> servers;
  std::optional<Client> peer;
  Tensor peer_w;
  std::vector<float> gradient;
  std::vector<float> sum = std::vector<float>(kElements);  // of what all rounds have counted of rank 0
  std::mutex mutex;
  std::string log;
};

TEST_P(OwedOnce, WhatWasSavedAsOwedCountsAfterTheWorkerHasDied) {
  Run(0);
  EXPECT_EQ(sum, gradient) << log;
}

TEST_P(OwedOnce, WhatAPushHasCarriedSinceDoesNotCountAgain) {
  Run(1);
  size_t missing = 0;
  for (size_t i = 0; i < kElements; ++i) {
    missing += sum[i] != gradient[i];
    ASSERT_LE(std::abs(sum[i]), std::abs(gradient[i])) << "element " << i << " counts twice";
  }
  EXPECT_GT(missing, kElements / 2) << "a tenth of them came with each push; the rest is lost";
}

TEST_P(OwedOnce, NothingIsSavedWhileAPushIsPending) {
  peer.emplace(MustConnect(With(1)));
  std::thread peer_declares([&] { peer_w = MustDeclare(*peer); });
  Client client = MustConnect(With(0));
  const Tensor w = MustDeclare(client);
  peer_declares.join();
  std::vector<float> out(kElements);
  const Operation push = client.PushPull(w, gradient, out);  // its peer has not pushed
  EXPECT_EQ(client.SaveState({}).code(), StatusCode::kFailedPrecondition);
  const Operation other = peer->Push(peer_w, gradient);
  EXPECT_EQ(push.Wait(), Status());
  EXPECT_EQ(other.Wait(), Status());
  EXPECT_EQ(client.SaveState({}), Status());
}

INSTANTIATE_TEST_SUITE_P(Servers, OwedOnce, ::testing::Values(1u, 3u));

TEST(SaveState, SaysWhyItCannot) {
  Directory directory;
  Server server = StartServer(1);
  Client without = MustConnect(OptionsFor(server, 0, 1));
  EXPECT_EQ(without.SaveState({}).code(), StatusCode::kFailedPrecondition);
  EXPECT_THAT(without.SaveState({}).message(), HasSubstr("state_dir"));
  EXPECT_THAT(without.LoadedState(), IsEmpty());
  EXPECT_EQ(without.Leave(), Status());

  ConnectOptions options = OptionsFor(server, 0, 1);
  options.state_dir = directory.path + "/none/none";
  EXPECT_EQ(Client::Connect(options).status().code(), StatusCode::kNotFound);
  options.state_dir = directory.path + "/made";
  Client client = MustConnect(options);
  EXPECT_EQ(client.SaveState({}), Status());
  std::filesystem::remove_all(options.state_dir);
  EXPECT_EQ(client.SaveState({}).code(), StatusCode::kNotFound);
  Client moved = std::move(client);
  EXPECT_EQ(client.SaveState({}).code(), StatusCode::kFailedPrecondition);  // NOLINT(bugprone-use-after-move)
  const auto w = moved.Declare("w", {.count = 8});
  ASSERT_TRUE(w.ok());
  const std::vector<float> g(8);
  // A callback runs in the client's own thread, unless its operation has ended before: then it runs at once.
  const std::thread::id here = std::this_thread::get_id();
  std::thread::id ran_in = here;
  Status in_callback;
  const Operation push = moved.Push(*w, g);
  push.Then([&](const Status&) {
    ran_in = std::this_thread::get_id();
    in_callback = moved.SaveState({});
  });
  ASSERT_EQ(push.Wait(), Status());
  EXPECT_EQ(in_callback.code(), ran_in == here ? StatusCode::kNotFound : StatusCode::kFailedPrecondition);
  EXPECT_EQ(moved.Leave(), Status());
  EXPECT_EQ(moved.SaveState({}).code(), StatusCode::kFailedPrecondition);
}

}  // namespace
}  // namespace longhaul::internal
