#!/usr/bin/env python3
"""Writes docs/lab/claims.md: what the papers claim beside what `pith reproduce` found on a model.

usage: results_claims.py [LINES...] [--write]

LINES are the output of `pith reproduce PAPER --json`, one JSON object per table, of the same model and text;
of a table that is in several, the last counts. They join those of docs/results/claims.jsonl. Without
--write the page goes to standard output.

What follows from the scoreboard of the real model (docs/results/fidelity.jsonl) stands there too.
"""

import argparse
import datetime
import json
import pathlib
import sys
import textwrap

from results_board import LEAST, MISSING, SOLVED, Scoreboard, counted, number, table, with_error

ROOT = pathlib.Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs/lab/claims.md"
KEPT = ROOT / "docs/results/claims.jsonl"
BOARD = ROOT / "docs/results/fidelity.jsonl"
TODAY = datetime.date.today().isoformat()  # of lines that say no day
PAPERS = {"express": "Thinformer Express", "balancekv": "BalanceKV", "buzz": "BUZZ", "qjl": "QJL",
          "csr": "CSR with NeuralDict"}

HEAD = """# The papers' claims on a real model

The claims of five papers, and whether they hold on SmolLM2-135M-Instruct. Their models, texts and metrics are others:
compare directions, not numbers. The program makes each check, with 3 seeds for random methods:

    pith train-dict -m smollm2 -f novels.txt --share layer --tokens 8192 --epochs 5 -o csr256.safetensors
    pith reproduce PAPER -m smollm2 -f essays.txt --json > PAPER.jsonl   # csr: --dict csr256.safetensors
    tools/results_claims.py PAPER.jsonl --write

`--tables error` makes one table again. `--device cuda` moves predictions and answers to a GPU. Attention errors, coding
errors and times are the CPU's. The tables behind the checks: [the papers' tables](papers.md).

Each verdict is of one form of the method, with the policy that ran. "Open": the exact cache fails the task as well, or
no dictionary was trained for it. A yes of a form of ours is not the paper's:

| form | |
|---|---|
| the paper's | its algorithm and constants (`paper=true`) |
| ours, guaranteed | other constants or kernel, the paper's guarantee kept |
| ours, no guarantee | greedy thresholds |
| ours, heavy rows | rows kept for their attention mass beside the method's own |
| untrained dictionary | the paper's code, with the text's first rows as atoms |
"""


def tables_of(files):
    """The last line of each table, by paper, then table."""
    found = {}
    for file in files:
        for line in pathlib.Path(file).read_text(encoding="utf-8").splitlines():
            record = json.loads(line)
            if record["quick"]:
                sys.exit(f"results: {file} is of a run with --quick")
            found.setdefault(record["paper"], {})[record["table"]] = {"measured": TODAY, **record}
    return found


def section(paper, tables):
    lines = [f"## {PAPERS[paper]}", ""]
    settings = {record["setting"].partition(", the first")[0] for record in tables.values()}
    if len(settings) > 1:
        sys.exit(f"results: {paper} was measured on several: {', '.join(sorted(settings))}")
    for record in tables.values():
        lines += [f"### {record['title']}", "",
                  *said(f"Paper: {record['source']}. Ours: {record['protocol']}. Measured {record['measured']}."), "",
                  *claims_or_figures(record), ""]
    return lines


def said(text):
    """Lines of prose."""
    return textwrap.wrap(text, 120, break_long_words=False, break_on_hyphens=False)


def kept(record):
    """The record as it is stored: figures only where the page shows them."""
    return {**record, "rows": []} if record["claims"] else record


def verdict(holds):
    return "open" if holds is None else "yes" if holds else "NO"


def form(policy):
    """Whose form a policy of the scoreboard is."""
    name, _, _ = policy.partition(";")
    if "csr(" in name:
        return "ours, a dictionary of its own rows"
    if "qjl" in name and "paper=true" not in name and "residual=0" not in name:
        return "ours, three bits around a mean, no sign sketch"
    if "paper=true" in name or name.startswith("buzz"):
        return "the paper's"
    if name.startswith(("express", "balancekv")):
        return "ours, no guarantee" if "heavy=0" in name else "ours, heavy rows"
    return MISSING


def claims_or_figures(record):
    """The checks, or the table where the paper says nothing that can be checked."""
    if record["claims"]:
        return table(["the paper says", "form", "holds here", "ours", "policy"],
                     [[claim["paper"], claim["form"] or MISSING, verdict(claim["holds"]), claim["ours"],
                       f"`{claim['policy']}`" if claim["policy"] else MISSING]
                      for claim in record["claims"]])
    columns = dict.fromkeys(cell["column"] for row in record["rows"] for cell in row["cells"])
    rows = []
    for row in record["rows"]:
        cells = {cell["column"]: with_error((cell["value"], cell.get("error", cell.get("deviation", 0))))
                 for cell in row["cells"]}
        rows.append([row["name"], *(cells.get(column, MISSING) for column in columns)])
    return table(["", *columns], rows)


BOARD_HEAD = """## On the scoreboard

From [the scoreboard](../results/fidelity.md): {length} tokens per piece, tasks at {task_length}. Errors are deviations
over seeds, or the standard error of one. Kept counts sink and window. "Tuned": each head has a form of its own
([0200](../decisions/0200-heads-of-their-own-forms.md)).
"""
SHARES = (12.5, 25, 50)
# Asked: bits per number at most, then divergence at most.
ASKED = ((2.0, 0.008), (1.25, 0.012), (0.8, 0.03))
FINDS = 0.95  # of what the exact cache finds
DECIDES = 48  # samples: fewer cannot tell 94% from 95%
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
    """The share that a policy finds, then the exact cache, with their intervals."""
    if policy not in found:
        return MISSING

    return f"{counted(found, policy)}; exact {counted(found, 'exact')}"


def compositions(rows, tasks):
    """For what is asked, the line that finds the facts and has least divergence, else that of least
    divergence."""
    lines = []
    for bits, least in ASKED:
        fitting = [p for p, row in rows.items() if row["bits"] <= bits and "+" in p
                   and all(p in found for found in tasks)]
        fitting = [p for p in fitting if all(
            found[p]["count"] >= DECIDES for found in tasks)] or fitting
        finding = [p for p in fitting if all(
            found[p]["score"][0] >= FINDS * found["exact"]["score"][0] for found in tasks)]
        best = min(finding or fitting, key=lambda p: rows[p]["kl"][0], default=None)
        if best is None:
            continue
        holds = best in finding and rows[best]["kl"][0] <= least
        lines.append([f"{bits:g} bits, KL {least:g}", verdict(holds), short(best), form(best),
                      *sizes(rows[best]), *(beside_exact(found, best) for found in tasks)])
    return table(["at most", "met", "by", "form", "KL", "bits", "kept", "seeds", "predictions",
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


def named(rows, found):
    return f"{short(found[0])}: {with_error(rows[found[0]]['kl'])}" if found else MISSING


def equal_rows(rows):
    """Each policy of Express beside the best of the others, with one form and with rows by head."""
    lines = []
    for share in SHARES:
        near = selectors_at(rows, share)
        others = [p for p in near if not p.startswith("express")]
        whole, parts = [p for p in others if not by_head(p)], [p for p in others if by_head(p)]
        if not whole or len(others) == len(near):
            lines.append([f"{share:g}%", "not measured", *[MISSING] * 7])
            continue
        for p in (p for p in near if p not in others):
            alike = [q for q in parts if by_head(p) and rows[q]["kept"] > rows[p]["kept"] - NEAR]
            lines.append([f"{share:g}%", short(p), form(p), with_error(rows[p]["kl"]), f"{rows[p]['bits']:.2f}",
                          named(rows, whole), below(rows, p, whole), named(rows, alike),
                          below(rows, p, alike) if by_head(p) else MISSING])
    return table(["share", "policy", "form", "KL", "bits", "best other with one form", "less",
                  "best other with rows by head", "less"], lines)


# Of a codec over all rows: bits a number at most, then what it is held against.
QJL_BITS, QJL_BESIDE = 3.5, "exact+turboquant(bits=3,center=128)"
CSR_ASKED = ((2.5, 0.06, 0.75), (4.3, 0.01, None))  # bits, divergence, share of passkeys


def codec_row(claim, holds, policy, rows, tasks):
    return [claim, verdict(holds), short(policy), form(policy), *sizes(rows[policy]),
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
    return lines and table(["asked", "met", "policy", "form", "KL", "bits", "kept", "seeds", "predictions",
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
        lines.append([f"`{p}`", form(p), *sizes(rows[p]), short(others[0]), with_error(other),
                      verdict(holds)])
    return table(["policy", "form", "KL", "bits", "kept", "seeds", "predictions", "best other", "its KL",
                  "less, outside both errors"], lines)


def forty_per_cent(rows, tasks):
    """BUZZ beside the exact cache on the tasks that this solves."""
    lines = []
    for name, found in tasks.items():
        exact = found.get("exact")
        for p in (p for p in found if p.startswith("buzz(T=40%)")):
            if exact and exact["score"][0] >= SOLVED and p in rows:
                share = found[p]["score"][0] / exact["score"][0]
                lines.append([name, verdict(share >= 0.99), f"`{p}`", form(p),
                              f"{100 * rows[p]['kept']:.0f}%", f"{rows[p]['bits']:.2f}",
                              counted(found, p), counted(found, "exact")])
    return table(["task", "99% of exact", "policy", "form", "kept", "bits", "found", "exact finds"], lines)


def board_section():
    board = Scoreboard(BOARD.read_text(encoding="utf-8").splitlines(), LEAST)
    length = max(board.lengths)
    task_length = max(at[2] for at in board.rows if at[0] == "task")
    rows = board.ppl("continue", length)
    tasks = {name: board.task(name, task_length)
             for name in ("niah_single_1", "passkey", "facts")}
    singles = [tasks["niah_single_1"], tasks["passkey"]]
    null = number(board.heads["ppl", "continue", length].get("null_control_kl", 0))
    return [BOARD_HEAD.format(length=length, task_length=task_length),
            f"Null control, exact against exact: {null}.", "",
            "### Compositions", "", "Found: of so many samples, with Wilson's 95% interval.", "",
            *compositions(rows, singles), "",
            "### Codecs over all rows", "", *codecs(rows, singles), "",
            "### Express: the least divergence of all selectors at equal rows", "",
            "Less means less by more than both errors. \"Tuned\" has its rows by head, by the same rule for each",
            "selector: at 12.5% snapkv and expected attention have the rows of Express, at 25% two policies of Express",
            "have those of BalanceKV.", "", *equal_rows(rows), "",
            "### BalanceKV: the best of its paper's table at 25%", "", *best_at_a_quarter(rows), "",
            "### BUZZ: 2.5 times fewer rows at 99%", "", *forty_per_cent(rows, tasks), ""]


def page(files):
    found = tables_of(files)
    lines = [HEAD, *board_section()]
    for paper in PAPERS:
        if paper in found:
            lines += section(paper, found[paper])
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
        records = [kept(record) for tables in tables_of(files).values() for record in tables.values()]
        KEPT.write_text("".join(json.dumps(record) + "\n" for record in records),
                        encoding="utf-8")
    else:
        print(text)


if __name__ == "__main__":
    main()
