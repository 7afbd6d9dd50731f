"""Pith's selectors as presses of kvpress, its engine's own choice of rows, and the engine behind their pipeline.

    from kvpress import AdaKVPress
    press = AdaKVPress(PithScorerPress("snapkv,window=64", compression_ratio=0.5))   # our scores, their choice
    press = PithPress("keydiff(budget=25%)+int4,sink=4,window=64")                   # our choice, their cache
    PithEnginePipeline(path, "express(s=25%)+int4,sink=4")(context, question=text)["answer"]   # our engine

Presses act in prefill on transformers' own tensors: kvpress frees rows, and codes cost what float rows cost.
A PithCache (pith.hf) and a session hold what a policy really keeps. `python -m pith.kvpress.evaluate` runs kvpress's
own evaluation with either. kvpress 0.5.5 needs transformers below 5.3.
"""

import dataclasses

import torch

try:
    from kvpress.presses.base_press import BasePress
    from kvpress.presses.scorer_press import ScorerPress
    from kvpress.utils import get_prerope_query_states
except ImportError as error:
    raise ImportError("pith.kvpress needs kvpress 0.5.5 or newer: pip install 'pith-kv[kvpress]'") from error

from .. import _pith
from ..hf._layer import tensors_of
from ..hf._support import refuse
from ._pipeline import PithEnginePipeline

__all__ = ["PithEnginePipeline", "PithPress", "PithScorerPress"]


def _queries(module, hidden_states, kwargs):
    """[B, H, T, D] after RoPE: kvpress gives presses the hidden states, not the queries."""
    query = get_prerope_query_states(module, hidden_states)
    if kwargs["position_embeddings"][0].shape[-2] != query.shape[-2]:
        refuse("a selector that needs queries, on a piece of the prompt whose positions kvpress does not say")
    cos, sin = (x.unsqueeze(1) for x in kwargs["position_embeddings"])
    a, b = query.chunk(2, dim=-1)
    return query * cos + torch.cat([-b, a], dim=-1) * sin


def _layer_caches(policy, module, hidden_states, keys, values, kwargs, **options):
    """A LayerCache per sequence that has read the layer's prompt."""
    if keys.device.type != "cpu":
        refuse(f"tensors on {keys.device}; this version computes on the CPU")
    rope = getattr(getattr(module, "rotary_emb", None), "inv_freq", None)
    half = keys.shape[-1] // 2
    selector = _pith.Policy(policy).selector
    asks = any(m.needs_mass or m.needs_queries for m in _pith.methods() if m.is_selector and m.name == selector)
    query = _queries(module, hidden_states, kwargs) if asks else [None] * len(keys)
    made = []
    for q, k, v in zip(query, keys, values):
        cache = _pith.LayerCache(policy, query_heads=module.config.num_attention_heads, kv_heads=k.shape[0],
                                 head_dim=k.shape[2], context=k.shape[1], layer=module.layer_idx,
                                 layers=module.config.num_hidden_layers, scale=float(module.scaling),
                                 rope_frequencies=rope.tolist() if rope is not None and len(rope) == half else [],
                                 **options)
        if asks:
            cache.step(*(x.detach().transpose(0, 1).contiguous() for x in (q, k, v)))
        else:
            cache.append(*(x.detach().transpose(0, 1).contiguous() for x in (k, v)))
        made.append(cache)
    return made


@dataclasses.dataclass
class PithScorerPress(ScorerPress):
    """The scores of a selector ("snapkv", "tova", ...) under kvpress's choice of the best `1 - compression_ratio`.

    policy  a selector with its parameters, sink and window, without a budget. Rows of the sink and the window stay.
    Selectors that do not score single rows are refused: PithPress takes them.
    """

    policy: str = "knorm"

    def score(self, module, hidden_states, keys, values, attentions, kwargs):
        # As many rows as there are: none is dropped before it is scored.
        policy = str(_pith.Policy(self.policy).with_budget(str(keys.shape[2])))
        if "dtype=" not in policy:
            policy += ",dtype=f32"  # their scores are of the rows as they came
        caches = _layer_caches(policy, module, hidden_states, keys, values, kwargs)
        scores = torch.stack([torch.stack([torch.from_numpy(cache.scores(head)) for head in range(keys.shape[1])])
                              for cache in caches])
        chosen = scores.isfinite()
        if not bool(chosen.any()):
            return torch.zeros_like(scores)
        # kvpress computes with scores: rows that stay are above the best, not infinite.
        return torch.where(chosen, scores, scores[chosen].max() + 1)


@dataclasses.dataclass
class PithPress(BasePress):
    """The rows that a policy keeps of the prompt, ascending, as its codec gives them back. Per cent are of the prompt.

    A DynamicCache has one number of rows for all heads and no weights: policies with either are refused.
    """

    policy: str = "exact"

    def compress(self, module, hidden_states, keys, values, attentions, kwargs):
        caches = _layer_caches(self.policy, module, hidden_states, keys, values, kwargs)
        for cache in caches:
            cache.end_prompt()
        kept = [tensors_of(cache, keys.shape[1], module.layer_idx) for cache in caches]
        return tuple(torch.stack(side).to(keys.dtype) for side in zip(*kept))
