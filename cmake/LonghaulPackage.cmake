# The library that other projects use, liblonghaul: the objects of the tree's own libraries, compiled once.
#   longhaul::client   longhaul/client.h, longhaul/c_api.h
#   longhaul::server   longhaul/server.h
#   longhaul::offload  longhaul/offload.h
#   longhaul::ps       ps/ps.h
# All are liblonghaul today; their names keep a later split from changing a user's build. BUILD_SHARED_LIBS says which
# kind they are; the install rules bring both. Nothing of this tree's flags or folders reaches a user but include/.

set(longhaul_parts longhaul_base longhaul_disk longhaul_wire longhaul_control longhaul_codec longhaul_transport_core longhaul_crypto
                   longhaul_keys longhaul_wan longhaul_udp longhaul_reduce longhaul_straggler longhaul_offload_engine
                   longhaul_offload longhaul_worker_core longhaul_client longhaul_c longhaul_server_core longhaul_store
                   longhaul_server longhaul_pslite_core longhaul_pslite)
# What those objects need at link time and no user's source sees.
set(longhaul_needs protobuf::libprotobuf OpenSSL::SSL OpenSSL::Crypto ErasureCode::ErasureCode hwy::hwy spdlog::spdlog
                   Threads::Threads)
if(TARGET IPSecMB::IPSecMB)
  list(APPEND longhaul_needs IPSecMB::IPSecMB)
endif()

foreach(kind static shared)
  string(TOUPPER ${kind} type)
  add_library(longhaul_${kind} ${type})
  foreach(part IN LISTS longhaul_parts)
    get_target_property(part_type ${part} TYPE)
    if(part_type STREQUAL "STATIC_LIBRARY")
      target_sources(longhaul_${kind} PRIVATE $<TARGET_OBJECTS:${part}>)
    endif()
  endforeach()
  target_link_libraries(longhaul_${kind} PRIVATE ${longhaul_needs})
  target_compile_features(longhaul_${kind} INTERFACE cxx_std_20)
  target_include_directories(longhaul_${kind} INTERFACE "$<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include>")
  set_target_properties(longhaul_${kind} PROPERTIES
    OUTPUT_NAME longhaul EXPORT_NAME ${kind} LINKER_LANGUAGE CXX UNITY_BUILD OFF
    VERSION ${PROJECT_VERSION} SOVERSION ${PROJECT_VERSION_MAJOR}
    ARCHIVE_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/lib" LIBRARY_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/lib")
endforeach()
# Only the public classes are visible: protobuf's and our own internals cannot meet those of the program.
target_link_options(longhaul_shared PRIVATE "-Wl,--version-script=${PROJECT_SOURCE_DIR}/cmake/longhaul.map")
set_target_properties(longhaul_shared PROPERTIES LINK_DEPENDS "${PROJECT_SOURCE_DIR}/cmake/longhaul.map")

if(BUILD_SHARED_LIBS)
  set(kind shared)
else()
  set(kind static)
endif()
foreach(name client server offload ps)
  add_library(longhaul_public_${name} INTERFACE)
  target_link_libraries(longhaul_public_${name} INTERFACE longhaul_${kind})
  add_library(longhaul::${name} ALIAS longhaul_public_${name})
endforeach()

# Components: programs, headers, static, shared (`cmake --install build/release --component shared`).
function(longhaul_install)
  include(GNUInstallDirs)
  include(CMakePackageConfigHelpers)
  set(package ${CMAKE_INSTALL_LIBDIR}/cmake/longhaul)
  install(TARGETS longhaul longhaul-server longhaul-worker longhaul-trainer longhaul-wan longhaul-offload
          RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT programs)
  if(TARGET longhaul-operator)
    install(TARGETS longhaul-operator RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT programs)
  endif()
  install(DIRECTORY include/longhaul include/ps DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} COMPONENT headers FILES_MATCHING PATTERN "*.h")
  foreach(kind static shared)
    install(TARGETS longhaul_${kind} EXPORT longhaul-${kind}
            ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT ${kind}
            LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT ${kind}
            INCLUDES DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
    install(EXPORT longhaul-${kind} NAMESPACE longhaul:: DESTINATION ${package} COMPONENT ${kind})
  endforeach()

  if(TARGET IPSecMB::IPSecMB)
    set(LONGHAUL_HAS_IPSEC_MB ON)
    set(LONGHAUL_PC_IPSEC_MB "-lIPSec_MB")
  endif()
  configure_package_config_file(cmake/longhaulConfig.cmake.in longhaulConfig.cmake INSTALL_DESTINATION ${package})
  write_basic_package_version_file(longhaulConfigVersion.cmake COMPATIBILITY SameMinorVersion)
  file(RELATIVE_PATH LONGHAUL_PC_PREFIX "${CMAKE_INSTALL_FULL_LIBDIR}/pkgconfig" "${CMAKE_INSTALL_PREFIX}")
  configure_file(cmake/longhaul.pc.in longhaul.pc @ONLY)
  install(FILES "${PROJECT_BINARY_DIR}/longhaulConfig.cmake" "${PROJECT_BINARY_DIR}/longhaulConfigVersion.cmake"
                cmake/FindErasureCode.cmake cmake/FindIPSecMB.cmake
          DESTINATION ${package} COMPONENT headers)
  install(FILES "${PROJECT_BINARY_DIR}/longhaul.pc" DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig COMPONENT headers)
endfunction()
