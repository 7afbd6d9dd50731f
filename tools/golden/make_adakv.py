#!/usr/bin/env python3
"""Rows that kvpress's AdaKV keeps, over several scores (tests/data/selectors/adakv.json).

The tensors are those of make_selectors.py, which must lie in the folder already. Needs torch,
transformers >= 5 and kvpress 0.5 (PyPI).

    python tools/golden/make_adakv.py tests/data/selectors
"""

import json
import pathlib
import sys

import torch
from kvpress import AdaKVPress, ExpectedAttentionPress, KeyDiffPress, KnormPress, SnapKVPress
from safetensors.torch import load_file

from make_selectors import SHAPES, Attention


def presses():
    """(score's policy name, press, window rows that always stay, sink rows)."""
    for kept in (0.625, 0.25):
        ratio = 1 - kept
        yield "knorm", KnormPress(ratio), 0, 0
        yield "keydiff", KeyDiffPress(ratio), 0, 0
        yield "expected_attention", ExpectedAttentionPress(ratio), 0, 4
        yield "snapkv", SnapKVPress(ratio, window_size=16, kernel_size=5), 16, 0
        yield "snapkv", SnapKVPress(ratio, window_size=8, kernel_size=5), 8, 0


def main(folder):
    folder = pathlib.Path(folder)
    torch.manual_seed(7)
    cases = []
    for name, (tokens, heads, kv_heads, dim) in SHAPES.items():
        # The queries before RoPE are not in the file: the same numbers are drawn again.
        q = torch.randn(1, heads, tokens, dim) + 0.3 * torch.randn(1, heads, 1, dim)
        k = torch.randn(1, kv_heads, tokens, dim) * 1.5 + torch.randn(1, kv_heads, 1, dim)
        v = torch.randn(1, kv_heads, tokens, dim) * (0.5 + torch.rand(1, kv_heads, tokens, 1))
        stored = load_file(folder / f"{name}.safetensors")
        assert torch.equal(stored["k"], k[0]) and torch.equal(stored["v"], v[0])
        hidden = q.transpose(1, 2).reshape(1, tokens, heads * dim)
        for policy, press, window, sink in presses():
            for safeguard in (0.0, 0.2, 0.8, 1.0):
                module = Attention(heads, kv_heads, dim, 0)
                module.config._attn_implementation = "sdpa"
                positions = module.rotary_emb(q, torch.arange(tokens)[None])
                ada = AdaKVPress(press, alpha_safeguard=safeguard)
                ada.compress(module, hidden, k, v, None, {"position_embeddings": positions})
                _, head, row = module.masked_key_indices
                gone = set(zip(head.tolist(), row.tolist()))
                kept = [[t for t in range(tokens) if (g, t) not in gone] for g in range(kv_heads)]
                cases.append({"tensors": name, "by": policy, "window": window, "sink": sink,
                              "mean_kept": round(tokens * (1 - press.compression_ratio)),
                              "safeguard": safeguard, "kept": kept})
    text = "[\n" + ",\n".join(json.dumps(c) for c in cases) + "\n]\n"
    (folder / "adakv.json").write_text(text)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(sys.argv[1])
