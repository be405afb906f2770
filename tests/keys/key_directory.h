// A directory of a test's own, gone with it.
#pragma once

#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <string>

namespace longhaul::keys {

class KeyDirectory : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string name = ::testing::TempDir() + "longhaul-keys-XXXXXX";
    ASSERT_NE(::mkdtemp(name.data()), nullptr);
    directory_ = name;
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }

  std::string Path(const std::string& name) const { return directory_ + "/" + name; }

 private:
  std::string directory_;
};

}  // namespace longhaul::keys
