// Connections with TLS between two endpoints, in virtual time: whatever is lost on the way, and whatever
// somebody on the path changes.
#include <gtest/gtest.h>

#include <array>
#include <functional>
#include <optional>
#include <utility>

#include "proto/packet_header.h"
#include "tests/crypto/tls_pair.h"
#include "tests/transport/loss_masks.h"

namespace longhaul::crypto {
namespace {

using namespace std::chrono_literals;
using transport::BarePair;
using transport::Connection;
using transport::ConnectionStats;
using transport::Endpoint;
using transport::EndpointStats;
using transport::LossMasks;
using Bytes = std::vector<uint8_t>;

// A worker and a server that trust each other.
struct Trusted {
  std::unique_ptr<TlsSecurity> worker, server;

  BarePair::Options Options() const {
    BarePair::Options options;
    options.worker_security = worker.get();
    options.server_security = server.get();
    return options;
  }
};

std::unique_ptr<TlsSecurity> SecurityOf(const std::string& file, Role role) {
  const Side side(file, role);
  return side.Make();
}

Trusted MakeTrusted(bool certificates) {
  if (!certificates) {
    const std::string file = Text(NewPsk("job-a"));
    return {SecurityOf(file, Role::kWorker), SecurityOf(file, Role::kServer)};
  }
  const std::string ca = Text(NewCa("test-ca", kThisDay));
  const auto issue = [&](Role role, std::string_view name) {
    return SecurityOf(Text(IssueCertificate(ca, "job-a", role, name, kThisDay)), role);
  };
  return {issue(Role::kWorker, "worker-0"), issue(Role::kServer, "server-0")};
}

std::string NameOf(const testing::TestParamInfo<bool>& info) {
  return info.param ? "Certificates" : "PreSharedKey";
}

// --- Loss ---

class TlsLossMasks : public testing::TestWithParam<bool> {};

TEST_P(TlsLossMasks, EveryLossOfTheFirstEightDatagramsEndsWell) {
  const Trusted sides = MakeTrusted(GetParam());
  LossMasks masks;
  masks.RunAll(8, [&] { return sides.Options(); });
  masks.Print();
  EXPECT_EQ(masks.connected + masks.refused, 1u << 8);
  EXPECT_EQ(masks.refused, 0u) << "eight lost datagrams are no ten seconds";
  EXPECT_LE(masks.slowest, 10s);
}

TEST_P(TlsLossMasks, TwoThousandLossesOfTheFirstSixteenDatagramsEndWell) {
  const Trusted sides = MakeTrusted(GetParam());
  const uint64_t seed = 16;
  Random random(seed);
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  LossMasks masks;
  for (int i = 0; i < (GetParam() ? 500 : 2000) && !HasFailure(); ++i) {
    masks.Run(sides.Options(), static_cast<uint32_t>(random.Below(1 << 16)), 16);
  }
  masks.Print();
  EXPECT_LE(masks.refused, masks.connected / 20);
}

INSTANTIATE_TEST_SUITE_P(Keys, TlsLossMasks, testing::Bool(), NameOf);

}  // namespace
}  // namespace longhaul::crypto
