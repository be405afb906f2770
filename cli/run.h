// `longhaul run`: an all-in-one local job. Starts one server in site A and N workers in site B across an
// emulated WAN, shows live progress and writes a summary. This is the demo.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "longhaul/job.h"

namespace longhaul::cli {

struct RunOptions {
  uint32_t workers = 4;
  std::string rate = "200mbit";
  std::string delay = "25ms";  // one way; the round trip is twice that
  std::string loss = "2%";     // each way; "0" or "0%" for none
  double loss_burst = 0;       // mean burst length; 0 = independent losses
  std::string queue = "50ms";
  uint64_t rounds = 500;
  uint64_t seed = 1;
  std::string wan = "auto";  // auto | tun | netem | loopback
  std::string data;          // dataset directory; empty: the Debian package's
  std::string json_file;
  std::string log_directory;  // empty: a temporary one, kept when the run fails
  std::string key_file;       // of the job; empty: one is made for this run and removed after it
  bool insecure = false;      // no encryption
  double min_accuracy = 0;    // 0..1; below it the run fails
  JobSpec job_spec = {};      // as far as it is given in server_words
  // Words of the daemons' command lines, handed on as they are: these programs check them.
  std::vector<std::string> server_words;
  std::vector<std::string> worker_words;
};

// Exit code: 0 fine, 1 the job failed, 2 bad options (also those that a daemon refused), 130 interrupted.
int RunJob(const RunOptions& options);

}  // namespace longhaul::cli
