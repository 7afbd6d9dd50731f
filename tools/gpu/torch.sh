#!/usr/bin/env bash
# On a machine with an NVIDIA GPU and torch: builds pith._pith with CUDA against that torch's Python, runs the CUDA
# tests of pith.hf, and measures a model of Llama-3.1-8B's shape under PithCache and other caches.
#   tools/gpu/torch.sh [PART...]   build, test, bench; default: all. Each part prints its own result; the exit code is
#                                  0 if all that ran passed
# In the environment: PYTHON (python3), ARCH (90a-real), BUILD (build/torch), OUT (a folder for logs and lines), TEST
# and BENCH (arguments of pytest and of tools/gpu/torch_bench.py).
# Needs what `tools/setup.sh python` and `tools/setup.sh nvcc` look for, but for gtest, RapidCheck, Boost, CLI11 and
# libedit; of Python torch, transformers, numpy, nanobind 3.1, pytest.
set -uo pipefail
cd "$(dirname "$0")/../.." || exit
python=$(command -v "${PYTHON:-python3}")
build=$(realpath -m "${BUILD:-build/torch}")
out=${OUT:-$(mktemp -d)}
parts=("$@")
[ $# -gt 0 ] || parts=(build test bench)
failed=0

part() {  # name, seconds, command...
  local name=$1 limit=$2 status=0 begin=$SECONDS
  shift 2
  [[ " ${parts[*]} " == *" $name "* ]] || return 0
  echo "== $name"
  timeout "$limit" "$@" 2>&1 | tee "$out/$name.log" || status=${PIPESTATUS[0]}
  echo "== $name: $([ "$status" = 0 ] && echo passed || echo "FAILED with $status") after $((SECONDS - begin)) s"
  [ "$status" = 0 ] || failed=1
}

# shellcheck disable=SC2317  # a shell of its own calls it, under the limit
compile() {
  cmake -S . -B "$1" -G Ninja -DCMAKE_BUILD_TYPE=Release -DPITH_PYTHON=ON -DPITH_CUDA=ON -DPITH_APPS=OFF \
    -DPITH_BENCH=OFF -DPITH_LAB=OFF -DBUILD_TESTING=OFF "-DCMAKE_CUDA_ARCHITECTURES=$2" "-DPython_EXECUTABLE=$3" \
    -Wno-dev --log-level=NOTICE && cmake --build "$1" --target _pith -- --quiet || return 1
  # The package as it is in the tree, around the extension.
  mkdir -p "$1/site/pith" || return 1
  ln -sfn "$PWD"/python/pith/* "$1/site/pith/"
  ln -sfn "$(realpath "$1"/python/_pith*.so)" "$1/site/pith/"
}
export -f compile

nvidia-smi --query-gpu=name,driver_version --format=csv,noheader || true
part build 420 bash -c 'compile "$@"' compile "$build" "${ARCH:-90a-real}" "$python"
export PYTHONPATH="$build/site${PYTHONPATH:+:$PYTHONPATH}" PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
export HF_HUB_OFFLINE=1 TRANSFORMERS_VERBOSITY=error
# shellcheck disable=SC2086  # TEST and BENCH are words
part test 150 "$python" -m pytest -q -p no:cacheprovider --durations=5 tests/python_hf/test_cuda.py ${TEST:-}
# shellcheck disable=SC2086
part bench 300 "$python" tools/gpu/torch_bench.py --lines "$out/torch.jsonl" ${BENCH:-}
exit $failed
