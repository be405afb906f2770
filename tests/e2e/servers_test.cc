// A job on three servers (decision 0029): real daemons, each with its own directory, one of which is killed.
//
//   worker 0 ─┬─ server 1 (--servers 3)      DIR/s0
//             ├─ server 2 (--first-server)   DIR/s1    kill -9, the same or another port
//   worker 1 ─┴─ server 3 (--first-server)   DIR/s2
#include <gmock/gmock.h>
#include <signal.h>

#include <cstring>
#include <filesystem>
#include <map>
#include <vector>

#include "base/placement.h"
#include "server/store/checkpoint.h"
#include "tests/e2e/support/job.h"
#include "transport/crypto/keygen.h"
#include "transport/keys/key_file.h"

namespace longhaul::e2e {
namespace {

using server::JobImage;
using server::TensorImage;
using ::testing::HasSubstr;

class Servers : public JobTest {
 protected:
  static constexpr int kRounds = 60;

  std::string DirectoryOf(size_t server, const std::string& of = "s") const {
    return directory() + "/" + of + std::to_string(server);
  }
  Flags Logged(size_t server, const std::string& of = "s") const {
    return {{"--checkpoint-dir", DirectoryOf(server, of)},
            {"--checkpoint-every", "25"},
            {"--round-log", ""},
            {"--once", ""}};
  }
  Program& StartFirst(uint32_t servers, const Flags& more = {}) {
    return StartServer(Merged({{"--servers", std::to_string(servers)},
                               {"--deterministic", ""},
                               {"--high-share", "1"}},  // nothing is lost: what counts depends on no time
                              more));
  }
  // One of the others. It need not come up.
  Program& StartOther(const Flags& more = {}) {
    std::vector<std::string> arguments;
    for (const auto& [flag, value] :
         Merged(Merged({{"--listen", "127.0.0.1:0"}, {"--first-server", address()}, {"--progress", "json"}},
                       security()),
                more)) {
      arguments.push_back(flag);
      if (!value.empty()) arguments.push_back(value);
    }
    return Start("longhaul-server", arguments);
  }
  static std::string AddressOf(Program& server) {
    const auto listening = server.WaitForEvent("listening");
    EXPECT_TRUE(listening) << server.Everything();
    return listening ? listening->value("address", "") : "";
  }
  void StartThree() {
    servers_ = {&StartFirst(3, Logged(0)), nullptr, nullptr};
    for (size_t i : {1, 2}) {
      servers_[i] = &StartOther(Logged(i));
      addresses_[i] = AddressOf(*servers_[i]);  // one after the other, so that their places are these
    }
    addresses_[0] = address();
  }
  void Train(const std::string& link = "delay=10ms") {
    workers_.clear();
    for (uint32_t rank = 0; rank < 2; ++rank) {
      workers_.push_back(&StartWorker(rank, {{"--rounds", std::to_string(kRounds)},
                                             {"--fault", link},
                                             {"--lr", "0.01"},
                                             {"--momentum", "0.9"},
                                             {"--reconnect-timeout", "60"}}));
    }
  }
  static void WaitForRounds(Program& server, size_t rounds) {
    const auto count = [&server] {
      size_t found = 0;
      const std::string text = server.Output();
      const std::string event = "\"event\":\"round\"";
      for (size_t at = text.find(event); at != std::string::npos; at = text.find(event, at + 1)) ++found;
      return found;
    };
    ASSERT_TRUE(Eventually([&] { return count() >= rounds; })) << server.Everything();
  }
  static void Kill(Program& server) {
    server.Signal(SIGKILL);
    ASSERT_TRUE(server.WaitForEnd());
  }
  void ExpectAllEnd() {
    for (Program* worker : workers_) ExpectEnd(*worker, 0);
    for (Program* server : servers_) ExpectEnd(*server, 0);
  }
  static JobImage Final(const std::string& path) {
    auto newest = server::store::LoadNewestCheckpoint(SystemFiles(), path);
    EXPECT_TRUE(newest.ok() && newest->loaded && newest->refused.empty()) << path;
    return newest.ok() && newest->loaded ? std::move(newest->loaded->image) : JobImage();
  }
  // The job with one server.
  JobImage OfOneServer() {
    Program& server = StartFirst(1, Logged(0, "one"));
    Train();
    for (Program* worker : workers_) ExpectEnd(*worker, 0);
    ExpectEnd(server, 0);
    return Final(DirectoryOf(0, "one"));
  }
  std::string Reshard(std::vector<std::string> directories, int servers, const std::string& out) {
    directories.insert(directories.begin(), {"checkpoint", "reshard"});
    directories.insert(directories.end(),
                       {"--servers", std::to_string(servers), "--out", directory() + "/" + out});
    ExpectEnd(Start("longhaul", directories), 0);
    return directory() + "/" + out;
  }
  static void ExpectPart(const std::vector<float>& whole, const Shard& shard,
                         const std::vector<float>& part) {
    ASSERT_EQ(part.size(), shard.count);
    EXPECT_EQ(std::memcmp(whole.data() + shard.first, part.data(), part.size() * sizeof(float)), 0);
  }
  // All parts are where they belong, and are what one server has, momentum included.
  void ExpectLikeOneServer(const JobImage& one) {
    std::vector<JobImage> images;
    for (size_t i = 0; i < servers_.size(); ++i) images.push_back(Final(DirectoryOf(i)));
    size_t parts = 0;
    for (const TensorImage& tensor : one.tensors) {
      for (const Shard& shard :
           PlaceTensor(tensor.name, tensor.count, static_cast<uint32_t>(servers_.size()))) {
        const auto& own = images[shard.server].tensors;
        const auto part = std::ranges::find(own, tensor.name, &TensorImage::name);
        ASSERT_NE(part, own.end()) << tensor.name << " at server " << shard.server;
        EXPECT_EQ(part->rounds, tensor.rounds);
        ExpectPart(ValuesOf(tensor.values), shard, ValuesOf(part->values));
        ExpectPart(ValuesOf(tensor.state[0].values), shard, ValuesOf(part->state[0].values));
        ++parts;
      }
    }
    size_t held = 0;
    for (const JobImage& image : images) held += image.tensors.size();
    EXPECT_EQ(held, parts);
    EXPECT_GT(parts, one.tensors.size()) << "no tensor is cut";
  }
  static void ExpectSame(const JobImage& joined, const JobImage& one) {
    ASSERT_EQ(joined.tensors.size(), one.tensors.size());
    for (const TensorImage& tensor : one.tensors) {
      const auto same = std::ranges::find(joined.tensors, tensor.name, &TensorImage::name);
      ASSERT_NE(same, joined.tensors.end()) << tensor.name;
      EXPECT_EQ(same->rounds, tensor.rounds);
      EXPECT_EQ(ValuesOf(same->values), ValuesOf(tensor.values)) << tensor.name;
      EXPECT_EQ(ValuesOf(same->state[0].values), ValuesOf(tensor.state[0].values)) << tensor.name;
    }
  }
  template <typename Values>
  static std::vector<float> ValuesOf(const Values& values) {
    std::vector<float> copy(values->bytes() / sizeof(float));
    std::memcpy(copy.data(), values->data(), values->bytes());
    return copy;
  }

  std::vector<Program*> servers_;
  std::map<size_t, std::string> addresses_;
  std::vector<Program*> workers_;
};

TEST_F(Servers, LearnWhatOneServerLearnsBitForBit) {
  const JobImage one = OfOneServer();
  StartThree();
  Train();
  ExpectAllEnd();
  ExpectLikeOneServer(one);
}

TEST_F(Servers, GoOnAsAnotherNumberOfServers) {
  // One server, twice as many rounds, in two jobs.
  (void)OfOneServer();
  const JobImage one = OfOneServer();
  // Three for the first half, two for the second.
  StartThree();
  Train();
  ExpectAllEnd();
  const auto two = Reshard({DirectoryOf(2), DirectoryOf(0), DirectoryOf(1)}, 2, "two");
  servers_ = {&StartFirst(2, {{"--checkpoint-dir", two + "/server-1"}, {"--once", ""}})};
  servers_.push_back(&StartOther({{"--checkpoint-dir", two + "/server-2"}, {"--once", ""}}));
  Train();
  ExpectAllEnd();
  ExpectSame(Final(Reshard({two + "/server-1", two + "/server-2"}, 1, "joined") + "/server-1"), one);
}

TEST_F(Servers, OneOfThemIsKilledAndNoBitChanges) {
  const JobImage one = OfOneServer();
  StartThree();
  Train();
  WaitForRounds(*servers_[1], 12);
  Kill(*servers_[1]);
  ASSERT_TRUE(servers_[0]->WaitForError("is lost: PeerDead"));
  EXPECT_THAT(servers_[0]->Errors(), HasSubstr("server 2 of 3 (" + addresses_[1] + ")"));
  // On another port: the first server tells the workers.
  servers_[1] = &StartOther(Logged(1));
  EXPECT_NE(AddressOf(*servers_[1]), addresses_[1]);
  ExpectAllEnd();
  ExpectLikeOneServer(one);
  EXPECT_THAT(workers_[0]->Errors(), HasSubstr("is back after"));
}

TEST_F(Servers, TheFirstIsKilledAndNoBitChanges) {
  const JobImage one = OfOneServer();
  StartThree();
  Train();
  WaitForRounds(*servers_[0], 12);
  Kill(*servers_[0]);
  const std::string address = addresses_[0];
  servers_[0] = &StartFirst(3, Merged(Logged(0), {{"--listen", address}}));
  ExpectAllEnd();
  ExpectLikeOneServer(one);
  EXPECT_THAT(servers_[2]->Errors(), HasSubstr("has this one again"));
}

TEST_F(Servers, AreReplacedOneAfterTheOtherAndNoBitChanges) {
  const JobImage one = OfOneServer();
  StartThree();
  Train();
  for (const size_t i : {1, 0, 2}) {
    WaitForRounds(*servers_[i], 10);
    servers_[i]->Signal(SIGUSR2);
    ExpectEnd(*servers_[i], 0);
    const Flags again = Merged(Logged(i), {{"--listen", addresses_[i]}});
    servers_[i] = i == 0 ? &StartFirst(3, again) : &StartOther(again);
    WaitForRounds(*servers_[i], 3);
  }
  ExpectAllEnd();
  ExpectLikeOneServer(one);
}

TEST_F(Servers, BecomeThreeAndThenTwoBetweenTwoRoundsAndNoBitChanges) {
  const JobImage one = OfOneServer();
  servers_ = {&StartFirst(1, Logged(0))};
  addresses_[0] = address();
  Train("delay=10ms,drop=0.05");
  const auto go_on_as = [&](std::vector<std::string> directories, uint32_t servers, const std::string& out) {
    WaitForRounds(*servers_.back(), 10);
    Program& order = Start("longhaul", {"hand-over", "--join", addresses_[0], "--key", key_file()});
    ExpectEnd(order, 0);
    EXPECT_THAT(order.Output(), HasSubstr("handed over after round "));
    for (Program* server : servers_) ExpectEnd(*server, 0);
    const std::string next = Reshard(directories, static_cast<int>(servers), out) + "/server-";
    const auto at = [&](uint32_t server) {
      return Merged(Logged(0), {{"--checkpoint-dir", next + std::to_string(server + 1)}});
    };
    servers_ = {&StartFirst(servers, Merged(at(0), {{"--listen", addresses_[0]}}))};
    for (uint32_t server = 1; server < servers; ++server) servers_.push_back(&StartOther(at(server)));
    return std::vector<std::string>{next + "1", next + "2", next + "3"};
  };
  const auto three = go_on_as({DirectoryOf(0)}, 3, "three");
  const auto two = go_on_as({three[1], three[2], three[0]}, 2, "two");
  ExpectAllEnd();
  for (Program* worker : workers_) {
    EXPECT_THAT(worker->Errors(), HasSubstr("the job goes on at 3 servers"));
    EXPECT_THAT(worker->Errors(), HasSubstr("the job goes on at 2 servers"));
  }
  ExpectSame(Final(Reshard({two[0], two[1]}, 1, "joined") + "/server-1"), one);
}

// The servers that there were go on, wherever they were on their way out.
TEST_F(Servers, AreKilledWhileTheyHandTheJobOverAndNoBitChanges) {
  const JobImage one = OfOneServer();
  StartThree();
  Train();
  WaitForRounds(*servers_[0], 12);
  Start("longhaul", {"hand-over", "--join", addresses_[0], "--key", key_file()});
  ASSERT_TRUE(servers_[1]->WaitForEnd());
  Kill(*servers_[0]);  // which has half a second to go
  Kill(*servers_[2]);  // or it has ended
  for (const size_t i : {2, 1, 0}) {
    const Flags again = Merged(Logged(i), {{"--listen", addresses_[i]}});
    servers_[i] = i == 0 ? &StartFirst(3, again) : &StartOther(again);
  }
  ExpectAllEnd();
  ExpectLikeOneServer(one);
}

// ... and what is asked for in vain: training goes on where it is.
TEST_F(Servers, HandTheJobOverTogetherOrNotAtAll) {
  servers_ = {&StartFirst(2, Logged(0))};
  servers_.push_back(&StartOther({{"--once", ""}}));  // without a round log
  addresses_[1] = AddressOf(*servers_[1]);
  const auto refused = [&](const std::string& server, const std::string& why) {
    Program& order =
        Start("longhaul", {"hand-over", "--join", server, "--key", key_file(), "--timeout", "5"});
    ExpectEnd(order, 1);
    EXPECT_THAT(order.Everything(), HasSubstr(why));
  };
  refused(address(), "no job runs here");
  Train();
  WaitForRounds(*servers_[0], 3);
  refused(address(), "server 2 of 2 (" + addresses_[1] + ") has no round log");
  refused(addresses_[1], "this is no first server: that is " + address());
  ExpectAllEnd();
}

// A worker that waits for no server, and one that stands still.
TEST_F(Servers, GoOnWhereTheyAreWhenAWorkerDoesNotComeAlong) {
  servers_ = {&StartFirst(1, Merged(Logged(0), {{"--idle-timeout", "60"}}))};
  const auto worker = [&](uint32_t rank, const Flags& more) {
    workers_.push_back(&StartWorker(
        rank, Merged({{"--rounds", "60"}, {"--fault", "delay=10ms"}, {"--idle-timeout", "60"}}, more)));
  };
  worker(0, {{"--reconnect-timeout", "60"}});
  worker(1, {});
  const auto refused = [&](const std::string& why) {
    Program& order =
        Start("longhaul", {"hand-over", "--join", address(), "--key", key_file(), "--timeout", "2"});
    ExpectEnd(order, 1);
    EXPECT_THAT(order.Everything(), HasSubstr(why));
  };
  WaitForRounds(*servers_[0], 3);
  refused("rank 1");
  ExpectAllEnd();
  servers_ = {&StartFirst(1, Merged(Logged(1), {{"--idle-timeout", "60"}}))};
  workers_.clear();
  for (uint32_t rank : {0, 1}) worker(rank, {{"--reconnect-timeout", "60"}});
  WaitForRounds(*servers_[0], 3);
  workers_[1]->Signal(SIGSTOP);
  refused("the job goes on here: not all workers have come to one point in time: no word from worker rank 1");
  workers_[1]->Signal(SIGCONT);
  ExpectAllEnd();
}

TEST_F(Servers, ADirectoryOfAnotherPlaceIsRefusedByName) {
  StartThree();
  Train();
  WaitForRounds(*servers_[0], 2);
  // Server 2's directory at the first, and at one of two servers.
  for (Program* server : servers_) Kill(*server);
  for (Program* worker : workers_) Kill(*worker);
  Program& first = Start("longhaul-server", {"--listen", "127.0.0.1:0", "--servers", "3", "--workers", "2",
                                             "--key", key_file(), "--checkpoint-dir", DirectoryOf(1)});
  ExpectEnd(first, 1);
  EXPECT_THAT(first.Errors(), HasSubstr("/s1 is of server 2 of 3, and this server is server 1 of 3"));
  Program& alone = Start("longhaul-server", {"--listen", "127.0.0.1:0", "--workers", "2", "--key", key_file(),
                                             "--checkpoint-dir", DirectoryOf(0)});
  ExpectEnd(alone, 1);
  EXPECT_THAT(alone.Errors(), HasSubstr("/s0 is of server 1 of 3, and this server is server 1 of 1"));
  StartFirst(2);
  Program& other = StartOther(Logged(2));
  ExpectEnd(other, 1);
  EXPECT_THAT(
      other.Errors(),
      HasSubstr("its disk is of server 3 of 3 of a shard map of epoch 1, and the map here has 2 servers"));
}

TEST_F(Servers, ASecondProcessOnADirectoryLeavesTheFirstOneItsPlace) {
  StartThree();
  Train();
  WaitForRounds(*servers_[1], 2);
  Program& second = StartOther(Logged(1));
  ExpectEnd(second, 3);
  EXPECT_THAT(second.Errors(), HasSubstr("another server"));
  EXPECT_EQ(servers_[1]->Errors().find("later start"), std::string::npos) << servers_[1]->Errors();
  ExpectAllEnd();
}

TEST_F(Servers, OfAnotherKeyAreRefused) {
  StartFirst(2);
  const auto key = crypto::NewPsk("default");
  ASSERT_TRUE(key.ok() && keys::WriteKeyFile(directory() + "/other.key", key->text()).ok());
  Program& other = StartOther({{"--key", directory() + "/other.key"}});
  ASSERT_TRUE(server().WaitForError("handshake with"));
  // The place is free for one that has the key.
  Program& good = StartOther();
  EXPECT_TRUE(good.WaitForEvent("listening")) << good.Everything();
  EXPECT_FALSE(other.FindEvent("listening"));
}

// Both read their key files again; then the first ends the connections under the old one.
TEST_F(Servers, GoOnUnderTheNextKey) {
  const auto write = [&](const std::string& name) {
    const auto psk = crypto::NewPsk("default");
    ASSERT_TRUE(psk.ok() && keys::WriteKeyFile(directory() + "/" + name, psk->text()).ok());
  };
  const std::string key = directory() + "/shared.key";
  for (const char* name : {"old.key", "new.key"}) write(name);
  std::filesystem::copy(directory() + "/old.key", key);
  Program& first = StartFirst(2, {{"--key", key}});
  Program& other = StartOther({{"--key", key}});
  ASSERT_TRUE(other.WaitForEvent("listening")) << other.Everything();
  std::filesystem::rename(directory() + "/new.key", key);
  other.Signal(SIGHUP);
  ASSERT_TRUE(other.WaitForError("SIGHUP")) << other.Everything();
  first.Signal(SIGHUP);
  EXPECT_TRUE(other.WaitForError("has this one again")) << other.Everything() << first.Everything();
}

TEST_F(Servers, HaveCertificatesAndAWorkersIsNotEnough) {
  const auto keygen = [this](std::vector<std::string> words, const std::string& out) {
    words.insert(words.begin(), "keygen");
    words.insert(words.end(), {"--out", directory() + "/" + out});
    ExpectEnd(Start("longhaul", words), 0);
    return Flags{{"--key", directory() + "/" + out}};
  };
  keygen({"--ca"}, "ca");
  const auto issue = [&](const std::string& role, const std::string& name) {
    return keygen({"--from", directory() + "/ca", "--role", role, "--name", name}, name);
  };
  const Flags ams = issue("server", "ams"), fra = issue("server", "fra"), one = issue("worker", "one"),
              two = issue("worker", "two");
  servers_ = {&StartFirst(2, Merged(ams, {{"--once", ""}, {"--allow", "one,two"}}))};
  ExpectEnd(StartOther(one), 2);  // no server starts with it
  servers_.push_back(&StartOther(Merged(fra, {{"--once", ""}})));
  workers_ = {&StartWorker(0, Merged(one, {{"--rounds", "5"}})),
              &StartWorker(1, Merged(two, {{"--rounds", "5"}}))};
  ExpectAllEnd();
  EXPECT_THAT(servers_[0]->Errors(), HasSubstr("(server fra) is in"));
}

}  // namespace
}  // namespace longhaul::e2e
