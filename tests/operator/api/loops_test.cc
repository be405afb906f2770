// Informer, lease and lists over the real client, with a server that holds objects and does not do so
// reliably.
#include "operator/api/loops.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <mutex>
#include <string>

#include "tests/operator/api/answers.h"
#include "tests/operator/api/fault_server.h"

namespace longhaul::kube::api {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using Clock = std::chrono::steady_clock;
using Peer = FaultServer::Peer;

std::unique_ptr<RestClient> Client(const FaultServer& server, RestOptions options = {}) {
  ClusterAccess access;
  access.server = server.url();
  options.retry.first = milliseconds(10);
  auto client = RestClient::Make(access, options, Random(1));
  EXPECT_TRUE(client.ok());
  return std::move(*client);
}

ApiRequest Pods() {
  ApiRequest pods;
  pods.type = {"", "v1", "pods", true};
  return pods;
}

std::string ValueOf(const std::string& target, const std::string& name) {
  const size_t at = target.find(name + "=");
  if (at == std::string::npos) return "";
  const size_t begin = at + name.size() + 1;
  return target.substr(begin, target.find('&', begin) - begin);
}

InformerOptions Quick() {
  InformerOptions options;
  options.first_back_off = milliseconds(20);
  options.longest_back_off = milliseconds(100);
  return options;
}

// Turns until `done`, or not in time.
template <typename Loop, typename Done>
bool Turn(RestClient* client, Loop* loop, Done done, Duration limit = seconds(30)) {
  for (const auto end = Clock::now() + limit; Clock::now() < end;) {
    loop->Run();
    const Duration due =
        std::clamp<Duration>(loop->NextDue() - SteadyNow(), milliseconds(1), milliseconds(100));
    client->Poll(due);
    while (auto event = client->Next()) EXPECT_TRUE(loop->Take(&*event));
    if (done()) return true;
  }
  return false;
}

// 1,234 pods in pages; then the watch does what the test says.
class PodServer {
 public:
  explicit PodServer(int pods) : pods_(pods) {}

  bool List(const FaultRequest& request, Peer& peer) {
    const int from =
        ValueOf(request.target, "continue").empty() ? 0 : std::stoi(ValueOf(request.target, "continue"));
    const int limit = std::stoi(ValueOf(request.target, "limit"));
    std::vector<Json> items;
    for (int i = from; i < std::min(from + limit, pods_); ++i)
      items.push_back(Pod("p" + std::to_string(i), std::to_string(i + 1)));
    const bool last = from + limit >= pods_;
    peer.Answer(200, Page(items, "5000", last ? "" : std::to_string(from + limit)).body.dump());
    return true;
  }

 private:
  int pods_;
};

std::string Line(const char* type, const Json& object) {
  return Json{{"type", type}, {"object", object}}.dump() + "\n";
}

TEST(InformerLoop, AHugeListComesInPagesAndTheWatchGoesOnFromIt) {
  PodServer pods(1234);
  FaultServer server([&](const FaultRequest& request, Peer& peer) {
    if (request.target.find("watch=1") == std::string::npos) return pods.List(request, peer);
    EXPECT_EQ(ValueOf(request.target, "resourceVersion"), "5000");
    peer.BeginChunks();
    peer.Chunk(Line("DELETED", Pod("p7", "5001")) + Line("ADDED", Pod("new", "5002")));
    peer.Pause(seconds(60));
    return false;
  });
  const auto client = Client(server);
  InformerLoop loop(client.get(), Pods(), Quick(), Random(2));
  ASSERT_TRUE(Turn(client.get(), &loop, [&] { return loop.informer().resource_version() == "5002"; }));
  EXPECT_TRUE(loop.informer().synced());
  EXPECT_EQ(loop.informer().objects().size(), 1234u);
  EXPECT_EQ(loop.informer().Find("ns/p7"), nullptr);
  EXPECT_NE(loop.informer().Find("ns/new"), nullptr);
  EXPECT_EQ(loop.informer().counters().pages, 3u);
}

TEST(InformerLoop, PagesAboveTheBoundBecomeSmallerOnes) {
  PodServer pods(400);
  FaultServer server([&](const FaultRequest& request, Peer& peer) {
    if (request.target.find("watch=1") == std::string::npos) return pods.List(request, peer);
    peer.BeginChunks();
    peer.Pause(seconds(60));
    return false;
  });
  RestOptions options;
  options.max_response_bytes = 12'000;
  const auto client = Client(server, options);
  InformerLoop loop(client.get(), Pods(), Quick(), Random(2));
  ASSERT_TRUE(Turn(client.get(), &loop, [&] { return loop.informer().synced(); }));
  EXPECT_EQ(loop.informer().objects().size(), 400u);
  EXPECT_GE(loop.informer().counters().pages, 4u);
}

// Each watch ends otherwise; after all of them the copy is right.
TEST(InformerLoop, WhateverEndsAWatchTheCopyIsRightInTheEnd) {
  std::mutex mutex;
  int watches = 0;
  std::map<std::string, std::string> pods = {{"keep", "1"}, {"lost", "2"}};
  FaultServer server([&](const FaultRequest& request, Peer& peer) {
    std::unique_lock lock(mutex);
    if (request.target.find("watch=1") == std::string::npos) {
      std::vector<Json> items;
      for (const auto& [name, version] : pods) items.push_back(Pod(name, version));
      peer.Answer(200, Page(items, "10").body.dump());
      return true;
    }
    switch (watches++) {
      case 0:  // cut inside a line
        peer.BeginChunks();
        peer.Chunk(Line("ADDED", Pod("cut", "11")).substr(0, 25));
        peer.Reset();
        return false;
      case 1:
        peer.Answer(500, "{}");
        return true;
      case 2:
        peer.Answer(429, "{}", "Retry-After: 1\r\n");
        return true;
      case 3:
        return false;  // closed at once
      case 4:
        peer.Send("nonsense\r\n\r\n");
        return false;
      case 5:  // gone, and meanwhile one pod went too
        pods.erase("lost");
        peer.BeginChunks();
        peer.Chunk(R"({"type":"ERROR","object":{"kind":"Status","code":410}})"
                   "\n");
        return false;
      default:
        break;
    }
    pods["late"] = "12";
    lock.unlock();
    peer.BeginChunks();
    peer.Chunk(Line("ADDED", Pod("late", "12")));
    peer.Pause(seconds(60));
    return false;
  });
  const auto client = Client(server);
  InformerLoop loop(client.get(), Pods(), Quick(), Random(3));
  std::map<std::string, bool> reader;
  const bool right = Turn(client.get(), &loop, [&] {
    while (const auto change = loop.informer().Next()) reader[change->key] = change->after != nullptr;
    return loop.informer().Find("ns/late") != nullptr;
  });
  ASSERT_TRUE(right) << loop.informer().trouble();
  EXPECT_EQ(reader, (std::map<std::string, bool>{{"ns/keep", true}, {"ns/lost", false}, {"ns/late", true}}));
  EXPECT_GE(loop.informer().counters().gone, 1u);
  EXPECT_EQ(loop.informer().counters().relist_deletes, 1u);
  EXPECT_GE(loop.informer().counters().failures, 1u);
}

TEST(InformerLoop, AFullStoreEndsTheWatchThatRuns) {
  std::atomic<int> watches{0};
  FaultServer server([&](const FaultRequest& request, Peer& peer) {
    if (request.target.find("watch=1") == std::string::npos) {
      peer.Answer(200, Page({Pod("a", "1")}, "10").body.dump());
      return true;
    }
    ++watches;
    peer.BeginChunks();
    peer.Chunk(Line("ADDED", Pod("b", "11")));
    EXPECT_FALSE(peer.Pause(seconds(60))) << "the client closes it";
    return false;
  });
  InformerOptions options = Quick();
  options.max_objects = 1;
  const auto client = Client(server);
  InformerLoop loop(client.get(), Pods(), options, Random(2));
  ASSERT_TRUE(Turn(client.get(), &loop, [&] { return loop.informer().counters().overflows >= 2; }));
  EXPECT_GE(watches.load(), 2);
  EXPECT_LE(client->calls(), 1u) << "a watch that is given up is not left running";
}

// A lease with compare-and-swap.
class LeaseHandler {
 public:
  bool operator()(const FaultRequest& request, Peer& peer) {
    const std::lock_guard lock(mutex_);
    if (request.method == "GET") {
      peer.Answer(lease_.is_null() ? 404 : 200, lease_.dump());
      return true;
    }
    Json lease = Json::parse(request.body);
    const bool fits = request.method == "POST"
                          ? lease_.is_null()
                          : !lease_.is_null() &&
                                lease["metadata"]["resourceVersion"] == lease_["metadata"]["resourceVersion"];
    if (!fits) {
      peer.Answer(409, R"({"reason":"Conflict"})");
      return true;
    }
    lease_ = std::move(lease);
    lease_["metadata"]["resourceVersion"] = std::to_string(++version_);
    peer.Answer(request.method == "POST" ? 201 : 200, lease_.dump());
    return true;
  }

 private:
  std::mutex mutex_;
  Json lease_;
  int version_ = 0;
};

LeaseOptions QuickLease(const std::string& identity) {
  LeaseOptions options;
  options.name_space = "longhaul";
  options.name = "operator";
  options.identity = identity;
  options.lease = milliseconds(1500) * LONGHAUL_SLOWNESS;
  options.renew_deadline = milliseconds(1000) * LONGHAUL_SLOWNESS;
  options.retry = milliseconds(200) * LONGHAUL_SLOWNESS;
  return options;
}

TEST(ElectionLoop, OneLeadsAndTheOtherFollowsAtItsRelease) {
  LeaseHandler lease;
  FaultServer server([&](const FaultRequest& request, Peer& peer) { return lease(request, peer); });
  const auto one = Client(server), two = Client(server);
  ElectionLoop a(one.get(), QuickLease("a"), Random(1)), b(two.get(), QuickLease("b"), Random(2));
  ASSERT_TRUE(Turn(one.get(), &a, [&] { return a.election().Leads(SteadyNow()); }));
  for (int i = 0; i < 10; ++i) {
    Turn(one.get(), &a, [] { return true; });
    Turn(two.get(), &b, [] { return true; });
    EXPECT_FALSE(b.election().Leads(SteadyNow()));
  }
  a.election().Release(SteadyNow());
  ASSERT_TRUE(Turn(one.get(), &a, [&] { return a.election().released(); }));
  EXPECT_FALSE(a.election().Leads(SteadyNow()));
  EXPECT_TRUE(Turn(two.get(), &b, [&] { return b.election().Leads(SteadyNow()); }));
}

TEST(ElectionLoop, WithoutAnswersTheLeadEnds) {
  LeaseHandler lease;
  std::atomic<bool> deaf{false};
  FaultServer server([&](const FaultRequest& request, Peer& peer) {
    if (!deaf) return lease(request, peer);
    peer.Pause(seconds(60));
    return false;
  });
  const auto client = Client(server);
  ElectionLoop a(client.get(), QuickLease("a"), Random(1));
  ASSERT_TRUE(Turn(client.get(), &a, [&] { return a.election().Leads(SteadyNow()); }));
  deaf = true;
  const auto begin = Clock::now();
  EXPECT_TRUE(Turn(client.get(), &a, [&] { return !a.election().Leads(SteadyNow()); }));
  EXPECT_LT(Clock::now() - begin, seconds(3) * LONGHAUL_SLOWNESS);
}

TEST(InformerLoop, ItsEndEndsWhatRuns) {
  FaultServer server([](const FaultRequest&, Peer& peer) {
    peer.Pause(seconds(60));
    return false;
  });
  const auto client = Client(server);
  {
    InformerLoop loop(client.get(), Pods(), Quick(), Random(2));
    loop.Run();
    EXPECT_EQ(client->calls(), 1u);
  }
  EXPECT_EQ(client->calls(), 0u);
}

TEST(ListAll, GathersThePagesAndBeginsAgainWhenTheTokenExpires) {
  PodServer pods(1234);
  std::atomic<int> asked{0};
  FaultServer server([&](const FaultRequest& request, Peer& peer) {
    if (asked++ == 1) {
      peer.Answer(410, R"({"reason":"Expired"})");
      return true;
    }
    return pods.List(request, peer);
  });
  const auto client = Client(server);
  const ApiResult all = ListAll(client.get(), Pods(), 2000);
  ASSERT_TRUE(all.ok()) << all.ToString();
  EXPECT_EQ(all.body["items"].size(), 1234u);
  EXPECT_EQ(asked.load(), 5);
  EXPECT_EQ(ListAll(client.get(), Pods(), 1000).code, ApiCode::kTooLarge);
}

}  // namespace
}  // namespace longhaul::kube::api
