#!/usr/bin/env python3
"""Rows that kvpress keeps, for the selectors that follow it (tests/data/selectors/).

Runs kvpress 0.5's presses on small random tensors in one piece, as its forward hook would after a
prefill, and stores the tensors with the rows kept. Queries enter by an identity projection,
so that presses see exactly them. Needs torch, transformers >= 5 and kvpress 0.5 (PyPI).

    python tools/golden/make_selectors.py tests/data/selectors
"""

import json
import pathlib
import sys
from types import SimpleNamespace

import torch
from kvpress import (ExpectedAttentionPress, KeyDiffPress, KnormPress, PyramidKVPress, SnapKVPress,
                     TOVAPress)
from safetensors.torch import save_file
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb

THETA = 10000.0
LAYERS = 4
# name: tokens, query heads, KV heads, head_dim
SHAPES = {"group2": (160, 4, 2, 32), "group8": (96, 8, 1, 16), "group1": (128, 2, 2, 64),
          "group3": (224, 6, 2, 16)}


class Attention(torch.nn.Module):
    """The parts of an attention layer that a press needs."""

    def __init__(self, heads, kv_heads, dim, layer):
        super().__init__()
        self.config = LlamaConfig(hidden_size=heads * dim, num_attention_heads=heads,
                                  num_key_value_heads=kv_heads, head_dim=dim,
                                  num_hidden_layers=LAYERS)
        self.head_dim, self.layer_idx = dim, layer
        self.q_proj = torch.nn.Identity()
        self.rotary_emb = LlamaRotaryEmbedding(self.config)


def presses(tokens):
    """(policy name, press, window rows that always stay, sink rows) for one shape."""
    for kept in (0.625, 0.25):
        ratio = 1 - kept
        yield "knorm", KnormPress(ratio), 0, 0
        yield "keydiff", KeyDiffPress(ratio), 0, 0
        yield "tova", TOVAPress(ratio), 1, 0
        yield "expected_attention", ExpectedAttentionPress(ratio), 0, 4
        yield "snapkv", SnapKVPress(ratio, window_size=16, kernel_size=5), 16, 0
        yield "snapkv", SnapKVPress(ratio, window_size=8, kernel_size=1), 8, 0
        # Wide budgets meet the limit of the tokens there are; 20 at a quarter of so few rows is the
        # fall-back to SnapKV; 4 and 2 are real pyramids. No layer gets just the window: then the
        # best row ties with it in kvpress, and which stays is chance.
        for beta in (2, 4, 20):
            yield "pyramidkv", PyramidKVPress(ratio, window_size=5, beta=beta), 5, 0


def kept_rows(press, module, hidden, k, v, positions):
    """Rows that survive compress(), found again by their keys, which are all different."""
    keys, _ = press.compress(module, hidden, k, v, None, {"position_embeddings": positions})
    kept = []
    for g in range(k.shape[1]):
        same = (keys[0, g][:, None] == k[0, g][None]).all(dim=-1)
        assert same.sum(dim=1).eq(1).all()
        kept.append(sorted(same.int().argmax(dim=1).tolist()))
    return kept


def main(folder):
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(7)
    cases = []
    for name, (tokens, heads, kv_heads, dim) in SHAPES.items():
        q = torch.randn(1, heads, tokens, dim) + 0.3 * torch.randn(1, heads, 1, dim)
        k = torch.randn(1, kv_heads, tokens, dim) * 1.5 + torch.randn(1, kv_heads, 1, dim)
        v = torch.randn(1, kv_heads, tokens, dim) * (0.5 + torch.rand(1, kv_heads, tokens, 1))
        hidden = q.transpose(1, 2).reshape(1, tokens, heads * dim)
        module = Attention(heads, kv_heads, dim, 0)
        positions = module.rotary_emb(q, torch.arange(tokens)[None])
        turned, _ = apply_rotary_pos_emb(q, q, *positions)
        save_file({"q": turned[0].contiguous(), "k": k[0].contiguous(), "v": v[0].contiguous()},
                  folder / f"{name}.safetensors")
        for policy, press, window, sink in presses(tokens):
            for layer in range(LAYERS if policy == "pyramidkv" else 1):
                module = Attention(heads, kv_heads, dim, layer)
                case = SimpleNamespace(
                    tensors=name, policy=policy, window=window, sink=sink, layer=layer,
                    layers=LAYERS, mean_kept=round(tokens * (1 - press.compression_ratio)),
                    kernel=getattr(press, "kernel_size", 0), beta=getattr(press, "beta", 0),
                    kept=kept_rows(press, module, hidden, k, v, positions))
                cases.append(vars(case))
    text = "[\n" + ",\n".join(json.dumps(c) for c in cases) + "\n]\n"
    (folder / "kept.json").write_text(text)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(sys.argv[1])
