# The server of `pith serve`. Boost is headers alone; two files see it (docs/decisions/0300).
find_package(Boost 1.74 REQUIRED)
file(GLOB serve_sources CONFIGURE_DEPENDS src/serve/*.cc src/http/*.cc)
list(FILTER serve_sources EXCLUDE REGEX "_test\\.cc$")
# Its page is compiled in: each file is a string of page_files.cc.
foreach(file index.html page.css page.js memory.js markdown.js icon.svg)
  file(READ src/serve/page/${file} page_${file})
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS src/serve/page/${file})
endforeach()
configure_file(src/serve/page/page_files.cc.in page_files.cc @ONLY)
add_library(pith_serve STATIC ${serve_sources} ${PROJECT_BINARY_DIR}/page_files.cc)
target_include_directories(pith_serve PRIVATE src)
target_compile_definitions(pith_serve PRIVATE BOOST_ASIO_SEPARATE_COMPILATION BOOST_BEAST_SEPARATE_COMPILATION
                           BOOST_ASIO_NO_DEPRECATED)
target_include_directories(pith_serve SYSTEM PRIVATE ${Boost_INCLUDE_DIRS})
target_link_libraries(pith_serve PUBLIC pith PRIVATE pith_flags fmt::fmt
                      nlohmann_json::nlohmann_json)
