#!/usr/bin/env bash
# Runs the fuzzers, each for a time, on inputs that it keeps in build/fuzz/corpus; what breaks one is
# left in build/fuzz/findings and ends with exit status 1, after all have run.
#   tools/fuzz.sh SECONDS [TARGET...]     all targets if none is named
set -euo pipefail
cd "$(dirname "$0")/.."
seconds=${1:?usage: tools/fuzz.sh SECONDS [TARGET...]}
shift
program=build/fuzz/bin/fuzz
[ $# -gt 0 ] || mapfile -t targets < <("$program" list)
[ $# -eq 0 ] || targets=("$@")

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p build/fuzz/findings
failed=()
for target in "${targets[@]}"; do
  export PITH_FUZZ_TARGET=$target
  corpus=build/fuzz/corpus/$target
  "$program" seeds "$corpus"
  options=(-max_total_time="$seconds" -timeout=25 -rss_limit_mb=2500 -max_len=200000 -print_final_stats=1)
  [ ! -f "tests/fuzz/$target.dict" ] || options+=(-dict="tests/fuzz/$target.dict")
  status=ok
  "$program" "${options[@]}" -artifact_prefix="build/fuzz/findings/$target-" "$corpus" \
    >"$work/log" 2>&1 || status=FAILED
  inputs=$(sed -n 's/^stat::number_of_executed_units: *//p' "$work/log")
  printf '%-16s %10s inputs  %s\n' "$target" "${inputs:-?}" "$status"
  if [ "$status" = FAILED ]; then
    failed+=("$target")
    grep -aE '^fuzz: |ERROR: |runtime error: |SUMMARY: |Test unit written' "$work/log" | head -n 8
  fi
done
[ "${#failed[@]}" -eq 0 ] || { echo "fuzz: findings of ${failed[*]} are in build/fuzz/findings" >&2; exit 1; }
