// `longhaul bench rounds`: rounds of PushPull against a server and how long they take. All N workers in this
// process, or one of them with --rank; the server is a running one (--join) or is started on the loopback
// interface.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "longhaul/job.h"

namespace longhaul::load {

struct BenchRoundsOptions {
  std::string join;      // HOST:PORT; empty: a server in this process, with the settings below
  std::string job = {};  // empty: the key's, and "default" without one
  uint32_t workers = 4;
  int rank = -1;              // >= 0: only this one of them
  std::string bytes = "1mb";  // of a worker's gradient
  uint32_t tensors = 1;       // the gradient is cut into so many, all pushed at once, first ones first
  uint32_t rounds = 100;      // measured
  uint32_t warmup = 5;        // before them
  std::string gap = "0ms";    // between a round's end and the next one's start
  std::string wire_dtype = "float32";    // of the gradients
  std::string result_dtype = "float32";  // of the results
  double energy_spread = 0.5;            // of the logarithm of the chunks' scales
  RateControl rate_controller = RateControl::kLonghaul;
  double idle_timeout = 10;
  double connect_timeout = 0;  // 0 = idle_timeout
  uint32_t datagram_bytes = 1452;
  uint64_t seed = 0;      // 0 = from the operating system
  std::string fault;      // in the workers' traffic
  std::string json_file;  // "-": standard output
  bool quiet = false;
  std::string server_name = {};  // that the server's certificate must have; empty: any
  std::string key_file = {};     // of the job; or
  bool insecure = false;         // no encryption and no authentication
  // Of our own server. With --join the server there decides, and only high_share and high_energy may be
  // given: the workers' own.
  JobSpec job_spec = {};
  std::vector<std::string> job_words = {};  // what is given of it: "--topk", "0.1", ...

  // Whether that flag of the job is given.
  bool Says(const std::string& flag) const { return std::ranges::count(job_words, flag) > 0; }
  // The name of a setting that only our own server could follow although --join names another one, or empty.
  std::string SettingOfAnotherServer() const;
};

// Exit codes as of `bench flow` (bench/load/bench_flow.h).
int RunBenchRounds(const BenchRoundsOptions& options);

}  // namespace longhaul::load
