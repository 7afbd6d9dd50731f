#!/usr/bin/env python3
"""Writes presets/smollm2.jsonl, which the program carries, from the figures of `pith report --lines`.

usage: results_presets.py [LINES] [--out FILE [--own]]

LINES is docs/results/fidelity.jsonl unless given: a real model, on a text that nothing was chosen on. A
preset is a policy with its divergence after a prompt; facts found stand beside it: those of the task
`facts` at the same length, or the mean of a needle and a passkey, if all were measured. With --out,
the JSON lines alone go to a file for `--presets`; with --own policies that were tuned for the layers
of the one model that was measured are among them, and the file is for that model alone.
"""

import argparse
import json
import pathlib

from results_board import LEAST, enough_samples

ROOT = pathlib.Path(__file__).resolve().parent.parent
PUBLISHED = ROOT / "docs/results/fidelity.jsonl"
FACTS = '"facts": '  # what a built-in preset must have, since the default goal asks for it
SINGLE_FACTS = ("niah_single_1", "passkey")


def facts_found(scores, model, policy, length):
    """A share, or None where tasks were left out."""
    if (model, "facts", length, policy) in scores:
        return scores[model, "facts", length, policy]
    singles = {}
    for (name, what, tokens, whose), score in scores.items():
        if (name, whose) == (model, policy) and what in SINGLE_FACTS:
            singles.setdefault(tokens, []).append(score)
    whole = [tokens for tokens, found in singles.items() if len(found) == len(SINGLE_FACTS)]
    if not whole:
        return None
    # The longest contexts that are no longer than the text.
    found = singles[max((tokens for tokens in whole if tokens <= length), default=min(whole))]
    return sum(found) / len(found)


def presets(lines, own=False):
    """A preset for each policy and length with predictions enough."""
    found, scores, counts, fingerprints, head = {}, {}, {}, {}, None
    for line in map(json.loads, lines):
        if "result" in line:
            head = line
            continue
        if head["result"] == "ppl" and head["name"] == "continue":
            at = head["setting"]["model"], head["length"]
            found.setdefault(at, []).append(line)
            fingerprints[at] = head["setting"].get("model_fingerprint", "")
        if head["result"] == "task":
            at = head["setting"]["model"], head["name"], head["length"], line["policy"]
            counts[at[:3]] = max(counts.get(at[:3], 0), line["count"])
            scores[at] = line["score"][0], line["count"]
    # Tasks that were ended early say too little.
    scores = {at: score for at, (score, count) in scores.items()
              if count >= enough_samples(LEAST, counts[at[:3]])}
    whole = {model: max(len(rows) for (name, _), rows in found.items() if name == model)
             for model, _ in found}
    for (model, length), rows in sorted(found.items()):
        # A length whose run was ended early would rank only what came first.
        if len(rows) < whole[model]:
            continue
        most = max(row["count"] for row in rows)
        for row in sorted(rows, key=lambda row: (row["kl"][0], row["bits"])):
            # Trained dictionaries belong to one model, and their files to a place.
            if row["count"] < LEAST * most or "dict=" in row["policy"]:
                continue
            # Layers are those of one model.
            if "layers=" in row["policy"] and not own:
                continue
            preset = {"policy": row["policy"], "model": model, "context": length,
                      "seeds": row["seeds"], "kl": row["kl"], "bits": row["bits"]}
            facts = facts_found(scores, model, row["policy"], length)
            if facts is not None:
                preset["facts"] = facts
            if own:
                preset["model_fingerprint"] = fingerprints[model, length]
            yield json.dumps(preset)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("lines", nargs="?", default=PUBLISHED)
    parser.add_argument("--out", help="write JSON lines to this file instead")
    parser.add_argument("--own", action="store_true", help="for the measured model alone")
    options = parser.parse_args()
    lines = pathlib.Path(options.lines).read_text().splitlines()

    def text(own, *wanted):
        found = presets(lines, own)
        return "".join(f"{p}\n" for p in found if all(word in p for word in wanted))

    if options.out:
        pathlib.Path(options.out).write_text(text(options.own))
    else:
        (ROOT / "presets/smollm2.jsonl").write_text(text(True, FACTS))


if __name__ == "__main__":
    main()
