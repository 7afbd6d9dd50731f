#!/usr/bin/env bash
# On a machine with an NVIDIA GPU: runs the CUDA tests, compute-sanitizer over small ones, the decode
# and prefill benchmarks and their peers in the same run, and prints tables.
#   tools/gpu/run.sh [FOLDER]   FOLDER holds what is built below (default build/cuda/bin)
# When all passes, tests/card.txt says so: commit (COMMIT, where there is no git), card, date.
# Build first: cmake --preset cuda && ninja -C build/cuda test_cuda cuda_decode_bench \
#   cuda_express_bench cuda_chunk_bench
# With MODEL=FOLDER in the environment the whole engine is measured too, on a random model of
# Llama-3.1-8B's shape that is made there if it is not there yet (16 GB); that needs the targets
# pith_cli and make_random_model.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
bin=${1:-build/cuda/bin}
out=${OUT:-$(mktemp -d)}
cases=${PITH_CASES:-1}

"$bin/test_cuda" --gtest_brief=1
small='*Weights*:*Roles*:CudaQjl*:CudaUnpack*:CudaPolicies.Hold*:CudaSession.Forks*'
small+=':CudaCache.ProtectedRowsB*:CudaGrouped.RowsM*'
small+=':CudaHalving.Keys*:CudaExpress.Decode*:CudaCache.Small*:CudaCsr.Att*:CudaPolicies.Csr*'
small+=':CudaLevels.Small*:CudaSliding.Small*:CudaHeads.Small*:CudaRateCodes.Small*'
small+=':CudaErrorProbe.Small*:CudaErrorProbe.Tile*'
races='*Roles*:*CodesAre*:CudaGrouped.RowsM*:CudaHalving.Keys*:CudaExpress.Decode*:CudaCache.Small*:CudaLevels.Small*'
races+=':CudaRateCodes.Small*'
if command -v compute-sanitizer >/dev/null; then
  # The sanitizer takes a case's time some twenty times: the first in each eight of a test's.
  export PITH_CASES=8
  compute-sanitizer --tool memcheck --error-exitcode 1 "$bin/test_cuda" --gtest_brief=1 \
    --gtest_filter="$small"
  compute-sanitizer --tool racecheck --error-exitcode 1 "$bin/test_cuda" --gtest_brief=1 \
    --gtest_filter="$races"
  unset PITH_CASES
else
  echo "compute-sanitizer: SKIPPED, not on PATH"
fi
"$bin/cuda_decode_bench" | tee "$out/ours.jsonl"
{ "$bin/cuda_express_bench"; "$bin/cuda_chunk_bench"; } | tee "$out/express.jsonl"
if python3 -c 'import torch' 2>/dev/null; then
  python3 "$here/peers.py" --prefill | tee "$out/peers.jsonl"
else
  echo "peers: SKIPPED, PyTorch is missing"
  : >"$out/peers.jsonl"
fi
python3 "$here/table.py" "$out/ours.jsonl" "$out/peers.jsonl" "$out/express.jsonl" | tee "$out/table.md"
if [[ -n "${MODEL:-}" ]]; then
  [[ -e "$MODEL/config.json" ]] || "$bin/make_random_model" --shape llama-3.1-8b --out "$MODEL"
  "$bin/pith" bench -m "$MODEL" --no-check-weights --device cuda -ub 2048 -p 2048 -n 64 \
    -d 8192,32768,131072 --kv-policy exact --kv-policy exact+kivi --kv-policy exact+int8 \
    --kv-policy 'express(heavy=0,s=2048)' --kv-policy 'snapkv(budget=2048)' \
    --kv-policy 'snapkv(budget=2048)+int4' --kv-policy 'expected_attention(budget=2048)' \
    --kv-policy 'balancekv+kivi(bits=4)' --kv-policy 'exact+turboquant(bits=3,center=128)' \
    --kv-policy exact+k:int8+v:int4 --kv-policy 'express(s=2048,heavy=512)' |
    tee "$out/engine.txt"
fi
commit=${COMMIT:-$(git -C "$here" rev-parse HEAD)}
printf '%s\n' "commit: $commit" "card: $(nvidia-smi --query-gpu=name --format=csv,noheader | head -n 1)" \
  "date: $(date +%F)" "cases: one in $cases" >"$here/../../tests/card.txt"
