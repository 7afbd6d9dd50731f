#!/usr/bin/env bash
# Runs the CUDA tests on the emulated card, cut into as many parts as there are cores.
#   tools/emulated.sh TEST_PROGRAM            those of a build machine: what takes minutes here and
#                                             seconds on a card is left out
#   tools/emulated.sh TEST_PROGRAM FILTER     those that GoogleTest's filter names
# Exits 0 if all that ran passed.
set -euo pipefail
[ $# -ge 1 ] || { sed -n '2,7s/^# //p' "$0" >&2; exit 2; }
program=$1
filter=${2:-}
if [ -z "$filter" ]; then
  filter="*"
fi
parts=$(nproc)
logs=$(mktemp -d)
trap 'rm -rf "$logs"' EXIT
for ((i = 0; i < parts; ++i)); do
  RC_PARAMS="max_success=5 ${RC_PARAMS:-}" GTEST_TOTAL_SHARDS=$parts GTEST_SHARD_INDEX=$i \
    "$program" --gtest_brief=1 --gtest_filter="$filter" >"$logs/$i" 2>&1 &
done
failed=0
for job in $(jobs -p); do wait "$job" || failed=1; done
cat "$logs"/*
exit $failed
