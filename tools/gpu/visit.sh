#!/usr/bin/env bash
# A visit to a machine with a GPU that is lent for minutes and has no packages of Debian: what is needed goes along.
#   tools/gpu/visit.sh pack [REV]      here: sources of REV (HEAD) and Debian's headers and libraries -> .gpu
#   tools/gpu/visit.sh split FILE NAME here: a model in pieces of 40 MB, .gpu/models/NAME.00 and on
#   tools/gpu/visit.sh start           there: unpacks both, sources to WORK, and builds in the background: FIRST
#                                      (pith_cli), then WORK-state has `built`, and THEN (test_cuda), then `tests`
#   tools/gpu/visit.sh join NAME FILE  there: the pieces that lie in PIECES, joined
#   tools/gpu/visit.sh rates MODEL POLICY...  there: tokens/s of 1, 8, 64 sessions after 6,000 tokens
#   tools/gpu/visit.sh wait FILE SECONDS      there: until FILE exists
# In the environment: WORK ($HOME/pith), PIECES ($HOME/pieces), ARCH (90a-real), CONFIGURE (more for CMake).
set -euo pipefail
cd "$(dirname "$0")/../.."
work=${WORK:-$HOME/pith}
pieces=${PIECES:-$HOME/pieces}
packages=(libhwy-dev libhwy1 libdnnl-dev libdnnl2 libcli11-dev nlohmann-json3-dev libfmt-dev libfmt9 libicu-dev libicu72
  libsentencepiece-dev libsentencepiece0 libprotobuf-lite32 libprotobuf32 libxxhash-dev libxxhash0 libgtest-dev
  libgoogletest-dev googletest librapidcheck-dev libedit-dev libedit2 libbsd0 libbsd-dev libmd0 ocl-icd-libopencl1
  libgoogle-perftools4 libtcmalloc-minimal4 libunwind8)

# Files of Debian's packages that a build reads: headers, libraries, CMake's and pkg-config's descriptions.
pack() { # revision
  mkdir -p .gpu
  git archive "${1:-HEAD}" -- ':!models/demo/model.safetensors' | gzip >.gpu/src.tgz
  local installed=()
  for name in "${packages[@]}"; do
    if dpkg -s "$name" >/dev/null 2>&1; then installed+=("$name"); fi
  done
  dpkg -L "${installed[@]}" | grep -E '^/usr/(include|lib|share/pkgconfig|share/cmake)|^/lib' |
    grep -vE '/(doc|man)/|lib(icu|dnnl|hwy|sentencepiece|protobuf|unwind|bsd|edit|fmt|xxhash).*\.a$' | sort -u |
    while read -r path; do if [ -f "$path" ] || [ -L "$path" ]; then printf '%s\n' "${path#/}"; fi; done |
    tar -czf .gpu/deps.tgz -C / --no-recursion -T -
  ls -l .gpu
}

split_model() { # file, name
  mkdir -p .gpu/models
  split -b 40m -d -a 2 "$1" ".gpu/models/$2."
  ls .gpu/models
}

start() {
  mkdir -p "$work" "$pieces" "$work-state"
  tar -xzf .gpu/src.tgz -C "$work"
  # /lib is a link to /usr/lib there.
  tar -xzf .gpu/deps.tgz -C / --keep-directory-symlink
  ldconfig
  cd "$work"
  # shellcheck disable=SC2016  # the shell in the background reads them
  W=$work-state A=${ARCH:-90a-real} setsid nohup bash -c '
    cmake --preset cuda -DCMAKE_CUDA_ARCHITECTURES="$A" ${CONFIGURE:-} -Wno-dev --log-level=NOTICE &&
      ninja -C build/cuda ${FIRST:-pith_cli} && touch "$W/built" && ninja -C build/cuda ${THEN:-test_cuda} &&
      touch "$W/tests"' >"$work-state/build.log" 2>&1 </dev/null &
  sleep 1
  nproc
  nvidia-smi --query-gpu=name --format=csv,noheader
}

join_model() { # name, file
  mkdir -p "$(dirname "$2")"
  cat "$pieces/$1".?? >"$2"
  ls -l "$2"
}

rates() { # model, policies
  local model=$1 args=()
  shift
  for policy in "$@"; do args+=(--kv-policy "$policy"); done
  "$work/build/cuda/bin/pith" bench -m "$model" --device cuda --sessions 1,8,64 -p 6000 -n 64 -r 1 "${args[@]}"
}

wait_for() { # file, seconds
  for ((i = 0; i < $2; ++i)); do
    [ -e "$1" ] && return 0
    sleep 1
  done
  echo "visit: $1 is not there after $2 s" >&2
  tail -n 5 "$work-state/build.log" >&2
  return 1
}

command=${1:-}
shift || true
case $command in
  pack | start | rates) "$command" "$@" ;;
  split | join) "${command}_model" "$@" ;;
  wait) wait_for "$@" ;;
  *) sed -n '2,10s/^# //p' "$0" >&2; exit 2 ;;
esac
