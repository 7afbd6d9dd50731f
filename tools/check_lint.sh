#!/usr/bin/env bash
# Runs clang-tidy (.clang-tidy) over src/, apps/, lab/ and, through them, include/; tests are not linted.
# The CUDA build's host files are linted where build/cuda is configured (`make lint` does so with
# nvcc there); its kernels, the .cu files, are not.
#   tools/check_lint.sh [FILE...]     all sources, or those named; needs build/compile_commands.json
#   tools/check_lint.sh --self-test   proves that a defect and a wrong name are found
# Versions of clang-tidy know different checks, so 14 (Debian 12) decides.
set -euo pipefail
cd "$(dirname "$0")/.."
readonly kVersion=14

tool=$(command -v clang-tidy-$kVersion || command -v clang-tidy || true)
[ -n "$tool" ] || { echo "lint: clang-tidy is missing; run tools/setup.sh" >&2; exit 1; }
version=$("$tool" --version | sed -n 's/.*version \([0-9]*\).*/\1/p')
if [ "$version" != "$kVersion" ]; then
  echo "lint: SKIPPED, needs clang-tidy $kVersion, found $version"
  exit 0
fi

self_test() {
  folder=$(mktemp -d)  # global: the trap runs after this function
  trap 'rm -rf "$folder"' EXIT
  cp .clang-tidy "$folder"
  printf '#include <string>\nint Wrong_Name(std::string s) { return (int)s.size(); }\n' \
    >"$folder/bad.cc"
  printf 'int right_name(int a) { return a; }\n' >"$folder/good.cc"
  local found
  found=$("$tool" --quiet "$folder/bad.cc" -- -std=c++20 2>/dev/null) && {
    echo "lint self-test: a file with defects passed" >&2
    return 1
  }
  local check
  for check in readability-identifier-naming performance-unnecessary-value-param; do
    grep -q "$check" <<<"$found" || { echo "lint self-test: $check is off" >&2; return 1; }
  done
  "$tool" --quiet "$folder/good.cc" -- -std=c++20 2>/dev/null
}

if [ "${1:-}" = --self-test ]; then
  self_test
  exit
fi
[ -f build/compile_commands.json ] || {
  echo "lint: run 'cmake --preset release' first" >&2
  exit 1
}
files=("$@")
[ $# -gt 0 ] || mapfile -t files < <(git ls-files -- 'src/*.cc' 'apps/*.cc' 'lab/*.cc' ':!*_test.cc')
python3 tools/lint_files.py "$tool" "${files[@]}"
