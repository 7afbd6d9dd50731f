# Steps of a long run (.ci/run, .ci/nightly): each is named and timed, and a failure stops no other.
#   . tools/steps.sh; step NAME COMMAND...; end_of_steps
# $log holds what the steps printed, $began when the run began.

began=$(date +%s)
failed=()
log=$(mktemp)
trap 'rm -f "$log"' EXIT

step() {  # name, then the command
  local name=$1 started=$SECONDS
  shift
  echo "=== $name: $*"
  if "$@" 2>&1 | tee -a "$log"; then
    echo "=== $name: ok, $((SECONDS - started)) s"
  else
    echo "=== $name: FAILED, $((SECONDS - started)) s"
    failed+=("$name")
  fi
}

# Names the steps that failed; false if there is one.
end_of_steps() {
  [ "${#failed[@]}" -eq 0 ] || echo "failed: ${failed[*]}"
  [ "${#failed[@]}" -eq 0 ]
}
