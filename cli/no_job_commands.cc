#include "cli/job_commands.h"

namespace longhaul::cli {

struct JobCommands::Impl {};

JobCommands::JobCommands(CLI::App&) {}
JobCommands::~JobCommands() = default;
std::string JobCommands::given() const { return ""; }
int JobCommands::Run() { return 2; }

std::string JobCommands::WhyAbsent(const std::string& word) {
  if (word != "submit" && word != "jobs" && word != "logs" && word != "cancel") return "";
  return "'" + word +
         "' is not in this build, which knows no Kubernetes: configure it with -DLONGHAUL_OPERATOR=ON, which "
         "takes libcurl and yaml-cpp, or use kubectl";
}

}  // namespace longhaul::cli
