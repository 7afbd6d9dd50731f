#!/usr/bin/env bash
# Makes the environment in which pith.hf is tested, and says where: ~/.cache/pith/python-torch, or
# $PITH_TORCH. PyPI's torch is the CUDA build: with transformers it is a download of 3 GB that takes
# 6 GB of disk, so that all checkouts share one, and it holds no pith: tests put their own in front.
#   tools/python_torch.sh            makes it if it is not there
#   tools/python_torch.sh --present  only says whether it is
# Exit codes: 0 there (its folder on standard output), 77 not to be had.
set -euo pipefail
folder=${PITH_TORCH:-$HOME/.cache/pith/python-torch}
wanted=('torch>=2.6' 'transformers>=5.2' 'numpy>=1.26' 'pytest>=8')

skip() {
  echo "python_torch: SKIPPED: $1" >&2
  exit 77
}
if ! "$folder/bin/python" -c 'import torch, transformers, pytest' 2>/dev/null; then
  [ "${1:-}" != --present ] || skip "there is no torch in $folder; tools/python_torch.sh installs it (6 GB)"
  free=$(df --output=avail -k "$(dirname "$folder")" 2>/dev/null | tail -n 1)
  [ "${free:-0}" -gt 10000000 ] || skip "10 GB of disk are needed for torch and its download"
  echo "python_torch: installs ${wanted[*]} into $folder (6 GB)" >&2
  [ -x "$folder/bin/python" ] || python3 -m venv "$folder" || skip "python3 has no venv (Debian: python3-venv)"
  "$folder/bin/python" -m pip --disable-pip-version-check --quiet install --no-cache-dir \
    --timeout 60 --retries 1 "${wanted[@]}" >&2 || skip "torch and transformers cannot be fetched"
fi
echo "$folder"
