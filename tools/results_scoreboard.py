#!/usr/bin/env python3
"""Measures and writes docs/results/scoreboard.{md,jsonl} and build/report.html.

usage: results_scoreboard.py --text FILE [--model FOLDER] [--work FOLDER] [--program FILE] [--write]

Every policy at 2K and 8K tokens: perplexity a token at a time, divergence from the exact cache after
a prompt, retrieval tasks, and each layer's attention error. Randomised policies run with 3 seeds.
Finished work stays in the work folder and is not repeated. Without --write nothing is written but
that. Needs build/bin/pith, and no packages. About 40 minutes on two quiet cores.
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys

import results_scoreboard_page

ROOT = pathlib.Path(__file__).resolve().parent.parent
SEEDS = 3
BATCH = 8  # policies a command: what is killed loses at most a piece of them
# Tokens, then pieces of text after a prompt and predictions that count in each.
CONTINUE = {2048: (3, 256), 8192: (1, 256)}
# Samples of each task. Tasks that the exact cache does not solve say nothing of policies: they run
# with it alone, and the page says so.
FACTS = {2048: 3, 8192: 1}
MORE_TASKS = {"multi_turn": 2, "kv": 8, "docqa": 8}
EXACT_ONLY = {"niah_single_1": 4, "niah_multikey_2": 4, "niah_multikey_3": 4, "vt": 4, "fwe": 4,
              "passkey": 4}

CODECS = ["int8", "int4", "int4(hadamard=true)", "kivi(bits=4)", "kivi(bits=2)",
          "turboquant(bits=2,center=128)", "turboquant(bits=3,center=128)"]
RANDOM_CODECS = ["qjl", "qjl(paper=true)", "qjl(paper=true,m=256)", "csr(s=2)", "csr(s=4)", "csr(s=8)", "gear(bits=2)",
                 "kvquant(bits=3)"]
DICTIONARY = "csr.safetensors"  # trained for one model, and beside it
# At 25% every selector, at 50% and 12.5% those that are not far from the best.
SELECTORS = ["h2o(budget={})", "tova(budget={})", "snapkv(budget={})", "pyramidkv(budget={})",
             "keydiff(budget={})", "knorm(budget={})", "expected_attention(budget={})",
             "buzz(T={})", "streaming_llm(window={})"]
RANDOM_SELECTORS = ["uniform(budget={})", "express(heavy=0,s={})", "balancekv(heavy=0,rate={rate})"]
EVERY_SHARE = ("snapkv", "keydiff", "expected_attention", "buzz", "streaming_llm", "express",
               "balancekv")
COMPOSED = [f"{selector}({size}={share})+{codec}" for selector, size, share, codec in (
    ("snapkv", "budget", "50%", "int4(hadamard=true)"),
    ("snapkv", "budget", "25%", "int4(hadamard=true)"),
    ("snapkv", "budget", "12.5%", "int4(hadamard=true)"),
    ("snapkv", "budget", "50%", "kivi(bits=2)"),
    ("expected_attention", "budget", "25%", "int4(hadamard=true)"),
    ("keydiff", "budget", "25%", "int4(hadamard=true)"),
    ("buzz", "T", "50%", "int4(hadamard=true)"))]
RANDOM_COMPOSED = ["express(heavy=0,s=25%)+int4(hadamard=true)",
                   "balancekv(heavy=0,rate=0.25)+int4(hadamard=true)"]


def policies(model):
    """Policies without and with random numbers."""
    plain = ["exact"] + [f"exact+{codec}" for codec in CODECS]
    random = [f"exact+{codec}" for codec in RANDOM_CODECS]
    if (model / DICTIONARY).exists():
        trained = os.path.relpath(model / DICTIONARY, ROOT)
        plain += [f"exact+csr(s={s},online=0,dict={trained})" for s in (2, 4, 8)]
    for share in ("25%", "50%", "12.5%"):
        for chosen, texts in ((plain, SELECTORS), (random, RANDOM_SELECTORS)):
            chosen += [text.format(share, rate=float(share[:-1]) / 100) for text in texts
                       if share == "25%" or text.startswith(EVERY_SHARE)]
    return plain + COMPOSED, random + RANDOM_COMPOSED


def one_a_method(chosen):
    """What perplexity a token at a time is measured for: 25% where there is a budget."""
    others = ("=50%", "=12.5%", "rate=0.5", "rate=0.125")
    return [p for p in chosen if not any(other in p for other in others)]


class Measure:
    """Runs `pith eval` and `pith probe`; each kind of result has a file in the work folder."""

    def __init__(self, options):
        self.options = options
        self.work = pathlib.Path(options.work)
        self.work.mkdir(parents=True, exist_ok=True)

    def run(self, *arguments):
        command = [self.options.program, *map(str, arguments)]
        print("+", " ".join(map(str, arguments[:10])), "...", file=sys.stderr, flush=True)
        done = subprocess.run(command, stdout=subprocess.PIPE, check=False, text=True, cwd=ROOT)
        if done.returncode != 0:
            sys.exit(f"results: pith {arguments[0]} {arguments[1]} ended with {done.returncode}")
        return done.stdout

    def ppl(self, mode, length, chosen, seeds, *more):
        self.run("eval", "ppl", "-m", self.options.model, "-f", self.options.text, "--mode", mode,
                 "-c", length, "--seeds", seeds, *more, *given(chosen),
                 "-o", self.work / "ppl.jsonl", "--json")

    def tasks(self, task, samples, length, chosen, seeds):
        self.run("eval", "tasks", "-m", self.options.model, "--task", task, "-c", length,
                 "--samples", samples, "--seeds", seeds, *given(chosen),
                 "-o", self.work / "tasks.jsonl", "--json")

    def probe(self, length, chosen):
        target = self.work / f"probe_{length}.json"
        if target.exists() and [p["policy"] for p in json.loads(target.read_text())["policies"]] \
                == chosen:
            return
        target.write_text(self.run("probe", "-m", self.options.model, "-f", self.options.text,
                                   "-c", length, "--seeds", SEEDS, "--json", *given(chosen)))

    def each(self, measure, chosen=lambda policies: policies):
        """Calls measure(policies, seeds) for batches without and with random numbers."""
        plain, random = policies(self.options.model)
        for some, seeds in ((chosen(plain), 1), (chosen(random), SEEDS)):
            size = BATCH if seeds == 1 else BATCH // 2
            for first in range(0, len(some), size):
                measure(some[first:first + size], seeds)

    def all(self):
        """Short things first, so that what was interrupted is worth a look."""
        for length, (pieces, score) in CONTINUE.items():
            self.each(lambda some, seeds, c=length, p=pieces, s=score: self.ppl(
                "continue", c, some, seeds, "--pieces", p, "--score", s))
            self.each(lambda some, seeds, c=length: self.tasks("facts", FACTS[c], c, some, seeds))
            self.probe(length, sum(policies(self.options.model), []))
        self.each(lambda some, seeds: self.ppl("decode", 2048, some, seeds), one_a_method)
        for task, samples in MORE_TASKS.items():
            self.each(lambda some, seeds, t=task, n=samples: self.tasks(t, n, 2048, some, seeds),
                      one_a_method)
        for length in CONTINUE:
            for task, samples in EXACT_ONLY.items():
                self.tasks(task, samples, length, ["exact"], 1)
        self.each(lambda some, seeds: self.ppl("decode", 8192, some, seeds), one_a_method)


def given(chosen):
    return [part for policy in chosen for part in ("--kv-policy", policy)]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--text", required=True, help="prose that the model was not trained on")
    parser.add_argument("--model", default=ROOT / "models/demo")
    parser.add_argument("--work", default=ROOT / "build/scoreboard")
    parser.add_argument("--program", default=ROOT / "build/bin/pith")
    parser.add_argument("--write", action="store_true", help="write docs/results")
    parser.add_argument("--measured", action="store_true",
                        help="measure nothing: write what the work folder has")
    options = parser.parse_args()
    options.text = pathlib.Path(options.text).resolve()
    options.program = pathlib.Path(options.program).resolve()
    options.model = pathlib.Path(options.model).resolve()
    if not options.measured:
        Measure(options).all()
    if options.write:
        results_scoreboard_page.write(
            options.program, pathlib.Path(options.work),
            f"tools/results_scoreboard.py --text {options.text.name} --write",
            sum(policies(options.model), []))


if __name__ == "__main__":
    main()
