#!/usr/bin/env bash
# Counts the lines of libpith's sources and headers, without the CUDA half; with --cuda that half.
set -euo pipefail
cd "$(dirname "$0")/.."
ours=$(git ls-files 'src/*.cc' 'src/*.h' 'src/*.cu' 'src/*.cuh' include/pith |
  grep -vE '_test\.cc$|/test_|_oracle|^src/(tools|http|serve)/')
cuda='/cuda/|_cuda\.|\.cuh?$'
if [ "${1:-}" = --cuda ]; then
  grep -E "$cuda" <<<"$ours"
else
  grep -vE "$cuda" <<<"$ours"
fi | xargs cat | wc -l
