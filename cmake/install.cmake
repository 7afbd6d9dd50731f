# cmake --install: the static library, its headers and what find_package(pith) reads.
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
