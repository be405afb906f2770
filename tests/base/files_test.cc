#include "base/files.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "base/signals.h"

namespace longhaul {
namespace {

std::string Content(const std::string& path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

class Files : public testing::Test {
 protected:
  Files() { EXPECT_NE(::mkdtemp(directory_.data()), nullptr); }
  ~Files() override { std::filesystem::remove_all(directory_); }
  std::string Path(const std::string& name) const { return directory_ + "/" + name; }

 private:
  std::string directory_ = testing::TempDir() + "/files.XXXXXX";
};

TEST_F(Files, AreReplacedWholeAndLeaveNothingBeside) {
  ASSERT_TRUE(WriteFileAtomically(Path("a"), "old, and longer").ok());
  const FileDescriptor reader(::open(Path("a").c_str(), O_RDONLY));
  ASSERT_TRUE(WriteFileAtomically(Path("a"), "new").ok());
  EXPECT_EQ(Content(Path("a")), "new");
  EXPECT_FALSE(std::filesystem::exists(Path("a.part")));
  char old[32];
  EXPECT_EQ(::read(reader.get(), old, sizeof old), 15) << "a reader of the old one keeps all of it";
}

TEST_F(Files, LinksStayLinks) {
  ASSERT_EQ(::symlink(Path("target").c_str(), Path("link").c_str()), 0);
  ASSERT_TRUE(WriteFileAtomically(Path("link"), "text").ok());
  EXPECT_TRUE(std::filesystem::is_symlink(Path("link")));
  EXPECT_EQ(Content(Path("target")), "text");
}

TEST_F(Files, AFullDiskLeavesTheOldFileAndNothingBeside) {
  ASSERT_TRUE(WriteFileAtomically(Path("a"), "old").ok());
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  rlimit small = before;
  small.rlim_cur = 4;
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  const Status full = WriteFileAtomically(Path("a"), "longer than that");
  ::setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, handler);
  EXPECT_EQ(full.code(), StatusCode::kInternal);
  EXPECT_EQ(Content(Path("a")), "old");
  EXPECT_FALSE(std::filesystem::exists(Path("a.part")));
}

TEST_F(Files, OfAnEarlierRunAreRemovedBeforeTheWork) {
  ASSERT_TRUE(WriteFileAtomically(Path("a"), "old").ok());
  EXPECT_TRUE(PrepareResultFile(Path("a")).ok());
  EXPECT_FALSE(std::filesystem::exists(Path("a")));
  EXPECT_FALSE(std::filesystem::exists(Path("a.part")));
  EXPECT_TRUE(PrepareResultFile(Path("a")).ok()) << "none was there";
  EXPECT_TRUE(PrepareResultFile("/dev/null").ok());
  EXPECT_TRUE(std::filesystem::is_character_file("/dev/null"));
  EXPECT_TRUE(PrepareResultFile("").ok());
}

TEST_F(Files, ThatCannotBeWrittenAreFoundOutBeforeTheWork) {
  const Status missing = PrepareResultFile(Path("none/a"));
  EXPECT_NE(missing.message().find(Path("none/a")), std::string::npos) << missing.message();
  ASSERT_EQ(::mkfifo(Path("pipe").c_str(), 0600), 0);
  EXPECT_FALSE(PrepareResultFile(Path("pipe")).ok()) << "nobody reads it";
  EXPECT_FALSE(WriteFileAtomically(Path("pipe"), "text").ok());
  ASSERT_EQ(::symlink(Path("target").c_str(), Path("a.part").c_str()), 0);
  EXPECT_FALSE(PrepareResultFile(Path("a")).ok()) << "somebody's link";
}

TEST_F(Files, ErrorsNameThePath) {
  const Status missing = WriteFileAtomically(Path("none/a"), "text");
  EXPECT_EQ(missing.code(), StatusCode::kInternal);
  EXPECT_NE(missing.message().find(Path("none/a")), std::string::npos) << missing.message();
}

TEST(FileDescriptor, ClosesOnceWhateverItsWay) {
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  FileDescriptor a(ends[0]), b(ends[1]);
  FileDescriptor moved(std::move(a));
  EXPECT_FALSE(a.valid());
  b = std::move(moved);  // closes the writing end
  EXPECT_EQ(::fcntl(ends[1], F_GETFD), -1);
  EXPECT_NE(::fcntl(ends[0], F_GETFD), -1);
  b.Reset();
  EXPECT_EQ(::fcntl(ends[0], F_GETFD), -1);
}

TEST(EndingSignals, AreWaitedForAndTakenOnce) {
  const EndingSignals signals({SIGUSR1});
  EXPECT_EQ(signals.Take(), 0);
  ::raise(SIGUSR1);
  EXPECT_EQ(signals.Take(std::chrono::seconds(5)), SIGUSR1);
  EXPECT_EQ(signals.Take(), 0);
}

}  // namespace
}  // namespace longhaul
