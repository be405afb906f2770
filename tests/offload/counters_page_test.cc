// docs/reference/counters.md has the device's counters:
//   LONGHAUL_WRITE_DOCS=1 test_offload --gtest_filter='OffloadCounters.*'
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <sstream>

#include "base/counters.h"
#include "longhaul/offload.h"

namespace longhaul::offload {
namespace {

TEST(OffloadCounters, ThePageHasEveryCounter) {
  const std::string path = std::string(LONGHAUL_SOURCE_DIR) + "/docs/reference/counters.md";
  std::stringstream text;
  text << std::ifstream(path).rdbuf();
  const std::string page = text.str(), begin = "<!-- counters: offload -->\n";
  const size_t from = page.find(begin), to = page.find("<!-- end -->", from);
  ASSERT_NE(to, std::string::npos);
  const std::string expected =
      page.substr(0, from + begin.size()) + CounterPage<OffloadStats>(kOffloadCounters) + page.substr(to);
  if (std::getenv("LONGHAUL_WRITE_DOCS") != nullptr) std::ofstream(path) << expected;
  EXPECT_TRUE(page == expected) << path << " is old; LONGHAUL_WRITE_DOCS=1 writes it anew";
}

// A counter that is in no table reaches no reader.
TEST(OffloadCounters, TheTableHasEveryField) {
  size_t bytes = 0;
  for (const auto& counter : kOffloadCounters) {
    bytes += std::visit([]<typename S, typename T>(T S::*) { return sizeof(T); }, counter.field);
  }
  EXPECT_EQ(sizeof(OffloadStats), bytes);
}

}  // namespace
}  // namespace longhaul::offload
