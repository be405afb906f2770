#include "tests/e2e/support/job.h"

#include <fcntl.h>
#include <sys/ioctl.h>
#include <sys/stat.h>

#include <charconv>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>

#include "base/files.h"
#include "base/random.h"
#include "transport/crypto/keygen.h"
#include "transport/keys/key_file.h"

namespace longhaul::e2e {
namespace {

constexpr int kSide = 28;
constexpr int kClasses = 10;

void PutU32(std::ofstream& out, uint32_t value) {
  for (int shift = 24; shift >= 0; shift -= 8) out.put(static_cast<char>(value >> shift));
}

// Class c lights the rows 2 c + 4 and 2 c + 5, on a dim noise.
void WritePart(const std::string& prefix, uint32_t count, uint64_t seed) {
  Random random(seed);
  std::ofstream images(prefix + "-images-idx3-ubyte.gz", std::ios::binary);
  std::ofstream labels(prefix + "-labels-idx1-ubyte.gz", std::ios::binary);
  PutU32(images, 0x803);
  PutU32(images, count);
  PutU32(images, kSide);
  PutU32(images, kSide);
  PutU32(labels, 0x801);
  PutU32(labels, count);
  for (uint32_t i = 0; i < count; ++i) {
    const int label = static_cast<int>(i % kClasses);
    labels.put(static_cast<char>(label));
    for (int row = 0; row < kSide; ++row) {
      const bool lit = row / 2 == label + 2;
      for (int column = 0; column < kSide; ++column) {
        images.put(static_cast<char>((lit ? 200 : 0) + static_cast<int>(random.Below(50))));
      }
    }
  }
}

}  // namespace

void WriteSmallDataset(const std::string& directory) {
  std::filesystem::create_directories(directory);
  WritePart(directory + "/train", 320, 1);
  WritePart(directory + "/t10k", 80, 2);
}

void JobTest::SetUp() {
  char pattern[] = "/tmp/longhaul-e2e-XXXXXX";
  ASSERT_NE(mkdtemp(pattern), nullptr);
  directory_ = pattern;
  chmod(pattern, 0777);
  WriteSmallDataset(dataset());
  const auto key = crypto::NewPsk("default");
  ASSERT_TRUE(key.ok() && keys::WriteKeyFile(key_file(), key->text()).ok());
}

void JobTest::TearDown() {
  if (HasFailure()) {
    for (const Program& program : programs_) std::cerr << program.Everything() << "\n";
  }
  programs_.clear();
  std::error_code ignored;
  if (!directory_.empty()) std::filesystem::remove_all(directory_, ignored);
}

Program& JobTest::Start(const std::string& name, const std::vector<std::string>& arguments,
                        const std::function<int()>& before_exec) {
  return programs_.emplace_back(name, arguments, directory_, before_exec);
}

int JobTest::LeaveTerminal() {
  const FileDescriptor terminal(::open("/dev/tty", O_RDWR | O_NOCTTY | O_CLOEXEC));
  return terminal.valid() ? ::ioctl(terminal.get(), TIOCNOTTY) : 0;
}

Program& JobTest::StartServer(const Flags& more) {
  const Flags flags = Merged({{"--listen", "127.0.0.1:0"},
                              {"--workers", "2"},
                              {"--idle-timeout", std::to_string(kIdleSeconds)},
                              {"--progress", "json"}},
                             Merged(more.contains("--insecure") ? Flags() : security(), more));
  server_ = &programs_.emplace_back("longhaul-server", flags, directory_, LeaveTerminal);
  const auto listening = server_->WaitForEvent("listening");
  EXPECT_TRUE(listening) << server_->Everything();
  if (listening) address_ = listening->value("address", "");
  return *server_;
}

Program& JobTest::StartWorker(uint32_t rank, const Flags& more) {
  const Flags flags = Merged({{"--join", address_},
                              {"--rank", std::to_string(rank)},
                              {"--world-size", "2"},
                              {"--site", "site" + std::to_string(rank)},
                              {"--rounds", "1000000"},
                              {"--batch", "16"},
                              {"--data", dataset()},
                              {"--eval-every", "0"},
                              {"--idle-timeout", std::to_string(kIdleSeconds)},
                              {"--progress", "json"}},
                             Merged(more.contains("--insecure") ? Flags() : security(), more));
  return programs_.emplace_back("longhaul-worker", flags, directory_);
}

void JobTest::ExpectEnd(Program& program, int code, Duration limit) {
  const auto ended = program.WaitForEnd(limit);
  ASSERT_TRUE(ended) << "does not end:\n" << program.Everything();
  EXPECT_EQ(*ended, code) << program.Everything();
}

void JobTest::StartRunningJob() {
  StartServer();
  job_workers_.clear();
  // The delay makes a round last 20 ms or more.
  for (uint32_t rank = 0; rank < 2; ++rank) {
    job_workers_.push_back(
        &StartWorker(rank, {{"--rounds", "200"}, {"--fault", "delay=10ms"}, {"--lr", "0.01"}}));
  }
  ASSERT_TRUE(worker(0).WaitForEvent("round")) << worker(0).Everything();
}

void JobTest::ExpectRunningJobFinishes() {
  EXPECT_FALSE(worker(0).FindEvent("finished")) << "it was over before anything could disturb it";
  for (Program* worker : job_workers_) {
    ExpectEnd(*worker, 0);
    const auto finished = worker->FindEvent("finished");
    ASSERT_TRUE(finished) << worker->Everything();
    EXPECT_EQ(finished->value("rounds", 0), 200);
  }
  const auto finished = server().WaitForEvent("finished");
  ASSERT_TRUE(finished) << server().Everything();
  EXPECT_EQ(finished->value("rounds", 0), 200);
  EXPECT_TRUE(server().running()) << "without --once a server goes on";
}

uint16_t JobTest::port() const {
  const std::string text = address_.substr(address_.rfind(':') + 1);
  uint16_t number = 0;
  std::from_chars(text.data(), text.data() + text.size(), number);
  return number;
}

}  // namespace longhaul::e2e
