#include "tests/e2e/support/program.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <thread>

namespace longhaul::e2e {
namespace {

std::vector<Program*>& AllPrograms() {
  static std::vector<Program*> programs;
  return programs;
}

std::vector<std::string> ArgumentVector(const std::string& name, const std::vector<std::string>& arguments) {
  std::vector<std::string> argv = {name.starts_with('/') ? name
                                                         : std::string(LONGHAUL_PROGRAMS) + "/" + name};
  argv.insert(argv.end(), arguments.begin(), arguments.end());
  return argv;
}

std::vector<std::string> Words(const Flags& flags) {
  std::vector<std::string> words;
  for (const auto& [flag, value] : flags) {
    words.push_back(flag);
    if (!value.empty()) words.push_back(value);
  }
  return words;
}

std::string NewErrorsFile(const std::string& directory, const std::string& name) {
  static int count = 0;
  return directory + "/" + std::filesystem::path(name).filename().string() + "." + std::to_string(++count) +
         ".stderr";
}

cli::ChildProcess StartOrDie(const std::string& name, const std::vector<std::string>& arguments,
                             const std::string& errors_file, const std::function<int()>& before_exec) {
  auto process = cli::ChildProcess::Start(name, ArgumentVector(name, arguments), before_exec, errors_file);
  if (!process.ok()) ADD_FAILURE() << process.status().ToString();
  return std::move(process).value();
}

struct ProcessState {
  char state = 'X';
  pid_t parent = 0;
  uint64_t start_time = 0;
};

// From /proc/PID/stat; the name in it may contain anything, so count from its closing parenthesis.
std::optional<ProcessState> StateOf(pid_t pid) {
  const std::string stat = ReadFile("/proc/" + std::to_string(pid) + "/stat");
  const size_t name_end = stat.rfind(')');
  if (name_end == std::string::npos) return std::nullopt;
  std::istringstream rest(stat.substr(name_end + 1));
  ProcessState process;
  rest >> process.state >> process.parent;
  std::string skipped;
  for (int field = 5; field < 22; ++field) rest >> skipped;
  rest >> process.start_time;
  return process;
}

}  // namespace

Flags Merged(Flags flags, const Flags& more) {
  for (const auto& [flag, value] : more) flags[flag] = value;
  return flags;
}

bool Eventually(const std::function<bool()>& condition, Duration limit) {
  for (const auto end = Clock::now() + limit;;) {
    for (Program* program : AllPrograms()) program->TakeIn();
    if (condition()) return true;
    if (Clock::now() >= end) return false;
    ::poll(nullptr, 0, 5);
  }
}

void Pause(Duration time) {
  (void)Eventually([] { return true; });
  std::this_thread::sleep_for(time);
}

Program::Program(const std::string& name, const std::vector<std::string>& arguments,
                 const std::string& directory, const std::function<int()>& before_exec)
    : errors_file_(NewErrorsFile(directory, name)),
      process_(StartOrDie(name, arguments, errors_file_, before_exec)) {
  AllPrograms().push_back(this);
}

Program::Program(const std::string& name, const Flags& flags, const std::string& directory,
                 const std::function<int()>& before_exec)
    : Program(name, Words(flags), directory, before_exec) {}

Program::~Program() { std::erase(AllPrograms(), this); }

void Program::TakeIn() {
  if (ended_) return;
  // First whether it has ended, then the rest of what it said.
  const bool over = process_.Poll();
  process_.ReadLines([this](const std::string& line) { lines_.push_back(line); });
  if (!over) return;
  ended_ = true;
  ended_at_ = Clock::now();
}

bool Program::running() {
  TakeIn();
  return !ended_;
}

std::optional<int> Program::WaitForEnd(Duration limit) {
  if (!Eventually([this] { return ended_; }, limit)) return std::nullopt;
  return process_.exit_code();
}

bool Program::WaitForLine(const std::string& part, Duration limit) {
  const auto said = [&] { return Output().find(part) != std::string::npos; };
  (void)Eventually([&] { return ended_ || said(); }, limit);
  return said();
}

bool Program::WaitForError(const std::string& part, Duration limit) {
  const auto said = [&] { return Errors().find(part) != std::string::npos; };
  (void)Eventually([&] { return ended_ || said(); }, limit);
  return said();
}

std::optional<nlohmann::json> Program::FindEvent(const std::string& event) const {
  for (const std::string& line : lines_) {
    nlohmann::json object = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (object.is_object() && object.value("event", "") == event) return object;
  }
  return std::nullopt;
}

std::optional<nlohmann::json> Program::WaitForEvent(const std::string& event, Duration limit) {
  (void)WaitForLine("\"event\":\"" + event + "\"", limit);
  return FindEvent(event);
}

std::string Program::Output() const {
  std::string all;
  for (const std::string& line : lines_) all += line + "\n";
  return all;
}

std::string Program::Errors() const { return ReadFile(errors_file_); }

std::string Program::Everything() const {
  std::string output = Output();
  // A job's rounds are long to read.
  constexpr size_t kLast = 4000;
  if (output.size() > kLast) output = "...\n" + output.substr(output.size() - kLast);
  return "--- " + process_.name() + " (pid " + std::to_string(pid()) + ")" +
         (ended_ ? ", exit code " + std::to_string(process_.exit_code()) : ", running") + "\n" + output +
         "--- its standard error\n" + Errors();
}

std::map<pid_t, uint64_t> Descendants(pid_t pid) {
  std::map<pid_t, ProcessState> all;
  std::error_code none;
  for (const auto& entry : std::filesystem::directory_iterator("/proc", none)) {
    const std::string name = entry.path().filename().string();
    pid_t number = 0;
    const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), number);
    if (error != std::errc() || end != name.data() + name.size()) continue;
    if (const auto process = StateOf(number)) all[number] = *process;
  }
  std::map<pid_t, uint64_t> found;
  std::vector<pid_t> parents = {pid};
  while (!parents.empty()) {
    const pid_t parent = parents.back();
    parents.pop_back();
    for (const auto& [child, process] : all) {
      if (process.parent != parent || process.state == 'Z') continue;
      found[child] = process.start_time;
      parents.push_back(child);
    }
  }
  return found;
}

size_t CountAlive(const std::map<pid_t, uint64_t>& processes) {
  return static_cast<size_t>(std::count_if(processes.begin(), processes.end(), [](const auto& process) {
    const auto now = StateOf(process.first);
    return now && now->state != 'Z' && now->start_time == process.second;
  }));
}

std::string CommandLine(pid_t pid) {
  std::string words = ReadFile("/proc/" + std::to_string(pid) + "/cmdline");
  std::replace(words.begin(), words.end(), '\0', ' ');
  return words;
}

std::string ReadFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

}  // namespace longhaul::e2e
