// A TrainingJob from a file or from options, as the API server gets it. Pure.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "longhaul/status.h"

namespace longhaul::cli {

// A job has a script of 256 KiB at most; etcd takes 1.5 MiB of an object.
inline constexpr size_t kMaxJobFileBytes = size_t{1} << 20;

// One document of YAML or JSON that is a TrainingJob. Errors: kInvalidArgument with the line or the field.
Result<nlohmann::json> ReadJobText(std::string_view text);

struct JobFlags {
  std::string name;
  int gpus = 0;
  std::string image, profile;
  std::string script;  // its text
  std::string claim;   // empty: no data
};
nlohmann::json MakeJob(const JobFlags& flags);

// In this namespace, and right by every rule of the operator's: what a cluster would refuse, or accept and
// then fail. name_space: as typed, or empty; `usual` where the file names none either. Errors:
// kInvalidArgument.
Status PrepareJob(const std::string& name_space, const std::string& usual, nlohmann::json* job);

}  // namespace longhaul::cli
