// All-reduce of four processes on one host, beside gloo and OpenMPI: longhaul_offload_peers_bench --help
//
// Every system has its four ranks; one message of each in turn, all others sleep. Times are from the
// moment when the first rank begins, all being ready, until the last has its result. gloo goes over TCP on
// 127.0.0.1, OpenMPI over shared memory; both send from memory of the user into memory of the user, as
// `copied` does.
#include <sys/wait.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/quantile.h"
#include "bench/offload/ranks.h"
#include "bench/offload/turns.h"

namespace longhaul::offload {
namespace {

constexpr uint32_t kSegBytes = 1024;
constexpr uint32_t kPieceSegs = 256;     // of a rank with copied memory, which posts piece by piece
constexpr unsigned kLimitSeconds = 300;  // of a message size: a rank that fails leaves the others waiting

// Ranks of one system.
class Team {
 public:
  Team(std::string name, size_t bytes) : name_(std::move(name)), file_(scratch_.File("turns")) {
    std::ofstream(file_).write("", 0);
    std::filesystem::resize_file(file_, sizeof(Turns));
    turns_ = new (Turns::Map(file_.c_str())) Turns;
    turns_->bytes = bytes;
    pthread_barrierattr_t attributes;
    pthread_barrierattr_init(&attributes);
    pthread_barrierattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
    pthread_barrier_init(&turns_->barrier, &attributes, Turns::kRanks + 1);
  }
  virtual ~Team() = default;
  const std::string& name() const { return name_; }

  // Seconds of a turn, from the first rank's begin to the last one's end.
  double Turn() {
    pthread_barrier_wait(&turns_->barrier);
    pthread_barrier_wait(&turns_->barrier);
    const auto taken = *std::ranges::max_element(turns_->end) - *std::ranges::min_element(turns_->begin);
    pthread_barrier_wait(&turns_->barrier);
    return std::chrono::duration<double>(taken).count();
  }
  // Throws when a sum was wrong, or a rank has failed.
  void End() {
    turns_->over = true;
    pthread_barrier_wait(&turns_->barrier);
    if (!Join() || turns_->wrong) throw std::runtime_error(name_ + ": a wrong sum");
  }

 protected:
  virtual bool Join() = 0;

  std::string name_;
  bench::Scratch scratch_;
  std::string file_;
  Turns* turns_;
};

class Ours : public Team {
 public:
  Ours(const std::string& how, size_t bytes)
      : Team("longhaul, " + how, bytes), daemon_(Turns::kRanks, kSegBytes, 50) {
    for (uint8_t rank = 0; rank < Turns::kRanks; ++rank) {
      pids_.push_back(fork());
      if (pids_.back() != 0) continue;
      RunRank(how, rank);
      _exit(0);
    }
  }

 private:
  void RunRank(const std::string& how, uint8_t rank) {
    alarm(kLimitSeconds);  // a child's is its own
    Device device = Device::Open(daemon_.where(), {.rank = rank}).value();
    const RankMemory m = RankMemory::Of(device, how, turns_->bytes);
    std::fill_n(m.send, turns_->bytes / sizeof(float), 1.0f);
    const uint32_t piece = how.starts_with("copied") ? kPieceSegs : UINT32_MAX;
    uint32_t mid = 0;
    turns_->Take(rank, m.receive, how != "shared" || rank == 0,
                 [&] { AllReduce(device, m, turns_->bytes, mid++, piece, kSegBytes, false); });
  }
  bool Join() override {
    return std::all_of(pids_.begin(), pids_.end(), [](pid_t pid) {
      int status = 0;
      return waitpid(pid, &status, 0) == pid && status == 0;
    });
  }

  Daemon daemon_;
  std::vector<pid_t> pids_;
};

class Theirs : public Team {
 public:
  Theirs(const std::string& name, size_t bytes) : Team(name, bytes) {
    if (name == "gloo") {
      for (size_t rank = 0; rank < Turns::kRanks; ++rank) {
        const std::string program = bench::ProgramPath("longhaul_offload_gloo_rank");
        Start({program, file_, std::to_string(rank), std::filesystem::path(file_).parent_path().string()});
      }
    } else {
      // --oversubscribe: more ranks than cores, which then give way to each other. vader: shared memory.
      Start({"mpirun", "--allow-run-as-root", "--oversubscribe", "-n", std::to_string(Turns::kRanks), "--mca",
             "btl", "self,vader", bench::ProgramPath("longhaul_offload_mpi_rank"), file_});
    }
  }

 private:
  void Start(const std::vector<std::string>& argv) {
    processes_.push_back(bench::StartIn(nullptr, "", name_, argv, {}).value());
  }
  bool Join() override {
    return std::all_of(processes_.begin(), processes_.end(), [](cli::ChildProcess& process) {
      return process.WaitFor(std::chrono::seconds(30)) && process.exit_code() == 0;
    });
  }

  std::vector<cli::ChildProcess> processes_;
};

// Of `name`, the program of its ranks.
const std::map<std::string, std::string> kPeers = {{"gloo", "longhaul_offload_gloo_rank"},
                                                   {"OpenMPI", "longhaul_offload_mpi_rank"}};

nlohmann::json Compare(size_t mebibytes, int repeats, const std::vector<std::string>& peers) {
  const size_t bytes = mebibytes << 20;
  alarm(kLimitSeconds);
  std::vector<std::unique_ptr<Team>> teams;
  for (const char* how : {"shared", "own", "copied"}) teams.push_back(std::make_unique<Ours>(how, bytes));
  for (const std::string& peer : peers) teams.push_back(std::make_unique<Theirs>(peer, bytes));
  std::vector<std::vector<double>> seconds(teams.size());
  for (int i = 0; i <= repeats; ++i) {
    for (size_t k = 0; k < teams.size(); ++k) {
      const double taken = teams[k]->Turn();
      if (i > 0) seconds[k].push_back(taken);
    }
  }
  for (auto& team : teams) team->End();
  std::map<std::string, double> medians;
  for (size_t k = 0; k < teams.size(); ++k) medians[teams[k]->name()] = Quantile(seconds[k], 0.5);
  nlohmann::json rows;
  for (size_t k = 0; k < teams.size(); ++k) {
    const double median = medians[teams[k]->name()];
    nlohmann::json row = {{"mib", mebibytes},
                          {"system", teams[k]->name()},
                          {"ms", 1e3 * median},
                          {"best_ms", 1e3 * Quantile(seconds[k], 0)},
                          {"gb_per_s_in", static_cast<double>(Turns::kRanks * bytes) / median / 1e9}};
    std::printf("%3zu MiB a rank, %-16s  %8.1f ms (best %8.1f)", mebibytes, teams[k]->name().c_str(),
                1e3 * median, 1e3 * Quantile(seconds[k], 0));
    for (const std::string& peer : peers) {
      row["times"][peer] = medians[peer] / median;
      std::printf("  %5.1f times %s", medians[peer] / median, peer.c_str());
    }
    std::printf("\n");
    rows.push_back(std::move(row));
  }
  return rows;
}

int Main(int argc, char** argv) {
  CLI::App app("All-reduce of four processes on one host: longhaul-offload beside gloo and OpenMPI");
  int repeats = 11;
  std::string json;
  std::vector<size_t> sizes = {16, 64};
  app.add_option("--repeats", repeats, "Messages per size and system, in turns; the median counts")
      ->check(CLI::Range(1, 10'000));
  app.add_option("--sizes", sizes, "MiB of a rank's message")->delimiter(',');
  app.add_option("--json", json, "Write the figures to this file");
  CLI11_PARSE(app, argc, argv);
  nlohmann::json out;
  out["left_out"] = nlohmann::json::array();
  std::vector<std::string> peers;
  for (const auto& [peer, program] : kPeers) {
    if (access(bench::ProgramPath(program).c_str(), X_OK) == 0) {
      peers.push_back(peer);
      continue;
    }
    std::printf("%s is left out: built without its package (tools/dev setup peers)\n", peer.c_str());
    out["left_out"].push_back(peer);
  }
  std::fflush(stdout);
  for (const size_t mebibytes : sizes) {
    for (auto& row : Compare(mebibytes, repeats, peers)) out["all_reduce"].push_back(std::move(row));
  }
  if (json.empty()) return 0;
  std::ofstream(json) << out.dump(2) << "\n";
  return 0;
}

}  // namespace
}  // namespace longhaul::offload

int main(int argc, char** argv) { return longhaul::offload::Main(argc, argv); }
