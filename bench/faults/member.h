// A member of the job that misbehaves on SIGUSR1, and until then pushes zeros as a worker that has learned
// everything: `longhaul_faults_bench member KIND --join HOST:PORT ...`, started by the bench itself.
#pragma once

#include <cstdint>
#include <string>

#include "base/placement.h"

namespace longhaul::bench::faults {

struct MemberOptions {
  // idle: lives and pushes no more · barriers: opens barriers that no other worker comes to · tensors:
  // declares tensors that no other worker knows · huge: declares a tensor of 1 GiB with Adam · nan, large:
  // pushes such values · ledger: is honest, and keeps a ledger (ledger.h) · pace: is honest, and says which
  // round each of its steps was in
  std::string kind;
  std::string join;
  std::string offload;  // in place of join: rank `rank` of that engine
  std::string key_file;
  uint32_t rank = 0;
  uint32_t world_size = 1;
  int idle_timeout = 4;                    // s
  std::string ledger;                      // its file
  uint64_t elements = 3 * kSmallestShard;  // of "pace": a part at each of three servers
};

inline constexpr const char* kMemberKinds[] = {"idle", "barriers", "tensors", "huge",
                                               "nan",  "large",    "ledger",  "pace"};
// What a member of kind "pace" says before it connects, and, with a number, of the round of a step; the whole
// of that: the number, bytes and packets sent, bytes and packets received since it connected.
inline constexpr const char* kConnects = "member: connects";
inline constexpr const char* kInRound = "member: round ";
inline constexpr const char* kStepFormat = "member: round %llu: sent %llu in %llu, received %llu in %llu";

// The exit code: 0 never, for it ends by a signal; 1 when the job has ended.
int RunMember(const MemberOptions& options);

}  // namespace longhaul::bench::faults
