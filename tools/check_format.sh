#!/usr/bin/env bash
# Are all tracked C++ files in the house format (.clang-format)?
#   tools/check_format.sh              names the files that are not, and fails
#   tools/check_format.sh --fix        rewrites them
#   tools/check_format.sh --self-test  proves that a badly laid out file is found
# Versions of clang-format disagree in details. 14 (Debian 12) decides: another one may rewrite
# but not decide.
set -euo pipefail
cd "$(dirname "$0")/.."
readonly kVersion=14

tool=$(command -v clang-format-$kVersion || command -v clang-format || true)
[ -n "$tool" ] || { echo "format: clang-format is missing; run tools/setup.sh" >&2; exit 1; }
version=$("$tool" --version | sed 's/.*version \([0-9]*\).*/\1/')

files() { git ls-files -z -- '*.h' '*.cc' '*.cu' '*.cuh'; }

passes() { "$tool" --style=file --dry-run -Werror "$@"; }

if [ "${1:-}" = --fix ]; then
  files | xargs -0 -r "$tool" --style=file -i
elif [ "$version" != "$kVersion" ]; then
  echo "format: SKIPPED, needs clang-format $kVersion, found $version"
elif [ "${1:-}" = --self-test ]; then
  folder=$(mktemp -d)
  trap 'rm -rf "$folder"' EXIT
  cp .clang-format "$folder"
  printf 'int  f( int a ){return a;}\n' >"$folder/bad.cc"
  printf 'int f(int a) { return a; }\n' >"$folder/good.cc"
  if passes "$folder/bad.cc" 2>/dev/null; then
    echo "format self-test: a badly laid out file passed" >&2
    exit 1
  fi
  passes "$folder/good.cc"
else
  bad=$(files | xargs -0 -r "$tool" --style=file --dry-run -Werror 2>&1 |
    sed -n 's/^\([^:]*\):[0-9]*:[0-9]*: error:.*/  \1/p' | sort | uniq -c) || true  # counted below
  [ -z "$bad" ] || {
    printf 'format: places per file that `make format` would change:\n%s\n' "$bad" >&2
    exit 1
  }
fi
