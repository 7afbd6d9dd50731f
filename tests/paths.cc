#include "paths.h"

std::filesystem::path repo_dir() { return PITH_REPO_DIR; }
std::filesystem::path build_dir() { return PITH_BUILD_DIR; }
