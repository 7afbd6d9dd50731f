#!/usr/bin/env bash
# Makes a Python environment with the clients that tests talk to `pith serve` with:
#   tools/serve/clients.sh FOLDER      (tests/CMakeLists.txt: build/clients)
# Exit codes: 0 ready, 77 PyPI cannot be had here.
set -euo pipefail
folder=${1:?usage: tools/serve/clients.sh FOLDER}
if [ -x "$folder/bin/python" ] && "$folder/bin/python" -c 'import openai, anthropic' 2>/dev/null; then
  exit 0
fi
skip() {
  echo "clients: skipped: $1" >&2
  exit 77
}
command -v python3 >/dev/null || skip "there is no python3"
python3 -m venv "$folder" 2>/dev/null || skip "python3 has no venv (Debian: python3-venv)"
"$folder/bin/pip" install --quiet --disable-pip-version-check --timeout 20 --retries 1 \
  'openai>=1.66' 'anthropic>=0.40' >&2 || skip "the packages cannot be fetched"
