// --config FILE: a program's options from a TOML file, as CLI11 reads it.
#pragma once

#include <CLI/CLI.hpp>
#include <algorithm>
#include <iterator>
#include <map>
#include <memory>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

namespace longhaul::cli {

// TOML without tables, an option on each line. What is none is refused with the file and the line.
class FlatToml : public CLI::ConfigTOML {
 public:
  // name: of the file, for messages; empty: the app's own.
  explicit FlatToml(const CLI::App* app, std::string name = "") : app_(app), name_(std::move(name)) {}

  std::vector<CLI::ConfigItem> from_config(std::istream& input) const override {
    return Items(Read(input), 1, nullptr);
  }
  // Of a file, for people: a terminal obeys control characters.
  static std::string Shown(std::string text) {
    for (char& c : text) c = c >= ' ' && c <= '~' ? c : '?';
    return text;
  }

 protected:
  using Lines = std::map<std::string, int>;

  // The options in `text`, whose first line has the number `number`; lines, if given, receives for each name
  // the line where it is first.
  std::vector<CLI::ConfigItem> Items(const std::string& text, int number, Lines* lines) const {
    std::vector<CLI::ConfigItem> all;
    std::istringstream input(text);
    std::string line;
    for (; std::getline(input, line); ++number) {
      CLI::detail::trim(line);
      CheckForm(line, number);
      std::istringstream alone(line);
      for (CLI::ConfigItem& item : CLI::ConfigTOML::from_config(alone)) {
        const CLI::Option* option = Find(item);
        if (option == nullptr) {
          TakeUnknown(item, number);
          continue;
        }
        if (lines != nullptr) lines->try_emplace(item.name, number);
        if (!IsWithout(*option, item)) Append(std::move(item), &all);
      }
    }
    return all;
  }

  std::string Read(std::istream& input) const {
    std::string text(kMaxBytes + 1, '\0');
    input.read(text.data(), static_cast<std::streamsize>(text.size()));
    text.resize(static_cast<size_t>(input.gcount()));
    if (text.size() > kMaxBytes) Refuse(1, "it is larger than 1 MiB: no list of options");
    return text;
  }

  [[noreturn]] void Refuse(int number, const std::string& why) const {
    const CLI::Option* file = app_->get_config_ptr();  // none where a fuzzer gives the text
    const std::string name = !name_.empty() ? name_ : "config file " + (file ? file->as<std::string>() : "");
    throw CLI::ConfigError(name + ", line " + std::to_string(number) + ": " + Shown(why),
                           CLI::ExitCodes::ConfigError);
  }

  // One that the app does not have; throws, or keeps it.
  virtual void TakeUnknown(const CLI::ConfigItem& item, int number) const {
    Refuse(number, WhyUnknown(item));
  }
  virtual std::string WhyUnknown(const CLI::ConfigItem& item) const {
    return "unknown option " + item.fullname();
  }

 private:
  // Of a file that a person writes; more is another file, or a device without an end.
  static constexpr size_t kMaxBytes = size_t{1} << 20;

  // CLI11 would take a table for a subcommand, and read on to the end of an array.
  void CheckForm(const std::string& line, int number) const {
    if (line.starts_with('[')) {
      Refuse(number, line + ": there are no sections here, every option is a line of its own, NAME = VALUE");
    }
    if (line.starts_with('#') || line.starts_with(';')) return;
    const size_t equals = line.find('=');
    if (equals == std::string::npos) return;
    std::string value = line.substr(equals + 1, line.find('#', equals) - equals - 1);
    CLI::detail::trim(value);
    if (value.starts_with('[') && (value.size() < 2 || !value.ends_with(']'))) {
      Refuse(number, line + ": a list goes on one line, NAME = [VALUE, VALUE]");
    }
  }

  const CLI::Option* Find(const CLI::ConfigItem& item) const {
    if (!item.parents.empty() || item.name.empty()) return nullptr;
    const CLI::Option* option = app_->get_option_no_throw("--" + item.name);
    return option != nullptr && option->get_configurable() ? option : nullptr;
  }

  // `insecure = false` beside `key`: to CLI11 a flag that is present excludes others whatever its value.
  static bool IsWithout(const CLI::Option& option, const CLI::ConfigItem& item) {
    const bool bound = !option.get_excludes().empty() || !option.get_needs().empty();
    if (!bound || option.get_expected_max() != 0 || item.inputs.size() != 1) return false;
    const std::string value = CLI::detail::to_lower(item.inputs.front());
    return value == "false" || value == "off" || value == "no" || value == "0";
  }

  // As CLI11 does with an option that is there on lines after each other.
  static void Append(CLI::ConfigItem item, std::vector<CLI::ConfigItem>* all) {
    if (all->empty() || all->back().name != item.name) return all->push_back(std::move(item));
    std::ranges::move(item.inputs, std::back_inserter(all->back().inputs));
  }

  const CLI::App* app_;
  const std::string name_;
};

// A name in the file is an option without its dashes, as in `example`, "workers = 4". The command line wins
// over the file, and that over the environment. An unknown name is refused, as on the command
// line. To be called when all other options are there.
inline void AddConfigFile(CLI::App& app, const std::string& example) {
  app.set_config("--config", "",
                 "TOML file with any of these options, e.g. " + example + "; the command line wins");
  app.config_formatter(std::make_shared<FlatToml>(&app));
  app.allow_config_extras(CLI::config_extras_mode::error);
}

}  // namespace longhaul::cli
