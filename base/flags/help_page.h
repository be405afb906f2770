// --help-markdown: a program's options as Markdown, which docs/reference/options.md is made of
// (tests/guards/options_page.py). --inject: for tests of the daemons.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

#include "base/inject.h"

namespace longhaul::cli {

inline std::string Cell(std::string text) {
  for (size_t at = 0; (at = text.find('|', at)) != std::string::npos; at += 2) text.insert(at, 1, '\\');
  return " " + text + " |";
}

inline std::string HelpPage(const CLI::App& app, const std::string& name) {
  std::string page = "## " + name + "\n\n" + app.get_description() + "\n\n";
  std::string rows;
  for (const CLI::Option* option : app.get_options({})) {
    if (option->get_group().empty() || option->get_name() == "--help") continue;
    const std::string given = option->get_default_str();
    rows += "|" + Cell("`" + option->get_name() + "`") +
            Cell(option->get_expected_max() == 0 ? "" : option->get_type_name()) +
            Cell(given.empty() ? "" : "`" + given + "`") + Cell(option->get_description()) + "\n";
  }
  if (!rows.empty()) page += "| option | values | default | meaning |\n|---|---|---|---|\n" + rows + "\n";
  for (const CLI::App* command : app.get_subcommands({})) {
    page += HelpPage(*command, name + " " + command->get_name());
  }
  return page;
}

// To be called when all other options are there.
inline void AddHelpPage(CLI::App& app) {
  app.add_flag_callback("--help-markdown",
                        [&app] { throw CLI::CallForVersion(HelpPage(app, app.get_name()), 0); })
      ->group("")
      ->configurable(false);
}

inline void AddInjectFlag(CLI::App& app) {
  app.add_option_function<std::string>(
         "--inject",
         [](const std::string& list) {
           const Status status = inject::Enable(list);
           if (!status.ok()) throw CLI::ValidationError("--inject", status.message());
         },
         "for tests: rare events inside this process, made frequent: POINT=CHANCE,...[,seed=N]; points: " +
             inject::PointNames() + ", or all")
      ->type_name("SPEC");
}

}  // namespace longhaul::cli
