#!/usr/bin/env bash
# Makes the environments in which pith.hf, pith.kvpress and pith.lm_eval are tested, and says where.
# PyPI's torch is the CUDA build: with transformers it is a download of 3 GB that takes 6 GB of disk, so that all
# checkouts share ~/.cache/pith/python-torch ($PITH_TORCH), and it holds no pith: tests put their own
# in front. kvpress needs a transformers of its own: ~/.cache/pith/python-kvpress (1 GB) lies over the other.
#   tools/python_torch.sh [kvpress]            makes it if it is not there
#   tools/python_torch.sh --present [kvpress]  only says whether it is
# Exit codes: 0 there (its folder on standard output), 77 not to be had.
set -euo pipefail
torch=${PITH_TORCH:-$HOME/.cache/pith/python-torch}
present=
[ "${1:-}" != --present ] || { present=1; shift; }

skip() {
  echo "python_torch: SKIPPED: $1" >&2
  exit 77
}

environment() {  # folder, GB of disk, modules that show that it is there, what pip installs
  local folder=$1 size=$2 modules=$3 free
  shift 3
  ! "$folder/bin/python" -c "import $modules" 2>/dev/null || return 0
  [ -z "$present" ] || skip "$modules are not in $folder; tools/python_torch.sh installs them ($size GB)"
  mkdir -p "$(dirname "$folder")"
  free=$(df --output=avail -k "$(dirname "$folder")" | tail -n 1)
  [ "$free" -gt $((size * 1700000)) ] || skip "$size GB of disk and the download's are needed"
  echo "python_torch: installs $* into $folder ($size GB)" >&2
  [ -x "$folder/bin/python" ] || python3 -m venv "$folder" || skip "python3 has no venv (Debian: python3-venv)"
  if [ "$folder" != "$torch" ]; then
    ls -d "$torch"/lib/python3*/site-packages >"$(ls -d "$folder"/lib/python3*/site-packages)/torch.pth"
  fi
  "$folder/bin/python" -m pip --disable-pip-version-check --quiet install --no-cache-dir \
    --timeout 60 --retries 1 "$@" >&2 || skip "$* cannot be fetched"
}

environment "$torch" 6 "torch, transformers, lm_eval, pytest" \
  'torch>=2.6' 'transformers>=5.2' 'numpy>=1.26' 'pytest>=8' gguf accelerate 'lm_eval>=0.4.13' wonderwords
if [ "${1:-}" = kvpress ]; then
  folder=$(dirname "$torch")/python-kvpress
  environment "$folder" 1 "kvpress, pytest" 'kvpress>=0.5.5' 'transformers>=5.2,<5.3'
  echo "$folder"
else
  echo "$torch"
fi
