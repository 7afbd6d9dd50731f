#!/usr/bin/env python3
"""Fidelity on a real model: divergence, retrieval and bits of a list of policies; one scoreboard.

usage: results_fidelity.py measure --split choose|report --text FILE [--not-in FILE] [--device cuda]
                                   [--policies FILE] [--model NAME] [--work FOLDER] [...]
       results_fidelity.py page --split choose|report [--also LINES] [--work FOLDER] [--write]

Held out: what is chosen is chosen with `--split choose`, and only `--split report` is published. The
splits have work folders and task seeds of their own, and `report` wants the text that was used for
choosing as --not-in: a paragraph that is in both is refused. `page --write` takes `report` alone.

measure: KL from exact over --score predictions in each of --pieces pieces (`pith eval ppl`), then
the tasks (`pith eval tasks`). Finished work stays in the work folder and is not repeated: the same
command goes on where it stopped. With --jobs N policies are spread over N commands at a time, always
the same policies on the same one. What this build or device refuses is said at the end and left out.
Needs build/bin/pith (or --program), and no packages.

page --also: lines of `pith report --lines`, such as the published ones, whose policies stay in the page
where the work folder has not measured them.
"""

import argparse
import concurrent.futures
import json
import pathlib
import subprocess
import sys
import tempfile
import zlib

import results_fidelity_policies
from results_lines import by_device, merged
from results_scoreboard_page import (LEAST, MISSING, MORE, Scoreboard, number, score, score_of,
                                     table, with_error)

ROOT = pathlib.Path(__file__).resolve().parent.parent
RESULTS = ROOT / "docs/results"
GUIDE = ROOT / "docs/which-policy.md"
BEGIN, END = "<!-- generated: begin -->", "<!-- generated: end -->"
# Samples of a split never meet those of the other.
TASK_SEEDS = {"choose": 1001, "report": 42}
# The task, and how many samples of it.
TASKS = {"niah_single_1": 8, "passkey": 8, "niah_multikey_2": 8, "vt": 8, "facts": 4}
REFUSALS = (10, 13)  # exit statuses of what this build or device does not do
SHARED_LENGTH = 200  # characters of a paragraph that says something of its text


def paragraphs(path):
    text = pathlib.Path(path).read_text(encoding="utf-8")
    return {line.strip() for line in text.splitlines() if len(line.strip()) >= SHARED_LENGTH}


def check_held_out(options):
    """The reported text shares nothing with the text that policies were chosen on."""
    if options.split != "report":
        return
    if not options.not_in:
        sys.exit("results: --split report wants --not-in FILE, the text that policies were chosen on")
    shared = paragraphs(options.text) & paragraphs(options.not_in)
    if shared:
        sys.exit(f"results: {len(shared)} paragraphs of {options.text} are in {options.not_in} too; "
                 "report on a text that nothing was chosen on")


class Measure:
    """Runs `pith eval`; each job and kind of result has a file in the work folder of the split."""

    def __init__(self, options):
        self.options = options
        self.work = pathlib.Path(options.work) / options.split
        self.work.mkdir(parents=True, exist_ok=True)
        self.refused = {}

    def run(self, arguments, chosen):
        """Runs the policies; where one cannot be, each is tried alone."""
        command = [str(self.options.program), "eval", *map(str, arguments), "--json"]
        for policy in chosen:
            command += ["--kv-policy", policy]
        done = subprocess.run(command, capture_output=True, check=False, text=True, cwd=ROOT)
        if done.returncode == 0:
            print("done:", arguments[0], *chosen, file=sys.stderr, flush=True)
        elif done.returncode not in REFUSALS:
            sys.exit(f"results: pith {' '.join(command[1:5])} ended with {done.returncode}: "
                     f"{done.stderr.strip()}")
        elif len(chosen) > 1:
            for policy in chosen:
                self.run(arguments, [policy])
        else:
            self.refused[chosen[0]] = done.stderr.strip().splitlines()[-1]
            print("refused:", chosen[0], self.refused[chosen[0]], file=sys.stderr, flush=True)

    def common(self):
        o = self.options
        device = ["--device", o.device] if o.device else []
        return ["-m", o.model, "-t", o.threads, *device]

    def ppl(self, job, chosen, seeds):
        o = self.options
        self.run(["ppl", *self.common(), "-f", o.text, "--mode", "continue", "-c", o.length,
                  "--score", o.score, "--pieces", o.pieces, "--seeds", seeds,
                  "-o", self.work / f"ppl-{job}.jsonl"], chosen)

    def tasks(self, job, chosen, seeds):
        o = self.options
        for samples in sorted(set(o.tasks.values())):
            names = ",".join(name for name, count in o.tasks.items() if count == samples)
            self.run(["tasks", *self.common(), "--task", names, "-c", o.task_length,
                      "--samples", samples, "--turns", 4, "--seeds", seeds,
                      "--task-seed", TASK_SEEDS[o.split],
                      "-o", self.work / f"tasks-{job}.jsonl"], chosen)

    def job(self, number, chosen):
        for first in range(0, len(chosen), self.options.batch):
            some = chosen[first:first + self.options.batch]
            if self.options.pieces > 0:
                self.ppl(number, some, self.options.seeds)
            some = [policy for policy in some if policy not in self.refused]
            if some and self.options.tasks:
                self.tasks(number, some, self.options.task_seeds)

    def all(self, chosen):
        jobs = [[] for _ in range(self.options.jobs)]
        for policy in chosen:
            jobs[zlib.crc32(policy.encode()) % len(jobs)].append(policy)
        with concurrent.futures.ThreadPoolExecutor(len(jobs)) as pool:
            for done in [pool.submit(self.job, number, some) for number, some in enumerate(jobs)]:
                done.result()
        (self.work / "refused.json").write_text(json.dumps(self.refused, indent=1))


def lines_of(options):
    """What `pith report --lines` makes of a split's files."""
    work = pathlib.Path(options.work) / options.split
    files = sorted(work.glob("*-*.jsonl"))
    if not files:
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


def label(policy, row):
    """Tuned policies are long: they stand below the table."""
    return f"tuned, {row['bits']:.2f} bits" if tuned(policy) else f"`{policy}`"


def plot(options, text):
    """Divergence against bytes as docs/results/fidelity.svg."""
    board = Scoreboard(text.splitlines(), LEAST)
    length = max(board.lengths)
    rows = board.ppl("continue", length)
    lines = [json.loads(line) for line in text.splitlines()]
    lines = [line for line in lines if not tuned(line.get("policy", "")) or line["policy"] in rows]
    for line in lines:
        if tuned(line.get("policy", "")):
            line["policy"] = label(line["policy"], rows[line["policy"]])
    with tempfile.TemporaryDirectory() as folder:
        named = pathlib.Path(folder) / "lines.jsonl"
        named.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
        subprocess.run([options.program, "report", named, "--plots", folder,
                        "--out", named.with_suffix(".html")], check=True,
                       stdout=subprocess.DEVNULL)
        picture = pathlib.Path(folder) / f"continue-{length}-bytes.svg"
        (RESULTS / "fidelity.svg").write_text(picture.read_text(encoding="utf-8"),
                                              encoding="utf-8")


def board_rows(board, length, task_length):
    rows = []
    after = board.ppl("continue", length)
    tasks = {name: board.task(name, task_length) for name in TASK_COLUMNS}
    for policy in board.policies(length):
        row = after[policy]
        rows.append([label(policy, row), with_error(row["kl"]), number(row["kl_99"], 2),
                     f"{100 * row['same_top'][0]:.1f}", f"{row['bits']:.2f}",
                     f"{100 * row['kept']:.0f}%", str(row["seeds"]), str(row["count"]),
                     *(score_of(tasks[name], policy) for name in TASK_COLUMNS)])
    return rows


def page(options):
    board = Scoreboard(lines_of(options).splitlines(), LEAST)
    length = max(board.lengths)
    task_length = max((at[2] for at in board.rows if at[0] == "task"), default=0)
    head = board.heads["ppl", "continue", length]
    null = head.get("null_control_kl", MISSING)
    setting = head["setting"]
    lines = [f"Model `{setting['model']}`, {length} tokens a piece, text "
             f"{setting['text_fingerprint']}; tasks at {task_length} tokens; null control {null}.", "",
             *table(["policy", "KL", "99%", "same top %", "bits", "kept", "seeds", "predictions",
                     *(f"{name} %" for name in TASK_COLUMNS)],
                    board_rows(board, length, task_length))]
    rows = board.ppl("continue", length)
    own = [policy for policy in board.policies(length) if tuned(policy)]
    if own:
        lines += ["", TUNED]
    for policy in own:
        lines += ["", f"{label(policy, rows[policy])}:", "",
                  *("    " + part for part in policy.replace(";", ";\n").split("\n"))]
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


def with_more(rows, singles):
    """Lines with a sink, what a user gets: those of docs/results/fidelity_more.jsonl where the
    scoreboard has none."""
    rows = {policy: row for policy, row in rows.items() if "sink=0" not in policy}
    singles = [dict(task) for task in singles]
    for line in map(json.loads, MORE.read_text(encoding="utf-8").splitlines()):
        if line["policy"] in rows:
            continue
        rows[line["policy"]] = line
        for task, found in zip(singles, (line["needle"], line["passkey"])):
            task[line["policy"]] = {"score": [found]}
    return rows, singles


def advice(options):
    """A table: bits, then the policy of least divergence, and that among those that find facts."""
    board = Scoreboard(lines_of(options).splitlines(), LEAST)
    length = max(board.lengths)
    task_length = max(at[2] for at in board.rows if at[0] == "task")
    rows = board.ppl("continue", length)
    singles = [board.task(name, task_length) for name in ("niah_single_1", "passkey")]
    rows, singles = with_more(rows, singles)
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
    return "\n".join(table(["bits a number, of f16", "what was read goes on",
                            "facts nobody has asked for yet"], lines)) + "\n"


TUNED = """Tuned: each layer or KV head has the form that its loss on the text of the choices is worth
([0200](../decisions/0200-heads-of-their-own-forms.md)). These are for this model alone, in one line each:"""

HEAD = """# Fidelity on a real model

Policies on SmolLM2-135M-Instruct, measured on a text and with task seeds that nothing was chosen on
([the rule](../evaluation.md#held-out)). KL from the exact cache in nats a token, mean over seeds
with their deviation, or the standard error of one; bits a number of the cache, everything counted.
1024 predictions are 256 in each of 4 pieces; fewer are of the first pieces, of which the very first
is the easiest: compare lines of as many. `sink=0`: codecs keep their first 4 rows exact unless told
otherwise ([0227](../decisions/0227-first-rows-stay-exact-before-codes.md)), and these lines were
told. What those codecs lose as they come stands there; `fidelity_more.jsonl` has these figures for
[presets](../presets.md) and [which policy](../which-policy.md). Tasks are of 8 samples, or of as many
as stand in brackets. What all of it says of what was asked:
[0256](../decisions/0256-passkeys-at-few-bits.md), [0257](../decisions/0257-two-bits-that-find.md).
The figures as JSON lines: `fidelity.jsonl`, which `pith report` reads; `--also` keeps what is in them.

    tools/results_fidelity.py measure --split report --text essays.txt --not-in novels.txt --device cuda
    tools/results_fidelity.py page --split report --also docs/results/fidelity.jsonl --write

"""


def write_page(options):
    text = page(options)
    if not options.write:
        print(text, advice(options), sep="\n")
        return
    if options.split != "report":
        sys.exit("results: only --split report is published")
    (RESULTS / "fidelity.md").write_text(HEAD + text, encoding="utf-8")
    lines = lines_of(options)
    (RESULTS / "fidelity.jsonl").write_text(lines, encoding="utf-8")
    plot(options, lines)
    before, rest = GUIDE.read_text(encoding="utf-8").split(BEGIN)
    after = rest.split(END)[1]
    GUIDE.write_text(before + BEGIN + "\n\n" + advice(options) + "\n" + END + after,
                     encoding="utf-8")


def parse_tasks(text):
    """"niah_single_1,passkey" with the samples above, or "passkey=24", or "none"."""
    if text == "none":
        return {}
    pairs = [part.partition("=") for part in text.split(",")]
    return {name: int(count) if count else TASKS[name] for name, _, count in pairs}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=["measure", "page"])
    parser.add_argument("--split", choices=list(TASK_SEEDS), required=True)
    parser.add_argument("--text", help="prose of --pieces times --length tokens")
    parser.add_argument("--not-in", help="with --split report: the text that was chosen on")
    parser.add_argument("--policies", help="one a line; # begins a remark; without: the standing list")
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--device", default="", help="cuda: what it refuses is left out")
    parser.add_argument("--length", type=int, default=8000)
    parser.add_argument("--pieces", type=int, default=4, help="0: tasks alone")
    parser.add_argument("--score", type=int, default=256)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--tasks", type=parse_tasks, default=TASKS, metavar="NAME[=SAMPLES],...",
                        help="or none")
    parser.add_argument("--task-length", type=int, default=4096)
    parser.add_argument("--task-seeds", type=int, default=3)
    parser.add_argument("--batch", type=int, default=6,
                        help="policies a command: what is killed loses at most a piece of them")
    parser.add_argument("--jobs", type=int, default=1, help="commands at a time")
    parser.add_argument("--threads", type=int, default=0, help="of each; 0 = all cores")
    parser.add_argument("--work", default=ROOT / "build/fidelity")
    parser.add_argument("--program", default=ROOT / "build/bin/pith")
    parser.add_argument("--also", help="page: lines of policies that are not in the work folder")
    parser.add_argument("--write", action="store_true", help="page: into docs/results")
    options = parser.parse_args()
    options.program = pathlib.Path(options.program).resolve()
    if options.what == "page":
        write_page(options)
        return
    if not options.text:
        sys.exit("results: measure wants --text FILE")
    options.text = pathlib.Path(options.text).resolve()
    check_held_out(options)
    if options.policies:
        chosen = results_fidelity_policies.read(options.policies)
    else:
        chosen = results_fidelity_policies.STANDING
    Measure(options).all(chosen)
    print(page(options))


if __name__ == "__main__":
    main()
