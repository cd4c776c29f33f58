# SPDX-License-Identifier: Apache-2.0
include(CMakePackageConfigHelpers)
include(GNUInstallDirs)

set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/kvferry)
set(pkgconfig_dir ${CMAKE_INSTALL_LIBDIR}/pkgconfig)

install(TARGETS kvferry EXPORT kvferry FILE_SET HEADERS)
install(EXPORT kvferry FILE kvferryTargets.cmake NAMESPACE kvferry:: DESTINATION ${package_dir})
if(KVFERRY_BUILD_TOOLS)
  install(TARGETS kvferry_cli)
endif()

configure_package_config_file(${PROJECT_SOURCE_DIR}/cmake/kvferryConfig.cmake.in kvferryConfig.cmake
                              INSTALL_DESTINATION ${package_dir})
# Before 1.0 a minor version may break callers.
write_basic_package_version_file(kvferryConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/kvferryConfig.cmake ${PROJECT_BINARY_DIR}/kvferryConfigVersion.cmake
        DESTINATION ${package_dir})

# Relative to the .pc file, so that an installed tree can be moved.
file(RELATIVE_PATH pc_prefix /${pkgconfig_dir} /)
string(REGEX REPLACE "/$" "" pc_prefix "${pc_prefix}")
configure_file(${PROJECT_SOURCE_DIR}/cmake/kvferry.pc.in kvferry.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/kvferry.pc DESTINATION ${pkgconfig_dir})

if(KVFERRY_BUILD_ACL)
  # In a folder of its own: include/acl would hide, or be hidden by, that of a CANN installation.
  install(TARGETS kvferry_acl EXPORT kvferry FILE_SET HEADERS DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/kvferry_acl)
  configure_file(${PROJECT_SOURCE_DIR}/cmake/kvferry-acl.pc.in kvferry-acl.pc @ONLY)
  install(FILES ${PROJECT_BINARY_DIR}/kvferry-acl.pc DESTINATION ${pkgconfig_dir})
endif()
