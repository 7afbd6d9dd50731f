#!/usr/bin/env python3
"""Asks a model five questions about a report of about 6,000 tokens, under the exact cache and under a small one,
and prints both side by side: answers, bytes, and how many answers hold the fact. What `make chat` runs.

    tools/chat.py                          # Qwen2.5 Coder 0.5B, exact and a tenth of its memory
    tools/chat.py --kv half --seed 2       # half of it

The report is made up (tools/chat/report.txt), so that no model knows it. auto chooses the policy; none was chosen on
this report. The model has to be there: build/bin/pith pull qwen2.5-coder-0.5b.
"""

import argparse
import json
import os
import subprocess
import sys
import textwrap

REPO = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
REPORT = os.path.join(REPO, "tools", "chat", "report.txt")
# A question, and what the right answer holds.
QUESTIONS = [
    ("Which vessel was retired in October?", "cormorant"),
    ("How much did the new depot at Marlow Quay cost?", "41.7 million"),
    ("Who was appointed chief engineer in May?", "solheim"),
    ("How many passengers did the company carry?", "2,318,000"),
    ("Where will the training school for young deckhands open?", "tarnholm"),
]


def ask(args):
    command = [args.program, "ask", REPORT, "-m", args.model, "--compare", "-n", "48", "--json",
               "--kv-seed", str(args.seed)]
    command += ["--kv-policy", args.policy] if args.policy else ["--kv", args.kv]
    for question, _ in QUESTIONS:
        command += ["-q", question]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=False)
    if done.returncode != 0:
        sys.exit(done.returncode)
    return json.loads(done.stdout)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", maxsplit=1)[0])
    parser.add_argument("--model", default="qwen2.5-coder-0.5b")
    parser.add_argument("--kv", default="tenth", help="memory of the small cache: half, quarter, tenth, 17%%, 16MiB")
    parser.add_argument("--policy", help="its policy instead of auto's")
    parser.add_argument("--seed", type=int, default=0, help="of the small cache's draws")
    parser.add_argument("--program", default=os.path.join(REPO, "build", "bin", "pith"))
    args = parser.parse_args()
    print(f"A made-up annual report (tools/chat/report.txt), five questions, {args.model}.\n", flush=True)
    said = ask(args)
    small, exact = said["policies"]
    right = [0, 0]
    row("", f"exact, {exact['bytes'] / 2**20:.1f} MiB", f"compressed, {small['bytes'] / 2**20:.1f} MiB")
    for (question, fact), answer in zip(QUESTIONS, said["answers"]):
        print(f"\n> {question}")
        cells = []
        for i, text in enumerate((answer["exact"], answer["answer"])):
            found = fact in text.lower()
            right[i] += found
            cells.append(("right: " if found else "WRONG: ") + " ".join(text.split()))
        row("", *cells)
    print()
    row("right", *(f"{n} of {len(QUESTIONS)}" for n in right))
    row("cache", *(f"{p['bytes'] / 2**20:.1f} MiB for {p['tokens']} tokens, {p['bits']:.2f} bits a number"
                   for p in (exact, small)))
    if args.policy:
        print(f"\nThe small cache's policy: {small['policy']}")


def row(label, *cells):
    wrapped = [textwrap.wrap(cell, 34) or [""] for cell in cells]
    for i in range(max(map(len, wrapped))):
        first, second = (w[i] if i < len(w) else "" for w in wrapped)
        print(f"{label if i == 0 else '':7}{first:36}{second}".rstrip())


if __name__ == "__main__":
    main()
