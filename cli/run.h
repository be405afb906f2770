// `longhaul run`: an all-in-one local job. Starts one server in site A and workers in the sites B, C, ...
// across an emulated WAN, shows live progress and writes a summary. This is the demo.
//
// A site has one link, which its ranks share. Each rank is a member of the job; with offload a site is one,
// by its longhaul-offload.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "longhaul/job.h"

namespace longhaul::cli {

constexpr uint32_t kMaxRunSites = 16;
constexpr uint32_t kMaxRunWorkers = 64;  // processes on one machine

struct RunOptions {
  uint32_t sites = 1;
  uint32_t ranks = 4;  // of a site, each a longhaul-trainer
  bool offload = false;
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
  std::vector<std::string> connection_words;  // for those that have a connection to the server
  // A program that the ranks run instead of longhaul-trainer, with its words; empty: that one.
  std::vector<std::string> command;

  uint32_t workers() const { return sites * ranks; }
  uint32_t members() const { return offload ? sites : workers(); }
};

// Exit code: 0 fine, 1 the job failed, 2 bad options (also those that a daemon refused), 130 interrupted.
int RunJob(const RunOptions& options);

}  // namespace longhaul::cli
