// longhaul_incast_bench: workers that push at the same moment through one emulated link into one server, over
// real sockets between two network namespaces; with server grants and without. What the queue dropped is read
// from the link itself. Needs what longhaul-wan needs.
//
//   8 clients, site B ──[ queue | rate ]── delay, loss ── server, site A

#include <CLI/CLI.hpp>
#include <algorithm>
#include <barrier>
#include <chrono>
#include <cstdio>
#include <future>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/flags/job_flags.h"
#include "base/units_text.h"
#include "longhaul/client.h"
#include "longhaul/server.h"
#include "transport/keys/temporary_key.h"
#include "wan/link_options.h"
#include "wan/tun/tun_wan.h"

namespace longhaul {
namespace {

using Clock = std::chrono::steady_clock;
using nlohmann::json;

constexpr auto kCompute = std::chrono::milliseconds(50);  // between rounds
constexpr int kServerPort = 7700;

struct Flags {
  int workers = 8;
  int rounds = 20;
  int64_t bytes = 1'000'000;
  std::string rate = "200mbit";
  std::string delay = "10ms";
  std::string loss = "0%";
  double buffer_bdp = 0.5;
  std::vector<std::string> modes = {"off", "given", "estimated"};
  std::vector<uint64_t> seeds = {1};
  bool results = false;
  bool insecure = false;
  std::string key_file = {};  // made for the run, unless insecure
  RateControl rate_controller = RateControl::kLonghaul;
};

struct Drops {
  uint64_t packets = 0;
  uint64_t queue = 0;
  uint64_t loss = 0;
};

// One run: a link, a server, clients, rounds.
class Run {
 public:
  Run(const Flags& flags, const std::string& mode, uint64_t seed) : flags_(flags), mode_(mode), seed_(seed) {
    finished_.resize(static_cast<size_t>(flags.rounds),
                     std::vector<double>(static_cast<size_t>(flags.workers)));
  }

  Result<json> Do() {
    if (Status up = MakeLink(); !up.ok()) return up;
    if (Status server = InSite("A", [this] { return StartServer(); }); !server.ok()) return server;
    std::vector<std::thread> threads;
    std::barrier start(flags_.workers);
    for (int rank = 0; rank < flags_.workers; ++rank) {
      threads.emplace_back(
          [this, rank, &start] { Keep(wan_->EnterSite("B"), [&] { return Work(rank, start); }); });
    }
    for (std::thread& thread : threads) thread.join();
    const json stats = json::parse(server_->StatsJson());
    server_.reset();
    if (!failure_.ok()) return failure_;
    return Summary(stats);
  }

 private:
  Status MakeLink() {
    auto link =
        wan::ParseLinkOptions("rate " + flags_.rate + " delay " + flags_.delay + " loss " + flags_.loss);
    if (!link.ok()) return link.status();
    link->queue_bytes = link->rate * (link->delay * 2) * flags_.buffer_bdp;
    wan::LinkOptions down = *link;
    down.queue_bytes = ByteCount(0);
    down.queue_time = std::chrono::seconds(1);
    auto up = wan::TunWan::Up({.sites = {"A", "B"},
                               .link = *link,
                               .overrides = {{"A", "B", down}},
                               .seed = seed_,
                               .backend = wan::Backend::kTun});
    if (!up.ok()) return up.status();
    wan_ = std::move(*up);
    return {};
  }

  // On a thread of its own: entering a namespace is for good.
  Status InSite(const std::string& site, const std::function<Status()>& what) {
    return std::async(std::launch::async,
                      [&] {
                        const Status entered = wan_->EnterSite(site);
                        return entered.ok() ? what() : entered;
                      })
        .get();
  }

  Status StartServer() {
    ServerOptions options;
    options.listen = wan_->sites().front().address + ":" + std::to_string(kServerPort);
    options.workers = static_cast<uint32_t>(flags_.workers);
    options.key_file = flags_.key_file;
    options.insecure = options.insecure_bind = flags_.insecure;
    options.grants = mode_ != "off";
    if (mode_ == "given") options.capacity = *ParseRate(flags_.rate);
    auto server = Server::Start(options);
    if (!server.ok()) return server.status();
    server_.emplace(std::move(*server));
    return {};
  }

  void Keep(const Status& entered, const std::function<Status()>& work) {
    const Status status = entered.ok() ? work() : entered;
    const std::lock_guard lock(mutex_);
    if (!status.ok() && failure_.ok()) failure_ = status;
  }

  Status Work(int rank, std::barrier<>& start) {
    ConnectOptions connect;
    connect.servers = {wan_->sites().front().address + ":" + std::to_string(kServerPort)};
    connect.rank = static_cast<uint32_t>(rank);
    connect.world_size = static_cast<uint32_t>(flags_.workers);
    connect.key_file = flags_.key_file;
    connect.insecure = flags_.insecure;
    connect.rate_controller = flags_.rate_controller;
    connect.seed = seed_ * 1000 + static_cast<uint64_t>(rank);
    auto client = Client::Connect(connect);
    if (!client.ok()) {
      start.arrive_and_drop();
      return client.status();
    }
    std::vector<float> gradient(static_cast<size_t>(flags_.bytes) / sizeof(float));
    for (size_t i = 0; i < gradient.size(); ++i) gradient[i] = static_cast<float>(i % 1009) - 504.0f;
    std::vector<float> out(gradient.size());
    auto tensor = client->Declare("gradient", {.count = gradient.size()});
    Status status = tensor.status();
    for (int round = 0; round < flags_.rounds && status.ok(); ++round) {
      start.arrive_and_wait();
      if (rank == 0) CountDrops();
      std::this_thread::sleep_for(kCompute);
      const auto begun = Clock::now();
      Operation push =
          flags_.results ? client->PushPull(*tensor, gradient, out) : client->Push(*tensor, gradient);
      status = push.Wait();
      finished_[static_cast<size_t>(round)][static_cast<size_t>(rank)] =
          std::chrono::duration<double, std::milli>(Clock::now() - begun).count();
    }
    if (!status.ok()) {
      start.arrive_and_drop();
      return status;
    }
    start.arrive_and_wait();
    if (rank == 0) CountDrops();
    {
      const std::lock_guard lock(mutex_);
      const ClientStats s = client->stats();
      by_grant_ += std::chrono::duration<double>(s.limited_by_grant).count();
      by_app_ += std::chrono::duration<double>(s.limited_by_app).count();
    }
    return client->Leave();
  }

  // On rank 0's thread, between rounds.
  void CountDrops() {
    const auto link = wan_->Link("B", "A");
    if (!link.ok()) return;
    const wan::LinkCounters& c = link->counters;
    drops_.push_back({c.packets_in, c.dropped_queue, c.dropped_loss});
  }

  static double Share(const Drops& from, const Drops& to) {
    return to.packets == from.packets
               ? 0
               : static_cast<double>(to.queue - from.queue) / static_cast<double>(to.packets - from.packets);
  }

  json Summary(const json& stats) {
    double mean = 0;
    std::vector<double> spreads;
    for (size_t round = 1; round < finished_.size(); ++round) {
      const auto [fastest, slowest] = std::minmax_element(finished_[round].begin(), finished_[round].end());
      mean += *slowest / static_cast<double>(finished_.size() - 1);
      spreads.push_back(*slowest / *fastest);
    }
    std::sort(spreads.begin(), spreads.end());
    return {{"grants", mode_},
            {"seed", seed_},
            {"protection", flags_.insecure ? "insecure" : "encrypted"},
            {"own_loss_first_round", Share(drops_.front(), drops_[1])},
            {"own_loss_later_rounds", Share(drops_[1], drops_.back())},
            {"packets", drops_.back().packets},
            {"queue_drops", drops_.back().queue},
            {"random_drops", drops_.back().loss},
            {"round_ms", mean},
            {"spread_median", spreads.empty() ? 0.0 : spreads[spreads.size() / 2]},
            {"spread_worst", spreads.empty() ? 0.0 : spreads.back()},
            {"capacity_mbps", stats.value("capacity_mbps", 0.0)},
            {"grant_updates", stats.value("grant_updates", 0)},
            {"limited_by_grant_s", by_grant_},
            {"limited_by_app_s", by_app_}};
  }

  const Flags& flags_;
  std::string mode_;
  uint64_t seed_;
  std::unique_ptr<wan::TunWan> wan_;
  std::optional<Server> server_;
  std::vector<std::vector<double>> finished_;  // [round][rank], ms
  std::vector<Drops> drops_;                   // before every round and after the last
  std::mutex mutex_;
  Status failure_;
  double by_grant_ = 0;
  double by_app_ = 0;
};

int Main(int argc, char** argv) {
  Flags flags;
  CLI::App app(
      "Workers that push at the same moment through one emulated link, with server grants and without.",
      "longhaul_incast_bench");
  app.option_defaults()->always_capture_default();
  app.add_option("--workers", flags.workers)->check(CLI::Range(1, 64));
  app.add_option("--rounds", flags.rounds)->check(CLI::Range(2, 10000));
  app.add_option("--bytes", flags.bytes, "of every gradient")->check(CLI::Range(4, 1 << 30));
  app.add_option("--rate", flags.rate, "of the link, each way");
  app.add_option("--delay", flags.delay, "one way");
  app.add_option("--loss", flags.loss, "at random, each way");
  app.add_option("--buffer", flags.buffer_bdp, "of the link towards the server, bandwidth-delay products");
  app.add_option("--grants", flags.modes, "off, given, estimated")
      ->check(CLI::IsMember({"off", "given", "estimated"}));
  app.add_option("--seed", flags.seeds);
  cli::AddEnum(app, "--rate-controller", &flags.rate_controller, "of the workers");
  app.add_flag("--results", flags.results, "workers wait for the round's result (PushPull)");
  app.add_flag("--insecure", flags.insecure,
               "without encryption; default: under a key that is made for the run");
  CLI11_PARSE(app, argc, argv);
  std::optional<keys::TemporaryKey> key;
  if (!flags.insecure) {
    auto made = keys::TemporaryKey::Make("default");
    if (!made.ok()) {
      std::fprintf(stderr, "longhaul_incast_bench: %s\n", made.status().ToString().c_str());
      return 1;
    }
    key.emplace(*std::move(made));
    flags.key_file = key->path();
  }
  for (const uint64_t seed : flags.seeds) {
    for (const std::string& mode : flags.modes) {
      const Result<json> summary = Run(flags, mode, seed).Do();
      if (!summary.ok()) {
        std::fprintf(stderr, "longhaul_incast_bench: %s\n", summary.status().ToString().c_str());
        return 1;
      }
      std::printf("%s\n", summary->dump().c_str());
      std::fflush(stdout);
    }
  }
  return 0;
}

}  // namespace
}  // namespace longhaul

int main(int argc, char** argv) { return longhaul::Main(argc, argv); }
