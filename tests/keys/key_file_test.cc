#include "transport/keys/key_file.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "key_directory.h"
#include "transport/crypto/credentials.h"

namespace longhaul::keys {
namespace {

using ::testing::HasSubstr;

using KeyFileTest = KeyDirectory;

mode_t ModeOf(const std::string& path) {
  struct stat info {};
  EXPECT_EQ(::stat(path.c_str(), &info), 0);
  return info.st_mode & 07777;
}

TEST_F(KeyFileTest, IsReadableByItsOwnerOnlyWhateverTheUmaskSays) {
  for (const mode_t umask : {mode_t{0}, mode_t{0277}}) {
    const mode_t before = ::umask(umask);
    const std::string path = Path("umask" + std::to_string(umask));
    const Status written = WriteKeyFile(path, "words");
    ::umask(before);
    ASSERT_TRUE(written.ok()) << written.ToString();
    EXPECT_EQ(ModeOf(path), 0600u);
    const auto read = ReadKeyFile(path);
    ASSERT_TRUE(read.ok()) << read.status().ToString();
    EXPECT_EQ(read->text(), "words");
  }
}

TEST_F(KeyFileTest, IsNeverOverwritten) {
  ASSERT_TRUE(WriteKeyFile(Path("a"), "first").ok());
  const Status second = WriteKeyFile(Path("a"), "second");
  EXPECT_EQ(second.code(), StatusCode::kAlreadyExists);
  EXPECT_THAT(second.message(), HasSubstr(Path("a")));
  EXPECT_EQ(ReadKeyFile(Path("a"))->text(), "first");
}

// An attacker that can make links in the directory must not choose where the key goes.
TEST_F(KeyFileTest, DoesNotFollowALink) {
  ASSERT_EQ(::symlink(Path("elsewhere").c_str(), Path("link").c_str()), 0);
  EXPECT_EQ(WriteKeyFile(Path("link"), "words").code(), StatusCode::kAlreadyExists);
  EXPECT_FALSE(std::filesystem::exists(Path("elsewhere")));
}

TEST_F(KeyFileTest, EveryRightOfOthersIsRefusedAndTheMendingNamed) {
  ASSERT_TRUE(WriteKeyFile(Path("a"), "words").ok());
  for (const mode_t mode : {0640, 0620, 0610, 0604, 0602, 0601, 0644, 0777}) {
    ASSERT_EQ(::chmod(Path("a").c_str(), mode), 0);
    const auto read = ReadKeyFile(Path("a"));
    EXPECT_EQ(read.status().code(), StatusCode::kPermissionDenied) << std::oct << mode;
    EXPECT_THAT(read.status().message(), HasSubstr("chmod 600 " + Path("a")));
  }
  for (const mode_t mode : {0600, 0400, 0700}) {
    ASSERT_EQ(::chmod(Path("a").c_str(), mode), 0);
    EXPECT_TRUE(ReadKeyFile(Path("a")).ok()) << std::oct << mode;
  }
}

TEST_F(KeyFileTest, OfAnotherUserIsRefused) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can give a file away: nothing is checked here";
  ASSERT_TRUE(WriteKeyFile(Path("a"), "words").ok());
  ASSERT_EQ(::chown(Path("a").c_str(), 12345, 12345), 0);
  const auto read = ReadKeyFile(Path("a"));
  EXPECT_EQ(read.status().code(), StatusCode::kPermissionDenied);
  EXPECT_THAT(read.status().message(), HasSubstr("12345"));
}

TEST_F(KeyFileTest, WhatIsNoFileIsRefusedAndNeverWaitedFor) {
  EXPECT_EQ(ReadKeyFile(Path("none")).status().code(), StatusCode::kNotFound);
  EXPECT_EQ(ReadKeyFile(Path("")).status().code(), StatusCode::kInvalidArgument);  // the directory
  ASSERT_EQ(::mkfifo(Path("pipe").c_str(), 0600), 0);
  EXPECT_EQ(ReadKeyFile(Path("pipe")).status().code(), StatusCode::kInvalidArgument);
  ASSERT_TRUE(WriteKeyFile(Path("empty"), "").ok());
  EXPECT_EQ(ReadKeyFile(Path("empty")).status().code(), StatusCode::kInvalidArgument);
  ASSERT_TRUE(WriteKeyFile(Path("long"), std::string(crypto::kMaxKeyFileBytes + 1, 'x')).ok());
  EXPECT_EQ(ReadKeyFile(Path("long")).status().code(), StatusCode::kInvalidArgument);
}

TEST_F(KeyFileTest, AFullDiskLeavesNoHalfKey) {
  // A bound on the size of files stands for the full disk: the write comes short, then fails.
  EXPECT_EQ(WriteKeyFile(Path("missing/a"), "words").code(), StatusCode::kNotFound);
  const std::string path = Path("limited");
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    ::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{2, 2};
    ::setrlimit(RLIMIT_FSIZE, &limit);
    const Status written = WriteKeyFile(path, "words");
    ::_exit(written.code() == StatusCode::kInternal ? 0 : 1);
  }
  int outcome = 0;
  ASSERT_EQ(::waitpid(child, &outcome, 0), child);
  EXPECT_TRUE(WIFEXITED(outcome) && WEXITSTATUS(outcome) == 0);
  EXPECT_FALSE(std::filesystem::exists(path));
}

}  // namespace
}  // namespace longhaul::keys
