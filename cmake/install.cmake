# cmake --install: the program with its completion, the static library, its headers, and what
# find_package(pith) and pkg-config read.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)
set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/pith)
install(TARGETS pith pith_flags pith_dnnl EXPORT pith ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(DIRECTORY include/pith DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(EXPORT pith NAMESPACE pith:: DESTINATION ${package_dir} FILE pithTargets.cmake)
configure_package_config_file(cmake/pithConfig.cmake.in ${PROJECT_BINARY_DIR}/pithConfig.cmake
                              INSTALL_DESTINATION ${package_dir})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/pithConfigVersion.cmake
                                 COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/pithConfig.cmake ${PROJECT_BINARY_DIR}/pithConfigVersion.cmake
        DESTINATION ${package_dir})

# For builds without CMake. A CUDA build has libraries of its own machine and is left to CMake.
if(NOT PITH_CUDA)
  configure_file(cmake/pith.pc.in ${PROJECT_BINARY_DIR}/pith.pc @ONLY)
  install(FILES ${PROJECT_BINARY_DIR}/pith.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
endif()
