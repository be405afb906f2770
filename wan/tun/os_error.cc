#include "wan/tun/os_error.h"

#include <cerrno>
#include <system_error>

namespace longhaul::wan {

Status OsError(std::string_view step, int error) {
  StatusCode code = StatusCode::kInternal;
  if (error == EPERM || error == EACCES) code = StatusCode::kPermissionDenied;
  if (error == ENOENT || error == ENODEV || error == ENXIO) code = StatusCode::kUnavailable;
  if (error == EEXIST) code = StatusCode::kAlreadyExists;
  return {code, std::string(step) + ": " + std::generic_category().message(error)};
}

}  // namespace longhaul::wan
