#!/usr/bin/env python3
"""Asks a real model about a long document under the exact cache and under a compressed one, and prints
both side by side: what each answers, what its cache holds and takes. What `make chat` runs.

    tools/chat.py                              # SmolLM2, a log of about 2600 tokens made here
    tools/chat.py --policy 'exact+kivi(bits=4)' --days 30

The model has to be there: build/bin/pith pull smollm2.
"""

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import textwrap

REPO = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
FACT = "The special magic number for the lighthouse is: 4837261."
QUESTION = "What is the special magic number for the lighthouse?"
WHO = ["the keeper", "the keeper's wife", "the boatman", "the young assistant", "the doctor from the village"]
DID = ["cleaned the windows", "mended the nets", "painted the north door", "counted the oil cans",
       "wrote a letter home", "repaired the stairs", "baked bread", "walked along the shore",
       "polished the brass", "checked the fog horn", "swept the yard", "fed the goats"]
SKY = ["The sea was calm.", "A light wind came from the west.", "Fog lay over the bay until noon.",
       "It rained all morning.", "Two sails passed at dusk.", "The tide was high.", "The night was clear."]


def log_of(days):
    """A lighthouse's log, the same for the same number of days."""
    rng = random.Random(1)
    lines = []
    for day in range(1, days + 1):
        line = f"Day {day}: {rng.choice(WHO)} {rng.choice(DID)} and {rng.choice(DID)}. {rng.choice(SKY)}"
        lines.append(line[0].upper() + line[1:] + (" " + FACT if day == days // 2 else ""))
    return "\n".join(lines)


def ask(program, model, prompt, policy):
    with tempfile.NamedTemporaryFile("w", suffix=".txt", encoding="utf-8") as file:
        file.write(prompt)
        file.flush()
        done = subprocess.run([program, "run", "-m", model, "--chat", "-f", file.name, "-n", "40", "--temp", "0",
                               "--kv-policy", policy, "--json"], stdout=subprocess.PIPE, check=False)
    if done.returncode != 0:
        sys.exit(done.returncode)
    return json.loads(done.stdout)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", maxsplit=1)[0])
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--policy", default="exact+int4(hadamard=true)")
    parser.add_argument("--days", type=int, default=100, help="length of the log; a day is about 25 tokens")
    parser.add_argument("--program", default=os.path.join(REPO, "build", "bin", "pith"))
    args = parser.parse_args()
    prompt = "A special magic number is hidden within the following text. Make sure to memorize it.\n\n"
    prompt += log_of(args.days) + "\n\n" + QUESTION
    print(f"A log of {args.days} days; on day {args.days // 2} it says: {FACT}\nQuestion: {QUESTION}\n", flush=True)
    columns = []
    for policy in ("exact", args.policy):
        said = ask(args.program, args.model, prompt, policy)
        columns.append([policy, said["text"].strip(), describe(said["ledger"])])
    for label, *cells in zip(("policy", "answer", "cache"), *columns):
        wrapped = [textwrap.wrap(cell, 42) or [""] for cell in cells]
        for i in range(max(map(len, wrapped))):
            row = [w[i] if i < len(w) else "" for w in wrapped]
            print(f"{label if i == 0 else '':8}{row[0]:44}{row[1]}".rstrip())


def describe(cache):
    share = 100 * cache["rows_kept"] / cache["rows_seen"]
    megabytes = cache["bytes"]["cache"] / 1e6
    return (f"{cache['rows_kept']} of {cache['rows_seen']} rows ({share:.0f}%), {megabytes:.1f} MB, "
            f"{cache['effective_bits']:.2f} bits a number")


if __name__ == "__main__":
    main()
