// Identities in a running job: who may take which rank, and what an operator changes about that without
// ending the job: keys, names, certificates that end, members that are kicked. Real daemons, encrypted.
#include <fstream>
#include <map>

#include "tests/attack/support/certified_test.h"
#include "transport/crypto/keygen.h"
#include "transport/keys/key_file.h"

namespace longhaul::attack {
namespace {

using ::testing::HasSubstr;

// Two workers whose every round is right to the bit, as long as both are in.
template <typename Job>
class Reloading : public Job {
 protected:
  static constexpr size_t kElements = 3000;

  struct Worker {
    std::optional<Client> client;
    Tensor tensor;
  };

  // What the configuration says from the next reload on.
  void Configure(const std::string& text) {
    std::ofstream(config()) << text;
    EXPECT_TRUE(std::ifstream(config()).good());
  }
  std::string config() const { return this->directory() + "/server.toml"; }
  // Its key and names come from the configuration.
  e2e::Flags security() const override { return {{"--config", config()}}; }
  void Start() { this->StartTarget({{"--min-workers", "1"}}); }
  // SIGHUP; waits for this word of the answer.
  void Reload(const std::string& answer) {
    const size_t before = Count(answer);
    this->server().Signal(SIGHUP);
    EXPECT_TRUE(e2e::Eventually([&] { return Count(answer) > before; })) << this->server().Errors();
  }
  size_t Count(const std::string& word) {
    size_t count = 0;
    const std::string all = this->server().Everything();
    for (size_t at = all.find(word); at != std::string::npos; at = all.find(word, at + 1)) ++count;
    return count;
  }
  Result<Client> Try(uint32_t rank, const std::string& key, uint64_t incarnation = 0,
                     const std::string& server_name = {}) {
    ConnectOptions options;
    options.servers = {this->address()};
    options.rank = rank;
    options.world_size = 2;
    options.incarnation = incarnation;
    options.key_file = key;
    options.server_name = server_name;
    options.connect_timeout = kPatience;
    return Client::Connect(options);
  }
  void Join(uint32_t rank, const std::string& key, uint64_t incarnation = 0) {
    auto client = Try(rank, key, incarnation);
    ASSERT_TRUE(client.ok()) << client.status().ToString();
    workers_[rank].client.emplace(*std::move(client));
  }
  void JoinAndDeclare(uint32_t rank, const std::string& key, uint64_t incarnation = 0) {
    Join(rank, key, incarnation);
    Declare(rank);
  }
  void Declare(uint32_t rank) {
    ASSERT_TRUE(workers_[rank].client);
    auto tensor = workers_[rank].client->Declare("w", {.count = kElements, .optimizer = "aggregate"});
    ASSERT_TRUE(tensor.ok()) << tensor.status().ToString();
    workers_[rank].tensor = *tensor;
  }
  void StartBoth(const std::string& first, const std::string& second) {
    Join(0, first);
    Join(1, second);
    Declare(0);
    Declare(1);
  }
  // A round of these workers: each gives its number, all read the mean.
  void Round(const std::vector<uint32_t>& ranks) {
    ++rounds_;
    std::map<uint32_t, std::vector<float>> given, results;
    std::map<uint32_t, Operation> operations;
    float sum = 0;
    for (const uint32_t rank : ranks) {
      const auto value = static_cast<float>(rank * 100 + rounds_);
      sum += value;
      given[rank].assign(kElements, value);
      results[rank].assign(kElements, -1);
    }
    for (const uint32_t rank : ranks)
      operations.emplace(rank,
                         workers_[rank].client->PushPull(workers_[rank].tensor, given[rank], results[rank]));
    for (const auto& [rank, operation] : operations) {
      const Status done = operation.WaitFor(kPatience);
      ASSERT_TRUE(done.ok()) << "round " << rounds_ << ", rank " << rank << ": " << done.ToString();
      EXPECT_EQ(results[rank], std::vector<float>(kElements, sum / static_cast<float>(ranks.size())));
    }
  }
  // What the worker hears when it pushes, which has lost its place.
  Status PushOf(uint32_t rank) {
    const std::vector<float> given(kElements, 1);
    std::vector<float> result(kElements);
    return workers_[rank].client->PushPull(workers_[rank].tensor, given, result).WaitFor(kPatience);
  }
  // The worker is out for this reason, and the job goes on without it.
  void ExpectOut(uint32_t rank, const std::string& why) {
    EXPECT_TRUE(this->server().WaitForLine("worker rank " + std::to_string(rank)));
    EXPECT_TRUE(e2e::Eventually([&] { return Count(why) > 0; })) << this->server().Errors();
    const Status out = PushOf(rank);
    EXPECT_EQ(out.code(), StatusCode::kPermissionDenied) << out.ToString();
    EXPECT_THAT(out.message(), HasSubstr(why));
    EXPECT_TRUE(e2e::Eventually([&] { return this->AskServer().value("joined", 0) == 1; }));
  }

  std::map<uint32_t, Worker> workers_;
  uint32_t rounds_ = 0;
};

class Identity : public Reloading<CertifiedTest> {
 protected:
  std::string Config(const std::string& allow) const {
    return "key = \"" + KeyOf("server") + "\"\nallow = [" + allow + "]\n";
  }
  static constexpr const char* kPair = "\"worker0:0\", \"worker1:1+heir\", \"tool/tool\"";
};

// Would gain: every rank that is free, and with it all but one share of the sum (finding 3).
TEST_F(Identity, OneCertificateTakesOneRank) {
  Configure("key = \"" + KeyOf("server") + "\"\n");
  Start();
  auto first = Try(0, KeyOf("worker0"));
  ASSERT_TRUE(first.ok()) << first.status().ToString();
  const Status second = Try(1, KeyOf("worker0")).status();
  EXPECT_EQ(second.code(), StatusCode::kPermissionDenied) << second.ToString();
  EXPECT_THAT(second.message(), HasSubstr("\"worker0\" has rank 0 and may not take rank 1 as well"));
  EXPECT_TRUE(server().WaitForError("(worker worker0): PermissionDenied: \"worker0\" has rank 0"))
      << server().Errors();
  EXPECT_TRUE(Try(1, KeyOf("worker1")).ok()) << "the honest one gets it";
}

// Would gain: the status of a job, and an operator's orders, by a certificate that names a worker's name.
TEST_F(Identity, AnEntryOfTheListIsForItsRoleAlone) {
  Issue(crypto::Role::kWorker, "intruder2");
  Configure(Config("\"worker0\", \"worker1\", \"tool/tool\", \"tool/intruder2\""));
  Start();
  const Status joined = Try(0, KeyOf("intruder2")).status();
  EXPECT_FALSE(joined.ok());
  EXPECT_TRUE(server().WaitForLine("is of worker intruder2, which is not on the list of allowed names"));
  Configure(Config("\"worker0\", \"worker1\", \"tool\""));
  Reload("SIGHUP: reloaded");
  Program& status =
      JobTest::Start("longhaul", {"status", "--join", address(), "--key", KeyOf("tool"), "--timeout", "20"});
  ExpectEnd(status, 3);
  EXPECT_TRUE(server().WaitForLine("is of tool tool, which is not on the list of allowed names"));
}

TEST_F(Identity, AReloadDisconnectsExactlyWhomItStrikesOut) {
  Configure(Config(kPair));
  Start();
  StartBoth(KeyOf("worker0"), KeyOf("worker1"));
  Round({0, 1});
  // What is bad is refused whole.
  for (const char* bad :
       {"\"worker0:0\", \"worker1:0\"", "\"worker0:0\", \"worker1:2\"", "\"\"", "\"tool/tool\""}) {
    Configure(Config(bad));
    Reload("SIGHUP: nothing is reloaded: ");
    Round({0, 1});
  }
  Configure("key = \"" + directory() + "/missing\"\n");
  Reload("missing: No such file");
  Round({0, 1});
  Configure(Config(kPair));
  Reload("SIGHUP: reloaded");
  Round({0, 1});
  Configure(Config("\"worker0:0\", \"heir:1\", \"tool/tool\""));
  Reload("SIGHUP: reloaded");
  ExpectOut(1, "worker worker1 was taken off the list of allowed names");
  Round({0});
  Issue(crypto::Role::kWorker, "heir");
  JoinAndDeclare(1, KeyOf("heir"));
  Round({0, 1});
}

TEST_F(Identity, AKickedMemberIsOutUntilAReloadAndItsSuccessorComes) {
  Issue(crypto::Role::kWorker, "heir");
  Configure(Config(kPair));
  Start();
  StartBoth(KeyOf("worker0"), KeyOf("worker1"));
  Round({0, 1});
  const auto kick = [&](const std::string& key, const std::string& rank) -> Program& {
    return JobTest::Start("longhaul", {"kick", "--join", address(), "--rank", rank, "--key", key});
  };
  ExpectEnd(kick(KeyOf("worker0"), "1"), 2);  // a worker's certificate is no tool's
  Program& wrong = kick(KeyOf("tool"), "7");
  ExpectEnd(wrong, 1);
  EXPECT_THAT(wrong.Errors(), HasSubstr("no worker has rank 7"));
  Round({0, 1});
  Program& right = kick(KeyOf("tool"), "1");
  ExpectEnd(right, 0);
  EXPECT_THAT(right.Output(), HasSubstr("kicked worker rank 1 (worker1, "));
  ExpectOut(1, "kicked by the operator");
  Round({0});
  const Status again = Try(1, KeyOf("worker1"), 9).status();
  EXPECT_THAT(again.ToString(), HasSubstr("\"worker1\" was kicked"));
  JoinAndDeclare(1, KeyOf("heir"));
  Round({0, 1});
}

TEST_F(Identity, ACertificateThatExpiresInMidJobEndsItsConnectionByName) {
  const int64_t lifetime = 12 * std::min(kSlowness, 3);
  Issue(crypto::Role::kWorker, "brief", lifetime);
  Configure("key = \"" + KeyOf("server") + "\"\n");
  Start();
  StartBoth(KeyOf("worker0"), KeyOf("brief"));
  Round({0, 1});
  const auto warned = server().WaitForEvent("expiring");
  ASSERT_TRUE(warned) << server().Everything();
  EXPECT_LE(warned->value("seconds", int64_t{999'999}), 86'400);
  ExpectOut(1, "worker brief: its certificate has expired");
  Round({0});
  EXPECT_FALSE(Try(1, KeyOf("brief"), 1).ok()) << "nor does it come again";
}

// Would gain: a worker's gradients, for a machine of the same authority that plays the server.
TEST_F(Identity, OnlyTheServerOfTheExpectedNameIsBelieved) {
  Configure("key = \"" + KeyOf("server") + "\"\n");
  Start();
  const Status wrong = Try(0, KeyOf("worker0"), 0, "another").status();
  EXPECT_EQ(wrong.code(), StatusCode::kPermissionDenied) << wrong.ToString();
  EXPECT_THAT(wrong.message(), HasSubstr("is of server server, not of another"));
  EXPECT_TRUE(Try(0, KeyOf("worker0"), 0, "server").ok());
  Program& status = JobTest::Start("longhaul", {"status", "--join", address(), "--key", KeyOf("tool"),
                                                "--server-name", "another", "--timeout", "20"});
  ExpectEnd(status, 3);
  EXPECT_THAT(status.Errors(), HasSubstr("is of server server, not of another"));
}

class SharedKey : public Reloading<AttackTest> {
 protected:
  void SetUp() override {
    AttackTest::SetUp();
    const auto next = crypto::NewPsk("default");
    ASSERT_TRUE(next.ok() && keys::WriteKeyFile(next_key(), next->text()).ok());
  }
  std::string next_key() const { return directory() + "/next.key"; }
  std::string tool_key() const override { return tool_key_; }

  std::string tool_key_;
};

TEST_F(SharedKey, IsRotatedInMidJobWithoutALostRound) {
  tool_key_ = key_file();
  Configure("key = \"" + key_file() + "\"\n");
  Start();
  StartBoth(key_file(), key_file());
  Round({0, 1});
  Configure("key = \"" + key_file() + "\"\nnext-key = \"" + next_key() + "\"\n");
  Reload("SIGHUP: reloaded");
  Round({0, 1});
  JoinAndDeclare(0, next_key(), 1);
  Round({0, 1});
  JoinAndDeclare(1, next_key(), 1);
  Round({0, 1});
  Configure("key = \"" + next_key() + "\"\n");
  Reload("SIGHUP: reloaded");
  Round({0, 1});
  tool_key_ = next_key();
  const nlohmann::json status = AskServer();
  EXPECT_EQ(status.value("rounds", 0u), rounds_);
  EXPECT_EQ(status.value("joined", 0), 2);
  EXPECT_EQ(status.value("lost_chunks", -1), 0);
  ConnectOptions options;
  options.servers = {address()};
  options.world_size = 2;
  options.incarnation = 9;
  options.key_file = key_file();
  options.connect_timeout = std::chrono::seconds(3);
  EXPECT_FALSE(Client::Connect(options).ok()) << "the old key is nothing any more";
  Round({0, 1});
}

// A key that is dropped too early names the member that still has it.
TEST_F(SharedKey, ThatIsDroppedEndsTheConnectionsUnderItByName) {
  tool_key_ = next_key();
  Configure("key = \"" + key_file() + "\"\nnext-key = \"" + next_key() + "\"\n");
  Start();
  StartBoth(next_key(), key_file());
  Round({0, 1});
  Configure("key = \"" + next_key() + "\"\n");
  Reload("SIGHUP: reloaded");
  ExpectOut(1, "is not valid any more: take the new one");
  Round({0});
}

}  // namespace
}  // namespace longhaul::attack
