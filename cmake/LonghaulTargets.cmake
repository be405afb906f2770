# Target helpers: every unit of the tree is declared with one of these, so that
# flags, include paths and naming live in one place. Nothing is set for the project that adds this one.

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)

# Several sources of a target in one compilation: their common headers are read once, which is two thirds of the
# compiler's time on small files. Off in the preset `dev`, where one file is edited at a time. The number bounds the
# longest single compilation; more than eight gains little.
option(LONGHAUL_UNITY "Compile several sources of a target together" OFF)
set(CMAKE_UNITY_BUILD ${LONGHAUL_UNITY})
set(CMAKE_UNITY_BUILD_BATCH_SIZE 8)

set(CMAKE_RUNTIME_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/bin")

add_library(longhaul_flags INTERFACE)
target_compile_options(longhaul_flags INTERFACE -Wall -Wextra -Wshadow -Wnon-virtual-dtor
                                                -Wold-style-cast -Wconversion -Wno-sign-conversion)
# g++ takes a source that another one includes for a header, whose private types nothing outside could name.
if(LONGHAUL_UNITY AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  target_compile_options(longhaul_flags INTERFACE -Wno-subobject-linkage)
endif()
# g++ 12 warns of vectors that are copied from a constant list, once it inlines them.
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  target_compile_options(longhaul_flags INTERFACE -Wno-maybe-uninitialized)
endif()
if(LONGHAUL_WERROR)
  target_compile_options(longhaul_flags INTERFACE -Werror)
endif()
target_include_directories(longhaul_flags INTERFACE "${PROJECT_SOURCE_DIR}" "${PROJECT_SOURCE_DIR}/include")
if(LONGHAUL_SANITIZE)
  add_compile_options(-fsanitize=${LONGHAUL_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
  add_link_options(-fsanitize=${LONGHAUL_SANITIZE})
  # g++ says so by itself; tests give slow programs more time.
  if(LONGHAUL_SANITIZE MATCHES "address" AND CMAKE_CXX_COMPILER_ID MATCHES "Clang")
    add_compile_definitions(__SANITIZE_ADDRESS__=1)
  endif()
endif()

# Hardening of the programs and of both libraries (tests/guards/hardening.py reads what came of it). The sanitizers check
# more, and FORTIFY's functions would hide calls from them.
set(longhaul_unoptimized -O0)
if(NOT LONGHAUL_SANITIZE)
  add_compile_options(-fstack-protector-strong -fstack-clash-protection -U_FORTIFY_SOURCE -D_FORTIFY_SOURCE=2
                      -D_GLIBCXX_ASSERTIONS)
  if(CMAKE_SYSTEM_PROCESSOR STREQUAL "x86_64")
    add_compile_options(-fcf-protection=full)
  endif()
  add_link_options(-Wl,-z,relro,-z,now -Wl,-z,noexecstack)
  # FORTIFY needs the optimizer; glibc warns where it is off.
  list(APPEND longhaul_unoptimized -U_FORTIFY_SOURCE)
endif()

if(LONGHAUL_FUZZ)
  # Coverage feedback in every library; tests/fuzz links libFuzzer itself.
  # Without what guesses operands of comparisons, which took a quarter of the time: what inputs have to guess are words,
  # which memcmp tells, and numbers that seeds contain.
  add_compile_options(-fsanitize=fuzzer-no-link -fno-sanitize-coverage=trace-cmp,indirect-calls,stack-depth)
  # AddressSanitizer sees what comes of these, and the tests run with all of them; each check is two more edges.
  add_compile_options(-fno-sanitize=null,vptr,object-size,pointer-overflow)
  add_compile_definitions(LONGHAUL_FUZZING)
  # coverage.py looks for sources of this folder. ccache, which does not look at the folder (CCACHE_NOHASHDIR), would give an
  # object that was compiled in another one; it does look at options.
  add_compile_options("-fdebug-compilation-dir=${PROJECT_BINARY_DIR}")
endif()

# ALONE, in all three: sources whose local names meet those of their neighbours; they are compiled by themselves.
function(longhaul_alone)
  if(ARGN)
    set_source_files_properties(${ARGN} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
  endif()
endfunction()

# longhaul_library(<name> SOURCES ... [DEPS ...] [ALONE ...]): a static library of one folder.
function(longhaul_library name)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPS;ALONE" ${ARGN})
  longhaul_alone(${ARG_ALONE})
  if(ARG_SOURCES)
    add_library(${name} STATIC ${ARG_SOURCES})
    target_link_libraries(${name} PUBLIC longhaul_flags ${ARG_DEPS})
  else()
    add_library(${name} INTERFACE)
    target_link_libraries(${name} INTERFACE longhaul_flags ${ARG_DEPS})
  endif()
endfunction()

# longhaul_executable(<name> SOURCES ... [DEPS ...] [ALONE ...]): a program in <build>/bin.
function(longhaul_executable name)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPS;ALONE" ${ARGN})
  longhaul_alone(${ARG_ALONE})
  add_executable(${name} ${ARG_SOURCES})
  target_link_libraries(${name} PRIVATE longhaul_flags ${ARG_DEPS})
  # A main reads options, once: optimizing CLI11's templates takes half of its compilation (13 s of 21).
  set(mains ${ARG_SOURCES})
  list(FILTER mains INCLUDE REGEX "(^|/)main\\.cc$")
  if(mains AND LONGHAUL_UNITY)
    set_source_files_properties(${mains} PROPERTIES COMPILE_OPTIONS "${longhaul_unoptimized}")
  endif()
endfunction()

# What every test reads is read once.
function(longhaul_test_headers name)
  if(NOT TARGET longhaul_test_headers)
    file(CONFIGURE OUTPUT "${PROJECT_BINARY_DIR}/test_headers.cc" CONTENT "int main() {}\n")  # written once
    add_executable(longhaul_test_headers EXCLUDE_FROM_ALL "${PROJECT_BINARY_DIR}/test_headers.cc")
    target_link_libraries(longhaul_test_headers PRIVATE longhaul_flags GTest::gmock GTest::gtest)
    target_compile_options(longhaul_test_headers PRIVATE ${longhaul_unoptimized})
    set_target_properties(longhaul_test_headers PROPERTIES RUNTIME_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}")
    target_precompile_headers(longhaul_test_headers PRIVATE <gmock/gmock.h> <gtest/gtest.h> <algorithm> <chrono>
      <cmath> <cstdint> <deque> <functional> <map> <memory> <optional> <random> <span> <string> <thread> <variant> <vector>)
  endif()
  target_precompile_headers(${name} REUSE_FROM longhaul_test_headers)
endfunction()

# longhaul_test(<name> [DEPS ...] [LABELS ...] [ALONE ...]): one test program from every
# *_test.cc of the calling folder; each TEST becomes one ctest entry. SERIAL: nothing else runs beside it. OPTIMIZED: its
# own code takes long.
function(longhaul_test name)
  cmake_parse_arguments(ARG "SERIAL;OPTIMIZED" "TIMEOUT" "DEPS;LABELS;SOURCES;ALONE" ${ARGN})
  if(NOT ARG_SOURCES)
    file(GLOB ARG_SOURCES CONFIGURE_DEPENDS "${CMAKE_CURRENT_SOURCE_DIR}/*.cc")
  endif()
  if(NOT ARG_SOURCES)
    return()
  endif()
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 300)  # with sanitizers and neighbours; alone none takes a minute
  endif()
  # Tests have many local names alike (fixtures, Ms, Case): one file a compilation.
  set(CMAKE_UNITY_BUILD OFF)
  longhaul_executable(${name} SOURCES ${ARG_SOURCES} ALONE ${ARG_ALONE} DEPS ${ARG_DEPS} GTest::gmock GTest::gtest GTest::gtest_main)
  # g++ 12 warns of its own std::string, once that is not read from a system header.
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    target_compile_options(${name} PRIVATE -Wno-array-bounds -Wno-restrict -Wno-stringop-overflow -Wno-stringop-overread)
  endif()
  # The product is optimized; its tests need not be (connection_test.cc: 20.4 -> 8.9 s with sanitizers, 13.3 -> 6 without).
  if(NOT ARG_OPTIMIZED)
    longhaul_test_headers(${name})
    target_compile_options(${name} PRIVATE ${longhaul_unoptimized})
  endif()
  # Without unit tests: what runs whole programs, and what takes long with sanitizers.
  if(NOT LONGHAUL_UNIT_TESTS AND NOT "${ARG_LABELS}" MATCHES "e2e|slow")
    set_target_properties(${name} PROPERTIES EXCLUDE_FROM_ALL ON)
    return()
  endif()
  # An empty value would be left out of the list of properties, and the next name taken for it.
  set(labels)
  if(ARG_LABELS)
    set(labels LABELS "${ARG_LABELS}")
  endif()
  gtest_discover_tests(${name} TEST_PREFIX "${name}." DISCOVERY_TIMEOUT 60
                       PROPERTIES TIMEOUT ${ARG_TIMEOUT} RUN_SERIAL ${ARG_SERIAL} ${labels})
endfunction()
