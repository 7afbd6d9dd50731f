#!/usr/bin/env bash
# Installs what was built into a folder of its own, builds the programs of tests/install (of which
# statements.cc has what docs/embedding.md says in words) and those in that page against it as a
# stranger would, by CMake and by pkg-config, and runs them, and the installed program, on the demo
# model. Then the same with the shared library, from a build without the program, and looks at the
# names that it exports.
#   tests/install_test.sh REPO BUILD
set -euo pipefail
repo=$1 build=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
model=$repo/models/demo
fail() { echo "install_test: $1" >&2; exit 1; }

cmake --install "$build" --prefix "$work/prefix" >"$work/log" || { cat "$work/log"; exit 1; }
# shellcheck disable=SC2016  # the fences of Markdown
awk -v to="$work/from_docs" '/^```cpp$/ { ++n; on = 1; next } /^```$/ { on = 0 } on { print > (to n ".cc") }' \
  "$repo/docs/embedding.md"
# shellcheck disable=SC2016
awk -v to="$work/from_docs" '/^```c$/ { ++n; on = 1; next } /^```$/ { on = 0 } on { print > (to n ".c") }' \
  "$repo/docs/embedding.md"
awk '/^\*\*On the GPU/ { on = 1 } /^Work runs/ { exit } on && /^    / { print }' \
  "$repo/docs/embedding.md" >"$work/on_gpu.inc"
grep -q LayerCache "$work/on_gpu.inc" || fail "docs/embedding.md has no lines for the GPU"
[ -s "$work/from_docs2.c" ] || fail "docs/embedding.md has not two programs in C"
[ -s "$work/from_docs4.cc" ] || fail "docs/embedding.md has not four programs"

# Builds the strangers' programs against the installation at $1 and runs them.
strangers() {
  local prefix=$1 config flags program libraries
  local quiet=(-DCMAKE_PREFIX_PATH="$prefix" -DCMAKE_BUILD_TYPE=Release)
  cmake -S "$repo/tests/install" -B "$prefix.cpp" "${quiet[@]}" -DFROM_DOCS="$work" >"$work/log" &&
    cmake --build "$prefix.cpp" >>"$work/log" || { cat "$work/log"; exit 1; }
  cmake -S "$repo/tests/install/from_c_alone" -B "$prefix.c" "${quiet[@]}" >"$work/log" &&
    cmake --build "$prefix.c" >>"$work/log" || { cat "$work/log"; exit 1; }
  for program in cpp/{statements,from_{c,cpp,docs1,docs2,docs4,docs_c1,docs_c2}} c/from_c; do
    "$prefix.$program" "$model" || fail "$program of $prefix: status $?"
  done
  "$prefix.cpp/from_docs3" || fail "from_docs3 of $prefix: status $?"
  config=$(find "$prefix" -name pith.pc)
  if [ -z "$config" ]; then
    grep -q 'PITH_CUDA:BOOL=ON' "$build/CMakeCache.txt" || fail "no pith.pc was installed"
    return 0
  fi
  libraries=$(dirname "$config")/..
  flags=$(PKG_CONFIG_PATH=$(dirname "$config") pkg-config ${2:-} --cflags --libs pith)
  # shellcheck disable=SC2086  # flags are words
  cc "$repo/tests/install/from_c.c" -o "$prefix.by_pkg_config" $flags -Wl,-rpath,"$libraries"
  "$prefix.by_pkg_config" "$model"
  # shellcheck disable=SC2086
  c++ -std=c++20 "$work/from_docs1.cc" -o "$prefix.by_pkg_config" $flags -Wl,-rpath,"$libraries"
  "$prefix.by_pkg_config" "$model"
}

# The installed headers under a user's warnings: all in one, then each alone.
strict() {
  local compiler header flags=(-I"$1/include" -Wall -Wextra -Wpedantic -Wconversion -Werror -fsyntax-only)
  for compiler in "g++ -std=c++20" "g++ -std=c++23" "clang++-14 -std=c++20" "clang++-14 -std=c++2b"; do
    if ! command -v "${compiler% *}" >/dev/null; then
      echo "install_test: SKIPPED: no ${compiler% *}: headers are not compiled by it"
      continue
    fi
    # shellcheck disable=SC2086  # compiler and standard
    $compiler "${flags[@]}" "$repo/tests/install/strict.cc" || fail "the headers are not clean: $compiler"
  done
  for header in "$1"/include/pith/*.h; do
    grep -q "\"pith/$(basename "$header")\"" "$repo/tests/install/strict.cc" ||
      fail "tests/install/strict.cc does not include $(basename "$header")"
    g++ -std=c++20 "${flags[@]}" -xc++ -include "$header" /dev/null || fail "$header needs others before it"
  done
  echo 'typedef int not_empty;' >"$work/not_empty.c"  # as ISO C asks
  for header in pith pith_chat pith_extend pith_layer pith_prefix version; do
    cc -std=c11 "${flags[@]}" -include "$1/include/pith/$header.h" "$work/not_empty.c" || fail "$header.h is no C11"
  done
}

strangers "$work/prefix" --static
strict "$work/prefix"

if [ -x "$build/bin/pith" ]; then
  said=$("$work/prefix/bin/pith" run -m "$model" -p 'The ship' -n 4 -q --temp 0)
  [[ "$said" == "The ship"* ]] || fail "the installed program says: $said"
  for file in bash-completion/completions/pith zsh/site-functions/_pith fish/vendor_completions.d/pith.fish; do
    grep -q kv-policy "$work/prefix/share/$file" || fail "no completion at share/$file"
  done
  grep -q -- 'kv\\-policy' "$work/prefix/share/man/man1/pith-run.1" || fail "no manual page of pith run"
fi

# Installed files go again. The manifest is the build folder's: an older one of a user's stays.
count=$(find "$work/prefix" -name '*.h' | wc -l)
[ "$count" -gt 15 ] || fail "$count headers were installed"
cp "$build/install_manifest.txt" "$work/manifest"
cmake -P "$build/uninstall.cmake" >/dev/null
left=$(find "$work/prefix" -type f)
[ -z "$left" ] || fail "uninstall leaves $left"

# Other builds would compile everything again: ccache has this one's objects, in seconds, where the
# sources lie as seen from the build folder as they did then. So a copy of the tree is built.
if ! grep -q 'CMAKE_BUILD_TYPE:STRING=Release' "$build/CMakeCache.txt" ||
  grep -qE 'PITH_(CUDA|ASAN|TSAN):BOOL=ON' "$build/CMakeCache.txt"; then
  echo "install_test: SKIPPED: the shared library is tested in plain release builds"
  exit 0
fi
mkdir "$work/tree"
(cd "$repo" && tar c --exclude=./build --exclude=./.git --exclude=./models .) | tar x -C "$work/tree"
cmake -S "$work/tree" -B "$work/tree/build" -GNinja -DCMAKE_BUILD_TYPE=Release -DBUILD_SHARED_LIBS=ON -DPITH_APPS=OFF \
  -DPITH_BENCH=OFF -DPITH_LAB=OFF -DBUILD_TESTING=OFF >"$work/log" &&
  cmake --build "$work/tree/build" >>"$work/log" || { tail -20 "$work/log"; exit 1; }
for unwanted in pith libpith_tools.a libpith_serve.a libpith_lab.a; do
  [ -z "$(find "$work/tree/build" -name "$unwanted" -type f)" ] || fail "PITH_APPS=OFF builds $unwanted"
done
cmake --install "$work/tree/build" --prefix "$work/shared" >"$work/log" || { cat "$work/log"; exit 1; }
library=$(find "$work/shared" -name 'libpith.so')
[[ $(objdump -p "$library") =~ SONAME\ +libpith\.so\.0\.1 ]] || fail "the SONAME is not libpith.so.0.1"
[ -z "$(find "$work/shared" -name '*.a')" ] || fail "BUILD_SHARED_LIBS=ON installs an archive"
"$repo/tests/install/exports.py" "$library" "$repo/include/pith"
strangers "$work/shared"
