#pragma once
// Devices for tests of what must not be replaced: run as root, a test that fails would replace the
// system's own /dev/null.

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <filesystem>
#include <string>

namespace pith::test {

constexpr unsigned kNull = 3, kFull = 7;  // minor numbers of major 1, Linux's memory devices

/// A character device in `folder`, made by root alone; others get the system's, which they cannot
/// replace. Empty where root may make none.
inline std::string device_node(const std::filesystem::path& folder, unsigned minor) {
  if (geteuid() != 0) return minor == kNull ? "/dev/null" : "/dev/full";
  const std::string path = (folder / (minor == kNull ? "null" : "full")).string();
  if (mknod(path.c_str(), S_IFCHR | 0600, makedev(1, minor)) != 0) return "";
  const int opened = open(path.c_str(), O_WRONLY);
  if (opened < 0) return "";
  close(opened);
  return path;
}

}  // namespace pith::test
