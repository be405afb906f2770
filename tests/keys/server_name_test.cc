#include "transport/keys/key_file.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>

namespace longhaul::keys {
namespace {

TEST(ServerName, StaysWithTheServerAndTellsItFromOthers) {
  const Address here = Address::V4(10, 0, 0, 1, 7700), other = Address::V4(10, 0, 0, 2, 7700);
  Address next = here;
  ++next.port;
  EXPECT_EQ(ServerName(here), ServerName(here));
  EXPECT_NE(ServerName(here), ServerName(next));
  EXPECT_NE(ServerName(here), ServerName(other));
}

TEST(ServerName, HasWhatTheMachineIsCalled) {
  char host[256] = {};
  ASSERT_EQ(::gethostname(host, sizeof host - 1), 0);
  const std::string name = ServerName(Address::V4(10, 0, 0, 1, 7700));
  EXPECT_NE(name.find('/' + std::string(host) + "/10.0.0.1:7700"), std::string::npos) << name;
  std::string id;
  if (std::ifstream("/etc/machine-id") >> id) {
    EXPECT_EQ(name.find(id), 0u) << name;
  }
}

}  // namespace
}  // namespace longhaul::keys
