#!/usr/bin/env python3
"""Fidelity on a real model: divergence, retrieval and bits of a list of policies; one scoreboard.

usage: results_fidelity.py measure --split choose|report --text FILE [--not-in FILE] [--device cuda]
                                   [--policies FILE] [--model NAME] [--work FOLDER] [...]
       results_fidelity.py page --split choose|report [--model NAME] [--also LINES] [--work FOLDER]
                                [--write]

Held out: what is chosen is chosen with `--split choose`, and only `--split report` is published. The
splits have work folders and task seeds of their own, and `report` wants the text that was used for
choosing as --not-in: a paragraph that is in both is refused. `page --write` takes `report` alone.

measure: KL from exact over --score predictions in each of --pieces pieces (`pith eval ppl`), then
the tasks (`pith eval tasks`): the runs of the model's board (results_fidelity_boards.py), or one run
with the policies of --policies; what the command line says goes before either. Finished work stays in
the work folder and is not repeated: the same command continues where it stopped. With --jobs N policies
are spread over N commands at a time, always the same policies on the same one. What this build or
device refuses is said at the end and left out. Needs build/bin/pith (or --program), and no packages.

page --also: lines of `pith report --lines`, such as the published ones, whose policies stay in the page
where the work folder has not measured them.
"""

import argparse
import concurrent.futures
import dataclasses
import json
import pathlib
import subprocess
import sys
import zlib

import results_fidelity_policies
from results_fidelity_boards import TASKS, Run, own_board
from results_fidelity_page import lines_of, page, write_page

ROOT = pathlib.Path(__file__).resolve().parent.parent
# Samples of a split never meet those of the other.
TASK_SEEDS = {"choose": 1001, "report": 42}
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
    """Carries out a run by `pith eval`; each job and kind of result has a file in the work folder of
    the split."""

    def __init__(self, options, run):
        self.options, self.plan = options, run
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

    def ppl(self, job, chosen):
        run = self.plan
        pieces = ["--score", run.score, "--pieces", run.pieces] if run.mode == "continue" else []
        self.run(["ppl", *self.common(), "-f", self.options.text, "--mode", run.mode,
                  "-c", run.length, *pieces, "--seeds", run.seeds,
                  "-o", self.work / f"ppl-{job}.jsonl"], chosen)

    def tasks(self, job, chosen):
        run = self.plan
        for samples in sorted(set(run.tasks.values())):
            names = ",".join(name for name, count in run.tasks.items() if count == samples)
            self.run(["tasks", *self.common(), "--task", names, "-c", run.task_length,
                      "--samples", samples, "--turns", 4, "--seeds", run.task_seeds,
                      "--task-seed", TASK_SEEDS[self.options.split],
                      "-o", self.work / f"tasks-{job}.jsonl"], chosen)

    def job(self, number, chosen):
        for first in range(0, len(chosen), self.options.batch):
            some = chosen[first:first + self.options.batch]
            if self.plan.pieces > 0:
                self.ppl(number, some)
            some = [policy for policy in some if policy not in self.refused]
            if some and self.plan.tasks:
                self.tasks(number, some)

    def all(self):
        jobs = [[] for _ in range(self.options.jobs)]
        for policy in self.plan.policies:
            jobs[zlib.crc32(policy.encode()) % len(jobs)].append(policy)
        with concurrent.futures.ThreadPoolExecutor(len(jobs)) as pool:
            for done in [pool.submit(self.job, number, some) for number, some in enumerate(jobs)]:
                done.result()
        kept = self.work / "refused.json"
        before = json.loads(kept.read_text(encoding="utf-8")) if kept.exists() else {}
        kept.write_text(json.dumps({**before, **self.refused}, indent=1), encoding="utf-8")


def runs(options):
    """Those of the command line's policies, or of the model's board."""
    said = {field.name: value for field in dataclasses.fields(Run) if field.name != "policies"
            and (value := getattr(options, field.name)) is not None}
    if options.policies:
        return [Run(results_fidelity_policies.read(options.policies), **said)]
    return [dataclasses.replace(run, **said) for run in own_board(options.model).runs]


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
    parser.add_argument("--policies", help="one per line; # begins a remark; without: the model's board")
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--device", default="", help="cuda: what it refuses is left out")
    parser.add_argument("--mode", choices=["continue", "decode"])
    parser.add_argument("--length", type=int, help="tokens a piece")
    parser.add_argument("--pieces", type=int, help="0: tasks alone")
    parser.add_argument("--score", type=int, help="predictions in each")
    parser.add_argument("--seeds", type=int)
    parser.add_argument("--tasks", type=parse_tasks, metavar="NAME[=SAMPLES],...", help="or none")
    parser.add_argument("--task-length", type=int)
    parser.add_argument("--task-seeds", type=int)
    parser.add_argument("--batch", type=int, default=6,
                        help="policies per command: what is killed loses at most a piece of them")
    parser.add_argument("--jobs", type=int, default=1, help="commands at a time")
    parser.add_argument("--threads", type=int, default=0, help="of each; 0 = all cores")
    parser.add_argument("--work", help="build/ and the page's name, if not given")
    parser.add_argument("--program", default=ROOT / "build/bin/pith")
    parser.add_argument("--also", help="page: lines of policies that are not in the work folder")
    parser.add_argument("--write", action="store_true", help="page: into docs/results")
    options = parser.parse_args()
    options.program = pathlib.Path(options.program).resolve()
    options.work = options.work or ROOT / "build" / own_board(options.model).page
    if options.what == "page":
        write_page(options)
        return
    if not options.text:
        sys.exit("results: measure wants --text FILE")
    options.text = pathlib.Path(options.text).resolve()
    check_held_out(options)
    plan = runs(options)
    for run in plan:
        Measure(options, run).all()
    if any(run.mode == "continue" and run.pieces > 0 for run in plan):
        print(page(lines_of(options)))


if __name__ == "__main__":
    main()
