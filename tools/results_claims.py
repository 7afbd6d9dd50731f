#!/usr/bin/env python3
"""Writes docs/results/claims.md: what the papers claim beside what `pith reproduce` found on a model.

usage: results_claims.py [LINES...] [--write]

LINES are what `pith reproduce PAPER --json` printed, a JSON object a table, of the same model and text;
of a table that is in several, the last counts. They join those of docs/results/claims.jsonl. Without
--write the page goes to standard output.

What follows from the scoreboard of the real model (docs/results/fidelity.jsonl) stands there too.
"""

import argparse
import json
import pathlib
import sys

from results_scoreboard_page import LEAST, MISSING, Scoreboard, number, score, table, with_error

ROOT = pathlib.Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs/results/claims.md"
KEPT = ROOT / "docs/results/claims.jsonl"
BOARD = ROOT / "docs/results/fidelity.jsonl"
PAPERS = {"express": "Thinformer Express", "balancekv": "BalanceKV", "buzz": "BUZZ", "qjl": "QJL",
          "csr": "CSR with NeuralDict"}

HEAD = """# The papers' claims on a real model

What the five papers say of their methods, beside what the same measurement finds on
SmolLM2-135M-Instruct. Their models, texts and metrics are others, so numbers do not compare;
directions do. Each line is a check that the program makes:

    pith reproduce PAPER -m smollm2 -f essays.txt --json > PAPER.jsonl
    tools/results_claims.py PAPER.jsonl --write

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
        lines += [f"### {record['title']}", "", f"Paper: {record['source']}.", "",
                  f"Ours: {record['protocol']}.", "", *claims_or_figures(record), ""]
    return lines


def claims_or_figures(record):
    """A table of which the paper says nothing that can be checked stands as it is."""
    if record["claims"]:
        return table(["the paper says", "holds here", "ours"],
                     [[claim["paper"], "yes" if claim["holds"] else "NO", claim["ours"]]
                      for claim in record["claims"]])
    columns = dict.fromkeys(cell["column"] for row in record["rows"] for cell in row["cells"])
    rows = []
    for row in record["rows"]:
        cells = {cell["column"]: with_error((cell["value"], cell.get("deviation", 0)))
                 for cell in row["cells"]}
        rows.append([row["name"], *(cells.get(column, MISSING) for column in columns)])
    return table(["", *columns], rows)


BOARD_HEAD = """## On the scoreboard

From the figures of [the scoreboard](fidelity.md), {length} tokens a piece, tasks at
{task_length}; errors are deviations over seeds or, of one seed, standard errors. Kept: rows held in
fact, sink and window with them. "Tuned": each head has the form that its loss is worth
([0200](../decisions/0200-heads-of-their-own-forms.md)).
"""
SHARES = (12.5, 25, 50)
# What is asked: bits a number at most, then divergence at most.
ASKED = ((2.0, 0.008), (1.25, 0.012), (0.8, 0.03))
FINDS = 0.95  # of what the exact cache finds
JUDGED = 48  # samples: fewer cannot tell 94% from 95%
# Kept may be so many per cent of all rows more than the share: sink, window and what waits.
OVER = 3
# Of those with rows by head: less than so much fewer of all rows.
NEAR = 0.01


def by_head(policy):
    """Made for the layers of one model (`pith tune`)."""
    return "layers=" in policy


def short(policy):
    """A policy of many layers by its first form."""
    first, _, _ = policy.partition(";")
    return f"`{first}`, tuned" if by_head(policy) else f"`{first}`"


def sizes(row):
    return [with_error(row["kl"]), f"{row['bits']:.2f}", f"{100 * row['kept']:.1f}%",
            str(row["seeds"]), str(row["count"])]


def beside_exact(found, policy):
    """What a policy finds, and in brackets the exact cache."""
    if policy not in found:
        return MISSING

    def share(whose):
        return f"{score(found, whose)}% of {found[whose]['count']}"
    return f"{share(policy)} ({share('exact')})"


def compositions(rows, tasks):
    """For what is asked, the line that finds the facts and has least divergence, else that of least
    divergence."""
    lines = []
    for bits, least in ASKED:
        fitting = [p for p, row in rows.items() if row["bits"] <= bits and "+" in p
                   and all(p in found for found in tasks)]
        fitting = [p for p in fitting if all(
            found[p]["count"] >= JUDGED for found in tasks)] or fitting
        finding = [p for p in fitting if all(
            found[p]["score"][0] >= FINDS * found["exact"]["score"][0] for found in tasks)]
        best = min(finding or fitting, key=lambda p: rows[p]["kl"][0], default=None)
        if best is None:
            continue
        holds = best in finding and rows[best]["kl"][0] <= least
        lines.append([f"{bits:g} bits, KL {least:g}", "yes" if holds else "NO", short(best),
                      *sizes(rows[best]), *(beside_exact(found, best) for found in tasks)])
    return table(["at most", "met", "by", "KL", "bits", "kept", "seeds", "predictions",
                  "needles found", "passkeys found"], lines)


def selectors_at(rows, share):
    """Those that were given this share, without a codec, by divergence over as many predictions: the
    most of which there are lines of Express and of others."""
    near = [p for p, row in rows.items()
            if "+" not in p and 0.8 * share <= 100 * row["kept"] <= share + OVER]
    for count in sorted({rows[p]["count"] for p in near}, reverse=True):
        alike = [p for p in near if rows[p]["count"] == count]
        if len({p.startswith("express") for p in alike
                if p.startswith("express") or not by_head(p)}) == 2:
            return sorted(alike, key=lambda p: rows[p]["kl"][0])
    return []


def below(rows, policy, others):
    """Whether its divergence and error are below the best of these and its error."""
    if not others:
        return "not measured"
    kl, other = rows[policy]["kl"], rows[min(others, key=lambda p: rows[p]["kl"][0])]["kl"]
    return "yes" if kl[0] + kl[1] < other[0] - other[1] else "NO"


def equal_rows(rows):
    lines = []
    for share in SHARES:
        near = selectors_at(rows, share)
        others = [p for p in near if not p.startswith("express")]
        whole, parts = [p for p in others if not by_head(p)], [p for p in others if by_head(p)]
        if not whole or len(others) == len(near):
            lines.append([f"{share:g}%", "not measured", *[MISSING] * 7])
            continue
        for p in near:
            says = ["", ""]
            if p not in others:
                alike = [q for q in parts if rows[q]["kept"] > rows[p]["kept"] - NEAR]
                says = [below(rows, p, whole), below(rows, p, alike) if by_head(p) else MISSING]
            lines.append([f"{share:g}%", *says, short(p), *sizes(rows[p])])
    return table(["share", "least of those with one form", "of those with rows by head", "policy",
                  "KL", "bits", "kept", "seeds", "predictions"], lines)


# Of a codec over all rows: bits a number at most, then what it is held against.
QJL_BITS, QJL_BESIDE = 3.5, "exact+turboquant(bits=3,center=128)"
CSR_ASKED = ((2.5, 0.06, 0.75), (4.3, 0.01, None))  # bits, divergence, share of passkeys


def codec_row(claim, holds, policy, rows, tasks):
    return [claim, "yes" if holds else "NO", short(policy), *sizes(rows[policy]),
            *(beside_exact(found, policy) for found in tasks)]


def least_within(rows, bits, name):
    fitting = [p for p, row in rows.items()
               if row["bits"] <= bits and name in p and "paper=true" not in p]
    return min(fitting, key=lambda p: rows[p]["kl"][0], default=None)


def codecs(rows, tasks):
    """QJL beside turboquant of three bits, CSR beside what was asked of it."""
    lines = []
    ours = least_within(rows, QJL_BITS, "exact+qjl")
    if ours and QJL_BESIDE in rows:
        holds = rows[ours]["kl"][0] <= rows[QJL_BESIDE]["kl"][0]
        lines += [codec_row(f"QJL, {QJL_BITS:g} bits: KL of {QJL_BESIDE} or less", holds, ours,
                            rows, tasks),
                  ["", "", *codec_row("", True, QJL_BESIDE, rows, tasks)[2:]]]
    for bits, divergence, share in CSR_ASKED:
        ours = least_within(rows, bits, "csr(")
        if ours is None:
            continue
        passkeys = tasks[1]
        holds = rows[ours]["kl"][0] <= divergence
        claim = f"CSR, {bits:g} bits: KL {divergence:g}"
        if share is not None:
            claim += f", {100 * share:g}% of passkeys"
            holds = holds and ours in passkeys and passkeys[ours]["score"][0] >= share
        lines.append(codec_row(claim, holds, ours, rows, tasks))
    return lines and table(["asked", "met", "policy", "KL", "bits", "kept", "seeds", "predictions",
                            "needles found", "passkeys found"], lines)


def best_at_a_quarter(rows):
    """BalanceKV beside the others of its paper's table, of which what is measured counts."""
    near = [p for p in selectors_at(rows, 25) if not by_head(p)]
    others = [p for p in near if p.startswith(("pyramidkv", "snapkv", "streaming_llm", "uniform"))]
    forms = [p for p in near if p.startswith("balancekv")]
    if not others:
        return []
    other, lines = rows[others[0]]["kl"], []
    for p in forms:
        kl = rows[p]["kl"]
        holds = kl[0] + kl[1] < other[0] - other[1]
        lines.append([f"`{p}`", *sizes(rows[p]), short(others[0]), with_error(other),
                      "yes" if holds else "NO"])
    return table(["form", "KL", "bits", "kept", "seeds", "predictions", "best other", "its KL",
                  "less, outside both errors"], lines)


def forty_per_cent(rows, tasks):
    """BUZZ beside the exact cache on the tasks that this solves."""
    lines = []
    for name, found in tasks.items():
        exact = found.get("exact")
        for p in (p for p in found if p.startswith("buzz(T=40%)")):
            if exact and exact["score"][0] >= 0.5 and p in rows:
                share = found[p]["score"][0] / exact["score"][0]
                lines.append([name, "yes" if share >= 0.99 else "NO", f"`{p}`",
                              f"{100 * rows[p]['kept']:.0f}%", f"{rows[p]['bits']:.2f}",
                              score(found, p), score(found, "exact"), str(found[p]["count"])])
    return table(["task", "99% of exact", "policy", "kept", "bits", "found %", "exact %",
                  "samples"], lines)


def board_section():
    board = Scoreboard(BOARD.read_text(encoding="utf-8").splitlines(), LEAST)
    few = Scoreboard(BOARD.read_text(encoding="utf-8").splitlines(), 0)
    length = max(board.lengths)
    task_length = max(at[2] for at in board.rows if at[0] == "task")
    rows = board.ppl("continue", length)
    tasks = {name: board.task(name, task_length)
             for name in ("niah_single_1", "passkey", "facts")}
    singles = [tasks["niah_single_1"], tasks["passkey"]]
    null = number(board.heads["ppl", "continue", length].get("null_control_kl", 0))
    return [BOARD_HEAD.format(length=length, task_length=task_length),
            f"Null control, exact against exact: {null}.", "",
            "### What was asked of compositions", "",
            "Found: of so many samples, in brackets what the exact cache finds.", "",
            *compositions(rows, singles), "",
            "### What was asked of codecs over all rows", "", *codecs(rows, singles), "",
            "### Express: the least divergence of all selectors at equal rows", "",
            "Least: outside the errors of both. Beside those with as many predictions: all four pieces, or",
            "the first alone (256). \"Tuned\" has its rows by head, which is no selector's work: it stands",
            "beside others with one form, and beside others with rows by head, found by the same rule",
            "(at 12.5% snapkv and expected attention have those of Express, at 25% two of Express those of",
            "BalanceKV).", "",
            *equal_rows(few.ppl("continue", length)), "",
            "### BalanceKV: the best of its paper's table at 25%", "", *best_at_a_quarter(rows), "",
            "### BUZZ: 2.5 times fewer rows at 99%", "", *forty_per_cent(rows, tasks), ""]


def page(files):
    found = tables_of(files)
    lines = [HEAD, *board_section()]
    for paper in PAPERS:
        if paper in found:
            lines += section(paper, found[paper])
    lines += ["## On the demo model", "",
              "All tables of all five, whole, on the model that comes with the program: "
              + ", ".join(f"[{name}](reproduce_{paper}.md)" for paper, name in PAPERS.items())
              + "."]
    return "\n".join(lines).rstrip() + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("lines", nargs="*")
    parser.add_argument("--write", action="store_true", help="into docs/results")
    options = parser.parse_args()
    files = [KEPT, *options.lines]
    text = page(files)
    if options.write:
        PAGE.write_text(text, encoding="utf-8")
        records = [record for tables in tables_of(files).values() for record in tables.values()]
        KEPT.write_text("".join(json.dumps(record) + "\n" for record in records),
                        encoding="utf-8")
    else:
        print(text)


if __name__ == "__main__":
    main()
