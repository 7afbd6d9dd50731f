# Read by cpack for each kind of package.
set(CPACK_COMPONENTS_ALL program)
set(CPACK_COMPONENT_INCLUDE_TOPLEVEL_DIRECTORY OFF)  # a Debian package's files belong below /usr
if(CPACK_GENERATOR STREQUAL "TGZ")
  set(CPACK_COMPONENT_INCLUDE_TOPLEVEL_DIRECTORY ON)
  list(APPEND CPACK_COMPONENTS_ALL libraries)
endif()
