#!/usr/bin/env bash
# The table of docs/results/selection_quality.md: facts found and KL divergence for each selector at
# 50, 25 and 12.5% of the rows, at 4K and 8K tokens, 3 seeds for randomised selectors.
#
#   tools/results_selection_quality.sh TEXT_FILE [MODEL_FOLDER]
#
# TEXT_FILE is prose of at least PIECES * 8320 tokens that the model was not trained on. Environment:
# SAMPLES documents of 8 facts (2), PIECES of text (2), SCORE predictions in each (128), LENGTHS
# ("4096 8192"), RESULTS (build/selection_quality: finished work is kept there and not repeated).
# Two documents and two pieces take about an hour of one core in all.
set -euo pipefail
cd "$(dirname "$0")/.."
text=${1:?usage: tools/results_selection_quality.sh TEXT_FILE [MODEL_FOLDER]}
model=${2:-models/demo}
samples=${SAMPLES:-2} pieces=${PIECES:-2} score=${SCORE:-128}
results=${RESULTS:-build/selection_quality}
mkdir -p "$results"

# policies LENGTH: one line a policy, "seeds name|per cent|policy"
policies() {
  local n=$1 exact=",sink=4,window=64"
  echo "1 exact|100|exact"
  for percent in 50 25 12.5; do
    local rows
    rows=$(python3 -c "print(int($n * $percent / 100))")
    local body=$((rows - 68)) rate
    rate=$(python3 -c "print($percent / 100)")
    echo "1 streaming_llm|$percent|streaming_llm(window=$((rows - 4)))"
    for name in h2o tova snapkv pyramidkv keydiff knorm expected_attention; do
      echo "1 $name|$percent|$name(budget=$body)$exact"
    done
    echo "1 buzz|$percent|buzz(T=$body)$exact"
    echo "3 uniform|$percent|uniform(budget=$body)$exact"
    echo "3 express|$percent|express(s=$((rows / 2)))$exact"
    echo "3 balancekv|$percent|balancekv(heavy=0,rate=$rate)$exact"
  done
}

for n in ${LENGTHS:-4096 8192}; do
  for seeds in 1 3; do
    arguments=()
    while IFS='|' read -r _ _ policy; do
      arguments+=(--kv-policy "$policy")
    done < <(policies "$n" | sed -n "s/^$seeds //p")
    build/bin/pith eval tasks -m "$model" --task facts -c "$n" --samples "$samples" \
      --seeds "$seeds" "${arguments[@]}" -o "$results/facts.jsonl" --json \
      > "$results/facts_${n}_$seeds.json"
    build/bin/pith eval ppl -m "$model" -f "$text" --mode continue -c "$((n + score))" \
      --score "$score" --pieces "$pieces" --seeds "$seeds" "${arguments[@]}" \
      -o "$results/kl.jsonl" --json > "$results/kl_${n}_$seeds.json"
  done
  policies "$n" | sed 's/^[13] //' > "$results/policies_$n"
done
python3 tools/results_selection_quality.py "$results" "$samples" "$pieces" "$score"
