# libseccomp; Debian's libseccomp-dev has a pkg-config file only, and pkg-config is no package of the build.
find_path(Seccomp_INCLUDE_DIR NAMES seccomp.h)
find_library(Seccomp_LIBRARY NAMES seccomp)
include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(Seccomp REQUIRED_VARS Seccomp_LIBRARY Seccomp_INCLUDE_DIR
                                  REASON_FAILURE_MESSAGE "install libseccomp-dev")
if(Seccomp_FOUND AND NOT TARGET Seccomp::Seccomp)
  add_library(Seccomp::Seccomp UNKNOWN IMPORTED)
  set_target_properties(Seccomp::Seccomp PROPERTIES
    IMPORTED_LOCATION "${Seccomp_LIBRARY}"
    INTERFACE_INCLUDE_DIRECTORIES "${Seccomp_INCLUDE_DIR}")
endif()
