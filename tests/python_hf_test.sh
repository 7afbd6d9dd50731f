#!/usr/bin/env bash
# pith.hf over the package of tools/python.sh in $1/python, where there is a torch (which this does
# not install: make python-hf does).
set -euo pipefail
set -- "$(realpath "$1")"
here=$(cd "$(dirname "$0")" && pwd)
torch=$("$here/../tools/python_torch.sh" --present)
"$here/../tools/python.sh" "$1/python"
# The torch of all checkouts holds no pith; this one's is put in front.
mkdir -p "$1/python-hf"
pith=$("$1/python/bin/python" -c 'import os, pith; print(os.path.dirname(pith.__file__))')
ln -sfn "$pith" "$1/python-hf/pith"
cd "$here/python_hf"
export PYTHONPATH="$1/python-hf"
"$torch/bin/python" -m pytest -q -p no:cacheprovider .
# The oldest transformers, and kvpress, which needs it.
if kvpress=$("$here/../tools/python_torch.sh" --present kvpress); then
  "$kvpress/bin/python" -m pytest -q -p no:cacheprovider .
fi
