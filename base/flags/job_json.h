// The settings of a job as JSON, from the table in base/job_settings.h.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <type_traits>
#include <variant>

#include "base/job_settings.h"

namespace longhaul {

// An object with every setting: enumerations by name, durations in seconds.
inline void to_json(nlohmann::json& object, const JobSpec& spec) {
  for (const JobSetting& setting : JobSettings()) {
    nlohmann::json& value = object[std::string(setting.name)];
    std::visit(
        [&]<typename T>(T JobSpec::*member) {
          if constexpr (std::is_enum_v<T>) {
            value = NameOf(spec.*member);
          } else if constexpr (std::is_same_v<T, Duration>) {
            value = std::chrono::duration<double>(spec.*member).count();
          } else {
            value = spec.*member;
          }
        },
        setting.field);
  }
}

}  // namespace longhaul
