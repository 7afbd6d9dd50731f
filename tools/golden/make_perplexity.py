#!/usr/bin/env python3
"""Perplexity of the demo model on the repository's LICENSE, by transformers in f32.

llama.cpp's protocol as docs/evaluation.md states it, counted here on its own: three pieces of 512 tokens,
the first token of each replaced by the begin token, predictions of tokens 257 .. 511 scored; and the
same text as one sequence of 256 tokens of which every prediction counts.
Needs torch, transformers and tokenizers (PyPI).

    python tools/golden/make_perplexity.py tests/data/eval/perplexity.json
"""

import json
import pathlib
import sys

import torch
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM

REPO = pathlib.Path(__file__).resolve().parent.parent.parent
MODEL = REPO / "models" / "demo"
WINDOW = 512
PIECES = 3


def nlls(model, ids):
    """-ln p of tokens 1 .. of `ids`."""
    with torch.no_grad():
        logits = model(torch.tensor([ids])).logits[0, :-1].double()
    return torch.nn.functional.cross_entropy(logits, torch.tensor(ids[1:]), reduction="none")


def main():
    model = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32).eval()
    tokenizer = Tokenizer.from_file(str(MODEL / "tokenizer.json"))
    text = (REPO / "LICENSE").read_text()
    begin = tokenizer.token_to_id("<|begin|>")
    ids = [begin] + tokenizer.encode(text, add_special_tokens=False).ids
    scored = []
    for start in range(0, PIECES * WINDOW, WINDOW):
        piece = [begin] + ids[start + 1:start + WINDOW]
        scored.append(nlls(model, piece)[WINDOW // 2:])
    chunks = torch.cat(scored)
    decode = nlls(model, ids[:256])
    golden = {"window": WINDOW, "tokens": len(ids), "count": len(chunks),
              "chunks": float(chunks.mean().exp()),
              "chunks_error": float(chunks.mean().exp() *
                                    (chunks.var(unbiased=False) / (len(chunks) - 1)).sqrt()),
              "decode_256": float(decode.mean().exp())}
    out = pathlib.Path(sys.argv[1])
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(golden, indent=1) + "\n")


if __name__ == "__main__":
    main()
