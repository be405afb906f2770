// The port on the loopback interface, with sources that answer, stand still or come and go.
#include "health/health_port.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>
#include <vector>

#include "tests/health/exposition_reader.h"
#include "tests/health/tcp_peer.h"

namespace longhaul::health {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::HasSubstr;
using Clock = std::chrono::steady_clock;

constexpr Duration kPatience = seconds(20) * LONGHAUL_SLOWNESS;

bool Eventually(const std::function<bool()>& condition) {
  for (const auto end = Clock::now() + kPatience; Clock::now() < end;) {
    if (condition()) return true;
    std::this_thread::sleep_for(milliseconds(5));
  }
  return condition();
}

HealthBounds Quick() {
  HealthBounds bounds;
  bounds.look_every = milliseconds(10);
  bounds.stands_still = milliseconds(200);
  bounds.connections_per_second = 100'000;
  return bounds;
}

class HealthPortTest : public ::testing::Test {
 protected:
  void Open(const HealthBounds& bounds) {
    auto opened = HealthPort::Open("127.0.0.1:0", "test", bounds);
    ASSERT_TRUE(opened.ok()) << opened.status().ToString();
    port_ = *std::move(opened);
  }
  HealthPort& port() { return *port_; }
  const Address& address() { return port_->address(); }
  HttpReply Get(const std::string& path, const std::string& method = "GET") {
    return health::Get(address(), path, method);
  }
  // -1: no page came.
  double Counter(const std::string& name) {
    const ExpositionReader page(Get("/metrics").body);
    EXPECT_EQ(page.error, "");
    return page.Value("longhaul_health_" + name).value_or(-1);
  }
  bool Becomes(const std::string& path, int code) {
    return Eventually([&] { return Get(path).code == code; });
  }
  static HealthSource Fine() {
    return {[] { return LoopState{.answers = true, .not_ready = {}}; }, [](MetricPage*) { return true; }};
  }

 private:
  std::unique_ptr<HealthPort> port_;
};

TEST_F(HealthPortTest, StartsNotReadyIsReadyWhenItsLoopSaysSoAndEndsNotReady) {
  Open(Quick());
  EXPECT_EQ(Get("/healthz").code, 200);
  EXPECT_EQ(Get("/readyz").code, 503);
  EXPECT_EQ(Get("/readyz").body, "starting\n");
  std::atomic<bool> joined{false};
  {
    const HealthWatch watch(
        &port(), {[&] { return LoopState{.answers = true, .not_ready = joined ? "" : "not joined"}; },
                  [](MetricPage*) { return true; }});
    EXPECT_TRUE(Eventually([&] { return Get("/readyz").body == "not joined\n"; }));
    joined = true;
    EXPECT_TRUE(Becomes("/readyz", 200));
    EXPECT_EQ(ExpositionReader(Get("/metrics").body).Value("longhaul_ready"), 1);
    port().SetStopping("told to stop");
    EXPECT_EQ(Get("/readyz").code, 503);
    EXPECT_EQ(Get("/readyz").body, "told to stop\n");
    EXPECT_EQ(Get("/healthz").code, 200) << "a daemon that drains is not dead";
  }
  EXPECT_EQ(Get("/readyz").body, "told to stop\n");
  EXPECT_EQ(Get("/healthz").code, 200);
}

TEST_F(HealthPortTest, ALoopThatDoesNotAnswerIsToldUntilItDoes) {
  Open(Quick());
  std::atomic<bool> answers{true};
  const HealthWatch watch(&port(), {[&] { return LoopState{.answers = answers, .not_ready = {}}; },
                                    [&](MetricPage*) { return answers.load(); }});
  EXPECT_TRUE(Becomes("/readyz", 200));
  answers = false;
  EXPECT_TRUE(Becomes("/healthz", 503));
  EXPECT_THAT(Get("/healthz").body, HasSubstr("has not answered for"));
  EXPECT_EQ(Get("/readyz").code, 503);
  std::this_thread::sleep_for(milliseconds(300));  // what was read before serves no longer
  EXPECT_EQ(Get("/metrics").code, 503);
  answers = true;
  EXPECT_TRUE(Becomes("/healthz", 200));
  EXPECT_TRUE(Becomes("/readyz", 200));
  EXPECT_TRUE(Becomes("/metrics", 200));
}

TEST_F(HealthPortTest, AnAnswerIsWaitedForAsLongAsItMayTakeAndNoLonger) {
  HealthBounds bounds = Quick();
  bounds.stands_still = seconds(2);
  Open(bounds);
  std::atomic<bool> answers{true};
  const HealthWatch watch(&port(), {[&] { return LoopState{.answers = answers, .not_ready = {}}; },
                                    [](MetricPage*) { return true; }});
  EXPECT_TRUE(Becomes("/readyz", 200));
  const auto begin = Clock::now();
  answers = false;
  EXPECT_TRUE(Becomes("/healthz", 503));
  EXPECT_GE(Clock::now() - begin, seconds(2));
}

TEST_F(HealthPortTest, AQuestionThatHangsHangsNoProbe) {
  Open(Quick());
  std::mutex mutex;
  std::condition_variable changed;
  bool hangs = true;
  const HealthWatch watch(&port(), {[&] {
                                      std::unique_lock lock(mutex);
                                      changed.wait(lock, [&] { return !hangs; });
                                      return LoopState{.answers = true, .not_ready = {}};
                                    },
                                    [](MetricPage*) { return true; }});
  EXPECT_TRUE(Becomes("/healthz", 503));
  {
    const std::lock_guard lock(mutex);
    hangs = false;
    changed.notify_all();
  }
  EXPECT_TRUE(Becomes("/healthz", 200));
}

TEST_F(HealthPortTest, PagesSayWhenTheWorkCameFurtherAndWhoTheyAreOf) {
  Open(Quick());
  const HealthWatch watch(&port(), {[] { return LoopState{.answers = true, .not_ready = {}}; },
                                    [](MetricPage* page) {
                                      page->AddFamily("longhaul_x", "y", false, {{42}});
                                      return true;
                                    }});
  const std::string name = "longhaul_last_progress_timestamp_seconds";
  const ExpositionReader before(Get("/metrics").body);
  ASSERT_EQ(before.error, "");
  EXPECT_EQ(before.Value("longhaul_x"), 42);
  EXPECT_EQ(before.Value("longhaul_build_info", {{"program", "test"}, {"version", "0.1.0"}}), 1);
  EXPECT_EQ(before.Value(name), before.Value("longhaul_start_timestamp_seconds"));
  std::this_thread::sleep_for(milliseconds(300));
  port().NoteProgress();
  const ExpositionReader after(Get("/metrics").body);
  EXPECT_GE(*after.Value(name) - *before.Value(name), 0.3);
  EXPECT_LT(*after.Value(name) - *before.Value(name), 60);
}

TEST_F(HealthPortTest, ManyScrapesCostOnePage) {
  HealthBounds bounds = Quick();
  bounds.page_lasts = seconds(600);
  Open(bounds);
  std::atomic<int> made{0};
  const HealthWatch watch(&port(), {[] { return LoopState{.answers = true, .not_ready = {}}; },
                                    [&](MetricPage*) { return ++made, true; }});
  std::vector<std::thread> scrapers;
  std::atomic<int> answered{0};
  for (int i = 0; i < 20; ++i) scrapers.emplace_back([&] { answered += Get("/metrics").code == 200; });
  for (std::thread& scraper : scrapers) scraper.join();
  EXPECT_EQ(answered, 20);
  EXPECT_EQ(Get("/metrics").code, 200);
  EXPECT_EQ(made, 1);
}

TEST_F(HealthPortTest, RefusesWhatIsNoRequestForItsPagesAndCountsIt) {
  Open(Quick());
  EXPECT_EQ(Get("/").code, 404);
  EXPECT_EQ(Get("/metrics/../etc/passwd").code, 404);
  EXPECT_EQ(Get("/metrics", "POST").code, 405);
  EXPECT_THAT(Get("/metrics", "DELETE").head, HasSubstr("Allow: GET, HEAD"));
  const std::vector<std::pair<std::string, int>> wrong = {
      {"\x16\x03\x01", 400},
      {"GET / HTTP/9.9\r\n\r\n", 505},
      {"GET / HTTP/1.1\r\na: " + std::string(1 << 20, 'x'), 431},
  };
  for (const auto& [text, code] : wrong) {
    const TcpPeer peer(address());
    (void)peer.Send(text);
    EXPECT_EQ(ParseReply(peer.Receive()).code, code);
  }
  EXPECT_EQ(Counter("refused_total"), 7);
  EXPECT_EQ(Counter("broken_total"), 0);
}

TEST_F(HealthPortTest, AHeadHasTheLengthOfItsPageAndNoPage) {
  Open(Quick());
  const TcpPeer peer(address());
  ASSERT_TRUE(peer.Send("HEAD /healthz HTTP/1.1\r\n\r\n"));
  const std::string reply = peer.Receive();
  EXPECT_THAT(reply, HasSubstr("Content-Length: 3\r\n"));
  EXPECT_TRUE(reply.ends_with("\r\n\r\n")) << reply;
}

TEST_F(HealthPortTest, SlowPeersHoldNoPlaces) {
  HealthBounds bounds = Quick();
  bounds.connections = 8;
  Open(bounds);
  std::deque<TcpPeer> slow;
  for (int i = 0; i < 50; ++i) {
    ASSERT_TRUE(slow.emplace_back(address()).ok());
    EXPECT_TRUE(slow.back().Send("GET /metrics HTTP/1.1\r\nX-a: "));
  }
  EXPECT_EQ(Get("/healthz").code, 200);
  EXPECT_TRUE(slow.front().IsClosedBy(kPatience)) << "the oldest has to go";
  EXPECT_FALSE(slow.back().IsClosedBy(milliseconds(50)));
  EXPECT_GE(Counter("displaced_total"), 50 + 1 - 8);
  EXPECT_LE(Counter("open"), 8);
}

TEST_F(HealthPortTest, AConnectionEndsAtItsDeadlineWhateverItSends) {
  HealthBounds bounds = Quick();
  bounds.deadline = milliseconds(400);
  Open(bounds);
  const TcpPeer silent(address()), drip(address());
  const auto begin = Clock::now();
  bool open = drip.Send("GET / HTTP/1.1\r\n");
  while (open && Clock::now() - begin < kPatience) {
    open = drip.Send("a: b\r\n");  // another line now and then is no reason to wait
    std::this_thread::sleep_for(milliseconds(20));
  }
  EXPECT_FALSE(open);
  EXPECT_TRUE(silent.IsClosedBy(kPatience));
  EXPECT_GE(Clock::now() - begin, milliseconds(400));
  EXPECT_TRUE(Eventually([&] { return Counter("late_total") >= 2; }));
}

TEST_F(HealthPortTest, APeerThatReadsNothingIsLetGo) {
  HealthBounds bounds = Quick();
  bounds.deadline = milliseconds(400) * LONGHAUL_SLOWNESS;
  Open(bounds);
  std::atomic<bool> made{false};
  // The first page is longer than what the kernel takes for a peer; later ones are for the test.
  const HealthWatch watch(&port(), {[] { return LoopState{.answers = true, .not_ready = {}}; },
                                    [&](MetricPage* page) {
                                      const std::string help(made.exchange(true) ? 1 : 16 << 20, 'x');
                                      page->AddFamily("longhaul_long", help, false, {{1}});
                                      return true;
                                    }});
  const TcpPeer peer(address(), 4096);
  ASSERT_TRUE(peer.Send("GET /metrics HTTP/1.1\r\n\r\n"));
  EXPECT_TRUE(Eventually([&] { return made.load(); }));
  EXPECT_TRUE(Eventually([&] { return Counter("late_total") >= 1; }));
  EXPECT_EQ(Counter("open"), 1) << "the one that asks";
}

TEST_F(HealthPortTest, NewcomersBeyondTheRateWaitAndAreServed) {
  HealthBounds bounds = Quick();
  bounds.connections_per_second = 20;
  Open(bounds);
  const auto begin = Clock::now();
  for (int i = 0; i < 40; ++i) EXPECT_EQ(Get("/healthz").code, 200);
  EXPECT_GE(Clock::now() - begin, milliseconds(900));
  EXPECT_GE(Counter("paused_total"), 1);
}

TEST_F(HealthPortTest, ForgettingASourceWaitsForItsAnswer) {
  Open(Quick());
  std::atomic<bool> inside{false};
  {
    const HealthWatch watch(&port(), {[&] {
                                        inside = true;
                                        std::this_thread::sleep_for(milliseconds(100));
                                        inside = false;
                                        return LoopState{.answers = true, .not_ready = {}};
                                      },
                                      [](MetricPage*) { return true; }});
    EXPECT_TRUE(Eventually([&] { return inside.load(); }));
  }
  EXPECT_FALSE(inside);
}

TEST_F(HealthPortTest, ASourceIsNotAskedOnceItIsForgotten) {
  Open(Quick());
  std::atomic<bool> stop{false};
  std::thread scraper([&] {
    while (!stop) (void)Get("/metrics");
  });
  for (int i = 0; i < 100; ++i) {
    auto value = std::make_unique<double>(i);
    {
      const HealthWatch watch(&port(), {[&] { return LoopState{.answers = *value >= 0, .not_ready = {}}; },
                                        [&](MetricPage* page) {
                                          page->AddFamily("longhaul_x", "y", false, {{*value}});
                                          return true;
                                        }});
      std::this_thread::sleep_for(milliseconds(1));
    }
    *value = -1;  // the sanitizers see who still looks
    value.reset();
  }
  stop = true;
  scraper.join();
  EXPECT_EQ(Get("/healthz").code, 200);
}

TEST_F(HealthPortTest, SaysWhyItCannotListen) {
  Open(Quick());
  const auto code = [](const std::string& where) { return HealthPort::Open(where, "test").status().code(); };
  EXPECT_EQ(code(address().ToString()), StatusCode::kAlreadyExists);
  EXPECT_EQ(code("127.0.0.1"), StatusCode::kInvalidArgument);
  EXPECT_EQ(code("127.0.0.1:70000"), StatusCode::kInvalidArgument);
  EXPECT_EQ(code("192.0.2.1:0"), StatusCode::kUnavailable);
  EXPECT_THAT(HealthPort::Open(address().ToString(), "test").status().message(),
              HasSubstr(address().ToString()));
}

TEST_F(HealthPortTest, ListensOnIpv6) {
  auto opened = HealthPort::Open("[::1]:0", "test", Quick());
  if (!opened.ok()) GTEST_SKIP() << "no IPv6 here: " << opened.status().ToString();
  EXPECT_EQ(health::Get((*opened)->address(), "/healthz").code, 200);
}

}  // namespace
}  // namespace longhaul::health
