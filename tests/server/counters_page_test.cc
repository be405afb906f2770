// docs/reference/counters.md has the tables of counters as they are in the code. After a change:
//   LONGHAUL_WRITE_DOCS=1 test_server --gtest_filter='CountersPage.*'
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <sstream>

#include "base/counters.h"
#include "server/report/server_stats.h"

namespace longhaul::server {
namespace {

// The page with the table of that name replaced.
std::string WithTable(const std::string& page, const std::string& name, const std::string& table) {
  const std::string begin = "<!-- counters: " + name + " -->\n";
  const size_t from = page.find(begin);
  const size_t to = page.find("<!-- end -->", from);
  if (from == std::string::npos || to == std::string::npos) return "no table of counters named " + name;
  return page.substr(0, from + begin.size()) + table + page.substr(to);
}

TEST(CountersPage, HasEveryCounter) {
  const std::string path = std::string(LONGHAUL_SOURCE_DIR) + "/docs/reference/counters.md";
  std::stringstream text;
  text << std::ifstream(path).rdbuf();
  std::string expected = WithTable(text.str(), "connection",
                                   CounterPage<transport::ConnectionStats>(transport::kConnectionCounters));
  expected =
      WithTable(expected, "endpoint", CounterPage<transport::EndpointStats>(transport::kEndpointCounters));
  expected = WithTable(expected, "server", CounterPage<ServerStats>(kServerCounters));
  expected = WithTable(expected, "client", CounterPage<ClientStats>(kClientCounters));
  if (std::getenv("LONGHAUL_WRITE_DOCS") != nullptr) std::ofstream(path) << expected;
  EXPECT_TRUE(text.str() == expected) << path << " is old; LONGHAUL_WRITE_DOCS=1 writes it anew";
}

// A counter that is in no table reaches no reader.
TEST(CountersPage, TheTablesHaveEveryField) {
  const auto bytes = [](const auto& table) {
    size_t sum = 0;
    for (const auto& counter : table) {
      sum += std::visit([]<typename S, typename T>(T S::*) { return sizeof(T); }, counter.field);
    }
    return sum;
  };
  // What is in no table: the state of the rate controller, the limiters; padding.
  EXPECT_LT(sizeof(transport::ConnectionStats) - sizeof(transport::RateSnapshot) -
                sizeof(transport::ConnectionStats::limited) - bytes(transport::kConnectionCounters),
            8u);
  EXPECT_EQ(sizeof(transport::EndpointStats), bytes(transport::kEndpointCounters));
  EXPECT_LT(sizeof(ClientStats) - bytes(kClientCounters), 8u);
  const ServerStats s;
  EXPECT_EQ(static_cast<size_t>(reinterpret_cast<const char*>(&s.round_p50) -
                                reinterpret_cast<const char*>(&s.strangers)),
            bytes(kServerCounters));
}

}  // namespace
}  // namespace longhaul::server
