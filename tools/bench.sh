#!/usr/bin/env bash
# Measures speed on this machine with the demo model; needs build/bin/pith (`make bench` builds it).
# The figures that we publish, with their commands, are in docs/benchmarks.md.
set -euo pipefail
cd "$(dirname "$0")/.."
build/bin/pith bench -m models/demo "$@"
