# libpith.so: the archive's objects, of which include/pith alone stays visible. BUILD_SHARED_LIBS
# installs it in the archive's place. Our own program and tests link the archive either way: they
# use what it hides.
add_library(pith_shared SHARED EXCLUDE_FROM_ALL $<TARGET_OBJECTS:pith>)
if(BUILD_SHARED_LIBS)
  set_target_properties(pith_shared PROPERTIES EXCLUDE_FROM_ALL OFF)
endif()
configure_file(cmake/exports.map.in exports.map @ONLY)
# While the major version is 0, a minor version may change the ABI.
set_target_properties(pith_shared PROPERTIES OUTPUT_NAME pith LINKER_LANGUAGE CXX
  VERSION ${PROJECT_VERSION} SOVERSION ${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR}
  LINK_DEPENDS ${PROJECT_BINARY_DIR}/exports.map)
target_include_directories(pith_shared PUBLIC $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include>
                           $<INSTALL_INTERFACE:include>)
target_link_options(pith_shared PRIVATE LINKER:--version-script=${PROJECT_BINARY_DIR}/exports.map
                    LINKER:--no-undefined LINKER:--gc-sections)
target_link_libraries(pith_shared PRIVATE pith_flags hwy::hwy pith_dnnl fmt::fmt ICU::uc ICU::i18n
                      pith_sentencepiece PkgConfig::XXHASH Threads::Threads)
if(PITH_CUDA)
  pith_use_cuda(pith_shared)
endif()

# The targets that `find_package(pith)` and add_subdirectory give.
if(BUILD_SHARED_LIBS)
  add_library(pith::pith ALIAS pith_shared)
else()
  add_library(pith::pith ALIAS pith)
endif()
