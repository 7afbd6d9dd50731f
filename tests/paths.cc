#include "paths.h"

#include <cstdlib>

// Programs that are taken to another machine are told where the files are there.
std::filesystem::path repo_dir() {
  const char* elsewhere = std::getenv("PITH_REPO_DIR");
  return elsewhere == nullptr ? PITH_REPO_DIR : elsewhere;
}
std::filesystem::path build_dir() { return PITH_BUILD_DIR; }
