// `submit`, `jobs`, `logs` and `cancel` on the command line: options, help, and what they run. Made by
// cli/jobs/flags.cc, or, in a build without LONGHAUL_OPERATOR, by cli/no_job_commands.cc.
#pragma once

#include <CLI/CLI.hpp>
#include <memory>
#include <string>

namespace longhaul::cli {

class JobCommands {
 public:
  explicit JobCommands(CLI::App& app);
  ~JobCommands();
  JobCommands(const JobCommands&) = delete;
  JobCommands& operator=(const JobCommands&) = delete;

  // The one that was given; empty: none of them.
  std::string given() const;
  // REQUIRES: one was given. Its exit code.
  int Run();
  // In words, why this build lacks this one; empty: it does not, or there is no such command.
  static std::string WhyAbsent(const std::string& word);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace longhaul::cli
