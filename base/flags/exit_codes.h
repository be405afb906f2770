// Exit codes of daemons that listen (docs/reference/exit_codes.md).
#pragma once

#include "longhaul/status.h"

namespace longhaul::cli {

inline constexpr int kExitFailure = 1;
inline constexpr int kExitUsage = 2;
inline constexpr int kExitCannotListen = 3;

// Of one that could not start, for this reason.
inline int ExitCodeOf(const Status& why) {
  switch (why.code()) {
    case StatusCode::kInvalidArgument:
      return kExitUsage;
    case StatusCode::kAlreadyExists:
    case StatusCode::kNotFound:
    case StatusCode::kPermissionDenied:
    case StatusCode::kUnavailable:
      return kExitCannotListen;
    default:
      return kExitFailure;
  }
}

}  // namespace longhaul::cli
