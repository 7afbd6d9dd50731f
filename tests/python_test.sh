#!/usr/bin/env bash
# The Python package, built from this checkout in an environment of its own: $1 is the build folder.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
"$here/../tools/python.sh" "$1/python"
export PITH_PROGRAM="$1/bin/pith"
cd "$here/python"
"$1/python/bin/python" -X dev -m pytest -q -p no:cacheprovider .
