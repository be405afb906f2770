// --config FILE: a program's options from a TOML file, as CLI11 reads it.
#pragma once

#include <CLI/CLI.hpp>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

namespace longhaul::cli {

// TOML without tables: CLI11 would take one for a subcommand and complain of that.
class FlatToml final : public CLI::ConfigTOML {
 public:
  explicit FlatToml(const CLI::App* app) : app_(app) {}

  std::vector<CLI::ConfigItem> from_config(std::istream& input) const override {
    std::string line;
    std::ostringstream text;
    for (int number = 1; std::getline(input, line); ++number) {
      text << line << '\n';
      CLI::detail::trim(line);
      if (line.size() < 3 || line.front() != '[' || line.back() != ']') continue;
      throw CLI::ConfigError(
          "config file " + app_->get_config_ptr()->as<std::string>() + ", line " + std::to_string(number) +
              ": " + line + ": there are no sections here, every option is a line of its own, NAME = VALUE",
          CLI::ExitCodes::ConfigError);
    }
    std::istringstream whole(text.str());
    return CLI::ConfigTOML::from_config(whole);
  }

 private:
  const CLI::App* app_;
};

// A name in the file is an option without its dashes: `workers = 4`. The command line wins over the file,
// and that over the environment. What the program does not know is refused, as on the command line. To be
// called when all other options are there.
inline void AddConfigFile(CLI::App& app) {
  app.set_config("--config", "",
                 "TOML file with any of these options, e.g. workers = 4; the command line wins");
  app.config_formatter(std::make_shared<FlatToml>(&app));
  app.allow_config_extras(CLI::config_extras_mode::error);
}

}  // namespace longhaul::cli
