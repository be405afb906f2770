#include "server/program/jobs_file.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <sstream>
#include <string_view>
#include <utility>

#include "base/flags/config_file.h"
#include "base/flags/number_checks.h"

namespace longhaul::server {
namespace {

constexpr size_t kMaxNameBytes = 256;  // of a job

// Where the options of a job are, by their names: the file's lines.
using Lines = std::map<std::string, int>;

struct Section {
  std::string name;
  int line = 0;
  std::string text;  // what follows that line
};

// The file, cut in its sections.
class Sections final : public cli::FlatToml {
 public:
  Sections(const CLI::App* app, std::string file) : FlatToml(app, std::move(file)) {}

  void Cut(std::istream& input) {
    std::istringstream text(Read(input));
    std::string line;
    for (int number = 1; std::getline(text, line); ++number) {
      std::string form = line;
      CLI::detail::trim(form);
      if (form.starts_with('[')) {
        Begin(form, number);
      } else {
        (jobs.empty() ? defaults : jobs.back().text) += line + "\n";
      }
    }
    if (jobs.empty()) Refuse(1, "it has no section [job.NAME]: a job is one");
  }

  std::string defaults;
  std::vector<Section> jobs;

 private:
  void Begin(const std::string& form, int number) {
    const std::optional<std::string> name = NameIn(form);
    if (!name) {
      Refuse(number, form +
                         ": a section is [job.NAME] or [job.\"NAME\"]; a NAME without quotes has only A-Z "
                         "a-z 0-9 _ -");
    }
    if (name->size() > kMaxNameBytes) Refuse(number, "the job's name is longer than 256 bytes");
    const auto same = std::ranges::find(jobs, *name, &Section::name);
    if (same != jobs.end()) {
      Refuse(number, "job " + *name + " is there already, on line " + std::to_string(same->line));
    }
    if (jobs.size() == kMaxJobs) Refuse(number, "a process has at most 256 jobs");
    jobs.push_back({.name = *name, .line = number, .text = ""});
  }
  static std::optional<std::string> NameIn(std::string_view form) {
    constexpr std::string_view kBegin = "[job.";
    if (!form.starts_with(kBegin)) return std::nullopt;
    form.remove_prefix(kBegin.size());
    const bool quoted = form.starts_with('"');
    const size_t end = quoted ? form.find('"', 1) : form.find(']');
    if (end == std::string_view::npos) return std::nullopt;
    const std::string_view name = form.substr(quoted, end - quoted);
    std::string rest(form.substr(end + quoted));
    if (rest.empty() || rest.front() != ']') return std::nullopt;
    CLI::detail::trim(rest.erase(0, 1));
    const auto fits = [quoted](char c) {
      if (quoted) return c >= ' ' && c <= '~' && c != '\\';
      return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
             c == '-';
    };
    if (name.empty() || !std::ranges::all_of(name, fits)) return std::nullopt;
    if (!rest.empty() && !rest.starts_with('#')) return std::nullopt;
    return std::string(name);
  }
};

// One job's options: its section's, and the defaults that the section does not have.
class JobToml final : public cli::FlatToml {
 public:
  JobToml(const CLI::App* app, std::string file, const Section& section, const std::string& defaults)
      : FlatToml(app, std::move(file)), section_(section), defaults_(defaults) {}

  // Reads no stream: it has the text.
  std::vector<CLI::ConfigItem> from_config(std::istream&) const override {
    std::vector<CLI::ConfigItem> all = Items(section_.text, section_.line + 1, &lines_);
    Lines outside;
    for (CLI::ConfigItem& item : Items(defaults_, 1, &outside)) {
      if (!lines_.contains(item.name)) all.push_back(std::move(item));
    }
    lines_.merge(outside);
    return all;
  }
  const Lines& lines() const { return lines_; }

 protected:
  std::string WhyUnknown(const CLI::ConfigItem& item) const override {
    if (item.fullname() == "job") return "job: the name of the section is the job's";
    if (std::ranges::find(ProcessOptions(), item.fullname()) != ProcessOptions().end()) {
      return item.fullname() + " is the whole process': it stands on the command line, or in --config";
    }
    return FlatToml::WhyUnknown(item);
  }

 private:
  const Section& section_;
  const std::string& defaults_;
  mutable Lines lines_;
};

// What makes two jobs' options the same thing; empty: nothing does.
struct Claim {
  std::string option;
  std::string value;
};

class Reader {
 public:
  explicit Reader(const std::string& path) : file_("jobs file " + path) {}

  Result<std::vector<JobFlags>> Read(std::istream& input, bool capacity_given) try {
    const CLI::App none;
    Sections sections(&none, file_);
    sections.Cut(input);
    std::vector<JobFlags> jobs;
    for (const Section& section : sections.jobs) {
      jobs.push_back({.name = section.name, .line = section.line, .flags = {}, .options = {}});
      Status taken = Take(section, sections.defaults, capacity_given, &jobs.back());
      if (taken.ok()) taken = CheckClaims(jobs.back());
      if (!taken.ok()) return taken;
    }
    return jobs;
  } catch (const CLI::ParseError& error) {
    return Status(StatusCode::kInvalidArgument, error.what());
  }

 private:
  Status Take(const Section& section, const std::string& defaults, bool capacity_given, JobFlags* job) {
    ServerFlags* flags = &job->flags;
    CLI::App app;
    AddFlags(app, *flags);
    cli::CheckValues(app);
    for (CLI::Option* option : app.get_options()) {
      const std::string name = option->get_name().substr(2);
      if (name == "job" || std::ranges::find(ProcessOptions(), name) != ProcessOptions().end())
        option->configurable(false);
    }
    const auto toml = std::make_shared<JobToml>(&app, file_, section, defaults);
    app.config_formatter(toml);
    app.allow_config_extras(CLI::config_extras_mode::error);
    lines_ = {};
    try {
      std::istringstream nothing;
      app.parse_from_stream(nothing);
    } catch (const CLI::ConfigError& error) {
      return {StatusCode::kInvalidArgument, error.what()};
    } catch (const CLI::ParseError& error) {
      lines_ = toml->lines();
      return At(section, OptionIn(error.what()), error.what());
    }
    lines_ = toml->lines();
    for (const CLI::Option* option : app.get_options()) {
      const std::string text = CLI::detail::join(option->results(), ",");
      if (option->count() == 0 || text == option->get_default_str() || text == "false") continue;
      job->options[option->get_name().substr(2)] = text;
    }
    flags->server.job = section.name;
    if (app.count("--share") > 0 && !capacity_given)
      return At(section, "share", "there is nothing to share without --capacity");
    if (Status taken = TakeFlags(app, flags); !taken.ok())
      return At(section, OptionIn(taken.message()), taken.message());
    return {};
  }
  // "--workers: ..." or "--key excludes ..." -> "workers"
  static std::string OptionIn(const std::string& message) {
    if (!message.starts_with("--")) return "";
    return message.substr(2, message.find_first_of(": ") - 2);
  }
  int LineOf(int section, const std::string& option) const {
    const auto line = lines_.find(option);
    return line == lines_.end() ? section : line->second;
  }
  Status At(const Section& section, const std::string& option, const std::string& what) const {
    return Refusal(LineOf(section.line, option), section.name, what);
  }
  Status Refusal(int line, const std::string& job, const std::string& what) const {
    return {StatusCode::kInvalidArgument,
            file_ + ", line " + std::to_string(line) + ": job " + job + ": " + cli::FlatToml::Shown(what)};
  }

  // No two jobs have a port, a directory or a file in common.
  Status CheckClaims(const JobFlags& job) {
    const auto path = [](const std::string& text) {
      std::error_code ignored;
      const auto whole = text.empty() ? "" : std::filesystem::weakly_canonical(text, ignored).string();
      return whole.ends_with('/') ? whole.substr(0, whole.size() - 1) : whole;
    };
    for (const auto& [option, value] : {Claim{"listen", job.flags.server.listen},
                                        Claim{"checkpoint-dir", path(job.flags.server.checkpoint_dir)},
                                        Claim{"json", path(job.flags.json_file)}}) {
      if (value.empty()) continue;
      const int line = LineOf(job.line, option);
      for (const auto& other : taken_[option]) {
        const bool same = option == "listen" ? SamePort(value, other.value) : value == other.value;
        if (!same) continue;
        return Refusal(line, job.name,
                       option + " " + value + " is job " + other.job + "'s already (line " +
                           std::to_string(other.line) + ")");
      }
      taken_[option].push_back({.value = value, .job = job.name, .line = line});
    }
    return {};
  }
  // Of texts: two names of one address are found out by the second one, which cannot listen.
  static bool SamePort(const std::string& a, const std::string& b) {
    const auto port = [](const std::string& text) {
      const std::string digits = text.substr(text.rfind(':') + 1);
      uint16_t number = 0;
      std::from_chars(digits.data(), digits.data() + digits.size(), number);
      return number;
    };
    const auto host = [](const std::string& text) { return text.substr(0, text.rfind(':')); };
    const auto any = [&host](const std::string& text) {
      return host(text) == "0.0.0.0" || host(text) == "[::]";
    };
    return port(a) != 0 && port(a) == port(b) && (host(a) == host(b) || any(a) || any(b));
  }

  struct Taken {
    std::string value;
    std::string job;
    int line = 0;
  };
  const std::string file_;
  Lines lines_;  // of the job that was read last
  std::map<std::string, std::vector<Taken>> taken_;
};

}  // namespace

Result<std::vector<JobFlags>> ReadJobs(const std::string& path, bool capacity_given) {
  std::ifstream input(path, std::ios::binary);
  if (!input || input.peek() == std::ifstream::traits_type::eof()) {
    const std::string why = input ? "it is empty" : std::strerror(errno);
    return Status(StatusCode::kInvalidArgument, "jobs file " + path + " cannot be read: " + why);
  }
  return Reader(path).Read(input, capacity_given);
}

Status DivideMemory(uint64_t available, std::vector<JobFlags>* jobs) {
  if (available == 0) return {};
  uint64_t left = available - available / 8;
  uint64_t without = 0;
  const JobFlags* first = nullptr;
  for (const JobFlags& job : *jobs) {
    const auto bound = static_cast<uint64_t>(job.flags.server.max_memory.value());
    left -= std::min(left, bound);
    if (bound != 0) continue;
    if (without++ == 0) first = &job;
  }
  if (without == 0) return {};
  if (left / without == 0) {
    return {StatusCode::kInvalidArgument,
            "no memory is left for job " + first->name + " (line " + std::to_string(first->line) +
                ") without max-memory-bytes: the other jobs have been given all of this machine's"};
  }
  for (JobFlags& job : *jobs) {
    if (job.flags.server.max_memory.value() == 0)
      job.flags.server.max_memory = ByteCount(static_cast<int64_t>(left / without));
  }
  return {};
}

}  // namespace longhaul::server
