// The real client against a server that does what servers and networks do: each fault has a name, and an end
// in time.
#include "operator/api/rest_client.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "tests/operator/api/fault_server.h"
#include "tests/operator/api/temporary_folder.h"
#include "tests/operator/api/test_ca.h"

namespace longhaul::kube::api {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using Clock = std::chrono::steady_clock;
using Peer = FaultServer::Peer;

const ResourceType kPods{"", "v1", "pods", true};

ApiRequest Of(Verb verb, const std::string& name = "a") {
  ApiRequest request;
  request.verb = verb;
  request.type = kPods;
  request.name_space = "ns";
  request.name = verb == Verb::kList || verb == Verb::kWatch || verb == Verb::kCreate ? "" : name;
  request.body = Json::object();
  if (verb == Verb::kApply) request.field_manager = "test";
  return request;
}

// Waits of a test are short, and long enough for a slow machine.
RestOptions Short() {
  RestOptions options;
  options.connect_limit = seconds(2) * LONGHAUL_SLOWNESS;
  options.attempt_limit = milliseconds(400) * LONGHAUL_SLOWNESS;
  options.request_limit = seconds(10) * LONGHAUL_SLOWNESS;
  options.watch_silence = milliseconds(400) * LONGHAUL_SLOWNESS;
  options.retry.first = milliseconds(20);
  return options;
}

std::unique_ptr<RestClient> Client(const FaultServer& server, RestOptions options = Short(),
                                   ClusterAccess access = {}) {
  access.server = server.url();
  auto client = RestClient::Make(access, options, Random(1));
  EXPECT_TRUE(client.ok()) << client.status().message();
  return std::move(*client);
}

// What a watch has said until it ended.
struct Watched {
  std::vector<std::string> versions;
  ApiResult end;
  bool ended = false;
};
Watched Watch(RestClient* client, const ApiRequest& request, Duration limit = seconds(20)) {
  Watched watched;
  const auto call = client->Start(request);
  EXPECT_TRUE(call.ok());
  for (const auto end = Clock::now() + limit; Clock::now() < end && !watched.ended;) {
    client->Poll(milliseconds(200));
    while (auto event = client->Next()) {
      EXPECT_EQ(event->call, *call);
      if (event->done) {
        watched.ended = true;
        watched.end = std::move(event->result);
      } else {
        watched.versions.push_back(event->watch.resource_version);
      }
    }
  }
  EXPECT_TRUE(watched.ended);
  return watched;
}
std::string Line(int version) {
  return R"({"type":"ADDED","object":{"metadata":{"name":"p","resourceVersion":")" + std::to_string(version) +
         "\"}}}\n";
}
using Texts = std::vector<std::string>;

TEST(RestClient, EachVerbArrivesAsItWasMeant) {
  FaultServer server([](const FaultRequest&, Peer& peer) {
    peer.Answer(200, R"({"kind":"Pod"})");
    return true;
  });
  const auto client = Client(server);
  ApiRequest apply = Of(Verb::kApply);
  apply.body = {{"spec", {{"gpus", "10"}}}};
  for (const ApiRequest& request :
       {Of(Verb::kGet), apply, Of(Verb::kReplace), Of(Verb::kDelete), Of(Verb::kCreate)}) {
    const ApiResult result = client->Call(request);
    EXPECT_TRUE(result.ok()) << result.ToString();
    EXPECT_EQ(result.body["kind"], "Pod");
  }
  const auto seen = server.requests();
  ASSERT_EQ(seen.size(), 5u);
  EXPECT_EQ(seen[0].method, "GET");
  EXPECT_EQ(seen[0].target, "/api/v1/namespaces/ns/pods/a");
  EXPECT_EQ(seen[0].headers.count("content-type"), 0u);
  EXPECT_EQ(seen[0].headers.at("accept"), "application/json");
  EXPECT_EQ(seen[1].method, "PATCH");
  EXPECT_EQ(seen[1].headers.at("content-type"), "application/apply-patch+yaml");
  EXPECT_EQ(seen[1].body, R"({"spec":{"gpus":"10"}})");
  EXPECT_EQ(seen[2].method, "PUT");
  EXPECT_EQ(seen[3].method, "DELETE");
  EXPECT_NE(seen[3].body.find("DeleteOptions"), std::string::npos);
  EXPECT_EQ(seen[3].connection, 0) << "one connection serves them all";
  EXPECT_EQ(seen[4].method, "POST");
}

TEST(RestClient, AnswersAreNamed) {
  std::atomic<int> status{404};
  FaultServer server([&](const FaultRequest&, Peer& peer) {
    peer.Answer(status.load(), R"({"kind":"Status","reason":")" +
                                   std::string(status == 409 ? "AlreadyExists" : "X") +
                                   R"(","message":"why"})");
    return true;
  });
  const auto client = Client(server);
  const std::pair<int, ApiCode> codes[] = {{404, ApiCode::kNotFound},
                                           {409, ApiCode::kAlreadyExists},
                                           {410, ApiCode::kGone},
                                           {403, ApiCode::kForbidden},
                                           {422, ApiCode::kInvalid}};
  for (const auto& [http, code] : codes) {
    status = http;
    const ApiResult result = client->Call(Of(Verb::kGet));
    EXPECT_EQ(result.code, code);
    EXPECT_EQ(result.http, http);
    EXPECT_EQ(result.message, "why");
    EXPECT_EQ(result.attempts, 1u);
  }
}

TEST(RestClient, RetryAfterIsWaitedForAlsoByACreate) {
  std::atomic<int> asked{0};
  FaultServer server([&](const FaultRequest&, Peer& peer) {
    if (asked++ == 0) {
      peer.Answer(429, "{}", "retry-AFTER:  1 \r\n");
    } else {
      peer.Answer(201, "{}");
    }
    return true;
  });
  const auto client = Client(server);
  const auto begin = Clock::now();
  const ApiResult result = client->Call(Of(Verb::kCreate));
  EXPECT_TRUE(result.ok()) << result.ToString();
  EXPECT_EQ(result.attempts, 2u);
  EXPECT_GE(Clock::now() - begin, seconds(1));
  EXPECT_EQ(client->counters().throttled, 1u);
  EXPECT_EQ(client->counters().retries, 1u);
}

TEST(RestClient, AWaitThatDoesNotFitIntoTheRequestsTimeIsNotBegun) {
  FaultServer server([](const FaultRequest&, Peer& peer) {
    peer.Answer(503, "{}", "Retry-After: 15\r\n");
    return true;
  });
  const auto client = Client(server);
  ApiRequest request = Of(Verb::kGet);
  request.time_limit = seconds(10);
  request.max_attempts = 2;
  const ApiResult result = client->Call(request);
  EXPECT_EQ(result.code, ApiCode::kThrottled);
  EXPECT_EQ(result.retry_after, seconds(15));
  EXPECT_EQ(result.attempts, 1u);
}

TEST(RestClient, AServerErrorIsAskedAgainButNotACreate) {
  FaultServer server([](const FaultRequest&, Peer& peer) {
    peer.Answer(500, R"({"message":"etcd has no leader"})");
    return true;
  });
  const auto client = Client(server);
  const ApiResult get = client->Call(Of(Verb::kGet));
  EXPECT_EQ(get.code, ApiCode::kServerError);
  EXPECT_EQ(get.attempts, 5u);
  EXPECT_EQ(get.message, "etcd has no leader");
  const ApiResult create = client->Call(Of(Verb::kCreate));
  EXPECT_EQ(create.attempts, 1u);
  EXPECT_EQ(server.requests().size(), 6u);
}

TEST(RestClient, AServerThatComesBackIsFound) {
  std::atomic<int> asked{0};
  FaultServer server([&](const FaultRequest&, Peer& peer) {
    if (asked++ < 2) return false;  // closes at once
    peer.Answer(200, "{}");
    return true;
  });
  const auto client = Client(server);
  const ApiResult result = client->Call(Of(Verb::kGet));
  EXPECT_TRUE(result.ok()) << result.ToString();
  EXPECT_GE(server.connections(), 3);
}

TEST(RestClient, ConnectionsThatAreClosedAtOnceAreUnreachable) {
  FaultServer server([](const FaultRequest&, Peer&) { return false; });
  server.RefuseConnections(true);
  const auto client = Client(server);
  EXPECT_EQ(client->Call(Of(Verb::kGet)).code, ApiCode::kUnreachable);
  EXPECT_EQ(client->calls(), 0u);
}

TEST(RestClient, WhereNothingListensACreateIsTriedAgainToo) {
  std::string url;
  {
    url = FaultServer([](const FaultRequest&, Peer&) { return false; }).url();
  }
  ClusterAccess access;
  access.server = url;
  auto client = RestClient::Make(access, Short(), Random(1));
  const ApiResult result = (*client)->Call(Of(Verb::kCreate));
  EXPECT_EQ(result.code, ApiCode::kUnreachable);
  EXPECT_TRUE(result.not_sent);
  EXPECT_EQ(result.attempts, 5u);
}

TEST(RestClient, AResetInsideTheAnswerIsUnreachable) {
  FaultServer server([](const FaultRequest&, Peer& peer) {
    peer.Send("HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n{\"half\":");
    peer.Reset();
    return false;
  });
  const auto client = Client(server);
  EXPECT_EQ(client->Call(Of(Verb::kCreate)).code, ApiCode::kUnreachable);
}

TEST(RestClient, ACreateIsNotSentTwiceByAConnectionThatDies) {
  FaultServer server([](const FaultRequest& request, Peer& peer) {
    if (request.method == "POST") return false;  // done, it may be, without an answer
    peer.Answer(200, "{}");
    return true;
  });
  const auto client = Client(server);
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(client->Call(Of(Verb::kGet)).ok());
  EXPECT_EQ(client->Call(Of(Verb::kCreate)).code, ApiCode::kUnreachable);
  EXPECT_EQ(server.requests().size(), 4u);
}

TEST(RestClient, AnswersThatAreNotFetchedCountForTheBound) {
  FaultServer server([](const FaultRequest&, Peer& peer) {
    peer.Answer(200, "{}");
    return true;
  });
  RestOptions options = Short();
  options.max_calls = 1;
  const auto client = Client(server, options);
  ASSERT_TRUE(client->Start(Of(Verb::kGet)).ok());
  client->Poll(seconds(20));
  EXPECT_EQ(client->calls(), 0u);
  EXPECT_FALSE(client->Start(Of(Verb::kGet)).ok());
  EXPECT_TRUE(client->Next().has_value());
  EXPECT_TRUE(client->Start(Of(Verb::kGet)).ok());
}

TEST(RestClient, AnAnswerThatIsCutIsUnreachableAndNotHalfAnObject) {
  FaultServer server([](const FaultRequest&, Peer& peer) {
    peer.Send("HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n{\"whole\":1}");
    return false;
  });
  const auto client = Client(server);
  EXPECT_EQ(client->Call(Of(Verb::kCreate)).code, ApiCode::kUnreachable);
}

TEST(RestClient, BytesThatComeTooSlowlyEndInTime) {
  FaultServer server([](const FaultRequest&, Peer& peer) {
    peer.Send("HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n{");
    while (peer.Send(" ") && peer.Pause(milliseconds(20))) {
    }
    return false;
  });
  const auto client = Client(server);
  ApiRequest request = Of(Verb::kGet);
  request.max_attempts = 1;
  const auto begin = Clock::now();
  EXPECT_EQ(client->Call(request).code, ApiCode::kTimedOut);
  EXPECT_LT(Clock::now() - begin, seconds(3) * LONGHAUL_SLOWNESS);
  EXPECT_EQ(client->counters().timed_out, 1u);
}

TEST(RestClient, TheRequestsOwnLimitHoldsForAllItsAttempts) {
  FaultServer server([](const FaultRequest&, Peer& peer) {
    peer.Pause(seconds(30));
    return false;
  });
  RestOptions options = Short();
  options.attempt_limit = milliseconds(150) * LONGHAUL_SLOWNESS;
  const auto client = Client(server, options);
  ApiRequest request = Of(Verb::kGet);
  request.time_limit = milliseconds(500) * LONGHAUL_SLOWNESS;
  request.max_attempts = 100;
  const auto begin = Clock::now();
  const ApiResult result = client->Call(request);
  EXPECT_EQ(result.code, ApiCode::kTimedOut);
  EXPECT_GE(result.attempts, 2u);
  EXPECT_LT(Clock::now() - begin, milliseconds(2000) * LONGHAUL_SLOWNESS);
}

TEST(RestClient, GarbageIsMalformed) {
  for (const char* garbage :
       {"\x16\x03\x01 this is no HTTP\r\n\r\n", "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\n<ht>",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"}) {
    SCOPED_TRACE(garbage);
    FaultServer server([garbage](const FaultRequest&, Peer& peer) {
      peer.Send(garbage);
      return false;
    });
    const auto client = Client(server);
    const ApiResult result = client->Call(Of(Verb::kCreate));
    EXPECT_TRUE(result.code == ApiCode::kMalformed || result.code == ApiCode::kUnreachable)
        << result.ToString();
    EXPECT_FALSE(result.message.empty());
  }
}

TEST(RestClient, ARedirectIsNotFollowed) {
  FaultServer server([](const FaultRequest&, Peer& peer) {
    peer.Answer(302, "{}", "Location: http://127.0.0.1:1/\r\n");
    return true;
  });
  const auto client = Client(server);
  EXPECT_EQ(client->Call(Of(Verb::kGet)).code, ApiCode::kMalformed);
  EXPECT_EQ(server.requests().size(), 1u);
}

TEST(RestClient, AnAnswerAboveTheBoundIsCutOff) {
  std::atomic<size_t> sent{0};
  FaultServer server([&](const FaultRequest&, Peer& peer) {
    peer.BeginChunks();
    while (sent < 100'000'000 && peer.Chunk(std::string(10'000, ' '))) sent += 10'000;
    return false;
  });
  RestOptions options = Short();
  options.max_response_bytes = 100'000;
  options.attempt_limit = seconds(20);
  const auto client = Client(server, options);
  EXPECT_EQ(client->Call(Of(Verb::kGet)).code, ApiCode::kTooLarge);
  EXPECT_LT(sent.load(), 20'000'000u);
  EXPECT_EQ(client->counters().too_large, 1u);
}

TEST(RestClient, AnAnswerThatIsNotWantedIsNotKeptAndARefusalIs) {
  std::atomic<bool> refuses{false};
  FaultServer server([&](const FaultRequest&, Peer& peer) {
    if (refuses) {
      peer.Answer(409, R"({"kind":"Status","reason":"Conflict","message":"changed"})");
    } else {
      peer.Answer(200, "{\"text\":\"" + std::string(300'000, 'x') + "\"}");
    }
    return true;
  });
  RestOptions options = Short();
  options.max_response_bytes = 100'000;
  const auto client = Client(server, options);
  ApiRequest request = Of(Verb::kApply);
  EXPECT_EQ(client->Call(request).code, ApiCode::kTooLarge);
  ApiRequest one = Of(Verb::kList);
  EXPECT_EQ(client->Call(one).code, ApiCode::kTooLarge);
  one.page_limit = 1;
  EXPECT_EQ(client->Call(one).code, ApiCode::kOk) << "one object is not to stop a list for ever";
  request.ignores_answer = true;
  const ApiResult done = client->Call(request);
  EXPECT_EQ(done.code, ApiCode::kOk) << done.ToString();
  EXPECT_EQ(done.http, 200);
  EXPECT_TRUE(done.body.is_null());
  refuses = true;
  const ApiResult refused = client->Call(request);
  EXPECT_EQ(refused.code, ApiCode::kConflict);
  EXPECT_THAT(refused.ToString(), testing::HasSubstr("changed"));
}

TEST(RestClient, HeadersWithoutEndAreCutOff) {
  FaultServer server([](const FaultRequest&, Peer& peer) {
    peer.Send("HTTP/1.1 200 OK\r\n");
    while (peer.Send("X-Long: " + std::string(1000, 'x') + "\r\n")) {
    }
    return false;
  });
  RestOptions options = Short();
  options.attempt_limit = seconds(20);
  const auto client = Client(server, options);
  EXPECT_EQ(client->Call(Of(Verb::kCreate)).code, ApiCode::kTooLarge);
}

TEST(RestClient, AnExpiredTokenIsReadAgainOnce) {
  const TemporaryFolder folder;
  ClusterAccess access;
  access.token_file = folder.Write("token", "old");
  FaultServer server([](const FaultRequest& request, Peer& peer) {
    peer.Answer(request.headers.at("authorization") == "Bearer new" ? 200 : 401, "{}");
    return true;
  });
  const auto client = Client(server, Short(), access);
  const ApiResult refused = client->Call(Of(Verb::kGet));
  EXPECT_EQ(refused.code, ApiCode::kUnauthorized);
  EXPECT_EQ(refused.attempts, 2u) << "read again once, and it is the same";
  folder.Write("token", "new\n");
  const ApiResult taken = client->Call(Of(Verb::kCreate));
  EXPECT_TRUE(taken.ok()) << taken.ToString();
  EXPECT_EQ(taken.attempts, 2u);
  EXPECT_EQ(client->Call(Of(Verb::kGet)).attempts, 1u);
}

TEST(RestClient, AFixedTokenIsNotTriedTwice) {
  ClusterAccess access;
  access.token = "fixed";
  FaultServer server([](const FaultRequest& request, Peer& peer) {
    EXPECT_EQ(request.headers.at("authorization"), "Bearer fixed");
    peer.Answer(401, "{}");
    return true;
  });
  const auto client = Client(server, Short(), access);
  EXPECT_EQ(client->Call(Of(Verb::kGet)).attempts, 1u);
}

TEST(RestClient, ATokenFileThatIsMissingIsNamed) {
  ClusterAccess access;
  access.token_file = "/nonexistent/token";
  FaultServer server([](const FaultRequest&, Peer&) { return false; });
  const auto client = Client(server, Short(), access);
  const ApiResult result = client->Call(Of(Verb::kGet));
  EXPECT_EQ(result.code, ApiCode::kUnauthorized);
  EXPECT_NE(result.message.find("/nonexistent/token"), std::string::npos);
  EXPECT_TRUE(server.requests().empty()) << "nothing is asked without a proof";
}

TEST(RestClientWatch, EventsComeAsTheyAreSent) {
  FaultServer server([](const FaultRequest& request, Peer& peer) {
    EXPECT_NE(request.target.find("watch=1&allowWatchBookmarks=true&resourceVersion=7"), std::string::npos);
    peer.BeginChunks();
    peer.Chunk(Line(8) + Line(9));
    peer.Pause(milliseconds(50));
    peer.Chunk(Line(10).substr(0, 30));
    peer.Chunk(Line(10).substr(30));
    peer.EndChunks();
    return true;
  });
  const auto client = Client(server);
  ApiRequest request = Of(Verb::kWatch);
  request.resource_version = "7";
  const Watched watched = Watch(client.get(), request);
  EXPECT_EQ(watched.versions, (Texts{"8", "9", "10"}));
  EXPECT_TRUE(watched.end.ok()) << watched.end.ToString();
}

TEST(RestClientWatch, ACutInsideALineIsNoEnd) {
  FaultServer server([](const FaultRequest&, Peer& peer) {
    peer.BeginChunks();
    peer.Chunk(Line(8) + Line(9).substr(0, 20));
    peer.EndChunks();
    return false;
  });
  const auto client = Client(server);
  const Watched watched = Watch(client.get(), Of(Verb::kWatch));
  EXPECT_EQ(watched.versions, Texts{"8"});
  EXPECT_EQ(watched.end.code, ApiCode::kUnreachable);
}

TEST(RestClientWatch, AConnectionThatBreaksAfterWholeEventsKeepsThem) {
  FaultServer server([](const FaultRequest&, Peer& peer) {
    peer.BeginChunks();
    peer.Chunk(Line(8) + Line(9));
    peer.Pause(milliseconds(50));
    peer.Reset();
    return false;
  });
  const auto client = Client(server);
  const Watched watched = Watch(client.get(), Of(Verb::kWatch));
  EXPECT_EQ(watched.versions, (Texts{"8", "9"}));
  EXPECT_EQ(watched.end.code, ApiCode::kUnreachable);
  EXPECT_EQ(server.requests().size(), 1u) << "the informer begins the next one";
}

TEST(RestClientWatch, GoneIsSaidByStatusOrByEvent) {
  std::atomic<bool> by_event{false};
  FaultServer server([&](const FaultRequest&, Peer& peer) {
    if (!by_event) {
      peer.Answer(410, R"({"kind":"Status","code":410,"reason":"Expired"})");
      return true;
    }
    peer.BeginChunks();
    peer.Chunk(Line(8) + R"({"type":"ERROR","object":{"kind":"Status","code":410,"message":"too old"}})" +
               "\n");
    peer.Pause(seconds(30));  // this client does not wait for the end
    return false;
  });
  const auto client = Client(server);
  EXPECT_EQ(Watch(client.get(), Of(Verb::kWatch)).end.code, ApiCode::kGone);
  by_event = true;
  const auto begin = Clock::now();
  const Watched watched = Watch(client.get(), Of(Verb::kWatch));
  EXPECT_EQ(watched.end.code, ApiCode::kGone);
  EXPECT_EQ(watched.end.message, "too old");
  EXPECT_EQ(watched.versions, Texts{"8"});
  EXPECT_LT(Clock::now() - begin, seconds(5));
}

TEST(RestClientWatch, ALineWithoutEndIsTooLarge) {
  FaultServer server([](const FaultRequest&, Peer& peer) {
    peer.BeginChunks();
    while (peer.Chunk(std::string(10'000, 'x'))) {
    }
    return false;
  });
  RestOptions options = Short();
  options.max_line_bytes = 100'000;
  const auto client = Client(server, options);
  EXPECT_EQ(Watch(client.get(), Of(Verb::kWatch)).end.code, ApiCode::kTooLarge);
}

TEST(RestClientWatch, ALineThatIsNoEventIsMalformed) {
  FaultServer server([](const FaultRequest&, Peer& peer) {
    peer.BeginChunks();
    peer.Chunk(Line(8) + "no json\n");
    peer.Pause(seconds(30));
    return false;
  });
  const auto client = Client(server);
  const Watched watched = Watch(client.get(), Of(Verb::kWatch));
  EXPECT_EQ(watched.versions, Texts{"8"});
  EXPECT_EQ(watched.end.code, ApiCode::kMalformed);
  EXPECT_NE(watched.end.message.find("line 2"), std::string::npos);
}

TEST(RestClientWatch, SilenceEndsItAndBytesKeepItOpen) {
  FaultServer server([](const FaultRequest&, Peer& peer) {
    peer.BeginChunks();
    for (int i = 8; i < 14; ++i) {
      peer.Chunk(Line(i));
      peer.Pause(milliseconds(150) * LONGHAUL_SLOWNESS);
    }
    peer.Pause(seconds(60));
    return false;
  });
  const auto client = Client(server);
  const auto begin = Clock::now();
  const Watched watched = Watch(client.get(), Of(Verb::kWatch));
  EXPECT_EQ(watched.versions.size(), 6u) << "longer than the limit of an attempt";
  EXPECT_EQ(watched.end.code, ApiCode::kTimedOut);
  EXPECT_NE(watched.end.message.find("silent"), std::string::npos);
  EXPECT_GE(Clock::now() - begin, milliseconds(900));
  EXPECT_LT(Clock::now() - begin, seconds(6) * LONGHAUL_SLOWNESS);
}

TEST(RestClientWatch, OneThatDoesNotBeginEndsInTime) {
  FaultServer server([](const FaultRequest&, Peer& peer) {
    peer.Pause(seconds(60));
    return false;
  });
  const auto client = Client(server);
  ApiRequest request = Of(Verb::kWatch);
  request.max_attempts = 2;
  const auto begin = Clock::now();
  const Watched watched = Watch(client.get(), request);
  EXPECT_EQ(watched.end.code, ApiCode::kTimedOut);
  EXPECT_EQ(watched.end.attempts, 2u);
  EXPECT_LT(Clock::now() - begin, seconds(4) * LONGHAUL_SLOWNESS);
}

TEST(RestClientWatch, EventsThatAreNotFetchedHoldTheServerUp) {
  constexpr int kEvents = 20'000;
  std::atomic<int> sent{0};
  FaultServer server([&](const FaultRequest&, Peer& peer) {
    peer.BeginChunks();
    const std::string padding(2000, ' ');
    for (int i = 0; i < kEvents && peer.Chunk(padding + Line(i + 1)); ++i) ++sent;
    peer.EndChunks();
    return false;
  });
  RestOptions options = Short();
  options.max_events = 64;
  options.watch_silence = seconds(60);
  const auto client = Client(server, options);
  ASSERT_TRUE(client->Start(Of(Verb::kWatch)).ok());
  const auto turn = [&](int times) {
    for (int i = 0; i < times; ++i) client->Poll(milliseconds(10));
  };
  // Polls return at once since there are events; the server comes to rest when the socket is full.
  int before = -1;
  for (int i = 0; i < 100 && before != sent; ++i) {
    before = sent;
    turn(5);
    std::this_thread::sleep_for(milliseconds(100));
  }
  EXPECT_LT(sent.load(), kEvents);
  EXPECT_GE(client->counters().pauses, 1u);
  EXPECT_LT(client->counters().watch_events, 500u);
  // Then all of them come, in order.
  int next = 1;
  bool done = false;
  for (const auto end = Clock::now() + seconds(60); !done && Clock::now() < end;
       client->Poll(milliseconds(100))) {
    while (auto event = client->Next()) {
      done = event->done;
      if (done) {
        EXPECT_TRUE(event->result.ok()) << event->result.ToString();
      } else {
        ASSERT_EQ(event->watch.resource_version, std::to_string(next++));
      }
    }
  }
  EXPECT_TRUE(done);
  EXPECT_EQ(next, kEvents + 1);
}

TEST(RestClientWatch, OtherRequestsGoOnBesideIt) {
  FaultServer server([](const FaultRequest& request, Peer& peer) {
    if (request.target.find("watch=1") == std::string::npos) {
      peer.Answer(200, "{}");
      return true;
    }
    peer.BeginChunks();
    peer.Chunk(Line(8));
    peer.Pause(seconds(60));
    return false;
  });
  RestOptions options = Short();
  options.watch_silence = seconds(60);
  const auto client = Client(server, options);
  const auto watch = client->Start(Of(Verb::kWatch));
  for (int i = 0; i < 20; ++i) EXPECT_TRUE(client->Call(Of(Verb::kGet)).ok());
  client->Poll(seconds(5));
  const auto event = client->Next();
  ASSERT_TRUE(event.has_value());
  EXPECT_EQ(event->call, *watch);
  EXPECT_EQ(event->watch.resource_version, "8");
  client->Cancel(*watch);
  EXPECT_EQ(client->calls(), 0u);
  client->Poll(milliseconds(10));
  EXPECT_FALSE(client->Next().has_value()) << "of what was cancelled nothing comes";
}

// --- Logs

ApiRequest LogOf(bool follow) {
  ApiRequest request;
  request.verb = Verb::kLog;
  request.type = kPods;
  request.name_space = "ns";
  request.name = "a";
  request.container = "trainer";
  request.follow = follow;
  return request;
}

struct Logged {
  std::string text;
  std::optional<ApiResult> end;
};
Logged Follow(RestClient* client, const ApiRequest& request) {
  Logged logged;
  const auto call = client->Start(request);
  EXPECT_TRUE(call.ok());
  for (const auto end = Clock::now() + seconds(20); Clock::now() < end && !logged.end;) {
    client->Poll(milliseconds(200));
    while (auto event = client->Next()) {
      if (event->done) logged.end = std::move(event->result);
      logged.text += event->log;
    }
  }
  EXPECT_TRUE(logged.end.has_value());
  return logged;
}

TEST(RestClientLog, BytesComeAsTheyAreHoweverLongTheContainerIsSilent) {
  FaultServer server([](const FaultRequest&, Peer& peer) {
    peer.BeginChunks();
    peer.Chunk(std::string("no\0json\n", 8));
    peer.Pause(milliseconds(1000) * LONGHAUL_SLOWNESS);  // beyond attempt_limit and watch_silence
    peer.Chunk("end");
    peer.EndChunks();
    return true;
  });
  const auto client = Client(server);
  const Logged logged = Follow(client.get(), LogOf(true));
  EXPECT_EQ(logged.text, std::string("no\0json\nend", 11));
  EXPECT_TRUE(logged.end->ok()) << logged.end->ToString();
  EXPECT_EQ(server.requests()[0].target, "/api/v1/namespaces/ns/pods/a/log?container=trainer&follow=true");
  EXPECT_EQ(server.requests()[0].headers.at("accept"), "application/json, */*");
  EXPECT_EQ(client->Call(LogOf(false)).code, ApiCode::kInvalid);
}

TEST(RestClientLog, FailuresHaveTheirNames) {
  std::atomic<int> what{0};
  FaultServer server([&](const FaultRequest&, Peer& peer) {
    if (what == 0) {
      peer.Answer(404, R"({"kind":"Status","reason":"NotFound","message":"no pod"})");
      return true;
    }
    if (what == 1) return peer.Pause(seconds(30));  // does not begin
    peer.BeginChunks();
    peer.Chunk("half");
    peer.Reset();
    return false;
  });
  RestOptions options = Short();
  options.retry.attempts = 1;
  const auto client = Client(server, options);
  Logged logged = Follow(client.get(), LogOf(false));
  EXPECT_EQ(logged.end->code, ApiCode::kNotFound);
  EXPECT_EQ(logged.end->message, "no pod");
  EXPECT_EQ(logged.text, "");
  what = 1;
  logged = Follow(client.get(), LogOf(true));
  EXPECT_EQ(logged.end->code, ApiCode::kTimedOut);
  what = 2;
  logged = Follow(client.get(), LogOf(true));
  EXPECT_EQ(logged.end->code, ApiCode::kUnreachable) << "a log that is cut is not at its end";
}

TEST(RestClientLog, BytesThatAreNotFetchedHoldTheServerUp) {
  std::atomic<size_t> sent{0};
  FaultServer server([&](const FaultRequest&, Peer& peer) {
    peer.BeginChunks();
    const std::string piece(100'000, 'x');
    for (int i = 0; i < 500 && peer.Chunk(piece); ++i) sent += piece.size();
    peer.EndChunks();
    return true;
  });
  RestOptions options = Short();
  options.max_events = 4;
  const auto client = Client(server, options);
  ASSERT_TRUE(client->Start(LogOf(true)).ok());
  for (int i = 0; i < 20; ++i) client->Poll(milliseconds(50));
  const size_t held = sent;
  EXPECT_LT(held, size_t{30'000'000});
  size_t got = 0;
  bool done = false;
  for (const auto end = Clock::now() + seconds(20) * LONGHAUL_SLOWNESS; Clock::now() < end && !done;) {
    client->Poll(milliseconds(200));
    while (auto event = client->Next()) {
      got += event->log.size();
      done |= event->done;
    }
  }
  EXPECT_EQ(got, size_t{50'000'000});
}

TEST(RestClient, RequestsBeyondTheBoundAreRefused) {
  FaultServer server([](const FaultRequest&, Peer& peer) {
    peer.Pause(seconds(30));
    return false;
  });
  RestOptions options = Short();
  options.max_calls = 2;
  const auto client = Client(server, options);
  EXPECT_TRUE(client->Start(Of(Verb::kGet)).ok());
  EXPECT_TRUE(client->Start(Of(Verb::kGet)).ok());
  EXPECT_EQ(client->Start(Of(Verb::kGet)).status().code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(client->Call(Of(Verb::kGet)).code, ApiCode::kThrottled);
  EXPECT_EQ(client->counters().refused, 2u);
  ApiRequest bad = Of(Verb::kGet);
  bad.name.clear();
  EXPECT_EQ(client->Call(bad).code, ApiCode::kInvalid);
}

TEST(RestClient, WakeEndsAPollFromAnotherThread) {
  FaultServer server([](const FaultRequest&, Peer&) { return false; });
  const auto client = Client(server);
  std::thread other([&] {
    std::this_thread::sleep_for(milliseconds(50));
    client->Wake();
  });
  const auto begin = Clock::now();
  client->Poll(seconds(30));
  EXPECT_LT(Clock::now() - begin, seconds(10));
  other.join();
}

TEST(RestClientTls, TheClustersCaIsTrustedAndNoOther) {
  const TestCa ca("cluster"), other("other");
  FaultServer server(
      [](const FaultRequest&, Peer& peer) {
        peer.Answer(200, "{}");
        return true;
      },
      ca.Issue("server", "IP:127.0.0.1").Both());
  ClusterAccess access;
  access.ca = ca.Certificate();
  EXPECT_TRUE(Client(server, Short(), access)->Call(Of(Verb::kGet)).ok());
  access.ca = other.Certificate();
  const ApiResult refused = Client(server, Short(), access)->Call(Of(Verb::kCreate));
  EXPECT_EQ(refused.code, ApiCode::kUntrusted) << refused.ToString();
  EXPECT_EQ(refused.attempts, 1u);
  access.ca.clear();
  EXPECT_EQ(Client(server, Short(), access)->Call(Of(Verb::kGet)).code, ApiCode::kUntrusted)
      << "the system's authorities did not issue it";
  EXPECT_EQ(server.requests().size(), 1u) << "no request, and no token, before the certificate is checked";
}

TEST(RestClientTls, ACertificateForAnotherNameOrTimeIsNotTrusted) {
  const TestCa ca("cluster");
  ClusterAccess access;
  access.ca = ca.Certificate();
  for (const auto& certificate : {ca.Issue("server", "IP:127.0.0.2"), ca.Issue("server", "DNS:localhost"),
                                  ca.Issue("server", "IP:127.0.0.1", -1)}) {
    FaultServer server([](const FaultRequest&, Peer&) { return false; }, certificate.Both());
    EXPECT_EQ(Client(server, Short(), access)->Call(Of(Verb::kGet)).code, ApiCode::kUntrusted);
    EXPECT_TRUE(server.requests().empty());
  }
}

TEST(RestClientTls, AClientCertificateProvesTheUser) {
  const TestCa ca("cluster"), users("users");
  FaultServer server(
      [](const FaultRequest&, Peer& peer) {
        peer.Answer(200, "{}");
        return true;
      },
      ca.Issue("server", "IP:127.0.0.1").Both(), users.Certificate());
  const TestCa::Issued ann = users.Issue("ann", "");
  ClusterAccess access;
  access.ca = ca.Certificate();
  EXPECT_FALSE(Client(server, Short(), access)->Call(Of(Verb::kGet)).ok());
  access.client_certificate = ann.certificate;
  access.client_key = ann.key;
  const ApiResult result = Client(server, Short(), access)->Call(Of(Verb::kGet));
  EXPECT_TRUE(result.ok()) << result.ToString();
}

TEST(RestClientTls, AWatchThatIsCutInsideARecordKeepsItsWholeEvents) {
  const TestCa ca("cluster");
  FaultServer server(
      [](const FaultRequest&, Peer& peer) {
        peer.BeginChunks();
        peer.Chunk(Line(8));
        peer.Pause(milliseconds(50));
        peer.Reset();  // without close_notify
        return false;
      },
      ca.Issue("server", "IP:127.0.0.1").Both());
  ClusterAccess access;
  access.ca = ca.Certificate();
  const auto client = Client(server, Short(), access);
  const Watched watched = Watch(client.get(), Of(Verb::kWatch));
  EXPECT_EQ(watched.versions, Texts{"8"});
  EXPECT_EQ(watched.end.code, ApiCode::kUnreachable);
}

}  // namespace
}  // namespace longhaul::kube::api
