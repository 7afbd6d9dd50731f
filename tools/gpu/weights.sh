#!/usr/bin/env bash
# On a machine with an NVIDIA GPU: tests of weights in blocks, their products' speed, and a model of
# Llama-3.1-8B's shape in Q4_K beside the same in bf16.
#   tools/gpu/weights.sh [FOLDER]   FOLDER holds what is built below (default build/cuda/bin)
# Build first: cmake --preset cuda && ninja -C build/cuda test_cuda cuda_weights_bench pith_cli \
#   make_random_model
# MODELS: where the models are made if they are not there yet (default /dev/shm/pith: 21 GB); with
# MODELS= (empty) none is measured.
set -euo pipefail
bin=${1:-build/cuda/bin}
out=${OUT:-$(mktemp -d)}
models=${MODELS-/dev/shm/pith}

"$bin/test_cuda" --gtest_brief=1 --gtest_filter='*Tiles*:*Matvec*:*Matmul*:*Mixed*:*Gguf*:CudaEval*:*CudaEngine*'
if command -v compute-sanitizer >/dev/null; then
  small='*CudaTiles.NumbersEqual*:*CudaTiles.EveryWay*:*Mixed*'
  compute-sanitizer --tool memcheck --error-exitcode 1 "$bin/test_cuda" --gtest_brief=1 --gtest_filter="$small"
  compute-sanitizer --tool racecheck --error-exitcode 1 "$bin/test_cuda" --gtest_brief=1 \
    --gtest_filter='*CudaTiles.EveryWay*Q4_K:*CudaTiles.EveryWay*Q6_K'
else
  echo "compute-sanitizer: SKIPPED, not on PATH"
fi
"$bin/cuda_weights_bench" | tee "$out/weights.jsonl"
[[ -n "$models" ]] || exit 0
mkdir -p "$models"
q4=$models/llama8b-q4_k.gguf
[[ -e "$q4" ]] || "$bin/make_random_model" --shape llama-3.1-8b --weights q4_k --out "$q4"
[[ -e "$models/llama8b/config.json" ]] || "$bin/make_random_model" --shape llama-3.1-8b --out "$models/llama8b"
for model in "$q4" "$models/llama8b"; do
  "$bin/pith" bench -m "$model" --no-check-weights --device cuda -ub 2048 -p 2048 -n 128 \
    -d 0,8192,32768 --kv-policy exact --kv-policy exact+int4 --kv-policy 'express(heavy=0,s=2048)+int4' |
    tee -a "$out/weights_engine.txt"
done
