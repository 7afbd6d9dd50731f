#!/usr/bin/env python3
"""Writes docs/results/claims.md: what the papers claim beside what `pith reproduce` found on a model.

usage: results_claims.py LINES... [--write]

LINES are what `pith reproduce PAPER --json` printed, a JSON object a table, of the same model and text;
of a table that is in several, the last counts. Without --write the page goes to standard output.
"""

import argparse
import json
import pathlib
import sys

from results_scoreboard_page import table

ROOT = pathlib.Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs/results/claims.md"
PAPERS = {"express": "Thinformer Express", "balancekv": "BalanceKV", "buzz": "BUZZ", "qjl": "QJL",
          "csr": "CSR with NeuralDict"}

HEAD = """# The papers' claims on a real model

What the five papers say of their methods, beside what the same measurement finds on
SmolLM2-135M-Instruct. Their models, texts and metrics are others, so numbers do not compare;
directions do. Each line is a check that the program makes:

    pith reproduce PAPER -m smollm2 -f essays.txt --json

with 3 seeds of whatever is random. On a GPU with `--device cuda`: predictions and answers; attention
errors, coding errors and times are the CPU's.
"""


def tables_of(files):
    """The last line of each table, by paper, then table."""
    found = {}
    for file in files:
        for line in pathlib.Path(file).read_text(encoding="utf-8").splitlines():
            record = json.loads(line)
            if record["quick"]:
                sys.exit(f"results: {file} is of a run with --quick")
            found.setdefault(record["paper"], {})[record["table"]] = record
    return found


def section(paper, tables):
    lines = [f"## {PAPERS[paper]}", ""]
    settings = {record["setting"].partition(", the first")[0] for record in tables.values()}
    if len(settings) > 1:
        sys.exit(f"results: {paper} was measured on several: {', '.join(sorted(settings))}")
    for record in tables.values():
        if not record["claims"]:
            continue
        lines += [f"### {record['title']}", "", f"Paper: {record['source']}.", "",
                  f"Ours: {record['protocol']}.", "",
                  *table(["the paper says", "holds here", "ours"],
                         [[claim["paper"], "yes" if claim["holds"] else "NO", claim["ours"]]
                          for claim in record["claims"]]), ""]
    return lines


def page(files):
    found = tables_of(files)
    lines = [HEAD]
    for paper in PAPERS:
        if paper in found:
            lines += section(paper, found[paper])
    lines += ["## On the demo model", "",
              "All tables of all five, whole, on the model that comes with the program: "
              + ", ".join(f"[{name}](reproduce_{paper}.md)" for paper, name in PAPERS.items())
              + ".\nWhat stands there and not above has not been measured on a real model."]
    return "\n".join(lines).rstrip() + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("lines", nargs="+")
    parser.add_argument("--write", action="store_true", help="into docs/results")
    options = parser.parse_args()
    text = page(options.lines)
    if options.write:
        PAGE.write_text(text, encoding="utf-8")
    else:
        print(text)


if __name__ == "__main__":
    main()
