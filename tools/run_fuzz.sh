#!/usr/bin/env bash
# Fuzzers, long streams and random requests at once, on a machine with many cores that is there for
# minutes, and has neither a compiler nor a network nor the libraries.
#   tools/run_fuzz.sh pack FILE.tgz            after `make test fuzz`: programs, libraries, what they read
#   tools/run_fuzz.sh LANES MINUTES OUT [PART...]   there, in the unpacked folder, on LANES cores
# PARTS: fuzz (every target of libFuzzer; lanes that are left take a target again), streams (policies of
# STREAMS, each a process, TOKENS long), seeds (fuzz_test, properties_test and the requests of Room.Random,
# seed after seed from SEED on). All share the cores and the time. OUT/result.txt has a line for each;
# OUT/findings.tgz has the inputs that broke one, and the end of each log.
set -euo pipefail
cd "$(dirname "$0")/.."

pack() {
  local folder=$1/pith-fuzz
  mkdir -p "$folder"/{bin,lib,models/demo}
  cp --parents -r tools/run_fuzz.sh presets/any.jsonl tests/fuzz/*.dict tests/data/{chat,models,tokenizers} "$folder"
  cp models/demo/*.{json,safetensors} "$folder/models/demo"
  cp build/fuzz/bin/fuzz build/bin/{fuzz_test,long_stream_test,test_session,properties_test} "$folder/bin"
  strip "$folder"/bin/*
  # The C and C++ runtimes are there, and newer.
  ldd "$folder"/bin/* | awk '$2 == "=>" && $3 ~ /^\// {print $3}' | sort -u |
    grep -vE '/(libc|libm|libdl|librt|libpthread|libresolv|libgcc_s|libstdc\+\+)\.so' |
    xargs cp -Lt "$folder/lib"
}
if [ "${1:-}" = pack ]; then
  work=$(mktemp -d)
  trap 'rm -rf "$work"' EXIT
  pack "$work"
  tar -C "$work" -czf "${2:?usage: tools/run_fuzz.sh pack FILE.tgz}" pith-fuzz
  exit
fi

lanes=${1:?usage: tools/run_fuzz.sh LANES MINUTES OUT [PART...]}
end=$((SECONDS + ${2:?minutes are missing} * 60))
mkdir -p "${3:?the folder of results is missing}"
out=$(cd "$3" && pwd)
shift 3
[ $# -gt 0 ] || set -- fuzz streams seeds
export PITH_REPO_DIR=$PWD PITH_LONG_STREAM=${TOKENS:-10000000}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work"/{corpus,findings,logs,results}
: >"$out/result.txt"
alone=()  # a machine may lay memory out in ways that this AddressSanitizer does not know
! setarch -R true 2>/dev/null || alone=(setarch -R)

left() { echo $((end > SECONDS + 1 ? end - SECONDS : 1)); }
over() { [ "$(left)" -le 5 ]; }
ours() { LD_LIBRARY_PATH=$PWD/lib nice timeout -k 9 "$(left)" "${alone[@]}" "bin/$1" "${@:2}"; }

# Until the time is over, and at most 20 times broken.
fuzz() {  # JOB TARGET
  local log=$work/logs/$1 broken=0
  export PITH_FUZZ_TARGET=$2
  local options=(-timeout=$((25 * slower)) -rss_limit_mb=2500 -max_len=200000 -print_final_stats=1)
  [ ! -f "tests/fuzz/$2.dict" ] || options+=(-dict="tests/fuzz/$2.dict")
  ours fuzz seeds "$work/corpus/$2" >>"$log" 2>&1 || broken=20
  until [ "$broken" -ge 20 ] || over; do
    if ! ours fuzz "${options[@]}" -max_total_time=$(($(left) - 4)) \
      -artifact_prefix="$work/findings/$2-$1-" "$work/corpus/$2" >"$log.run" 2>&1 && ! over; then
      broken=$((broken + 1))
      tail -n 100 "$log.run" >>"$log"
    fi
    grep -a '^stat::number_of_executed_units' "$log.run" >>"$log" || true
  done
  rm -f "$log.run"
  echo "fuzz $2: $(awk '/^stat::/ {n += $2} END {print n + 0}' "$log") inputs $broken broken"
}
stream() {  # JOB INDEX
  local how=ended
  ours long_stream_test --gtest_filter="*/$2" >"$work/logs/$1" 2>&1 || { over && how=stopped || how=FAILED; }
  echo "stream $2: $how: $(grep -a ' tokens' "$work/logs/$1" | tail -n 1)"
}
seeds() {  # JOB PROGRAM FILTER
  local seed=${SEED:-100} count=0 broken=0
  for (( ; ; ++seed)); do
    PITH_FUZZ_SEED=$seed PITH_FUZZ_CHANGES=3000 PITH_REQUESTS=4000 PITH_SEED=$seed \
      RC_PARAMS="seed=$seed max_success=400" ours "$2" --gtest_filter="$3" >"$work/logs/$1-$seed" 2>&1 &&
      { count=$((count + 1)); rm "$work/logs/$1-$seed"; continue; }
    ! over || break
    broken=$((broken + 1))
    [ "$broken" -lt 20 ] || break
  done
  echo "seeds $2: $count from ${SEED:-100} on $broken broken"
}

jobs=() targets=()
for part in "$@"; do
  case $part in
    fuzz) mapfile -t targets < <(LD_LIBRARY_PATH=lib bin/fuzz list) ;;
    streams) for i in ${STREAMS:-0 1 2 5 8 9 10 11 12 13 14 15 16 17 18}; do jobs+=("stream $i"); done ;;
    seeds) jobs+=("seeds fuzz_test *" "seeds properties_test *" "seeds test_session Room.Random*") ;;
    *) echo "run_fuzz: no part '$part'; there are fuzz, streams and seeds" >&2; exit 2 ;;
  esac
done
for ((i = 0; ${#targets[@]} > 0 && (i < ${#targets[@]} || ${#jobs[@]} < lanes); ++i)); do
  jobs+=("fuzz ${targets[i % ${#targets[@]}]}")
done
slower=$(((${#jobs[@]} + lanes - 1) / lanes))

taskset -pc "0-$((lanes - 1))" $$ >/dev/null
set -f
for i in "${!jobs[@]}"; do
  read -r kind what filter <<<"${jobs[i]}"
  (
    TIMEFORMAT='%U %S'
    { time "$kind" "$i" "$what" "${filter:-}" >"$work/results/$i" 2>>"$work/logs/$i"; } 2>"$work/results/$i.seconds"
    awk -v said="$(cat "$work/results/$i")" '{printf "%s, %.0f CPU seconds\n", said, $1 + $2}' \
      "$work/results/$i.seconds" >>"$out/result.txt"
  ) &
done
wait
# A target that several lanes took is one line.
awk '$1 != "fuzz" {print; next} {n[$2] += $3; broken[$2] += $5; cpu[$2] += $7}
  END {for (t in n) printf "fuzz %s %d inputs, %d broken, %d CPU seconds\n", t, n[t], broken[t], cpu[t]}' \
  "$out/result.txt" | sort >"$work/result.txt"
cp "$work/result.txt" "$out/result.txt"
tar -C "$work" -czf "$out/findings.tgz" findings logs
cat "$out/result.txt"
