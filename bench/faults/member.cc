#include "bench/faults/member.h"

#include <signal.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <limits>
#include <thread>
#include <vector>

#include "bench/faults/ledger.h"
#include "longhaul/client.h"
#include "worker/demo/mlp.h"

namespace longhaul::bench::faults {
namespace {

using worker::Mlp;

std::atomic<bool> g_begin{false};

constexpr const char* kOptimizer = "sgd:lr=0.05";  // that of the honest workers (job.cc)

void Say(const std::string& what) {
  std::printf("member: %s\n", what.c_str());
  std::fflush(stdout);
}

class Member {
 public:
  Member(const MemberOptions& options, Client client) : options_(options), client_(std::move(client)) {}

  Status Run() {
    const Mlp model(1);
    for (size_t t = 0; t < Mlp::kTensors; ++t) {
      auto tensor = client_.Declare(
          std::string(Mlp::kShapes[t].name),
          {.count = Mlp::kShapes[t].count, .optimizer = kOptimizer, .initial = model.parameters()[t]});
      if (!tensor.ok()) return tensor.status();
      tensors_[t] = *tensor;
      gradients_[t].assign(Mlp::kShapes[t].count, 0);
      values_[t].resize(Mlp::kShapes[t].count);
    }
    std::thread trouble;
    Status status;
    while ((status = Round()).ok()) {
      if (!g_begin.exchange(false)) continue;
      Say("begins: " + options_.kind);
      if (options_.kind == "idle") Idle();
      if (options_.kind == "nan") Fill(std::numeric_limits<float>::quiet_NaN());
      if (options_.kind == "large") Fill(1e30f);
      if (!trouble.joinable()) trouble = std::thread([this] { MakeTrouble(); });
    }
    Say("ends: " + status.ToString());
    if (trouble.joinable()) trouble.detach();  // it waits in calls of a client that dies with the process
    std::fflush(stdout);
    ::_exit(1);
  }

 private:
  Status Round() {
    std::array<Operation, Mlp::kTensors> rounds;
    for (size_t t = 0; t < Mlp::kTensors; ++t)
      rounds[t] = client_.PushPull(tensors_[t], gradients_[t], values_[t]);
    Status first;
    for (size_t t = 0; t < Mlp::kTensors; ++t) {
      Status status = rounds[t].Wait();
      // A value that its own client refuses: the next one is honest, so that the round goes on.
      if (status.code() == StatusCode::kInvalidArgument) {
        Say(status.ToString());
        Fill(0);
        status = client_.PushPull(tensors_[t], gradients_[t], values_[t]).Wait();
      }
      if (first.ok()) first = status;
    }
    return first;
  }
  void Fill(float value) {
    for (auto& gradient : gradients_) gradient.assign(gradient.size(), value);
  }
  void Idle() {
    while (client_.status().ok()) std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  // Until the server has had enough: what it answers is said.
  void MakeTrouble() {
    if (options_.kind == "tensors") {
      // One thread would take a round trip for each.
      for (int first = 0; first < 50; ++first) {
        std::thread([this, first] {
          for (int i = first; i < 5000; i += 50) {
            const auto junk = client_.Declare("junk" + std::to_string(i), {.count = 1});
            if (!junk.ok()) return Say("declared " + std::to_string(i) + ": " + junk.status().ToString());
          }
        }).detach();
      }
    }
    if (options_.kind == "huge") {
      Say("huge: " +
          client_.Declare("huge", {.count = 268'000'000, .optimizer = "adam:lr=0.001"}).status().ToString());
    }
    if (options_.kind != "barriers") return;
    for (int i = 0; i < 70; ++i) {
      std::thread([this, i] {
        const Status status = client_.Barrier("junk" + std::to_string(i));
        if (!status.ok()) Say("barrier " + std::to_string(i) + ": " + status.ToString());
      }).detach();
    }
  }

  MemberOptions options_;
  Client client_;
  std::array<Tensor, Mlp::kTensors> tensors_;
  std::array<std::vector<float>, Mlp::kTensors> gradients_, values_;
};

// Pushes numbers until a signal ends it.
class Bookkeeper {
 public:
  Bookkeeper(const MemberOptions& options, Client client)
      : options_(options), client_(std::move(client)), ledger_(options.ledger, std::ios::app) {}

  Status Run() {
    const uint64_t count = kPushesPerRank * options_.world_size;
    const std::vector<float> zeros(count);
    auto tensor = client_.Declare("ledger", {.count = count, .optimizer = "sgd:lr=1", .initial = zeros});
    if (!tensor.ok()) return tensor.status();
    std::vector<float> gradient(count), values(count);
    for (uint64_t number = ReadLedger(options_.ledger).begun + 1; number < kPushesPerRank; ++number) {
      float& own = gradient[options_.rank * kPushesPerRank + number];
      own = kPushed;
      ledger_ << "begin " << number << std::endl;
      const Operation push = client_.PushPull(*tensor, gradient, values);
      const Status status = push.Wait();
      own = 0;
      if (status.ok()) {
        const OperationStats stats = push.stats();
        ledger_ << "ack " << number << ' ' << stats.round << ' ' << stats.lost_chunks << std::endl;
      } else if (status.code() != StatusCode::kAborted || !client_.status().ok()) {
        return status;
      } else {
        Say("push " + std::to_string(number) + ": " + status.ToString());  // a round went on without it
      }
      if (!ledger_) return {StatusCode::kInternal, "the ledger cannot be written"};
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    return {StatusCode::kResourceExhausted, "there is no number left"};
  }

 private:
  MemberOptions options_;
  Client client_;
  std::ofstream ledger_;
};

// Steps whose computing is a pause.
Status Pace(Client client, uint64_t count) {
  constexpr auto kComputes = std::chrono::milliseconds(100);
  const std::vector<float> gradient(count, 1);
  std::vector<float> values(count);
  auto tensor = client.Declare("paced", {.count = count, .optimizer = "sgd:lr=0.001", .initial = values});
  if (!tensor.ok()) return tensor.status();
  while (client.status().ok()) {
    std::this_thread::sleep_for(kComputes);
    const Operation step = client.PushPull(*tensor, gradient, values);
    if (const Status status = step.Wait(); status.ok()) {
      const ClientStats stats = client.stats();
      const auto number = [](auto n) { return static_cast<unsigned long long>(n); };
      std::printf(kStepFormat, number(step.stats().round), number(stats.bytes_sent.value()),
                  number(stats.packets_sent), number(stats.bytes_received.value()),
                  number(stats.packets_received));
      std::printf("\n");
      std::fflush(stdout);
    } else {
      Say(status.ToString());
    }
  }
  return client.status();
}

}  // namespace

int RunMember(const MemberOptions& options) {
  struct sigaction action = {};
  action.sa_handler = [](int) { g_begin = true; };
  ::sigaction(SIGUSR1, &action, nullptr);
  ConnectOptions connect;
  if (options.offload.empty()) {
    connect.servers = {options.join};
    connect.key_file = options.key_file;
    connect.rank = options.rank;
    connect.world_size = options.world_size;
    connect.site = "member";
  } else {
    connect.offload = options.offload;
    connect.site_rank = static_cast<uint8_t>(options.rank);
  }
  connect.idle_timeout = std::chrono::seconds(options.idle_timeout);
  if (!options.ledger.empty() && options.offload.empty())
    connect.reconnect_timeout = std::chrono::seconds(120);
  if (options.kind == "pace") {
    std::printf("%s\n", kConnects);
    std::fflush(stdout);
  }
  connect.log = [](LogLevel, std::string_view text) { Say(std::string(text)); };
  auto client = Client::Connect(connect);
  if (!client.ok()) {
    Say(client.status().ToString());
    return 1;
  }
  if (options.kind == "ledger") {
    Say("ends: " + Bookkeeper(options, *std::move(client)).Run().ToString());
    return 1;
  }
  if (options.kind == "pace") {
    Say("ends: " + Pace(*std::move(client), options.elements).ToString());
    return 1;
  }
  (void)Member(options, *std::move(client)).Run();
  return 1;
}

}  // namespace longhaul::bench::faults
