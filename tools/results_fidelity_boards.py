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

Policies on SmolLM2-135M-Instruct, on a text and task seeds that nothing was chosen on
([the rule](../evaluation.md#held-out)). Another model ranks them otherwise: [Gemma 3](fidelity_gemma3.md).

- KL: nats per token from the exact cache, mean over seeds, with their deviation or the standard error of one.
- Bits: per number of the cache, everything counted.
- 1024 predictions are 256 in each of 4 pieces. Fewer are of the first pieces, and the first is the easiest: compare
  lines with as many.
- Tasks: 8 samples, or as many as stand in brackets.
- Codecs keep their first 4 rows exact ([0227](../decisions/0227-first-rows-stay-exact.md)).
- Tuned: each layer or KV head has a form of its own ([0200](../decisions/0200-heads-of-their-own-forms.md)), for this
  model alone. The first form is shown; the whole policies are in the figures, `fidelity.jsonl`.

The commands below make this page. `pith report` reads the figures, and `--also` keeps them.

    tools/results_fidelity.py measure --split report --text essays.txt --not-in novels.txt --device cuda
    tools/results_fidelity.py page --split report --also docs/results/fidelity.jsonl --write

""")

# Those of TASKS that the exact cache of Gemma solves; the others it is asked alone.
SOLVED = {"niah_single_1": 8, "passkey": 8}
GEMMA3 = Board(page="fidelity_gemma3", head="""# Fidelity on Gemma 3

Policies on Gemma 3 270M, the base model (`pith pull gemma3-270m`, Q4_K_M), on a CPU. Text, task seeds and columns are
those of [SmolLM2](fidelity.md). [0264](../decisions/0264-how-fidelity-is-measured.md) says what follows.

15 of the 18 layers slide over a window of 512 tokens, and the exact cache forgets what they hide.

- Bits are of a cache that forgets nothing, as everywhere. So exact has 3.6 of 16 at 8000 tokens; 2.7 of them are the
  three other layers'.
- A selector's share is of these three layers. Sliding layers are exact under it, over the codec that it names. At 2000
  tokens this is so under balancekv alone: for others a quarter is fewer rows than exact holds there.
- Hidden rows leave 256 at a time. So the bits of two lines differ by up to 0.4 at 8000 tokens.
- 512 predictions are 256 in each of two pieces. Tasks have 8 samples.

The commands below make this page from its figures, `fidelity_gemma3.jsonl`.

    tools/results_fidelity.py measure --model gemma3-270m --split report --text essays.txt --not-in novels.txt
    tools/results_fidelity.py page --model gemma3-270m --split report --also docs/results/fidelity_gemma3.jsonl --write

![divergence against bytes on Gemma 3](fidelity_gemma3.svg)

Numbered: policies that no other beats in both, by rising bytes.

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
