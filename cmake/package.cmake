# cpack -G DEB: the program as a Debian package, which depends on its libraries' packages.
# cpack -G TGZ: the program with its libraries, but the C and C++ ones, in a folder that may lie anywhere.
install(CODE "
    file(GET_RUNTIME_DEPENDENCIES EXECUTABLES \"$<TARGET_FILE:pith_cli>\"
         RESOLVED_DEPENDENCIES_VAR libraries
         PRE_EXCLUDE_REGEXES \"^lib(c|m|dl|rt|pthread|gcc_s|stdc\\\\+\\\\+)\\\\.so\" \"^ld-linux\")
    file(INSTALL \${libraries} DESTINATION \"\${CMAKE_INSTALL_PREFIX}/lib/pith\" FOLLOW_SYMLINK_CHAIN)"
        COMPONENT libraries EXCLUDE_FROM_ALL)
set(CPACK_PACKAGE_NAME pith)
set(CPACK_PACKAGE_VENDOR Pith)
set(CPACK_PACKAGE_CONTACT Pith)
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "runs language models with a compressed KV cache")
set(CPACK_COMPONENTS_GROUPING ALL_COMPONENTS_IN_ONE)
set(CPACK_ARCHIVE_COMPONENT_INSTALL ON)
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_SECTION science)
set(CPACK_DEBIAN_PACKAGE_RECOMMENDS "python3, python3-pip")
set(CPACK_STRIP_FILES ON)
set(CPACK_PROJECT_CONFIG_FILE ${PROJECT_SOURCE_DIR}/cmake/package_kind.cmake)
include(CPack)
