// Which server has which part of a tensor, where a job has several of them.
//
// A pure function of the tensor's name, its number of elements and the number of servers: every worker, every
// server and every tool finds the same parts, and nothing has to be kept of it (decision 0029).
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace longhaul {

// Of a job. Each has a connection to every worker; more are worth it only beyond any model that fits here.
inline constexpr uint32_t kMaxServers = 64;

// Parts begin at multiples of it, so that all but a tensor's last have whole vectors and whole pages.
inline constexpr uint64_t kShardAlignment = 1024;  // elements, 4 KiB

// No tensor is cut in smaller parts: 32 KiB are 23 datagrams, and a window of its own costs four more.
// Tensors below twice that go whole to one server, by chance: of 400 MB in such tensors, 6,250 or more, a
// server's share has a standard deviation of 1.8 % with three servers.
inline constexpr uint64_t kSmallestShard = 8192;  // elements

// A tensor's part: elements first .. first + count - 1.
struct Shard {
  uint32_t server = 0;  // its number in the shard map, from 0
  uint64_t first = 0;
  uint64_t count = 0;
  bool operator==(const Shard&) const = default;
};

// In the order of the elements, which they hold exactly once; no server has two, and all but the last are
// equal to kShardAlignment elements. A tensor's servers are those that rank first for its name (rendezvous
// hashing), so that remainders and small tensors are spread evenly, and a whole tensor moves only to a server
// that is new. REQUIRES: count >= 1, 1 <= servers <= kMaxServers.
std::vector<Shard> PlaceTensor(std::string_view name, uint64_t count, uint32_t servers);

// The identity of a job, of the numbers that its servers have for it, in the order of the shard map; of the
// only server, its number. Another number of any makes another identity.
uint64_t JobIdentity(std::span<const uint64_t> numbers);

// A job that goes to other servers keeps no number, as its parts are others: the number that a server of the
// next map has for the job of that identity. So a worker knows whether they go on with its job.
uint64_t NextJobNumber(uint64_t identity, uint32_t server);

}  // namespace longhaul
