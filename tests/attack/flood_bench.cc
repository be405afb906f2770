// How much a flood of INITs slows a training job down: one job without any, then the same with a flood that
// comes and goes, so that rounds with and without it are of one run. Prints JSON, and says with its exit code
// whether the bars are held.
#include <gtest/gtest.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>
#include <thread>

#include "base/quantile.h"
#include "cli/child_process.h"
#include "tests/attack/support/flood.h"
#include "tests/attack/support/forger.h"
#include "tests/attack/support/status_probe.h"
#include "transport/keys/temporary_key.h"

namespace longhaul::attack {
namespace {

using Clock = std::chrono::steady_clock;
using nlohmann::json;

struct Options {
  uint32_t workers = 4;
  uint32_t rounds = 1000;
  uint32_t batch = 32;
  double per_second = 100'000;
  double seconds = 10;  // of flood, and of rest between
  uint32_t hosts = 50'000;
  std::string kind = "noise";
  std::string fault = "delay=10ms";
  std::string data = "/usr/share/datasets/fashion-mnist";
  std::string programs;
  // Bars; missing one is the exit code.
  double max_p50_ratio = 1.2;
  int64_t max_memory_growth = 8 << 20;
  double max_accuracy_loss = 0.01;
  double min_rate_share = 0.9;
};

constexpr int64_t kMaxHalfOpen = 64;  // AdmissionOptions::max_half_open
// Fewer rounds have no median that says anything.
constexpr size_t kMinRounds = 20;

struct JobResult {
  std::vector<double> calm, flooded;  // seconds of rounds
  double accuracy = 0;
  int64_t memory_before = 0, memory_peak = 0;
  uint64_t inits = 0;
  double flooded_seconds = 0;
  json endpoint = json::object();
  int64_t half_open_peak = 0;
  bool ok = false;
};

int64_t ResidentBytes(pid_t pid) {
  std::ifstream in("/proc/" + std::to_string(pid) + "/statm");
  int64_t size = 0, resident = 0;
  in >> size >> resident;
  return resident * 4096;
}

class Job {
 public:
  Job(const Options& options, const std::string& key) : options_(options), key_(key) {}

  // With `datagrams` empty there is no flood.
  JobResult Run(const std::vector<Bytes>& datagrams) {
    Start();
    const auto begin = Clock::now();
    auto switched = begin;
    std::unique_ptr<Flood> flood;
    while (!over_) {
      Read();
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
      result_.memory_peak = std::max(result_.memory_peak, ResidentBytes(children_[0].pid()));
      if (rounds_ < kWarmUp) {
        switched = Clock::now();
        result_.memory_before = ResidentBytes(children_[0].pid());
        continue;
      }
      if (datagrams.empty() ||
          std::chrono::duration<double>(Clock::now() - switched).count() < options_.seconds)
        continue;
      switched = Clock::now();
      if (flood) {
        End(*flood);
        flood.reset();
      } else {
        FloodOptions flood_options{
            .per_second = options_.per_second, .hosts = options_.hosts, .datagrams = datagrams};
        flood = std::make_unique<Flood>(port_, std::move(flood_options), std::chrono::hours(1));
      }
      // The round under way belongs to both.
      skip_ = 2;
      flooding_ = flood != nullptr;
      Ask();
    }
    if (flood) End(*flood);
    result_.ok = finished_ == options_.workers + 1;
    return result_;
  }

 private:
  static constexpr uint32_t kWarmUp = 20;

  void Start() {
    Launch({options_.programs + "/longhaul-server", "--listen", "127.0.0.1:0", "--workers",
            std::to_string(options_.workers), "--key", key_, "--progress", "json", "--once", "--log-level",
            "error"});
    while (port_ == 0 && children_[0].running()) Read();
    for (uint32_t rank = 0; rank < options_.workers; ++rank) {
      Launch({options_.programs + "/longhaul-worker",
              "--join",
              "127.0.0.1:" + std::to_string(port_),
              "--rank",
              std::to_string(rank),
              "--world-size",
              std::to_string(options_.workers),
              "--rounds",
              std::to_string(options_.rounds),
              "--batch",
              std::to_string(options_.batch),
              "--data",
              options_.data,
              "--fault",
              options_.fault,
              "--eval-every",
              "0",
              "--key",
              key_,
              "--progress",
              "json",
              "--log-level",
              "error"});
    }
  }
  void Launch(const std::vector<std::string>& words) {
    auto child = cli::ChildProcess::Start(words[0], words, {}, "");
    if (!child.ok()) throw std::runtime_error(child.status().ToString());
    children_.push_back(*std::move(child));
  }
  void Read() {
    bool all_ended = true;
    for (size_t i = 0; i < children_.size(); ++i) {
      const bool ended = children_[i].Poll();
      children_[i].ReadLines([&](const std::string& line) { Take(i, line); });
      all_ended = all_ended && ended;
    }
    over_ = all_ended;
  }
  void Take(size_t child, const std::string& line) {
    const json event = json::parse(line, nullptr, false);
    if (!event.is_object()) return;
    const std::string kind = event.value("event", "");
    if (child == 0 && kind == "listening") {
      const std::string address = event.value("address", "");
      port_ = static_cast<uint16_t>(std::stoi(address.substr(address.rfind(':') + 1)));
    } else if (child == 0 && kind == "round") {
      ++rounds_;
      if (rounds_ < kWarmUp || (skip_ > 0 && skip_-- > 0)) return;
      (flooding_ ? result_.flooded : result_.calm).push_back(event.value("interval_seconds", 0.0));
    } else if (kind == "finished") {
      ++finished_;
      if (child == 1) result_.accuracy = event.value("accuracy", 0.0);
    }
  }
  void End(Flood& flood) {
    Ask();
    flood.Stop();
    result_.inits += flood.sent();
    result_.flooded_seconds += flood.seconds();
  }
  void Ask() {
    const auto status = AskStatus(port_, key_, std::chrono::seconds(2));
    if (!status) return;
    result_.endpoint = (*status)["endpoint"];
    result_.half_open_peak =
        std::max(result_.half_open_peak, result_.endpoint.value("half_open", int64_t{0}));
  }

  const Options& options_;
  std::string key_;
  std::vector<cli::ChildProcess> children_;
  uint16_t port_ = 0;
  uint32_t rounds_ = 0;
  uint32_t finished_ = 0;
  int skip_ = 0;
  bool flooding_ = false;
  bool over_ = false;
  JobResult result_;
};

json Report(const Options& options, const JobResult& clean, const JobResult& attacked) {
  const auto rounds = [](const std::vector<double>& seconds) {
    return json{{"rounds", seconds.size()},
                {"ms_p50", Quantile(seconds, 0.5) * 1e3},
                {"ms_p99", Quantile(seconds, 0.99) * 1e3}};
  };
  const double calm = Quantile(attacked.calm, 0.5);
  return {{"kind", options.kind},
          {"workers", options.workers},
          {"inits", attacked.inits},
          {"inits_per_second",
           attacked.flooded_seconds > 0 ? static_cast<double>(attacked.inits) / attacked.flooded_seconds : 0},
          {"flood_seconds", attacked.flooded_seconds},
          {"without_flood", rounds(attacked.calm)},
          {"with_flood", rounds(attacked.flooded)},
          {"p50_ratio", calm > 0 ? Quantile(attacked.flooded, 0.5) / calm : 0},
          {"accuracy_clean_job", clean.accuracy},
          {"accuracy_attacked_job", attacked.accuracy},
          {"server_memory_growth_bytes", attacked.memory_peak - attacked.memory_before},
          {"server_memory_growth_clean_bytes", clean.memory_peak - clean.memory_before},
          {"half_open_peak", attacked.half_open_peak},
          {"endpoint", attacked.endpoint},
          {"finished", clean.ok && attacked.ok}};
}

// What a reader of the numbers would object to; empty: nothing.
std::vector<std::string> Missed(const Options& options, const JobResult& clean, const JobResult& attacked) {
  std::vector<std::string> missed;
  const auto hold = [&](bool held, const std::string& bar) {
    if (!held) missed.push_back(bar);
  };
  const double calm = Quantile(attacked.calm, 0.5);
  const double flooded = Quantile(attacked.flooded, 0.5);
  const double rate =
      attacked.flooded_seconds > 0 ? static_cast<double>(attacked.inits) / attacked.flooded_seconds : 0;
  const int64_t growth = attacked.memory_peak - attacked.memory_before;
  const int64_t growth_clean = clean.memory_peak - clean.memory_before;
  hold(clean.ok && attacked.ok, "both jobs finish");
  hold(attacked.calm.size() >= kMinRounds && attacked.flooded.size() >= kMinRounds,
       "at least " + std::to_string(kMinRounds) +
           " rounds with and without flood (more --rounds, fewer --seconds)");
  hold(rate >= options.min_rate_share * options.per_second,
       "the flood is as fast as it was to be: " + std::to_string(static_cast<int64_t>(rate)) +
           " INITs per second");
  hold(calm > 0 && flooded <= options.max_p50_ratio * calm,
       "p50 of rounds under flood over p50 without it at most " + std::to_string(options.max_p50_ratio));
  hold(growth <= growth_clean + options.max_memory_growth, "memory grows by at most " +
                                                               std::to_string(options.max_memory_growth) +
                                                               " bytes more than without flood");
  hold(attacked.accuracy > 0 && attacked.accuracy >= clean.accuracy - options.max_accuracy_loss,
       "accuracy at most " + std::to_string(options.max_accuracy_loss) +
           " below that of the job without flood");
  hold(attacked.half_open_peak <= kMaxHalfOpen,
       "at most " + std::to_string(kMaxHalfOpen) + " half-open handshakes");
  return missed;
}

int Main(int argc, char** argv) {
  Options options;
  options.programs = std::filesystem::read_symlink("/proc/self/exe").parent_path().string();
  CLI::App app("A flood of INITs against a training job, on and off in one run.", "longhaul_attack_bench");
  app.option_defaults()->always_capture_default();
  app.add_option("--workers", options.workers)->check(CLI::Range(1, 64));
  app.add_option("--rounds", options.rounds, "of each of the two jobs")->check(CLI::Range(30, 1'000'000));
  app.add_option("--batch", options.batch)->check(CLI::Range(1, 60'000));
  app.add_option("--rate", options.per_second, "INITs per second that are aimed at")
      ->check(CLI::Range(1.0, 1e7));
  app.add_option("--seconds", options.seconds, "of flood, and of rest between")
      ->check(CLI::Range(0.5, 600.0));
  app.add_option("--hosts", options.hosts, "source addresses")->check(CLI::Range(1, 16'000'000));
  app.add_option("--kind", options.kind, "noise: no key has made them; valid: they open")
      ->check(CLI::IsMember({"noise", "valid"}));
  app.add_option("--fault", options.fault, "of the workers: how far away they are");
  app.add_option("--data", options.data);
  app.add_option("--max-p50-ratio", options.max_p50_ratio,
                 "bar: rounds under flood over rounds without, at p50")
      ->check(CLI::Range(0.1, 1000.0));
  app.add_option("--max-memory-growth", options.max_memory_growth,
                 "bar: bytes that the server grows by, beyond what it does without flood")
      ->check(CLI::NonNegativeNumber);
  app.add_option("--max-accuracy-loss", options.max_accuracy_loss, "bar: below the job without flood, 0..1")
      ->check(CLI::Range(0.0, 1.0));
  app.add_option("--min-rate-share", options.min_rate_share, "bar: of --rate that was really sent, 0..1")
      ->check(CLI::Range(0.0, 1.0));
  app.footer(
      "Exit codes: 0 every bar is held; 1 one is missed (\"missed\" in the JSON says which, so does "
      "standard\n"
      "error) or a job failed; 2 bad options.");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }

  const auto key = keys::TemporaryKey::Make("default");
  if (!key.ok()) throw std::runtime_error(key.status().ToString());
  std::vector<Bytes> datagrams;
  Forger forger(key->path());
  for (uint64_t i = 0; i < 1024; ++i) {
    datagrams.push_back(options.kind == "valid" ? forger.Init(0x1000 + i) : NoiseInit(0x1000 + i));
  }
  const JobResult clean = Job(options, key->path()).Run({});
  const JobResult attacked = Job(options, key->path()).Run(datagrams);
  const std::vector<std::string> missed = Missed(options, clean, attacked);
  json report = Report(options, clean, attacked);
  report["missed"] = missed;
  std::cout << report.dump(2) << "\n";
  for (const std::string& bar : missed) std::cerr << "longhaul_attack_bench: missed: " << bar << "\n";
  return missed.empty() ? 0 : 1;
}

}  // namespace
}  // namespace longhaul::attack

int main(int argc, char** argv) {
  // The helpers report what they cannot do as test failures.
  int none = 1;
  ::testing::InitGoogleTest(&none, argv);
  try {
    return longhaul::attack::Main(argc, argv);
  } catch (const std::exception& error) {
    std::cerr << error.what() << "\n";
    return 1;
  }
}
