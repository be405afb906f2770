#include "base/placement.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace longhaul {
namespace {

// FNV-1a, then the finalizer of MurmurHash3, which lets every bit of the input reach every bit of the output.
uint64_t Mix(uint64_t hash, uint32_t server) {
  hash ^= (uint64_t{server} + 1) * 0x9e3779b97f4a7c15;
  hash = (hash ^ (hash >> 33)) * 0xff51afd7ed558ccd;
  hash = (hash ^ (hash >> 33)) * 0xc4ceb9fe1a85ec53;
  return hash ^ (hash >> 33);
}

uint64_t HashOf(std::string_view name, uint32_t server) {
  uint64_t hash = 0xcbf29ce484222325;
  for (const char c : name) hash = (hash ^ static_cast<uint8_t>(c)) * 0x100000001b3;
  return Mix(hash, server);
}

}  // namespace

std::vector<Shard> PlaceTensor(std::string_view name, uint64_t count, uint32_t servers) {
  LH_CHECK(count >= 1);
  LH_CHECK(servers >= 1 && servers <= kMaxServers);
  std::vector<std::pair<uint64_t, uint32_t>> ranking;
  for (uint32_t server = 0; server < servers; ++server) ranking.emplace_back(HashOf(name, server), server);
  std::ranges::sort(ranking);
  const uint64_t parts = std::clamp<uint64_t>(count / kSmallestShard, 1, servers);
  std::vector<Shard> shards;
  for (uint64_t part = 0; part < parts; ++part) {
    const auto begin = [&](uint64_t p) {
      if (p == parts) return count;
      return (count / kShardAlignment) * p / parts * kShardAlignment;
    };
    shards.push_back({ranking[part].second, begin(part), begin(part + 1) - begin(part)});
  }
  return shards;
}

uint64_t JobIdentity(std::span<const uint64_t> numbers) {
  uint64_t identity = 0;
  for (const uint64_t number : numbers) identity = identity * 0x9e3779b97f4a7c15 + number;
  return identity;
}

uint64_t NextJobNumber(uint64_t identity, uint32_t server) {
  return std::max<uint64_t>(Mix(identity, server), 1);  // 0 is none
}

}  // namespace longhaul
