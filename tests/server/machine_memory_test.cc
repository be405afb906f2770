#include "server/machine_memory.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

namespace longhaul::server {
namespace {

// A machine of files.
struct MachineMemory : testing::Test {
  MachineMemory() : root(testing::TempDir() + "machine" + std::to_string(::getpid())) {
    std::filesystem::remove_all(root);
  }
  ~MachineMemory() override { std::filesystem::remove_all(root); }
  void Write(const std::string& path, const std::string& text) const {
    const std::filesystem::path file = root + path;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << text;
  }
  uint64_t Available() const { return AvailableMemory(root); }

  const std::string root;
};

TEST_F(MachineMemory, IsUnknownWhereNothingSaysIt) { EXPECT_EQ(Available(), 0u); }

TEST_F(MachineMemory, IsWhatTheSystemCanGive) {
  Write("/proc/meminfo", "MemTotal:  9000 kB\nMemFree:  10 kB\nMemAvailable:    5000 kB\n");
  EXPECT_EQ(Available(), 5000u * 1024);
}

TEST_F(MachineMemory, IsWhatTheTightestGroupHasLeft) {
  Write("/proc/meminfo", "MemAvailable: 5000 kB\n");
  Write("/proc/self/cgroup", "1:cpu:/x\n0::/jobs/server\n");
  Write("/sys/fs/cgroup/jobs/server/memory.max", "max\n");
  Write("/sys/fs/cgroup/jobs/server/memory.current", "100\n");
  EXPECT_EQ(Available(), 5000u * 1024);
  Write("/sys/fs/cgroup/jobs/memory.max", "3000\n");
  Write("/sys/fs/cgroup/jobs/memory.current", "1000\n");
  EXPECT_EQ(Available(), 2000u) << "of the group above";
  Write("/sys/fs/cgroup/jobs/server/memory.max", "90\n");
  EXPECT_EQ(Available(), 1u) << "full is not unknown";
}

TEST_F(MachineMemory, OfAContainerIsInTheRootsFiles) {
  Write("/proc/self/cgroup", "0::/\n");
  Write("/sys/fs/cgroup/memory.max", "7000\n");
  Write("/sys/fs/cgroup/memory.current", "500\n");
  EXPECT_EQ(Available(), 6500u);
  Write("/sys/fs/cgroup/memory/memory.limit_in_bytes", "600");
  Write("/sys/fs/cgroup/memory/memory.usage_in_bytes", "100");
  EXPECT_EQ(Available(), 500u) << "version 1";
}

TEST(ThisMachineMemory, IsKnown) { EXPECT_GT(AvailableMemory(), uint64_t{1} << 20); }

}  // namespace
}  // namespace longhaul::server
