#!/usr/bin/env bash
# Runs every static check, each after its own self-test (a check that cannot fail proves nothing).
# Goes on after a failure, so that one run shows all; exits 1 if any failed.
#   tools/check.sh                 all of them
#   tools/check.sh includes docs   those two
set -uo pipefail
cd "$(dirname "$0")/.."

declare -A commands=(
  [includes]="python3 tools/check_includes.py"
  [docs]="python3 tools/check_docs.py"
  [tree]="python3 tools/check_tree.py"
  [classes]="python3 tools/class_sizes.py"
  [walks]="python3 tools/walks.py"
  [claims]="python3 tools/check_claims.py"
  [format]="tools/check_format.sh"
  [lint]="tools/check_lint.sh"
)
checks=("$@")
[ $# -gt 0 ] || checks=(includes docs claims tree classes walks format lint)

failed=0
for check in "${checks[@]}"; do
  command=${commands[$check]:-}
  [ -n "$command" ] || { echo "check: no check is called $check (${!commands[*]})" >&2; exit 2; }
  started=$SECONDS
  if $command --self-test && $command; then
    echo "check $check: ok, $((SECONDS - started)) s"
  else
    echo "check $check: FAILED, $((SECONDS - started)) s"
    failed=1
  fi
done
exit $failed
