#include "longhaul/status.h"

#include <cstdio>
#include <cstdlib>

namespace longhaul {

std::string_view StatusCodeName(StatusCode code) {
  switch (code) {
    case StatusCode::kOk:
      return "Ok";
    case StatusCode::kInvalidArgument:
      return "InvalidArgument";
    case StatusCode::kNotFound:
      return "NotFound";
    case StatusCode::kAlreadyExists:
      return "AlreadyExists";
    case StatusCode::kFailedPrecondition:
      return "FailedPrecondition";
    case StatusCode::kResourceExhausted:
      return "ResourceExhausted";
    case StatusCode::kUnavailable:
      return "Unavailable";
    case StatusCode::kDeadlineExceeded:
      return "DeadlineExceeded";
    case StatusCode::kProtocolViolation:
      return "ProtocolViolation";
    case StatusCode::kPermissionDenied:
      return "PermissionDenied";
    case StatusCode::kCancelled:
      return "Cancelled";
    case StatusCode::kAborted:
      return "Aborted";
    case StatusCode::kDataLoss:
      return "DataLoss";
    case StatusCode::kVersionMismatch:
      return "VersionMismatch";
    case StatusCode::kPeerDead:
      return "PeerDead";
    case StatusCode::kSettingsMismatch:
      return "SettingsMismatch";
    case StatusCode::kInternal:
      return "Internal";
    case StatusCode::kAeadLimitReached:
      return "AeadLimitReached";
  }
  return "Unknown";
}

std::string Status::ToString() const {
  std::string text(StatusCodeName(code_));
  if (!message_.empty()) text += ": " + message_;
  return text;
}

void DieOnBadResultAccess(const Status& status) {
  std::fprintf(stderr, "longhaul: bug: the value of a failed Result was read: %s\n",
               status.ToString().c_str());
  std::abort();
}

}  // namespace longhaul
