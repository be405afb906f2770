// A member of the job that misbehaves on SIGUSR1, and until then pushes zeros as a worker that has learned
// everything: `longhaul_faults_bench member KIND --join HOST:PORT ...`, started by the bench itself.
#pragma once

#include <cstdint>
#include <string>

namespace longhaul::bench::faults {

struct MemberOptions {
  // idle: lives and pushes no more · barriers: opens barriers that no other worker comes to · tensors:
  // declares tensors that no other worker knows · huge: declares a tensor of 1 GiB with Adam · nan, large:
  // pushes such values · ledger: is honest, and keeps a ledger (ledger.h)
  std::string kind;
  std::string join;
  std::string key_file;
  uint32_t rank = 0;
  uint32_t world_size = 1;
  int idle_timeout = 4;  // s
  std::string ledger;    // its file
};

inline constexpr const char* kMemberKinds[] = {"idle", "barriers", "tensors", "huge",
                                               "nan",  "large",    "ledger"};

// The exit code: 0 never, for it ends by a signal; 1 when the job has ended.
int RunMember(const MemberOptions& options);

}  // namespace longhaul::bench::faults
