#!/usr/bin/env bash
# Installs what was built into a folder of its own, builds the programs of tests/install and those in
# docs/embedding.md against it as a stranger would, by CMake and by pkg-config, and runs them, and the
# installed program, on the demo model.
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
awk -v to="$work/from_docs.c" '/^```c$/ { on = 1; next } /^```$/ { on = 0 } on { print > to }' "$repo/docs/embedding.md"
[ -s "$work/from_docs.c" ] || fail "docs/embedding.md has no program in C"
[ -s "$work/from_docs2.cc" ] || fail "docs/embedding.md has not two programs"
cmake -S "$repo/tests/install" -B "$work/consumer" -DCMAKE_PREFIX_PATH="$work/prefix" \
  -DCMAKE_BUILD_TYPE=Release -DFROM_DOCS="$work" >"$work/log" || { cat "$work/log"; exit 1; }
cmake --build "$work/consumer" >"$work/log" || { cat "$work/log"; exit 1; }
"$work/consumer/from_c" "$model"
"$work/consumer/from_cpp" "$model"
"$work/consumer/from_docs1" "$model"
"$work/consumer/from_docs2"
"$work/consumer/from_docs_c" "$model"

config=$(find "$work/prefix" -name pith.pc)
if [ -n "$config" ]; then
  flags=$(PKG_CONFIG_PATH=$(dirname "$config") pkg-config --static --cflags --libs pith)
  # shellcheck disable=SC2086  # flags are words
  cc "$repo/tests/install/from_c.c" -o "$work/by_pkg_config" $flags
  "$work/by_pkg_config" "$model"
else
  grep -q 'PITH_CUDA:BOOL=ON' "$build/CMakeCache.txt" || fail "no pith.pc was installed"
fi

if [ -x "$build/bin/pith" ]; then
  said=$("$work/prefix/bin/pith" run -m "$model" -p 'The ship' -n 4 -q --temp 0)
  [[ "$said" == "The ship"* ]] || fail "the installed program says: $said"
  for file in bash-completion/completions/pith zsh/site-functions/_pith fish/vendor_completions.d/pith.fish; do
    grep -q kv-policy "$work/prefix/share/$file" || fail "no completion at share/$file"
  done
fi
