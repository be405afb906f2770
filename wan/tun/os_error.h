// A refused system call as a Status that names the step.
#pragma once

#include <string>
#include <string_view>

#include "longhaul/status.h"

namespace longhaul::wan {

// "<step>: <strerror>". EPERM and EACCES become kPermissionDenied, a missing device, file or program
// kUnavailable, EEXIST kAlreadyExists, anything else kInternal.
Status OsError(std::string_view step, int error);

}  // namespace longhaul::wan
