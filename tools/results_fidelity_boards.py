"""The scoreboards of real models: what is measured of each, and the page that says it."""

import dataclasses
import pathlib

from results_fidelity_policies import (SHORT, SHORT_DECODED, SHORT_LONG, SHORT_RANDOM,
                                       STANDING)

# The task, and how many samples of it.
TASKS = {"niah_single_1": 8, "passkey": 8, "niah_multikey_2": 8, "vt": 8, "facts": 4}


@dataclasses.dataclass(frozen=True)
class Run:
    """Some policies and how they are measured; what a command line says goes before it."""
    policies: list = dataclasses.field(default_factory=lambda: STANDING)
    mode: str = "continue"
    length: int = 8000
    pieces: int = 4  # 0: tasks alone
    score: int = 256
    seeds: int = 3
    tasks: dict = dataclasses.field(default_factory=lambda: TASKS)
    task_length: int = 4096
    task_seeds: int = 3


@dataclasses.dataclass(frozen=True)
class Board:
    page: str  # of docs/results, and of build/ for what is measured
    head: str
    runs: list = dataclasses.field(default_factory=lambda: [Run()])
    advises: bool = False  # its figures are the table of docs/which-policy.md


SMOLLM2 = Board(page="fidelity", advises=True, head="""# Fidelity on a real model

Policies on SmolLM2-135M-Instruct, measured on a text and with task seeds that nothing was chosen on
([the rule](../evaluation.md#held-out)). KL from the exact cache in nats a token, mean over seeds
with their deviation, or the standard error of one; bits a number of the cache, everything counted.
1024 predictions are 256 in each of 4 pieces; fewer are of the first pieces, of which the very first
is the easiest: compare lines of as many. Codecs keep their first 4 rows exact
([0227](../decisions/0227-first-rows-stay-exact.md) has what they lose without). Tasks are
of 8 samples, or of as many as stand in brackets. What all of it says of what was asked:
[0200](../decisions/0200-heads-of-their-own-forms.md).
The figures as JSON lines: `fidelity.jsonl`, which `pith report` reads; `--also` keeps what is in them.
Another model ranks them otherwise: [Gemma 3](fidelity_gemma3.md).

    tools/results_fidelity.py measure --split report --text essays.txt --not-in novels.txt --device cuda
    tools/results_fidelity.py page --split report --also docs/results/fidelity.jsonl --write

""")

# What the exact cache of Gemma solves of TASKS; the others it is asked alone.
SOLVED = {"niah_single_1": 8, "passkey": 8}
GEMMA3 = Board(page="fidelity_gemma3", head="""# Fidelity on Gemma 3

Policies on Gemma 3 270M, the base model (`pith pull gemma3-270m`, Q4_K_M), measured as on
[SmolLM2](fidelity.md), by the same text and task seeds, that nothing was chosen on
([the rule](../evaluation.md#held-out)), on a CPU. KL from the exact cache in nats a token, mean over
seeds with their deviation, or the standard error of one. What it says, and what was not measured:
[0264](../decisions/0264-how-fidelity-is-measured.md).

15 of the 18 layers slide over a window of 512 tokens, and the exact cache forgets what they hide. Bits
are of a cache that forgets nothing, as everywhere: exact has 3.6 of 16 at 8000 tokens, 2.7 of them
those of the three other layers. A selector's share is of these three; sliding layers are exact ones
under it, over the codec that it names (at 2000 tokens under balancekv alone: for others a quarter is
fewer rows than exact holds there). Hidden rows leave 256 at a time: bits of two lines differ by up to
0.4 at 8000 tokens for where in that count the last token stood.

    tools/results_fidelity.py measure --model gemma3-270m --split report --text essays.txt --not-in novels.txt
    tools/results_fidelity.py page --model gemma3-270m --split report --also docs/results/fidelity_gemma3.jsonl --write

Figures: `fidelity_gemma3.jsonl`. 512 predictions are 256 in each of two pieces. Tasks are of 8 samples.

![divergence against bytes on Gemma 3](fidelity_gemma3.svg)

Numbered: what no other beats in both, by rising bytes.

""", runs=[
    Run(SHORT, pieces=2, seeds=1, tasks=SOLVED, task_seeds=1),
    Run(SHORT_RANDOM, pieces=2, tasks=SOLVED, task_seeds=1),
    Run(["exact"], pieces=0, tasks=TASKS | {"multi_turn": 4}, task_seeds=1),
    Run(SHORT_LONG, length=32000, pieces=1, score=64, seeds=1, tasks={}),
    Run(SHORT_DECODED, mode="decode", length=2000, seeds=1, tasks={})])

BOARDS = {"smollm2": SMOLLM2, "gemma3-270m": GEMMA3}


def own_board(model):
    """The model's; what has none is measured as SmolLM2 is, without a page."""
    return BOARDS.get(model, Board(page=pathlib.Path(model).stem, head=""))
