#ifndef PITH_VERSION_H_
#define PITH_VERSION_H_
/* The version of these headers, for C and C++; pith_version() returns the library's. CMake reads it
 * here. While the first number is 0, the second changes with the ABI, and with it the SONAME
 * (libpith.so.0.1). */

#define PITH_VERSION_MAJOR 0
#define PITH_VERSION_MINOR 1
#define PITH_VERSION_PATCH 0
#define PITH_VERSION "0.1.0"
/* For comparisons: 0.2.0 is 200. */
#define PITH_VERSION_NUMBER \
  (PITH_VERSION_MAJOR * 10000 + PITH_VERSION_MINOR * 100 + PITH_VERSION_PATCH)

#endif /* PITH_VERSION_H_ */
