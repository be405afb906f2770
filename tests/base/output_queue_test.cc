// A queue in front of a descriptor that blocks: a writer never waits, and what is missing is counted where it
// is missing.
#include "base/process/output_queue.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <sstream>
#include <thread>

#include "base/files.h"

namespace longhaul::process {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;
using std::chrono::seconds;

std::string Dropped(uint64_t lines) { return "dropped " + std::to_string(lines); }

struct Pipe {
  Pipe() {
    int ends[2];
    EXPECT_EQ(::pipe2(ends, O_CLOEXEC), 0);
    reader.Reset(ends[0]);
    writer.Reset(ends[1]);
  }
  FileDescriptor reader, writer;
};

TEST(OutputQueue, APipeThatNobodyReadsHoldsNoWriterUp) {
  constexpr uint64_t kLines = 200'000;
  Pipe pipe;
  auto queue = std::make_unique<OutputQueue>(pipe.writer.get(), Dropped);
  const auto begin = Clock::now();
  for (uint64_t i = 0; i < kLines; ++i) queue->Write("line " + std::to_string(i));
  EXPECT_LT(Clock::now() - begin, seconds(5) * LONGHAUL_SLOWNESS);
  EXPECT_FALSE(queue->Flush(milliseconds(10)));
  const uint64_t dropped = queue->dropped();
  EXPECT_GT(dropped, kLines / 4) << "the queue has a bound";

  // A reader comes: the oldest lines, what is missing, the newest ones.
  std::string text;
  std::thread reader([&] {
    char buffer[65536];
    for (ssize_t got = 0; (got = ::read(pipe.reader.get(), buffer, sizeof buffer)) > 0;) {
      text.append(buffer, static_cast<size_t>(got));
    }
  });
  EXPECT_TRUE(queue->Flush(seconds(10) * LONGHAUL_SLOWNESS));
  EXPECT_EQ(queue->dropped(), dropped) << "nothing is dropped for a reader that reads";
  queue.reset();
  pipe.writer.Reset();
  reader.join();
  std::istringstream lines(text);
  uint64_t next = 0, told = 0;
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("dropped ")) {
      told += std::stoull(line.substr(8));
      next += std::stoull(line.substr(8));
    } else {
      ASSERT_EQ(line, "line " + std::to_string(next));
      ++next;
    }
  }
  EXPECT_EQ(next, kLines);
  EXPECT_EQ(told, dropped);
}

TEST(OutputQueue, ADescriptorThatDoesNotBlockIsWaitedFor) {
  Pipe pipe;
  ASSERT_EQ(::fcntl(pipe.writer.get(), F_SETFL, O_NONBLOCK), 0);
  OutputQueue queue(pipe.writer.get(), Dropped);
  for (int i = 0; i < 1000; ++i) queue.Write(std::string(199, 'x'));
  std::string text(200'000, ' ');
  for (size_t at = 0; at < text.size();) {
    const ssize_t got = ::read(pipe.reader.get(), text.data() + at, text.size() - at);
    ASSERT_GT(got, 0);
    at += static_cast<size_t>(got);
  }
  EXPECT_TRUE(queue.Flush(seconds(10)));
  EXPECT_EQ(queue.dropped(), 0u);
}

TEST(OutputQueue, AFullDiskIsCountedAndNamed) {
  const FileDescriptor full(::open("/dev/full", O_WRONLY | O_CLOEXEC));
  OutputQueue queue(full.get(), Dropped);
  for (int i = 0; i < 3; ++i) queue.Write("text");
  EXPECT_TRUE(queue.Flush(seconds(10)));
  EXPECT_EQ(queue.dropped(), 3u);
  EXPECT_EQ(queue.error(), "No space left on device");
}

TEST(OutputQueue, AClosedPipeIsCountedAndNamed) {
  const auto handler = std::signal(SIGPIPE, SIG_IGN);
  Pipe pipe;
  pipe.reader.Reset();
  OutputQueue queue(pipe.writer.get(), Dropped);
  queue.Write("text");
  EXPECT_TRUE(queue.Flush(seconds(10)));
  EXPECT_EQ(queue.dropped(), 1u);
  EXPECT_EQ(queue.error(), "Broken pipe");
  std::signal(SIGPIPE, handler);
}

}  // namespace
}  // namespace longhaul::process
