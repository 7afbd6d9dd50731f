# Read by cpack for each kind of package.
set(CPACK_COMPONENTS_ALL program)
if(CPACK_GENERATOR STREQUAL "TGZ")
  list(APPEND CPACK_COMPONENTS_ALL libraries)
endif()
