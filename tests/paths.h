#pragma once
// Where the tests find the project's files and programs. The two folders are compiled into one
// file alone (paths.cc), so that a compiler cache serves every checkout of the tree.

#include <filesystem>

/// The root of the checkout that the tests were built from.
std::filesystem::path repo_dir();
/// The build folder: programs are in its bin/.
std::filesystem::path build_dir();
