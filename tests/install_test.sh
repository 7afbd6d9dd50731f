#!/usr/bin/env bash
# Installs the built library into a folder of its own, builds the two programs of tests/install
# against it as a stranger would, and runs them on the demo model.
#   tests/install_test.sh REPO BUILD
set -euo pipefail
repo=$1 build=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cmake --install "$build" --prefix "$work/prefix" >"$work/log" || { cat "$work/log"; exit 1; }
cmake -S "$repo/tests/install" -B "$work/consumer" -DCMAKE_PREFIX_PATH="$work/prefix" \
  -DCMAKE_BUILD_TYPE=Release >"$work/log" || { cat "$work/log"; exit 1; }
cmake --build "$work/consumer" >"$work/log" || { cat "$work/log"; exit 1; }
"$work/consumer/from_c" "$repo/models/demo"
"$work/consumer/from_cpp" "$repo/models/demo"
