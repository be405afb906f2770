// The daemon and its ranks, as the benches of shared memory start them.
#pragma once

#include <string>
#include <vector>

#include "bench/wan/programs.h"
#include "longhaul/offload.h"

namespace longhaul::offload {

// longhaul-offload; ends with this.
class Daemon {
 public:
  Daemon(int ranks, uint32_t seg_bytes, int spin_us);
  std::string where() const { return "unix:" + path(); }
  double CpuSeconds() const { return bench::CpuSeconds(process_.pid()); }

 private:
  std::string path() const { return scratch_.File("site.sock"); }

  bench::Scratch scratch_;
  cli::ChildProcess process_;
};

struct RankMemory {
  // `shared`: zero-copy, one memory for the result of all; `own`: zero-copy, every rank has its own; `copied
  // in`: Post copies what is sent from memory of Register, the result is shared; `copied`: Poll copies the
  // result, too.
  static RankMemory Of(Device& device, const std::string& how, size_t bytes);

  std::vector<float> mine[2];
  float* send = nullptr;
  float* receive = nullptr;
  uint32_t send_key = 0;
  uint32_t receive_key = 0;
};

// Of a rank that sleeps until its completion is there, or spins. Ends the process when it fails.
void AllReduce(Device& device, const RankMemory& m, size_t bytes, uint32_t mid, uint32_t piece_segs,
               uint32_t seg_bytes, bool spin);

}  // namespace longhaul::offload
