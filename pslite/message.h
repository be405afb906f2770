// What nodes say to each other, as bytes: one message a window (pipe.h).
//
//   kHello     a node's Start, to the scheduler          kGreeting  a worker's numbers, to a server
//   kWelcome   the answer, when all have started         kBarrier   a node has reached a barrier
//   kRelease   all have                                  kBye       the last message of a node
//   kData      a request or a response (ps::Message)
//
// Numbers are big-endian; keys, values and lens of kData are as they lie in memory, which is little-endian.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "base/address.h"
#include "base/bytes.h"
#include "longhaul/status.h"
#include "ps/internal/customer.h"

namespace longhaul::pslite {

enum class Role : uint8_t { kScheduler, kServer, kWorker };

inline constexpr size_t kMaxMessageBytes = size_t{1} << 30;
// Before a peer has said hello.
inline constexpr size_t kMaxStrangerBytes = 4096;
inline constexpr uint32_t kMaxNodes = 4096;  // of a role

// Shared, so that arrays of a message that came may point into it.
struct Bytes {
  std::shared_ptr<uint8_t[]> data;
  size_t size = 0;

  static Bytes Of(size_t size);  // not set to anything
  ByteSpan span() const { return {data.get(), size}; }
  // Against the bound of what is queued: so that messages without content are bounded, too.
  size_t cost() const { return size + 4096; }
};

struct Hello {
  Role role = Role::kWorker;
  uint32_t workers = 0;
  uint32_t servers = 0;
  uint32_t customer = 0;           // of the process: a process of several workers says several
  std::optional<Address> address;  // a server's, if it is to be reached elsewhere than it is seen
};
struct Greeting {
  std::vector<uint32_t> ids;
};
struct Welcome {
  struct Own {
    uint32_t customer = 0;
    uint32_t id = 0;
  };
  std::vector<Own> own;
  std::vector<Address> servers;  // by rank
};
struct Barrier {
  uint32_t id = 0;
  uint32_t group = 0;
  bool last = false;  // of Finalize
};
struct Release {
  Barrier barrier;
};
struct Bye {};

using Decoded = std::variant<Hello, Greeting, Welcome, Barrier, Release, Bye, ps::Message>;

Bytes Encode(const Hello& hello);
Bytes Encode(const Greeting& greeting);
Bytes Encode(const Welcome& welcome);
Bytes Encode(const Barrier& barrier);
Bytes Encode(const Release& release);
Bytes Encode(const Bye& bye);
// Errors: kInvalidArgument (larger than kMaxMessageBytes).
Result<Bytes> Encode(const ps::Message& message);

// Arrays of a ps::Message point into `bytes`. Errors: kProtocolViolation.
Result<Decoded> Decode(const Bytes& bytes);

// The groups that a number means: a bit for each role.
bool InGroup(uint32_t id, uint32_t group);
Role RoleOf(uint32_t id);
// "worker 1"
std::string NameOf(uint32_t id);
std::string NameOf(Role role);

}  // namespace longhaul::pslite
