#!/usr/bin/env bash
# Runs the CUDA tests on the emulated card, as many at a time as there are cores.
#   tools/emulated.sh TEST_PROGRAM [FILTER]   FILTER is GoogleTest's; default: all
# Of a test's many cases the first in each PITH_CASES (8) is run; PITH_CASES=1 runs all, in hours.
# The card is one of compute capability 8.0; PITH_EMULATED_MAJOR=9 makes it a Hopper.
# Exits 0 if all that ran passed.
set -euo pipefail
[ $# -ge 1 ] || { sed -n '2,6s/^# //p' "$0" >&2; exit 2; }
program=$1
filter=${2:-*}
parts=$(nproc)
logs=$(mktemp -d)
trap 'rm -rf "$logs"' EXIT
for ((i = 0; i < parts; ++i)); do
  GTEST_TOTAL_SHARDS=$parts GTEST_SHARD_INDEX=$i \
    "$program" --gtest_brief=1 --gtest_filter="$filter" >"$logs/$i" 2>&1 &
done
failed=0
for job in $(jobs -p); do wait "$job" || failed=1; done
cat "$logs"/*
exit $failed
