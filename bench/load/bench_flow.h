// `longhaul bench flow`: a load generator for a running longhaul-server. Pushes windows back to back for some
// seconds and reports the transport's figures.
#pragma once

#include <cstdint>
#include <string>

#include "longhaul/job.h"
#include "proto/packet_header.h"

namespace longhaul {

template <>
inline constexpr std::array<std::string_view, 2> kNamesOf<wire::ReliabilityClass> = {"high", "low"};

}  // namespace longhaul

namespace longhaul::load {

struct BenchFlowOptions {
  std::string join;            // HOST:PORT
  std::string bytes = "16mb";  // of one window
  wire::ReliabilityClass reliability = wire::ReliabilityClass::kHigh;
  double seconds = 10;
  double warmup = 0;     // at the start, not measured
  uint32_t windows = 0;  // ends after so many; 0 = only by time
  int fec_k = -1;        // negative: the server's setting
  std::string site;
  RateControl rate_controller = RateControl::kLonghaul;
  std::string rate_cap;    // "200mbit"; empty: none
  std::string rate_floor;  // empty: the transport's default
  uint32_t datagram_bytes = 1452;
  double idle_timeout = 10;
  double connect_timeout = 0;  // 0 = idle_timeout
  uint64_t seed = 0;           // 0 = from the operating system
  std::string fault;
  std::string json_file;  // "-": standard output
  double series = 0;      // seconds between the points of the time series in the JSON; 0 = none
  bool quiet = false;
  std::string server_name = {};  // that the server's certificate must have; empty: any
  std::string key_file = {};     // of the job; or
  bool insecure = false;         // no encryption and no authentication
};

// Exit codes of RunBenchFlow.
inline constexpr int kBenchFailed = 1;  // the run ended early; what was measured until then is reported
inline constexpr int kBenchUsage = 2;
inline constexpr int kBenchUnreachable = 3;  // no server, or it does not let us in
inline constexpr int kBenchInterrupted = 130;

int RunBenchFlow(const BenchFlowOptions& options);

}  // namespace longhaul::load
