// The settings of a job as a table: what the validator, the command lines, the configuration files, the
// control message and the JSON know about each field of a JobSpec comes from its row.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <variant>

#include "longhaul/job.h"

namespace longhaul {

struct JobSetting {
  using Field = std::variant<double JobSpec::*, uint8_t JobSpec::*, uint32_t JobSpec::*, uint64_t JobSpec::*,
                             int32_t JobSpec::*, bool JobSpec::*, Duration JobSpec::*, LossPolicy JobSpec::*,
                             Priority JobSpec::*, Downlink JobSpec::*, Aggregation JobSpec::*>;
  // Of numbers, and of durations in seconds; enumerations take their names.
  struct Range {
    double low = 0;
    double high = 1;
    bool above_low = false;  // low itself is outside
    bool or_zero = false;    // 0 is inside besides: off
    double step = 0;         // > 0: low, low + step, ...
  };

  std::string_view name;  // of the field
  Field field;
  Range range;
  std::string_view help;
  std::string_view flag = {};  // where it is not --name with dashes

  // "--close-ratio".
  std::string Flag() const;
  // What is taken, in words that follow "must be": "in 0..1", "one of reliable, lossy".
  std::string Requirement() const;
  // The value as text that Set reads back.
  std::string Text(const JobSpec& spec) const;
  // kInvalidArgument, naming the text and what would be right: not a value, or outside the range.
  Status Set(std::string_view text, JobSpec* spec) const;
  bool InRange(const JobSpec& spec) const;
};

std::span<const JobSetting> JobSettings();

}  // namespace longhaul
