// Handshakes that lose some of the first datagrams of both sides, in virtual time: each ends connected, or
// refused by name with nothing left behind.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <map>
#include <string>
#include <utility>

#include "tests/transport/bare_pair.h"

namespace longhaul::transport {

// Of so many datagrams all masks are tried: 2^16, or 2^13 where a sanitizer makes each ten times as long.
constexpr int kMaskBits = LONGHAUL_SLOWNESS > 1 ? 13 : 16;

// What came of many masks. Of RunAll each mask counts, of RunOne each run.
struct LossMasks {
  uint32_t connected = 0;
  uint32_t refused = 0;
  uint32_t runs = 0;
  Duration slowest{0};
  std::map<std::string, uint32_t> reasons;

  // One handshake that loses datagram n where bit (bits - 1 - n) of the mask is set.
  void RunOne(BarePair::Options options, uint32_t mask, int bits) {
    Run(std::move(options), mask, bits, false);
  }
  // Every mask of so many datagrams; options() makes those of one handshake.
  template <typename Options>
  void RunAll(int bits, Options options) {
    for (uint32_t mask = 0; mask < 1u << bits && !testing::Test::HasFailure();) {
      const uint32_t rest = Run(options(), mask, bits, true) - 1;
      mask = (mask & ~rest) + rest + 1;
    }
  }
  void Print() const {
    for (const auto& [why, count] : reasons) std::printf("%u masks: %s\n", count, why.c_str());
    std::printf("%u masks connected, %u ended, %u runs, slowest %.1f s\n", connected, refused, runs,
                static_cast<double>(slowest.count()) * 1e-9);
  }

 private:
  // A handshake that needs only its first datagrams ends the same for all masks that agree in these: the
  // answer is for how many masks, from this one on, it stands. It counts for `all` of them, or once.
  uint32_t Run(BarePair::Options options, uint32_t mask, int bits, bool all) {
    options.lost = [mask, bits](int number, bool, MutableByteSpan) {
      return number < bits && (mask >> (bits - 1 - number) & 1) != 0;
    };
    BarePair pair(options);
    const Instant start = pair.now;
    const bool well = pair.RunUntil([&] { return pair.BothConnected(); }, std::chrono::seconds(30));
    const uint32_t stands_for = 1u << (bits - std::min(pair.sent, bits));
    const uint32_t counted = all ? stands_for : 1;
    ++runs;
    if (well) {
      connected += counted;
      slowest = std::max(slowest, pair.now - start);
      EXPECT_EQ(pair.worker.closed + pair.server.closed, 0) << "mask " << mask;
    } else {
      refused += counted;
      reasons[pair.worker.close_status.ToString()] += counted;
      EXPECT_EQ(pair.worker.closed, 1) << "mask " << mask;
      EXPECT_FALSE(pair.worker.close_status.ok()) << "mask " << mask;
      EXPECT_EQ(pair.worker_endpoint->connection_count(), 0u) << "mask " << mask;
      EXPECT_EQ(pair.server_endpoint->connection_count(), 0u) << "mask " << mask;
      EXPECT_EQ(pair.server.connected, pair.server.closed) << "mask " << mask;
    }
    return stands_for;
  }
};

}  // namespace longhaul::transport
