"""The pages of real models' scoreboards, from what results_fidelity.py measured."""

import json
import pathlib
import subprocess
import sys
import tempfile

from results_fidelity_boards import BOARDS, own_board
from results_lines import by_device, merged
from results_board import (LEAST, MISSING, Scoreboard, exact_alone, number, score, score_of, solved,
                           table, with_error)

ROOT = pathlib.Path(__file__).resolve().parent.parent
RESULTS = ROOT / "docs/results"
GUIDE = ROOT / "docs/which-policy.md"
BEGIN, END = "<!-- generated: begin -->", "<!-- generated: end -->"


def lines_of(options):
    """The lines of `pith report --lines` for a split's files."""
    work = pathlib.Path(options.work) / options.split
    files = sorted(work.glob("*-*.jsonl"))
    if not files and not options.also:
        sys.exit(f"results: nothing was measured in {work}")
    target = work / "lines"
    text = ""
    with tempfile.TemporaryDirectory() as folder:
        for file in by_device(files, folder):
            subprocess.run([options.program, "report", file, "--lines", target], check=True,
                           stdout=subprocess.DEVNULL)
            more = target.read_text(encoding="utf-8")
            text = merged(more, text) if text else more
    if not options.also:
        return text
    return merged(text, pathlib.Path(options.also).read_text(encoding="utf-8"))


TASK_COLUMNS = ("niah_single_1", "passkey", "niah_multikey_2", "vt", "facts")


def tuned(policy):
    """Made for the layers of one model (`pith tune`)."""
    return "layers=" in policy


def label(policy):
    """Tuned policies are long: their first form stands for them."""
    first = policy.partition(";")[0]
    return f"`{first}`, tuned" if tuned(policy) else f"`{policy}`"


def published(text):
    """The lines that a page or a preset is made of: enough predictions or samples, of tasks that the
    exact cache solves; of others the exact cache alone."""
    board = Scoreboard(text.splitlines(), LEAST)
    lines = []
    for at, head in board.heads.items():
        rows = board.finished(*at)
        if at[0] == "task" and not solved(rows):
            rows = {"exact": rows["exact"]}
        lines += [head, *rows.values()]
    return "".join(json.dumps(line) + "\n" for line in lines)


def longest_table(board):
    """The length at which most policies were measured; of equals the longest."""
    return max(board.lengths, key=lambda length: (len(board.policies(length)), length))


def plot(options, text):
    """Divergence against bytes as a picture beside the page: python3 needs the package, as `pith report` says."""
    board = Scoreboard(text.splitlines(), LEAST)
    length = longest_table(board)
    with tempfile.TemporaryDirectory() as folder:
        named = pathlib.Path(folder) / "lines.jsonl"
        named.write_text(text, encoding="utf-8")
        subprocess.run([options.program, "report", named, "--plots", folder,
                        "--out", named.with_suffix(".html")], check=True,
                       stdout=subprocess.DEVNULL)
        picture = pathlib.Path(folder) / f"continue-{length}-bytes.svg"
        (RESULTS / f"{own_board(options.model).page}.svg").write_text(
            picture.read_text(encoding="utf-8"), encoding="utf-8")


HEADS = ["policy", "KL", "99%", "same top %", "bits", "kept", "seeds", "predictions"]


def board_rows(after, more):
    """By falling bits; `more`: of a policy the cells behind its own."""
    rows = []
    for policy in sorted(after, key=lambda policy: -after[policy]["bits"]):
        row = after[policy]
        rows.append([label(policy), with_error(row["kl"]), number(row["kl_99"], 2),
                     f"{100 * row['same_top'][0]:.1f}", f"{row['bits']:.2f}",
                     f"{100 * row['kept']:.0f}%", str(row["seeds"]), str(row["count"]),
                     *more(policy)])
    return rows


def other_tables(board, length):
    """Of lengths with fewer policies, and of texts read a token at a time."""
    lines = []
    for _, mode, other in sorted(at for at in board.rows if at[0] == "ppl"):
        if (mode, other) == ("continue", length):
            continue
        null = board.heads["ppl", mode, other].get("null_control_kl", MISSING)
        lines += ["", f"## {other} tokens" + OTHER[mode], "", f"Null control {null}.", ""]
        rows = board.ppl(mode, other)
        if mode == "decode":
            heads, more = [*HEADS, "PPL"], lambda policy, rows=rows: [
                f"{rows[policy]['perplexity'][0]:.2f}"]
        else:
            heads, more = HEADS, lambda _: []
        lines += table(heads, board_rows(rows, more))
    return lines


ALONE = ["## Tasks without policies", "",
         "The exact cache solves less than half of these, so they say nothing about policies.", ""]
OTHER = {"continue": "", "decode": ", one at a time", "chunks": ", at once"}


def page(text):
    board = Scoreboard(text.splitlines(), LEAST)
    if not board.lengths:
        sys.exit("results: no divergence was measured yet")
    length = longest_table(board)
    task_length = max((at[2] for at in board.rows if at[0] == "task"), default=0)
    head = board.heads["ppl", "continue", length]
    null = head.get("null_control_kl", MISSING)
    setting = head["setting"]
    rows = board.ppl("continue", length)
    tasks = {name: board.task(name, task_length) for name in TASK_COLUMNS}
    asked = {name: found for name, found in tasks.items() if len(found) > 1 and solved(found)}
    lines = [f"Model `{setting['model']}`, {length} tokens per piece, text {setting['text_fingerprint']}.",
             f"Tasks have {task_length} tokens. Null control: {null}.", "",
             *table(HEADS + [f"{name} %" for name in asked],
                    board_rows(rows, lambda policy: [score_of(found, policy)
                                                     for found in asked.values()])),
             *other_tables(board, length)]
    if alone := exact_alone(board):
        lines += ["", *ALONE, *alone]
    return "\n".join(lines) + "\n"


# The most bits a number that a user may spend, and what they are of f16's 16.
BUDGETS = (9, 5, 4, 2.5, 2, 1.25, 0.8)
FINDS = 0.85  # of what the exact cache finds, in both single-fact tasks: 7 of 8 samples


def finds_facts(tasks, policy):
    return all(policy in rows and rows[policy]["score"][0] >= FINDS * rows["exact"]["score"][0]
               for rows in tasks)


def best(rows, bits, allowed):
    """The policy of least divergence within `bits`."""
    fitting = [policy for policy in rows
               if rows[policy]["bits"] <= bits and allowed(policy) and not tuned(policy)]
    return min(fitting, key=lambda policy: rows[policy]["kl"][0], default=None)


def advice(text):
    """A table: bits, then the policy of least divergence, and that among those that find facts."""
    board = Scoreboard(text.splitlines(), LEAST)
    length = longest_table(board)
    task_length = max(at[2] for at in board.rows if at[0] == "task")
    rows = board.ppl("continue", length)
    singles = [board.task(name, task_length) for name in ("niah_single_1", "passkey")]
    lines = []
    for bits in BUDGETS:
        cells = []
        for allowed in (lambda _: True, lambda policy: finds_facts(singles, policy)):
            policy = best(rows, bits, allowed)
            cells.append(MISSING if policy is None else
                         f"`{policy}`: KL {number(rows[policy]['kl'][0])}, "
                         f"{rows[policy]['bits']:.2f} bits, "
                         f"{', '.join(score(task, policy) for task in singles)} %")
        lines.append([f"{bits:g} ({100 * bits / 16:.0f}%)", *cells])
    return "\n".join(table(["bits per number, of f16's 16", "continue the text",
                            "facts that nobody asked for yet"], lines)) + "\n"


def write_page(options):
    lines, own = published(lines_of(options)), own_board(options.model)
    text = page(lines)
    if not options.write:
        print(text, *([advice(lines)] if own.advises else []), sep="\n")
        return
    if options.split != "report":
        sys.exit("results: only --split report is published")
    if not own.head:
        sys.exit(f"results: {options.model} has no page; those that have: {', '.join(BOARDS)}")
    (RESULTS / f"{own.page}.md").write_text(own.head + text, encoding="utf-8")
    (RESULTS / f"{own.page}.jsonl").write_text(lines, encoding="utf-8")
    if f"{own.page}.svg" in own.head:
        plot(options, lines)
    if not own.advises:
        return
    before, rest = GUIDE.read_text(encoding="utf-8").split(BEGIN)
    after = rest.split(END)[1]
    GUIDE.write_text(before + BEGIN + "\n\n" + advice(lines) + "\n" + END + after,
                     encoding="utf-8")
