# cmake --install: the library, static or shared, its headers, what find_package(pith) and pkg-config
# read, and the program with its completions. `ninja uninstall` takes away what the last one wrote.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)
set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/pith)
set_target_properties(pith_shared PROPERTIES EXPORT_NAME pith)
if(BUILD_SHARED_LIBS)
  install(TARGETS pith_shared EXPORT pith LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
else()
  install(TARGETS pith pith_flags pith_dnnl pith_sentencepiece EXPORT pith
          ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
endif()
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

configure_file(cmake/uninstall.cmake.in ${PROJECT_BINARY_DIR}/uninstall.cmake @ONLY)
add_custom_target(uninstall COMMAND ${CMAKE_COMMAND} -P ${PROJECT_BINARY_DIR}/uninstall.cmake)
