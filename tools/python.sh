#!/usr/bin/env bash
# Makes a Python environment with the package of this checkout and what its tests need:
#   tools/python.sh FOLDER      (make python and the test python_test: build/python)
# With PITH_CUDA=ON in the environment (make python PITH_CUDA=ON) it is built with CUDA.
# Exit codes: 0 ready, 1 the package does not build, 77 no environment can be had here.
set -euo pipefail
folder=${1:?usage: tools/python.sh FOLDER}
mkdir -p "$folder"
folder=$(cd "$folder" && pwd)
cd "$(dirname "$0")/.."

skip() {
  echo "python: SKIPPED: $1" >&2
  exit 77
}
command -v python3 >/dev/null || skip "there is no python3"
python3 -c 'import sys; sys.exit(sys.version_info < (3, 11))' || skip "python3 is older than 3.11"
command -v python3-config >/dev/null || skip "python3 has no headers (Debian: python3-dev)"
pip=("$folder/bin/python" -m pip --disable-pip-version-check --quiet)
[ -x "$folder/bin/python" ] || python3 -m venv "$folder" || skip "python3 has no venv (Debian: python3-venv)"
# Built without isolation, so that paths are the same each time and ccache finds them.
wanted=('scikit-build-core>=1.1' 'nanobind>=3.1,<4' 'numpy>=1.26' 'matplotlib>=3.7' 'pytest>=8')
"${pip[@]}" install --timeout 20 --retries 1 "${wanted[@]}" >&2 || skip "the packages cannot be fetched"
# The compiler by the name that CMake gives it elsewhere: ccache takes another for another compiler.
export CMAKE_GENERATOR=Ninja CC=${CC:-$(command -v cc)} CXX=${CXX:-$(command -v c++)}
export CMAKE_BUILD_PARALLEL_LEVEL=${CMAKE_BUILD_PARALLEL_LEVEL:-2}
"${pip[@]}" install --no-build-isolation --no-deps . ${PITH_CUDA:+-C "cmake.define.PITH_CUDA=$PITH_CUDA"}
