# liberasurecode; Debian's liberasurecode-dev ships neither CMake nor pkg-config files.
find_path(ErasureCode_INCLUDE_DIR NAMES liberasurecode/erasurecode.h)
find_library(ErasureCode_LIBRARY NAMES erasurecode)
include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(ErasureCode REQUIRED_VARS ErasureCode_LIBRARY ErasureCode_INCLUDE_DIR
                                  REASON_FAILURE_MESSAGE "install liberasurecode-dev (tools/dev setup)")
if(ErasureCode_FOUND AND NOT TARGET ErasureCode::ErasureCode)
  add_library(ErasureCode::ErasureCode UNKNOWN IMPORTED)
  set_target_properties(ErasureCode::ErasureCode PROPERTIES
    IMPORTED_LOCATION "${ErasureCode_LIBRARY}"
    INTERFACE_INCLUDE_DIRECTORIES "${ErasureCode_INCLUDE_DIR};${ErasureCode_INCLUDE_DIR}/liberasurecode")
endif()
