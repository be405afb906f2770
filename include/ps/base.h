// Keys and ranges of keys, the numbers of nodes and of groups of nodes, variables of the environment.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <limits>

#include "ps/internal/logging.h"

namespace ps {

using Key = uint64_t;
inline constexpr Key kMaxKey = std::numeric_limits<Key>::max();

// Nodes: the scheduler, then servers 8, 10, 12 ... and workers 9, 11, 13 ... by rank. Groups: their sums,
// too.
inline constexpr int kScheduler = 1;
inline constexpr int kServerGroup = 2;
inline constexpr int kWorkerGroup = 4;

// Keys, or positions, from begin() up to but not with end().
class Range {
 public:
  Range() = default;
  Range(uint64_t begin, uint64_t end) : begin_(begin), end_(end) {}

  uint64_t begin() const { return begin_; }
  uint64_t end() const { return end_; }
  uint64_t size() const { return end_ - begin_; }

 private:
  uint64_t begin_ = 0;
  uint64_t end_ = 0;
};

class Environment {
 public:
  static Environment* Get() {
    static Environment environment;
    return &environment;
  }
  // Null: not set.
  const char* find(const char* name) const { return std::getenv(name); }
};

inline int GetEnv(const char* name, int otherwise) {
  const char* const value = Environment::Get()->find(name);
  return value == nullptr ? otherwise : std::atoi(value);
}

}  // namespace ps
