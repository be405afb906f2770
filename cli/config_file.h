// --config FILE: a program's options from a TOML file, as CLI11 reads it.
#pragma once

#include <CLI/CLI.hpp>

namespace longhaul::cli {

// A name in the file is an option without its dashes: `workers = 4`. The command line wins over the file,
// and that over the environment. What the program does not know is refused, as on the command line. To be called when all
// other options are there.
inline void AddConfigFile(CLI::App& app) {
  app.set_config("--config", "", "TOML file with any of these options, e.g. workers = 4; the command line wins");
  app.allow_config_extras(CLI::config_extras_mode::error);
}

}  // namespace longhaul::cli
