# Target helpers: every unit of the tree is declared with one of these, so that
# flags, include paths and naming live in one place.

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)

add_library(longhaul_flags INTERFACE)
target_compile_options(longhaul_flags INTERFACE -Wall -Wextra -Wshadow -Wnon-virtual-dtor
                                                -Wold-style-cast -Wconversion -Wno-sign-conversion)
if(LONGHAUL_WERROR)
  target_compile_options(longhaul_flags INTERFACE -Werror)
endif()
target_include_directories(longhaul_flags INTERFACE "${CMAKE_SOURCE_DIR}" "${CMAKE_SOURCE_DIR}/include")
if(LONGHAUL_SANITIZE)
  add_compile_options(-fsanitize=${LONGHAUL_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
  add_link_options(-fsanitize=${LONGHAUL_SANITIZE})
endif()

if(LONGHAUL_FUZZ)
  # Coverage feedback in every library; tests/fuzz links libFuzzer itself.
  add_compile_options(-fsanitize=fuzzer-no-link)
endif()

# longhaul_library(<name> SOURCES ... [DEPS ...]): a static library of one folder.
function(longhaul_library name)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPS" ${ARGN})
  if(ARG_SOURCES)
    add_library(${name} STATIC ${ARG_SOURCES})
    target_link_libraries(${name} PUBLIC longhaul_flags ${ARG_DEPS})
  else()
    add_library(${name} INTERFACE)
    target_link_libraries(${name} INTERFACE longhaul_flags ${ARG_DEPS})
  endif()
endfunction()

# longhaul_executable(<name> SOURCES ... [DEPS ...]): a program in <build>/bin.
function(longhaul_executable name)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPS" ${ARGN})
  add_executable(${name} ${ARG_SOURCES})
  target_link_libraries(${name} PRIVATE longhaul_flags ${ARG_DEPS})
endfunction()

# longhaul_test(<name> [DEPS ...] [LABELS ...]): one test program from every
# *_test.cc of the calling folder; each TEST becomes one ctest entry. SERIAL: nothing else runs beside it.
function(longhaul_test name)
  cmake_parse_arguments(ARG "SERIAL" "TIMEOUT" "DEPS;LABELS;SOURCES" ${ARGN})
  if(NOT ARG_SOURCES)
    file(GLOB ARG_SOURCES CONFIGURE_DEPENDS "${CMAKE_CURRENT_SOURCE_DIR}/*.cc")
  endif()
  if(NOT ARG_SOURCES)
    return()
  endif()
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 120)
  endif()
  add_executable(${name} ${ARG_SOURCES})
  target_link_libraries(${name} PRIVATE longhaul_flags ${ARG_DEPS} GTest::gmock GTest::gtest GTest::gtest_main)
  gtest_discover_tests(${name} TEST_PREFIX "${name}." DISCOVERY_TIMEOUT 60
                       PROPERTIES TIMEOUT ${ARG_TIMEOUT} LABELS "${ARG_LABELS}" RUN_SERIAL ${ARG_SERIAL})
endfunction()
