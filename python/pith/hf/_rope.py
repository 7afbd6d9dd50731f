"""The RoPE that a model gives its keys, found by asking it: needed by policies that rotate keys back.

Attention answers zeros while the model reads one token at three positions. Its keys then differ by
the rotation alone, and a layer's frequencies are those, of the tables that the model holds, which
turn the first key into the others. So no list of architectures has to be kept.
"""

import inspect
import weakref

import torch
from transformers.cache_utils import Cache, DynamicLayer

from ._support import refuse, text_config

_POSITIONS = (0, 1, 97)
_known = weakref.WeakKeyDictionary()


def cache_keyword(module):
    """The name of the cache among a model's arguments: it was past_key_values before transformers 5.24."""
    return "cache" if "cache" in inspect.signature(module.forward).parameters else "past_key_values"


class RopeProbe(Cache):
    """Keeps each layer's keys; attention over them is zero."""

    layer = -1
    used = False

    def __init__(self):
        super().__init__(layer_class_to_replicate=DynamicLayer)
        self.keys = {}

    def update(self, key_states, value_states, layer_idx, *args, **kwargs):
        self.keys[layer_idx] = key_states[0].double().cpu()  # [G, 3, D]
        key = key_states.view(key_states.shape)
        key._pith = self
        return key, value_states

    def attend(self, module, query, *call):
        return query.new_zeros(query.shape).transpose(1, 2)


def rope_frequencies(model):
    """Per layer: float [D / 2] radians per position, or None where the rotation is none of Pith's."""
    if model not in _known:
        _known[model] = _find(model)
    return _known[model]


def _find(model):
    for parameters in _rope_parameters(text_config(model.config)):
        kind = parameters.get("rope_type", "default")
        if kind in ("dynamic", "longrope"):
            refuse(f"RoPE of type '{kind}' changes with the length of the text; policies that rotate keys back need "
                   "one that stays")
    decoder = model.get_decoder() if hasattr(model, "get_decoder") else model
    probe = RopeProbe()
    device = next(decoder.parameters()).device
    with torch.inference_mode():
        # Not one of the first ids: the embedding of a padding token is zero, and so are its keys.
        token = text_config(model.config).vocab_size // 2
        decoder(input_ids=torch.full((1, len(_POSITIONS)), token, device=device), use_cache=True,
                position_ids=torch.tensor([_POSITIONS], device=device), **{cache_keyword(decoder): probe})
    tables = {name: buffer.double().cpu() for name, buffer in model.named_buffers()
              if name.endswith("inv_freq") and "original" not in name}
    tolerance = 1e-3 if model.dtype == torch.float32 else 3e-2
    return [_match(probe.keys[layer], tables.values(), tolerance) for layer in range(len(probe.keys))]


def _rope_parameters(config):
    found = getattr(config, "rope_parameters", None) or {}
    return [found] if "rope_type" in found or not found else [p for p in found.values() if isinstance(p, dict)]


def _match(keys, tables, tolerance):
    half = keys.shape[-1] // 2
    if not bool(keys[:, 0].norm(dim=-1).all()):
        return None  # a head whose keys say nothing
    for table in [*tables, torch.zeros(half, dtype=torch.double)]:
        if table.shape == (half,) and all(
                float((_rotated(keys[:, 0], table, position) - keys[:, i]).norm()) <=
                tolerance * float(keys[:, 0].norm()) for i, position in enumerate(_POSITIONS)):
            return table.tolist()
    return None


def _rotated(rows, table, position):
    """Pairs of channels i and i + D / 2, as Pith pairs them."""
    cos, sin = torch.cos(position * table), torch.sin(position * table)
    a, b = rows.chunk(2, dim=-1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1)
