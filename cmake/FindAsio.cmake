# Standalone, header-only Asio; Debian's libasio-dev ships no CMake package.
find_path(Asio_INCLUDE_DIR NAMES asio.hpp)
include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(Asio REQUIRED_VARS Asio_INCLUDE_DIR
                                  REASON_FAILURE_MESSAGE "install libasio-dev (tools/dev setup)")
if(Asio_FOUND AND NOT TARGET Asio::Asio)
  add_library(Asio::Asio INTERFACE IMPORTED)
  target_include_directories(Asio::Asio SYSTEM INTERFACE "${Asio_INCLUDE_DIR}")
  target_compile_definitions(Asio::Asio INTERFACE ASIO_STANDALONE ASIO_NO_DEPRECATED)
  target_link_libraries(Asio::Asio INTERFACE Threads::Threads)
endif()
