// longhaul-operator as a process: what its tests measure is its own memory.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <fstream>
#include <string>
#include <string_view>
#include <vector>

#include "base/files.h"
#include "base/process/spawn.h"

namespace longhaul::kube {

// The operator as it is shipped, so that its memory is what is measured.
class OperatorProcess {
 public:
  explicit OperatorProcess(const std::vector<std::string>& flags, bool reads_log = true) {
    int ends[2] = {-1, ::open("/dev/null", O_WRONLY | O_CLOEXEC)};
    if (reads_log) {
      EXPECT_EQ(::pipe2(ends, O_CLOEXEC), 0);
    }
    log_.Reset(ends[0]);
    const FileDescriptor errors(ends[1]);
    std::vector<std::string> command = {LONGHAUL_OPERATOR_PROGRAM};
    command.insert(command.end(), flags.begin(), flags.end());
    const auto pid = process::Spawn(command, {.die_with_parent = true, .errors = errors.get()});
    EXPECT_TRUE(pid.ok()) << pid.status().message();
    pid_ = pid.ok() ? *pid : 0;
  }
  ~OperatorProcess() {
    ::kill(pid_, SIGKILL);
    (void)process::WaitFor(pid_);
  }
  // Of the webhooks, as the log says it.
  uint16_t Port() {
    constexpr std::string_view kBefore = "webhooks at 127.0.0.1:";
    std::string said;
    char byte = 0;
    while (::read(log_.get(), &byte, 1) == 1) {
      said += byte;
      if (const size_t at = said.find(kBefore); byte == '\n' && at != std::string::npos)
        return static_cast<uint16_t>(std::atoi(said.c_str() + at + kBefore.size()));
    }
    ADD_FAILURE() << said;
    return 0;
  }
  double MostMegabytes() const {
    std::ifstream status("/proc/" + std::to_string(pid_) + "/status");
    for (std::string line; std::getline(status, line);) {
      if (line.starts_with("VmHWM:")) return std::atof(line.c_str() + 6) * 1024 / 1e6;
    }
    return 0;
  }
  static std::string Kubeconfig(const std::string& url) {
    return "current-context: c\nclusters: [{name: c, cluster: {server: \"" + url +
           "\"}}]\nusers: [{name: u, user: {token: t}}]\ncontexts: [{name: c, context: "
           "{cluster: c, user: u, namespace: longhaul-system}}]\n";
  }

 private:
  FileDescriptor log_;
  pid_t pid_ = 0;
};

}  // namespace longhaul::kube
