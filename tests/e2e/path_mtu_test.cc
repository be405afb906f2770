// The path of one worker of two shrinks in the middle of a job, without a message, as in a tunnel: real
// daemons, and between one of them and the server a relay that swallows what is long.
//
//   worker 0 ──────────────┐
//   worker 1 ──── relay ───┴── server
#include <algorithm>
#include <atomic>
#include <cstdio>
#include <sstream>
#include <thread>

#include "tests/e2e/support/job.h"
#include "tests/e2e/support/udp_peer.h"

namespace longhaul::e2e {
namespace {

// For one worker.
class Relay {
 public:
  explicit Relay(uint16_t server_port) : server_port_(server_port) {
    threads_[0] = std::thread([this] { Run(&to_worker_, &to_server_); });
    threads_[1] = std::thread([this] { Run(&to_server_, &to_worker_); });
  }
  ~Relay() {
    stopped_ = true;
    for (std::thread& thread : threads_) thread.join();
  }
  const UdpPeer& worker_side() const { return to_worker_; }
  // Longer datagrams vanish from now on.
  void Shrink(size_t longest) { longest_ = longest; }
  uint64_t swallowed() const { return swallowed_; }

 private:
  void Run(UdpPeer* from, UdpPeer* to) {
    while (!stopped_) {
      const auto datagram = from->Receive(milliseconds(50));
      if (!datagram) continue;
      if (from == &to_worker_) worker_port_ = datagram->from_port;
      if (datagram->bytes.size() > longest_) {
        ++swallowed_;
      } else {
        to->Send(to == &to_server_ ? server_port_ : worker_port_.load(), datagram->bytes);
      }
    }
  }

  const uint16_t server_port_;
  UdpPeer to_worker_, to_server_;
  std::atomic<uint16_t> worker_port_ = 0;
  std::atomic<size_t> longest_ = 65'535;
  std::atomic<uint64_t> swallowed_ = 0;
  std::atomic<bool> stopped_ = false;
  std::thread threads_[2];
};

class PathMtu : public JobTest {
 protected:
  static constexpr int kRounds = 400;

  void Begin(const Flags& server_flags = {}) {
    Program& server = StartServer(Merged({{"--once", ""}}, server_flags));
    relay_ = std::make_unique<Relay>(port());
    const Flags flags = {{"--rounds", std::to_string(kRounds)}, {"--fault", "delay=10ms"}, {"--lr", "0.01"}};
    workers_ = {&StartWorker(0, flags),
                &StartWorker(1, Merged(flags, {{"--join", relay_->worker_side().address()}}))};
    for (Program* worker : workers_) ASSERT_TRUE(worker->WaitForEvent("round")) << worker->Everything();
    ASSERT_TRUE(server.running());
  }
  static double LongestRound(const Program& worker) {
    std::istringstream lines(worker.Output());
    double longest = 0;
    for (std::string line; std::getline(lines, line);) {
      const auto json = nlohmann::json::parse(line, nullptr, false);
      if (!json.is_object() || json.value("event", "") != "round") continue;
      longest = std::max(longest, json.value("seconds", 0.0));
    }
    return longest;
  }

  std::unique_ptr<Relay> relay_;
  std::vector<Program*> workers_;
};

TEST_F(PathMtu, AJobGoesOnWhenTheMtuOfOnePathShrinks) {
  Begin();
  relay_->Shrink(1252);  // an IPv4 MTU of 1280
  for (Program* worker : workers_) {
    ExpectEnd(*worker, 0);
    const auto finished = worker->FindEvent("finished");
    ASSERT_TRUE(finished) << worker->Everything();
    EXPECT_EQ(finished->value("rounds", 0), kRounds);
  }
  ExpectEnd(server(), 0);
  EXPECT_GT(relay_->swallowed(), 0u);
  const double longest = LongestRound(*workers_[0]);
  std::printf("the longest round: %.3f s\n", longest);
  EXPECT_LE(longest, 2.0 * kSlowness);
}

TEST_F(PathMtu, AWorkerWhosePathCarriesNothingIsNamedAndTheOtherGoesOn) {
  Begin({{"--min-workers", "1"}});
  relay_->Shrink(500);
  ExpectEnd(*workers_[1], 1);
  EXPECT_THAT(workers_[1]->Errors(), ::testing::HasSubstr("has shrunk"));
  ExpectEnd(*workers_[0], 0);
  ExpectEnd(server(), 0);
}

}  // namespace
}  // namespace longhaul::e2e
