// What sums are compared with: memcpy in the same run.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstring>
#include <vector>

#include "base/quantile.h"

namespace longhaul::offload {

// Bytes per second that memcpy reads, of as many arrays of that size, one after the other, into as many
// places as there are results.
inline double MemcpyRate(size_t bytes, size_t arrays, size_t places, int repeats) {
  const std::vector<std::vector<std::byte>> from(arrays, std::vector<std::byte>(bytes, std::byte{1}));
  std::vector<std::vector<std::byte>> to(places, std::vector<std::byte>(bytes));
  std::vector<double> rates;
  for (int i = 0; i < repeats; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    for (size_t k = 0; k < arrays; ++k) std::memcpy(to[k % places].data(), from[k].data(), bytes);
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
    rates.push_back(static_cast<double>(bytes * arrays) / took.count());
  }
  return Quantile(rates, 0.5);
}

}  // namespace longhaul::offload
