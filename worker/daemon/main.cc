// longhaul-worker: starts the ranks of a host, which a command of the user's or longhaul-trainer are. Flags,
// signals and exit codes only.

#include <spdlog/fmt/fmt.h>
#include <spdlog/spdlog.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <iterator>
#include <memory>
#include <set>
#include <string_view>

#include "base/flags/config_file.h"
#include "base/flags/connect_flags.h"
#include "base/flags/environment.h"
#include "base/flags/exit_codes.h"
#include "base/flags/help_page.h"
#include "base/flags/number_checks.h"
#include "base/process/output.h"
#include "base/process/spawn.h"
#include "worker/daemon/launch.h"

namespace {

using longhaul::Result;
using longhaul::Status;
using longhaul::StatusCode;
using Words = std::vector<std::string>;

struct Flags : longhaul::cli::ConnectFlags {
  Words command;  // empty: the trainer
  uint32_t ranks = 1;
  uint32_t restarts = 0;
  std::string hostfile;
  std::string host;
  std::string log_level = "info";
};

constexpr const char* kTrainer = "longhaul-trainer";

constexpr const char* kFooter = R"(
Examples:
  longhaul-worker --join ams.example:7700 --key job.key --hostfile hosts --restarts 3 -- python3 train.py
  longhaul-worker --join 127.0.0.1:7700 --rank 0 --world-size 1 --insecure --rounds 100
  longhaul-worker --offload unix:/run/longhaul/site.sock
  MASTER_ADDR=ams.example MASTER_PORT=7700 RANK=2 WORLD_SIZE=4 longhaul-worker --key job.key

Behind -- stands a command: one process of it for each rank of this host, with the options above in its environment,
from where longhaul.connect() of Python, OptionsFromEnvironment of C++ and longhaul_connect of C take them; torchrun's,
Open MPI's and ps-lite's variables are set as well. Its standard input is empty; signals go to all ranks; a rank that
fails is started again --restarts times, then the others end as well.
Without -- it is longhaul-trainer, a small network on Fashion-MNIST, with all options that are not above; one rank
without --ranks, --restarts and --hostfile takes this process.

Every option but --insecure can also be given as LONGHAUL_<OPTION>, for example LONGHAUL_DATAGRAM_SIZE=1200 or
LONGHAUL_KEY=job.key; the server and `longhaul` read none of these. RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT,
OMPI_COMM_WORLD_RANK and _SIZE, DMLC_WORKER_ID, DMLC_NUM_WORKER, DMLC_PS_ROOT_URI and DMLC_PS_ROOT_PORT are understood
when neither flag nor LONGHAUL_* says otherwise, and not with --offload; LOCAL_RANK and LOCAL_WORLD_SIZE, or Open MPI's,
without --ranks and --hostfile.
Exit codes: that of the first rank that failed for good, 128 + the signal that ended it, else 0; 2 usage, 127 the
command cannot be executed. SIGINT, SIGTERM, SIGHUP and SIGQUIT go to the ranks; a second one ends them at once.)";

// Generic launchers' variables count where ours are not set; CLI11 checks them like flags.
// A hostfile says the ranks itself.
void TakeLauncherEnvironment(bool hostfile) {
  for (const auto& [ours, value] : longhaul::cli::LauncherEnvironment()) {
    if (!hostfile || std::string_view(ours) == "LONGHAUL_JOIN") setenv(ours, value.c_str(), /*overwrite=*/0);
  }
}

int Fail(const Status& why, int code) {
  std::fprintf(stderr, "longhaul-worker: %s\n", why.ToString().c_str());
  return code;
}

// The options that concern the connection.
void AddConnection(CLI::App& app, longhaul::cli::ConnectFlags* flags) {
  longhaul::cli::AddWorkerFlags(app, flags);
  longhaul::cli::AddMemberFlags(app, flags);
  longhaul::cli::AddConnectionFlags(app, flags);
}

// Every flag; see --help for what they mean.
void AddOptions(CLI::App& app, Flags& flags) {
  AddConnection(app, &flags);
  app.add_option("--ranks", flags.ranks, "Ranks of this host, from --rank on")
      ->capture_default_str()
      ->check(CLI::Range(1, 4096));
  app.add_option("--restarts", flags.restarts, "How often a rank that fails is started again")
      ->capture_default_str()
      ->check(CLI::Range(0, 1'000'000));
  app.add_option("--hostfile", flags.hostfile,
                 "The job's hosts, HOST slots=N a line as for Open MPI; in place of --rank, --ranks and "
                 "--world-size. Run the same on every host")
      ->type_name("FILE")
      ->excludes("--rank", "--ranks", "--world-size");
  app.add_option("--host", flags.host, "With --hostfile: this host in it [by its name and addresses]")
      ->type_name("NAME")
      ->needs("--hostfile");
  app.add_option("--log-level", flags.log_level, "trace | debug | info | warn | error | off")
      ->capture_default_str()
      ->check(CLI::IsMember({"trace", "debug", "info", "warn", "error", "off"}));
  for (CLI::Option* option : app.get_options()) {
    const std::string name = option->get_name();
    // An environment hands values down unseen: these options must be chosen for this job.
    if (name == "--help" || name == "--version" || name == "--insecure") continue;
    option->envname(longhaul::cli::EnvName(name));
  }
}

// What the file says and this program does not know is the trainer's.
class FileOfBoth final : public longhaul::cli::FlatToml {
 public:
  FileOfBoth(const CLI::App* app, Words* trainers) : FlatToml(app), app_(app), trainers_(trainers) {}

 protected:
  void TakeUnknown(const CLI::ConfigItem& item, int number) const override {
    const std::string option = "--" + item.fullname();
    if (app_->get_option_no_throw(option) != nullptr) FlatToml::TakeUnknown(item, number);
    for (const std::string& value : item.inputs) trainers_->push_back(option + "=" + value);
  }

 private:
  const CLI::App* app_;
  Words* trainers_;
};

// The trainer's words: of the file, where the command line does not say it, and of the command line.
Words TrainersWords(const Words& of_file, const Words& of_command_line) {
  Words words;
  std::ranges::copy_if(of_file, std::back_inserter(words), [&](const std::string& word) {
    const std::string option = word.substr(0, word.find('='));
    return std::ranges::none_of(of_command_line, [&](const std::string& given) {
      return given == option || given.starts_with(option + "=");
    });
  });
  words.insert(words.end(), of_command_line.begin(), of_command_line.end());
  return words;
}

// The options of the connection that were given, as the variables that hand them down to ranks.
std::vector<std::pair<std::string, std::string>> RanksEnvironment(const CLI::App& app, const Flags& flags) {
  CLI::App of_connection;
  longhaul::cli::ConnectFlags unused;
  AddConnection(of_connection, &unused);
  std::vector<std::pair<std::string, std::string>> variables;
  for (const CLI::Option* option : of_connection.get_options()) {
    const std::string name = option->get_name();
    if (const CLI::Option* const given = app.get_option(name); given->count() > 0 && name != "--help")
      variables.emplace_back(longhaul::cli::EnvName(name), given->results().back());
  }
  variables.emplace_back("LONGHAUL_LOG_LEVEL", flags.log_level);
  variables.emplace_back("LONGHAUL_ALLOW_CORE_DUMP", flags.allow_core_dump ? "1" : "");
  // Environments are inherited: it holds for this address alone.
  variables.emplace_back("LONGHAUL_INSECURE", flags.connect.insecure ? flags.join : "");
  return variables;
}

// Whether ranks are processes of their own, and not this one.
bool Launches(const CLI::App& app, const Flags& flags) {
  return !flags.command.empty() ||
         !longhaul::cli::FirstGiven(app, {"--ranks", "--restarts", "--hostfile"}).empty();
}

Status CheckCommand(const CLI::App& app, const Flags& flags, const Words& trainers) {
  if (!flags.command.empty() && !trainers.empty())
    return {StatusCode::kInvalidArgument, trainers.front() + " has no meaning with a command"};
  std::string own;  // of each start of a rank
  if (Launches(app, flags)) own = longhaul::cli::FirstGiven(app, {"--site-rank", "--incarnation"});
  if (own.empty() && !flags.command.empty()) own = longhaul::cli::FirstGiven(app, {"--allow-core-dump"});
  if (!own.empty())
    return {StatusCode::kInvalidArgument,
            own + " (or its variable) has no meaning with a command or --ranks"};
  if (flags.hostfile.empty() || !flags.join.empty()) return {};
  return {StatusCode::kInvalidArgument,
          "--hostfile has no meaning with --offload: the ranks are this site's"};
}

// The first of these variables that is set.
Result<uint32_t> NumberOf(std::initializer_list<const char*> names, uint32_t where_none_is) {
  for (const char* name : names) {
    const std::string text = longhaul::cli::Env(name);
    if (text.empty()) continue;
    uint32_t number = 0;
    const char* const end = text.data() + text.size();
    const auto parsed = std::from_chars(text.data(), end, number);
    if (parsed.ec == std::errc() && parsed.ptr == end) return number;
    return Status(StatusCode::kInvalidArgument, fmt::format("{} is '{}', which is no number", name, text));
  }
  return where_none_is;
}

// What another launcher says of the one rank that it has started: which it is of this host.
Status TakeLocalPlace(longhaul::worker::LaunchOptions* options) {
  const auto rank = NumberOf({"LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK"}, 0);
  const auto size = NumberOf({"LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE"}, 1);
  if (!rank.ok() || !size.ok()) return rank.ok() ? size.status() : rank.status();
  options->first_local = *rank;
  options->local_size = *size;
  if (options->first_local < options->local_size) return {};
  return {StatusCode::kInvalidArgument,
          fmt::format("LOCAL_RANK {} is not below LOCAL_WORLD_SIZE {} (or Open MPI's of these)",
                      options->first_local, options->local_size)};
}

int RunRanks(const CLI::App& app, const Flags& flags) {
  longhaul::worker::LaunchOptions options;
  options.command = flags.command;
  options.join = flags.join;
  options.restarts = flags.restarts;
  options.environment = RanksEnvironment(app, flags);
  options.place = {flags.connect.rank, flags.ranks,
                   flags.join.empty() ? flags.ranks : flags.connect.world_size};
  if (!flags.hostfile.empty()) {
    const auto names = flags.host.empty() ? longhaul::worker::NamesOfThisHost() : Words{flags.host};
    const auto place = longhaul::worker::PlaceFromHostfile(flags.hostfile, names);
    if (!place.ok()) return Fail(place.status(), longhaul::cli::kExitUsage);
    options.place = *place;
  }
  if (app.count("--ranks") == 0 && flags.hostfile.empty()) {
    if (Status valid = TakeLocalPlace(&options); !valid.ok()) return Fail(valid, longhaul::cli::kExitUsage);
  }
  const auto& [first, ranks, size, host] = options.place;
  if (first + ranks > size) {
    return Fail(Status(StatusCode::kInvalidArgument, fmt::format("ranks {}..{} are not below --world-size {}",
                                                                 first, first + ranks - 1, size)),
                longhaul::cli::kExitUsage);
  }
  std::signal(SIGPIPE, SIG_IGN);
  const longhaul::EndingSignals signals(longhaul::worker::kHandedOn);  // before the first thread
  longhaul::process::Output output(
      "longhaul-worker", false,
      spdlog::level::from_str(flags.log_level == "error" ? "err" : flags.log_level));
  return longhaul::worker::Launch(options, signals);
}

// The one rank of this host takes this process.
int BecomeRank(const CLI::App& app, const Flags& flags) {
  for (const auto& [name, value] : RanksEnvironment(app, flags)) setenv(name.c_str(), value.c_str(), 1);
  return Fail(longhaul::process::Become(flags.command), longhaul::worker::kExitNoCommand);
}

}  // namespace

int main(int argc, char** argv) try {
  Flags flags;
  CLI::App app(
      "Starts the ranks of this host, which join a longhaul parameter server and train: processes of a "
      "command of "
      "yours behind --, or of longhaul-trainer.",
      "longhaul-worker");
  app.footer(kFooter);
  app.get_formatter()->column_width(34);
  app.set_version_flag("--version", "longhaul-worker 0.1.0");
  AddOptions(app, flags);
  longhaul::cli::AddConfigFile(app, "world-size = 4");
  Words of_file;
  app.config_formatter(std::make_shared<FileOfBoth>(&app, &of_file));
  app.allow_extras();
  longhaul::cli::CheckValues(app);
  longhaul::cli::AddHelpPage(app);
  const auto names_site = [](const char* word) { return std::string_view(word).starts_with("--offload"); };
  char** const end = argv + argc;
  char** const dashes = std::find(argv, end, std::string_view("--"));  // what follows is the command's
  const bool in_site =
      std::any_of(argv, dashes, names_site) || !longhaul::cli::Env("LONGHAUL_OFFLOAD").empty();
  const auto names_hosts = [](const char* word) { return std::string_view(word).starts_with("--hostfile"); };
  if (!in_site) TakeLauncherEnvironment(std::any_of(argv, dashes, names_hosts));
  try {
    app.parse(static_cast<int>(dashes - argv), argv);
  } catch (const CLI::ParseError& e) {
    return app.exit(e) == 0 ? 0 : longhaul::cli::kExitUsage;
  }
  if (dashes != end) flags.command.assign(dashes + 1, end);
  if (dashes != end && flags.command.empty())
    return Fail(Status(StatusCode::kInvalidArgument, "-- is followed by no command"),
                longhaul::cli::kExitUsage);
  const Words trainers = TrainersWords(of_file, app.remaining());
  if (Status valid = longhaul::cli::TakeAddress(app, &flags); !valid.ok())
    return Fail(valid, longhaul::cli::kExitUsage);
  if (Status valid = CheckCommand(app, flags, trainers); !valid.ok())
    return Fail(valid, longhaul::cli::kExitUsage);
  if (Status valid = longhaul::cli::TakeConnectFlags(&flags); !valid.ok())
    return Fail(valid, longhaul::cli::kExitUsage);
  const bool launches = Launches(app, flags);
  if (flags.command.empty()) {
    flags.command = {longhaul::process::Beside(kTrainer)};
    flags.command.insert(flags.command.end(), trainers.begin(), trainers.end());
  }
  return launches ? RunRanks(app, flags) : BecomeRank(app, flags);
} catch (const std::exception& error) {  // memory that the system does not give
  std::fprintf(stderr, "longhaul-worker: %s\n", error.what());
  return 1;
}
