// The settings of a job as command-line options, from the table in base/job_settings.h.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <type_traits>
#include <variant>
#include <vector>

#include "base/job_settings.h"

namespace longhaul::cli {

// Adds an option whose values are an enumeration's names; its default is *value.
template <typename E>
CLI::Option* AddEnum(CLI::App& app, const std::string& flag, E* value, const std::string& help) {
  const auto take = [value](const std::string& name) { *value = *FromName<E>(name); };
  return app.add_option_function<std::string>(flag, take, help)
      ->check(CLI::IsMember(std::vector<std::string>(kNamesOf<E>.begin(), kNamesOf<E>.end())))
      ->default_str(std::string(NameOf(*value)));
}

// Adds an option for every setting of `spec` whose name `app` does not have yet; its default is what `spec`
// has. `words`, if given, receives what the command line says, name and value, for another program's.
inline void AddJobFlags(CLI::App& app, JobSpec* spec, const std::string& group = "Job",
                        std::vector<std::string>* words = nullptr) {
  for (const JobSetting& setting : JobSettings()) {
    const std::string flag = setting.Flag();
    if (app.get_option_no_throw(flag) != nullptr) continue;
    if (const auto* on = std::get_if<bool JobSpec::*>(&setting.field)) {
      const auto note = [flag, words](const std::string&) {
        if (words != nullptr) words->push_back(flag);
      };
      app.add_flag(flag, spec->**on, std::string(setting.help))->each(note)->group(group);
      continue;
    }
    const auto take = [&setting, flag, spec, words](const std::string& text) {
      if (const Status status = setting.Set(text, spec); !status.ok())
        throw CLI::ValidationError(flag, status.message());
      if (words != nullptr) words->insert(words->end(), {flag, text});
    };
    std::string type = setting.Requirement();
    if (type.starts_with("in ")) type = type.substr(3);
    if (type.starts_with("one of ")) type = type.substr(7);
    app.add_option_function<std::string>(flag, take, std::string(setting.help))
        ->type_name(type)
        ->default_str(words == nullptr ? setting.Text(*spec) : "")
        ->group(group);
  }
  CLI::Option* const energy = app.get_option_no_throw("--high-energy");
  if (energy != nullptr && energy->get_group() == group) energy->excludes("--high-share");
}

}  // namespace longhaul::cli
