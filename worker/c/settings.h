// "NAME=VALUE" settings of the C interface as the options of the C++ one: names and values are those of
// longhaul-worker's options.
#pragma once

#include <span>

#include "longhaul/options.h"
#include "longhaul/status.h"

namespace longhaul::c {

// What is not given comes from the environment (base/flags/environment.h). LONGHAUL_INSECURE counts when its
// value is the address to join. Errors: kInvalidArgument by name.
Result<ConnectOptions> ParseConnect(std::span<const char* const> settings);

// Without count and initial values. Errors: kInvalidArgument by name.
Result<TensorOptions> ParseTensor(std::span<const char* const> settings);

}  // namespace longhaul::c
