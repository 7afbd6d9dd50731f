#!/usr/bin/env python3
"""Writes docs/results/selection_quality.md from what tools/results_selection_quality.sh measured."""

import json
import pathlib
import sys

REPO = pathlib.Path(__file__).resolve().parent.parent


def spread(values):
    """Mean and sample deviation."""
    mean = sum(values) / len(values)
    if len(values) == 1:
        return mean, 0.0
    return mean, (sum((v - mean) ** 2 for v in values) / (len(values) - 1)) ** 0.5


def load(folder, kind, length):
    """Policy text to result, of the deterministic and of the randomised policies."""
    key, out, null = {"facts": "results", "kl": "policies"}[kind], {}, 0.0
    for seeds in (1, 3):
        data = json.loads((folder / f"{kind}_{length}_{seeds}.json").read_text())
        null = max(null, data.get("null_control_kl", 0.0))
        for row in data[key]:
            if "null control" not in row.get("name", ""):
                out[row["policy"]] = row
    return out, null


def rows_of(folder, length):
    """Table lines of one length, and its null control."""
    facts, _ = load(folder, "facts", length)
    kl, null = load(folder, "kl", length)
    lines = []
    for line in (folder / f"policies_{length}").read_text().splitlines():
        name, percent, policy = line.split("|")
        found = facts[next(p for p in facts if same(p, policy))]
        seeds = kl[next(p for p in kl if same(p, policy))]["seeds"]
        mean, deviation = spread([s["summary"]["kl"]["mean"] for s in seeds])
        top, _ = spread([s["summary"]["same_top"]["mean"] for s in seeds])
        ledger = found["ledger"]
        many = found["seeds"] > 1
        lines.append("| {} | {}% | {} | {:.1f}{} | {:.3f}{} | {:.1f} | {:.1f}% | {:.2f} |".format(
            f"`{policy}`", percent, found["seeds"] if many else "-", 100 * found["score"],
            f" ({100 * found['deviation']:.1f})" if many else "", mean,
            f" ({deviation:.3f})" if many else "", 100 * top,
            100 * ledger["rows_kept"] / ledger["rows_seen"], ledger["effective_bits"]))
    return lines, null


def same(a, b):
    """Parameters may come back in another order."""
    return sorted(a.replace("(", ",").replace(")", ",").split(",")) == \
        sorted(b.replace("(", ",").replace(")", ",").split(","))


def main():
    folder, samples, pieces, score = pathlib.Path(sys.argv[1]), *sys.argv[2:5]
    out = ["# What selectors keep: facts found and divergence", "",
           f"    SAMPLES={samples} PIECES={pieces} SCORE={score} "
           "tools/results_selection_quality.sh TEXT_FILE", "",
           f"Demo model. Facts: per cent of 8 facts found, asked on forks of one cache that was "
           f"compressed before the\nquestions were known, documents: {samples} (and "
           f"deviation over seeds). KL: nats a token from the exact cache\nover {score} tokens read "
           f"one at a time after a prompt of the length, pieces: {pieces}, of a novel that "
           f"the model has not\nseen; same top: per cent of the predictions with the same likeliest "
           f"token. Rows kept and bits: the ledger's after the\nfacts' document, everything "
           f"included. `-`: not randomised, one run. So few documents and pieces\nrank "
           f"nothing finely: differences as small as those between seeds mean nothing."]
    for length in sorted(int(p.name.split("_")[1]) for p in folder.glob("policies_*")):
        lines, null = rows_of(folder, length)
        out += ["", f"## {length} tokens", "",
                f"Null control (exact against exact): KL {null:g}.", "",
                "| policy | rows wanted | seeds | facts, % | KL | same top, % | kept | bits |",
                "|---|---|---|---|---|---|---|---|", *lines]
    target = REPO / "docs" / "results" / "selection_quality.md"
    target.parent.mkdir(exist_ok=True)
    target.write_text("\n".join(out) + "\n")


if __name__ == "__main__":
    main()
