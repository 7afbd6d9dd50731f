#!/usr/bin/env python3
"""Scores of shared cases by reference packages, for src/eval/metrics.

rouge 1.0.1 (ROUGE-1, ROUGE-L), fuzzywuzzy 0.18 on rapidfuzz-free difflib is not what LongBench's
installations run (python-Levenshtein), so its ratio comes from rapidfuzz, which computes the same
2 LCS / (a + b); F1 and exact match are transformers' SQuAD functions.
Needs rouge==1.0.1, rapidfuzz and transformers (PyPI).

    python tools/golden/make_metrics.py tests/data/eval/metrics.json
"""

import json
import pathlib
import random
import sys

from rapidfuzz import fuzz
from rouge import Rouge
from transformers.data.metrics.squad_metrics import compute_exact, compute_f1

WORDS = "the a ship lay at anchor. and no wind blew from sea, The Ship was; old. dog (black) ran".split()
HAND = [("The ship.", "a ship"), ("in the year 1918", "1918"), ("an old, old dog", "the old dog!"),
        ("x = foo(a, b)", "x = foo(a, c)"), ("one. two. three", "three. two. one"), ("same", "same"),
        ("  spaces   and\ttabs ", "spaces and tabs"), ("no overlap here", "something else")]


def cases():
    rng = random.Random(5)
    yield from HAND
    for _ in range(40):
        yield tuple(" ".join(rng.choice(WORDS) for _ in range(rng.randint(1, 14)))
                    for _ in range(2))


def main():
    rouge, out = Rouge(metrics=["rouge-1", "rouge-l"]), []
    for answer, reference in cases():
        scores = rouge.get_scores([answer], [reference], avg=True)
        out.append({"answer": answer, "reference": reference,
                    "rouge_l": scores["rouge-l"]["f"], "rouge_1_recall": scores["rouge-1"]["r"],
                    "f1": float(compute_f1(reference, answer)),
                    "exact": int(compute_exact(reference, answer)),
                    "edit_similarity": round(fuzz.ratio(answer, reference)) / 100})
    path = pathlib.Path(sys.argv[1])
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(out, indent=0) + "\n")


if __name__ == "__main__":
    main()
