# prometheus-cpp's core: metric families and their text. Its own CMake package also asks for civetweb and libcurl,
# which only its other two libraries use.
find_path(PrometheusCore_INCLUDE_DIR NAMES prometheus/text_serializer.h)
find_library(PrometheusCore_LIBRARY NAMES prometheus-cpp-core)
include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(PrometheusCore REQUIRED_VARS PrometheusCore_LIBRARY PrometheusCore_INCLUDE_DIR
                                  REASON_FAILURE_MESSAGE "install prometheus-cpp-dev (tools/dev setup)")
if(PrometheusCore_FOUND AND NOT TARGET PrometheusCore::PrometheusCore)
  add_library(PrometheusCore::PrometheusCore UNKNOWN IMPORTED)
  set_target_properties(PrometheusCore::PrometheusCore PROPERTIES
    IMPORTED_LOCATION "${PrometheusCore_LIBRARY}"
    INTERFACE_INCLUDE_DIRECTORIES "${PrometheusCore_INCLUDE_DIR}")
endif()
