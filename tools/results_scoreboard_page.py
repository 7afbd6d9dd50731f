"""Writes docs/results/scoreboard.{jsonl,md} and build/report.html from measured files."""

import json
import math
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
RESULTS = ROOT / "docs/results"
TITLE = "Pith's scoreboard: the demo model at 2K and 8K tokens"
MISSING = "-"
LEAST = 0.5  # of the predictions or samples that a row of a real model has at most: with fewer it is
             # left out
LEAST_SAMPLES = 8  # of a task: as many do, however many others have


class Scoreboard:
    """The figures of `pith report --lines`, by (kind, name, length) and policy."""

    def __init__(self, lines, least=1):
        """`least`: the share of the most predictions or samples that a row must have."""
        self.least = least
        self.heads, self.rows, self.probes = {}, {}, {}
        at = None
        for line in map(json.loads, lines):
            if line.get("result") == "probe":
                self.probes[line["tokens"]] = line
            elif "result" in line:
                at = line["result"], line["name"], line["length"]
                if at in self.heads:
                    sys.exit(f"results: two settings of {at}: start with an empty work folder")
                self.heads[at], self.rows[at] = line, {}
            else:
                self.rows[at][line["policy"]] = line
        self.lengths = sorted({length for _, name, length in self.rows if name == "continue"})

    def ppl(self, mode, length):
        return self.finished("ppl", mode, length)

    def task(self, name, length):
        return self.finished("task", name, length)

    def finished(self, kind, name, length):
        """Rows that have as many predictions or samples as any other, or `least` of that: the
        others are left out."""
        rows = self.rows.get((kind, name, length), {})
        most = max((row["count"] for row in rows.values()), default=0)
        needed = enough_samples(self.least, most) if kind == "task" else self.least * most
        return {policy: row for policy, row in rows.items() if row["count"] >= needed}

    def errors(self, length):
        found = self.probes.get(length, {"rows": []})
        return {row["policy"]: row["error"] for row in found["rows"]}

    def policies(self, length):
        """By falling bits."""
        after = self.ppl("continue", length)
        return sorted(after, key=lambda policy: -after[policy]["bits"])


def enough_samples(least, most):
    """Of a task, where others have `most`."""
    return most if least == 1 else min(least * most, LEAST_SAMPLES)


def number(value, digits=3):
    if value == 0:
        return "0"
    return f"{value:.1e}" if abs(value) < 1e-4 else f"{value:.{digits}g}"


def with_error(pair):
    mean, error = pair
    return number(mean) if error == 0 else f"{number(mean)} ±{number(error, 2)}"


def table(heads, rows):
    return ["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads),
            *("| " + " | ".join(row) + " |" for row in rows)]


def score(rows, policy):
    return f"{100 * rows[policy]['score'][0]:.0f}" if policy in rows else MISSING


def score_of(rows, policy):
    """With the number of samples where there are more than the least."""
    count = rows.get(policy, {}).get("count", 0)
    return score(rows, policy) + (f" ({count})" if count > LEAST_SAMPLES else "")


def turns(rows, policy):
    """First and fifth question."""
    if policy not in rows:
        return MISSING
    by_turn = rows[policy]["by_turn"]
    return f"{100 * by_turn[0]:.0f}, {100 * by_turn[min(4, len(by_turn) - 1)]:.0f}"


def length_table(board, length):
    after, stream = board.ppl("continue", length), board.ppl("decode", length)
    facts, talk = board.task("facts", length), board.task("multi_turn", length)
    errors = board.errors(length)
    heads = ["policy", "seeds", "kept", "bits", "MB", "KL", "KL 99%", "same top, %",
             "PPL by tokens", "KL by tokens", "layer error", "facts, %", "turns 1 and 5, %"]
    more = [name for name in ("kv", "docqa") if len(board.task(name, length)) > 1]
    rows = []
    for policy in board.policies(length):
        row = after[policy]
        one = stream.get(policy)
        rows.append([
            f"`{policy}`", str(row["seeds"]), f"{100 * row['kept']:.1f}%", f"{row['bits']:.2f}",
            f"{row['bytes'] / 1e6:.2f}", with_error(row["kl"]), number(row["kl_99"]),
            f"{100 * row['same_top'][0]:.1f}",
            f"{one['perplexity'][0]:.2f}" if one else MISSING,
            with_error(one["kl"]) if one else MISSING,
            with_error(errors[policy]) if policy in errors else MISSING,
            score(facts, policy), turns(talk, policy),
            *(score(board.task(name, length), policy) for name in more)])
    return table(heads + [f"{name}, %" for name in more], rows)


def unmeasured(board, length, wanted):
    """What this length lacks, as the run was ended before it."""
    there = board.ppl("continue", length)
    absent = [policy for policy in wanted if policy not in there]
    return [f"Not measured at this length, as the run was ended before ({len(absent)} of "
            f"{len(wanted)}): " + ", ".join(f"`{policy}`" for policy in absent) + ".", ""] \
        if absent else []


def exact_alone(board):
    rows = []
    for (kind, name, length), found in board.rows.items():
        if kind == "task" and list(found) == ["exact"]:
            row = found["exact"]
            rows.append([f"`{name}`", str(length), str(row["count"]),
                         f"{100 * row['score'][0]:.0f}"])
    return table(["task", "tokens", "samples", "exact cache, %"], rows) if rows else []


def claim_rows(board, length, policies):
    """What a claim is judged by: size, divergence, perplexity and facts beside the exact cache's."""
    after, facts = board.ppl("continue", length), board.task("facts", length)
    exact = facts.get("exact")
    for policy in policies:
        if policy not in after:
            continue
        row = after[policy]
        found = (f"{score(facts, policy)} of {score(facts, 'exact')}"
                 if exact and policy in facts else MISSING)
        yield [f"`{policy}`", str(length), f"{100 * row['kept']:.0f}%", f"{row['bits']:.2f}",
               f"{16 / row['bits']:.1f}x", with_error(row["kl"]), with_error(row["ln_ratio"]),
               f"{100 * row['same_top'][0]:.1f}", found]


CLAIM_HEADS = ["policy", "tokens", "rows kept", "bits", "smaller", "KL", "ln PPL ratio",
               "same top, %", "facts, % of exact's %"]
CLAIMS = [
    ("Express: exact accuracy at 61% of the cache", ("express",)),
    ("QJL: 3 bits without loss", ("exact+qjl", "exact+qjl(paper=true)")),
    ("CSR: 1 bit, 8% drop", ("exact+csr",)),
    ("BUZZ: 2.5 times smaller at 99%", ("buzz",))]


def verdict(board, names):
    """Facts and divergence of the named policies, in words, from the figures alone."""
    out = []
    for length in board.lengths:
        after, facts = board.ppl("continue", length), board.task("facts", length)
        if "exact" not in facts:
            continue
        whole = facts["exact"]["score"][0]
        for policy in after:
            if not policy.startswith(names) or "+int4" in policy or policy not in facts:
                continue
            row, found = after[policy], facts[policy]["score"][0]
            share = "as many facts as" if found >= whole else f"{found / whole:.0%} of the facts of"
            perplexity = 100 * (math.exp(row["ln_ratio"][0]) - 1)
            out.append(f"`{policy}` at {length}: {16 / row['bits']:.1f} times smaller, {share} the "
                       f"exact cache, perplexity {perplexity:+.1f}%")
    return out


def rank_lines(board):
    """Places among the selectors that were given 25%, by divergence and by facts."""
    lines = []
    for length in board.lengths:
        after, facts = board.ppl("continue", length), board.task("facts", length)
        names = [p for p in after if ("=25%" in p or "=0.25)" in p) and "+" not in p]
        by_kl = sorted(names, key=lambda p: after[p]["kl"][0])
        rows = [[str(i + 1), f"`{p}`", f"{100 * after[p]['kept']:.1f}%", with_error(after[p]["kl"]),
                 score(facts, p)] for i, p in enumerate(by_kl)]
        lines += [f"At {length} tokens, selectors at 25% that were measured (what each holds in "
                  "fact differs):",
                  "", *table(["place by KL", "policy", "kept", "KL", "facts, %"], rows), ""]
    return lines


def claims(board):
    documents = ", ".join(
        f"{max(row['count'] for row in board.task('facts', length).values())} at {length}"
        for length in board.lengths if board.task("facts", length))
    lines = ["## The papers' claims on this model", "",
             "One small model, one text: these figures neither prove nor refute a paper, whose "
             "models and tasks are others. They\nsay what a user of this model gets. Facts: 8 in "
             f"each document (documents: {documents}), asked for after compression\n"
             "(query-agnostic).", ""]
    for claim, names in CLAIMS:
        rows = [row for length in board.lengths for row in claim_rows(
            board, length, [p for p in board.policies(length)
                            if p.startswith(names) and "+int4" not in p])]
        lines += [f"### {claim}", ""]
        if not rows:
            lines += ["Not measured: the run was ended before.", ""]
            continue
        lines += [*table(CLAIM_HEADS, rows), "", *(f"- {v}" for v in verdict(board, names)), ""]
    return lines + ["### BalanceKV: best at 25%", "", *rank_lines(board)]


def setting_lines(board):
    heads = board.heads.values()
    text = {h["setting"]["text_fingerprint"] for h in heads if "text_fingerprint" in h["setting"]}
    null = max(h.get("null_control_kl", 0) for h in heads)
    counts = [f"{name} at {length}: {max(r['count'] for r in rows.values())}"
              for (kind, name, length), rows in board.rows.items()]
    first = next(iter(heads))["setting"]
    return [f"- Model: {first['model']}, fingerprint `{first['model_fingerprint']}`; pith "
            f"{first['version']}; text: fingerprint `{', '.join(sorted(text))}`.",
            f"- Null control, exact against exact: largest KL {number(null)}; probe: "
            f"{max((p['null_control_error'] for p in board.probes.values()), default=0):g}.",
            "- Predictions or samples of each seed: " + "; ".join(counts) + ".",
            "- KL: nats a token from the exact cache, ± the deviation over seeds, or with one seed "
            "(a policy without random numbers)\n  the standard error. Bits: per number of the "
            "uncompressed cache, everything included; f16 has 16.",
            "- KL, same top: a prompt, then tokens one at a time (`--mode continue`). By tokens: "
            "all tokens one at a time (`--mode decode`).",
            "- A per cent in a policy is of the context, for the body alone: sink, window and rows "
            "that wait come on top. Kept and bits\n  are what was held in fact.",
            f"- `{MISSING}`: not measured. Nor are here: tokens a second (docs/benchmarks.md, "
            "`pith bench`), and bytes of saved sessions."]


def page(board, command, wanted):
    lines = ["# Scoreboard", "", f"    {command}", "",
             "makes this page and its figures as JSON lines (`docs/results/scoreboard.jsonl`).",
             "`pith report docs/results/scoreboard.jsonl --out report.html` plots them.", "", *setting_lines(board), ""]
    for length in board.lengths:
        lines += [f"## {length} tokens", "", *length_table(board, length), "",
                  *unmeasured(board, length, wanted)]
    alone = exact_alone(board)
    if alone:
        lines += ["## Tasks that say nothing here", "",
                  "The demo model solves few of RULER's tasks even with the exact cache, so "
                  "policies were not run on them.", "", *alone, ""]
    return "\n".join(lines + claims(board)).rstrip() + "\n"


def write(program, work, command, wanted):
    """Files of the work folder become the page, its figures and the HTML report. `wanted`: every
    policy that a whole run has."""
    RESULTS.mkdir(parents=True, exist_ok=True)
    files = [work / name for name in ("ppl.jsonl", "tasks.jsonl")]
    files += sorted(work.glob("probe_*.json"))
    lines = RESULTS / "scoreboard.jsonl"
    subprocess.run([program, "report", *(f for f in files if f.exists()), "--lines", lines, "--out",
                    ROOT / "build/report.html", "--title", TITLE], check=True)
    board = Scoreboard(lines.read_text().splitlines())
    (RESULTS / "scoreboard.md").write_text(page(board, command, wanted))
