// `longhaul bench offload`: the offload device's benches (bench/offload), and what they found beside what was
// wanted. Each is a program beside this one, in a build with benches; it measures in turns what it compares.
#pragma once

#include <string>
#include <vector>

namespace longhaul::cli {

struct BenchOffloadOptions {
  std::vector<std::string> only;  // of kOffloadBenches; none: all
  int repeats = 0;                // messages of a case; 0: as many as the bench finds right
  int mebibytes = 0;              // of a rank's message; 0: the sizes that the bench finds right
  std::string json_file;          // - for standard output
};

struct OffloadBench {
  const char* name;
  const char* program;
  const char* arguments;  // a space between them
};
inline constexpr OffloadBench kOffloadBenches[] = {
    {"device", "longhaul_offload_bench", ""},
    {"shm", "longhaul_offload_shm_bench", ""},
    {"peers", "longhaul_offload_peers_bench", ""},
    {"udp", "longhaul_offload_udp_bench", "--window-segs 512"},
    {"veth", "longhaul_offload_udp_bench", "--window-segs 512 --veth"},
    {"link", "longhaul_offload_udp_bench", "--window-segs 128 --veth --rate 2gbit"},
};

// 0 measured, whatever was found; 1 a bench failed, is not there, or the result cannot be written.
int RunBenchOffload(const BenchOffloadOptions& options);

}  // namespace longhaul::cli
