#include "tests/offload/commanded_rank.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <utility>

namespace longhaul::offload {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr uint64_t kCancelId = UINT64_MAX - 1;
constexpr uint64_t kOwnId = UINT64_MAX - 2;

// The rank inside its process: nothing of gtest.
class Rank {
 public:
  Rank(std::string where, uint8_t node, uint8_t rank, uint32_t* memory)
      : where_(std::move(where)), node_(node), rank_(rank), memory_(memory) {}

  CommandedRank::Report Do(const CommandedRank::Command& command) {
    switch (command.kind) {
      case CommandedRank::Kind::kOpen:
        return Open(command);
      case CommandedRank::Kind::kPost:
        return Post(command);
      case CommandedRank::Kind::kStats:
        break;
    }
    CommandedRank::Report report{.outcome = CommandedRank::Outcome::kDone};
    if (device_) report.segs_in_use = device_->stats().segs_in_use;
    return report;
  }

 private:
  using Outcome = CommandedRank::Outcome;
  static constexpr size_t kBytes = CommandedRank::kMostElements * sizeof(uint32_t);

  bool Open() {
    const auto end = Clock::now() + std::chrono::seconds(10);
    while (Clock::now() < end) {
      auto device = Device::Open(where_, {.node = node_, .rank = rank_});
      if (device.ok()) {
        device_.emplace(std::move(*device));
        std::byte* const bytes = reinterpret_cast<std::byte*>(memory_);
        const auto send = device_->Register({bytes, kBytes}),
                   receive = device_->Register({bytes + kBytes, kBytes});
        if (send.ok() && receive.ok()) {
          send_key_ = *send;
          receive_key_ = *receive;
          return true;
        }
        device_.reset();
      }
      usleep(2000);  // an old process of the rank is not forgotten yet, or the daemon begins
    }
    return false;
  }

  CommandedRank::Report Open(const CommandedRank::Command& command) {
    for (int tries = 0; tries < 3; ++tries) {
      if (!device_ && !Open()) return {.outcome = Outcome::kDaemonGone};
      bool fine = true;
      for (const uint16_t jid : {uint16_t{0}, uint16_t{1}}) {
        Completion done;
        fine = fine && device_->Configure(jid, command.jobs[jid], kOwnId).ok() &&
               Wait(kOwnId, milliseconds(5000), &done) == Outcome::kDone &&
               done.status == WorkStatus::kSuccess;
      }
      if (fine) return {.outcome = Outcome::kDone};
      device_.reset();
    }
    return {.outcome = Outcome::kDaemonGone};
  }

  CommandedRank::Report Post(const CommandedRank::Command& command) {
    CommandedRank::Report report{.outcome = Outcome::kDaemonGone};
    WorkRequest request = command.request;
    request.send.key = send_key_;
    request.receive.key = receive_key_;
    if (!device_ || !device_->Post({&request, 1}).ok()) return report;
    const auto limit = 2 * std::chrono::duration_cast<milliseconds>(request.deadline) + milliseconds(5000);
    if (command.cancel_after_us >= 0) {
      usleep(static_cast<useconds_t>(command.cancel_after_us));
      (void)device_->Cancel(request.jid, request.mid, kCancelId);
    }
    report.outcome = Wait(request.wr_id, limit, &report.completion);
    return report;
  }

  Outcome Wait(uint64_t wr_id, milliseconds limit, Completion* done) {
    const auto end = Clock::now() + limit;
    while (Clock::now() < end) {
      while (device_->Poll({done, 1}) > 0) {
        if (done->wr_id == wr_id) return Outcome::kDone;
      }
      if (!device_->RequestNotify().ok()) return Outcome::kDaemonGone;
      pollfd wait{device_->fd(), POLLIN, 0};
      poll(&wait, 1, 100);
    }
    return Outcome::kHangs;
  }

  std::string where_;
  uint8_t node_;
  uint8_t rank_;
  uint32_t* memory_;
  std::optional<Device> device_;
  uint32_t send_key_ = 0;
  uint32_t receive_key_ = 0;
};

}  // namespace

CommandedRank::CommandedRank(std::string where, uint8_t node, uint8_t rank)
    : where_(std::move(where)), node_(node), rank_(rank) {
  void* const memory = mmap(nullptr, 2 * kMostElements * sizeof(uint32_t), PROT_READ | PROT_WRITE,
                            MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  EXPECT_NE(memory, MAP_FAILED);
  memory_ = static_cast<uint32_t*>(memory);
  Start();
}

void CommandedRank::Start() {
  int commands[2], reports[2];
  EXPECT_EQ(pipe2(commands, O_CLOEXEC), 0);
  EXPECT_EQ(pipe2(reports, O_CLOEXEC), 0);
  pid_ = fork();
  if (pid_ == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    close(commands[1]);
    close(reports[0]);
    Main(commands[0], reports[1]);
  }
  close(commands[0]);
  close(reports[1]);
  commands_ = commands[1];
  reports_ = reports[0];
}

void CommandedRank::Main(int commands, int reports) {
  Rank rank(where_, node_, rank_, memory_);
  Command command;
  while (read(commands, &command, sizeof command) == static_cast<ssize_t>(sizeof command)) {
    const Report report = rank.Do(command);
    if (write(reports, &report, sizeof report) != static_cast<ssize_t>(sizeof report)) break;
  }
  _exit(0);
}

void CommandedRank::Kill() {
  if (pid_ <= 0) return;
  kill(pid_, SIGKILL);
  waitpid(pid_, nullptr, 0);
  close(commands_);
  close(reports_);
  pid_ = -1;
}

CommandedRank::~CommandedRank() {
  Kill();
  munmap(memory_, 2 * kMostElements * sizeof(uint32_t));
}

void CommandedRank::Ask(const Command& command) {
  EXPECT_EQ(write(commands_, &command, sizeof command), static_cast<ssize_t>(sizeof command));
}

std::optional<CommandedRank::Report> CommandedRank::Answer(int milliseconds) {
  if (pid_ <= 0) return Report{};
  pollfd wait{reports_, POLLIN, 0};
  if (poll(&wait, 1, milliseconds) != 1) return std::nullopt;
  Report report;
  if (read(reports_, &report, sizeof report) != static_cast<ssize_t>(sizeof report)) return Report{};
  return report;
}

}  // namespace longhaul::offload
