#!/usr/bin/env bash
# serve_openai_test.py in an environment of its own: $1 is the build folder.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
"$here/../tools/serve/clients.sh" "$1/clients"
PITH_PROGRAM="$1/bin/pith" "$1/clients/bin/python" "$here/serve_openai_test.py"
