#include "tests/sim/gradient_code.h"

namespace longhaul::sim {
namespace {

uint64_t Mix(uint64_t x) {
  x += 0x9e3779b97f4a7c15ull;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

}  // namespace

int32_t MarkerValue(uint64_t incarnation) { return 1 + 16 * static_cast<int32_t>(incarnation); }

int32_t GradientValue(const GradientId& id, uint64_t element, GradientKind kind) {
  const uint64_t slot = element % kind.period();
  if (slot < kind.ranks) return slot == id.rank ? MarkerValue(id.incarnation) : 0;
  const uint64_t push = (uint64_t{id.job} << 56) | (uint64_t{id.tensor} << 48) | (uint64_t{id.rank} << 40) |
                        (id.incarnation << 32) | id.sequence;
  const uint64_t hash = Mix(Mix(push) ^ element);
  if (kind.bytes && slot + 1 == kind.period()) return hash % 2 == 0 ? 127 : -127;
  if (kind.sparse && hash % 8 != 0) return 0;
  if (kind.bytes) return static_cast<int32_t>((hash >> 8) % 255) - 127;
  return static_cast<int32_t>((hash >> 8) % 401) - 200;
}

int32_t InitialValue(uint32_t job, uint32_t tensor, uint32_t rank, uint64_t element) {
  const uint64_t hash = Mix((uint64_t{job} << 40) ^ (uint64_t{tensor} << 32) ^ element);
  return static_cast<int32_t>(hash % 17) + 20 * static_cast<int32_t>(rank + 1);
}

}  // namespace longhaul::sim
