#!/usr/bin/env bash
# Walks through the program as a person does: commands in a terminal of 80 x 24 (tmux). No line of a
# command's own output may be wider than the terminal, no progress bar may leave anything behind, and
# every command ends as it should.
#   tools/walk.sh [BUILD]       BUILD: build
# KEEP=FOLDER keeps what the terminal showed. Exit codes: 0 fine, 1 a fault, 77 skipped: no tmux here.
set -euo pipefail
repo=$(cd "$(dirname "$0")/.." && pwd)
build=$(cd "${1:-$repo/build}" && pwd)
pith=$build/bin/pith model=$repo/models/demo
if ! command -v tmux >/dev/null; then
  echo "walk: SKIPPED: there is no tmux (Debian package tmux; tools/setup.sh installs it)"
  exit 77
fi
work=$(mktemp -d)
socket=pith-walk-$$ steps=0
trap 'tmux -L "$socket" kill-server 2>/dev/null || true; rm -rf "$work"' EXIT
export LC_ALL=C.UTF-8
faults=0
fault() { echo "walk: $1" >&2; faults=$((faults + 1)); }

# step NAME STATUS IGNORED COMMAND: what the terminal shows when COMMAND (of a shell) has ended. Lines
# that match IGNORED are a model's or a person's words, not ours, and may be long.
step() {
  local name=$1 status=$2 ignored=$3 command=$4 screen=$work/$1.txt wide
  # A server of its own: one that has been told to end may still answer the next session.
  steps=$((steps + 1)) socket=pith-walk-$$-$steps
  # The pane outlives the command: of one that dies tmux may show less than was written.
  printf 'cd %q\n%s\necho $? >%q\nsleep 150\n' "$work" "$command" "$work/status" >"$work/step.sh"
  rm -f "$work/status"
  tmux -L "$socket" -f /dev/null new-session -d -x 80 -y 24 "bash; sleep 1" \; \
    set-option -g history-limit 5000 \; \
    respawn-pane -k "bash $work/step.sh"
  for _ in $(seq 1200); do
    [ -s "$work/status" ] && break
    sleep 0.1
  done
  sleep 0.3  # until tmux has read all of it
  tmux -L "$socket" capture-pane -p -J -S - | sed 's/ *$//' >"$screen"
  tmux -L "$socket" kill-server
  [ -s "$work/status" ] || { fault "$name has not ended within two minutes"; return; }
  [ "$(cat "$work/status")" = "$status" ] || fault "$name ended with $(cat "$work/status"), not $status"
  wide=$(grep -nP '^.{81,}' "$screen" | grep -vE "^[0-9]+:($ignored)" || true)
  [ -z "$wide" ] || fault "$name is wider than 80 columns:"$'\n'"$wide"
  ! grep -nE '\[[#.]{24}\]' "$screen" || fault "$name left its progress bar behind"
  [ -z "${KEEP:-}" ] || cp "$screen" "$KEEP/"
}

yes 'The ship lay at anchor and a man stood on the quay while rain fell.' | head -n 60 >"$work/text" || true
nothing='^$'
for command in '' run chat inspect policies bench demo probe eval 'eval ppl' 'eval tasks' report reproduce tokenize \
  logits attend train-dict tune pull completion template list ps; do
  step "help ${command:-all}" 0 "$nothing" "'$pith' help $command"
done
step policies 0 "$nothing" "'$pith' policies"
step inspect 0 "$nothing" "'$pith' inspect -m '$model' --kv-policy 'uniform(budget=25%)+int4,sink=4,window=64'"
step run 0 'The ship.*' "'$pith' run -m '$model' -p 'The ship' -n 12"
step run-text 0 'The ship.*' "'$pith' run -m '$model' -f text -n 4 --no-display-prompt \
  --kv-policy 'snapkv(budget=64)+int4'"
step run-auto 0 'The ship.*' "'$pith' run -m '$model' -f text -n 4 --no-display-prompt \
  --kv-policy auto --kv-budget 20%"
step demo 0 "$nothing" "'$pith' demo -m '$model' --tokens 300 --facts 2 --rows 64"
step bench 0 "$nothing" "'$pith' bench -m '$model' -d 256 -p 64 -n 4 -r 1 --kv-policy exact \
  --kv-policy 'snapkv(budget=64)+int4,sink=4,window=64'"
step ppl 0 "$nothing" "'$pith' eval ppl -m '$model' -f text -c 128 --pieces 2 -o ppl.jsonl \
  --kv-policy 'expected_attention(budget=64)+k:int8+v:int4,sink=4'"
step tasks 0 "$nothing" "'$pith' eval tasks -m '$model' -c 256 --samples 1 --turns 2 --kv-policy exact \
  --kv-policy 'keydiff(budget=64)+int4,sink=4,window=64'"
step report 0 "$nothing" "'$pith' report ppl.jsonl --lines lines.jsonl"
step report-read 0 "$nothing" "'$pith' report lines.jsonl --lines again.jsonl"
step wrong 2 "$nothing" "'$pith' run -m '$model' --mirostat 2"
step wrong-policy 10 "$nothing" "'$pith' run -m '$model' -p x --kv-policy 'SnapKv(budget=8)'"
step gone 11 "$nothing" "'$pith' run -m /nowhere -p x"

[ "$faults" = 0 ] && echo "walk: fine"
exit "$((faults > 0))"
