"""The attention function "pith" and its mask function."""

import math
import os

import numpy as np
import torch

from .. import _pith
from ._step import DTYPES
from ._support import refuse

REFUSED = {"position_bias", "cache", "block_table"}
WEIGHTS = "output_attentions: attention weights are never computed as a whole"
# On the GPU a token's position is the model's word: to look at it, the host would wait for all work before it.
CHECK_ALL = os.environ.get("PITH_CHECK", "0") not in ("", "0")


def mask(*, attention_mask=None, allow_is_causal_skip=True, use_vmap=False, **others):
    """Padding alone: the 2D mask, or None where no token is padding. The kernels know the rest."""
    if use_vmap or not allow_is_causal_skip:
        refuse("a mask other than causal with padding (packed sequences, blocks of tokens that see each other, a mask "
               "function of the caller's); attention 'pith' has causal and sliding-window layers")
    if attention_mask is None or bool(attention_mask.all()):
        return None
    return attention_mask


def attention(module, query, key, value, attention_mask, dropout=0.0, scaling=None, is_causal=None, **others):
    """query [B, H, T, D] over the rows that the PithCache holds and those of key, value [B, G, T, D]."""
    ticket = getattr(key, "_pith", None)
    if ticket is None:
        raise _pith.InvalidArgument(
            "attn_implementation 'pith' got keys that come from no PithCache: pass cache=PithCache(policy, "
            "model=model) (past_key_values= before transformers 5.24), use_cache on, or use pith.hf.compressed()")
    return ticket.attend(module, query, value, attention_mask, dropout, scaling, is_causal, others), None


def check_call(ticket, module, query, value, mask, dropout, is_causal, others):
    """Raises for all that the kernels would not compute, before anything is stored."""
    key, layer = ticket.key, ticket.layer
    if ticket.used:
        refuse(f"the keys of layer {layer} are read by a second layer; layers that share keys are not supported")
    if value is not ticket.value:
        refuse(f"layer {layer}: its values are not those that it gave to the cache")
    if torch.is_grad_enabled() and (query.requires_grad or key.requires_grad or value.requires_grad):
        refuse("no gradients go through attention 'pith'; call the model under torch.inference_mode()")
    if torch.compiler.is_compiling():
        refuse("torch.compile and torch.export: a PithCache is no part of a graph; leave the model as it is")
    if dropout:
        refuse(f"attention dropout of {dropout}; call model.eval()")
    if not REFUSED.isdisjoint(others):
        for name in REFUSED:
            if others.get(name) is not None:
                refuse(f"layer {layer} asks for {name}, which attention 'pith' does not compute")
    if others.get("output_attentions"):
        refuse(WEIGHTS)
    if is_causal is False or not getattr(module, "is_causal", True):
        refuse(f"layer {layer} is not causal")
    if mask is not None and mask.ndim != 2:
        refuse(f"a mask of {mask.ndim} dimensions; pass the 2D mask of padding")
    dtype, shape = key.dtype, key.shape
    if query.dtype != dtype or value.dtype != dtype or dtype not in DTYPES:
        raise TypeError(f"queries, keys and values are {query.dtype}, {dtype}, {value.dtype}; one of float32, "
                        "float16, bfloat16 is needed for all three")
    if not query.device == key.device == value.device:
        refuse(f"layer {layer}: queries, keys and values on {query.device}, {key.device}, {value.device}; one "
               "device is needed")
    b, _, t, d = shape
    asked = query.shape
    if value.shape != shape or len(asked) != 4 or (asked[0], asked[2], asked[3]) != (b, t, d):
        refuse(f"queries {tuple(asked)}, keys {tuple(shape)} and values {tuple(value.shape)}: one "
               "[batch, heads, tokens, head_dim], with equal tokens and head_dim, is needed")


def check_module(layer, module, softcap, s_aux):
    """The same for what a layer is, at its first tokens: under "pith" transformers lets nobody ask for weights after
    them."""
    if getattr(module.config, "output_attentions", False):
        refuse(WEIGHTS)
    for name, given, needed in (("softcap", softcap, getattr(module.config, "attn_logit_softcapping", None)),
                                ("s_aux", s_aux, getattr(module, "sinks", None))):
        if needed is not None and given is None:
            refuse(f"layer {layer} has {name}, and does not give it to its attention function")


class Terms:
    """A layer's changes to q.k: a factor, a soft cap, a sink's logit in each query head's softmax."""

    def __init__(self, ticket, scaling, softcap, s_aux):
        if s_aux is not None and not isinstance(s_aux, torch.Tensor):
            refuse(f"layer {ticket.layer}: s_aux is a {type(s_aux).__name__}; a tensor [query heads] is needed")
        self.given = scaling, softcap
        self.scale = 1 / math.sqrt(ticket.key.shape[3]) if scaling is None else float(scaling)
        self.soft_cap = 0.0 if softcap is None else float(softcap)
        self.sinks = s_aux

    def are(self, scaling, softcap, s_aux):
        """Whether they are of just these arguments."""
        return self.given == (scaling, softcap) and self.sinks is s_aux

    @classmethod
    def from_options(cls, options):
        made = cls.__new__(cls)
        made.given, made.scale, made.soft_cap = None, options["scale"], options["soft_cap"]
        made.sinks = torch.tensor(options["sink_logits"]) if options["sink_logits"] else None
        return made

    def options(self):
        """Of its LayerCache."""
        sinks = [] if self.sinks is None else self.sinks.detach().float().flatten().tolist()
        return {"scale": self.scale, "soft_cap": self.soft_cap, "sink_logits": sinks}

    def check_same(self, before, layer):
        """A parameter of the model is known by itself: to look at it, the host would wait for the GPU."""
        for name in ("scale", "soft_cap"):
            now, then = getattr(self, name), getattr(before, name)
            if now != then:
                refuse(f"layer {layer} has a {name} of {now} after one of {then}")
        if self.sinks is not before.sinks and self.options() != before.options():
            refuse(f"layer {layer} has other sink logits (s_aux) than before")


class Columns:
    """Which tokens of one forward are real, per sequence, and where its positions begin."""

    def __init__(self, of, first, tokens):
        self.of = of        # [B]: None = all; else a slice or, with gaps, int64 indices
        self.first = first  # [B]: the position of a sequence's first token; None: not known
        self.counts = [tokens if c is None else c.stop - c.start if isinstance(c, slice) else len(c) for c in of]
        self.all_real = all(c is None for c in of)

    def __eq__(self, other):
        same = [torch.equal(a, b) if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor) else
                type(a) is type(b) and a == b for a, b in zip(self.of, other.of)]
        return all(same) and self.first == other.first


class Padding:
    """Which tokens of earlier forwards are real, not padding."""

    def __init__(self):
        self.past = None    # bool [B, tokens], never changed in place; None: all real
        self.counts = None  # [B] real tokens
        self.first = None   # [B] as in Columns

    def clone(self):
        copy = Padding()
        copy.past, copy.counts, copy.first = self.past, self.counts, self.first
        return copy

    def select(self, indices):
        """Sequences by index, as beams are reordered."""
        if self.past is not None:
            self.past = self.past[indices]
        self.counts = self.counts and [self.counts[i] for i in indices]
        self.first = self.first and [self.first[i] for i in indices]

    def columns(self, mask, position_ids, batch, before, tokens):
        if position_ids is not None and not position_ids.is_cpu:
            position_ids = position_ids.cpu() if tokens > 1 or CHECK_ALL else None
        of = self._real(None if mask is None else mask.cpu(), batch, before, tokens)
        return Columns(of, self._first_positions(position_ids, of, tokens), tokens)

    def _real(self, mask, batch, before, tokens):
        if mask is None:
            if self.past is not None:
                refuse("no mask, though earlier tokens were padding; pass the attention_mask of all tokens so far")
            return [None] * batch
        if mask.shape != (batch, before + tokens):
            refuse(f"a mask of {tuple(mask.shape)}; it covers all tokens so far: {(batch, before + tokens)}")
        mask = mask.bool()
        past, now = mask[:, :before], mask[:, before:]
        if not torch.equal(past, torch.ones_like(past) if self.past is None else self.past):
            refuse("the mask changes tokens that were read before: what was read cannot be hidden, nor padding shown")
        return [None if bool(row.all()) else _run(row.nonzero().flatten()) for row in now]

    def _first_positions(self, position_ids, of, tokens):
        """Checks that positions of real tokens rise by 1 and continue where the last forward ended."""
        counts, first = self.counts or [0] * len(of), list(self.first or [None] * len(of))
        if position_ids is None:
            return first
        if position_ids.ndim != 2:
            refuse(f"position_ids of {position_ids.ndim} dimensions; [batch, tokens] is needed")
        rows = position_ids.numpy()
        for b, real in enumerate(of):
            row = rows[b if len(rows) > 1 else 0]
            row = row if real is None else row[real]
            if len(row) == 0:
                continue
            begin = int(row[0])
            expected = begin if first[b] is None else first[b] + counts[b]
            if begin != expected or (len(row) > 1 and not np.array_equal(row, np.arange(begin, begin + len(row)))):
                refuse(f"sequence {b}: its positions do not rise by one from {expected}; packed or reordered "
                       "sequences are not supported. After padding on the right pass position_ids")
            first[b] = begin - counts[b]
        return first

    def commit(self, columns, before, tokens):
        """The forward's tokens are now earlier ones."""
        batch = len(columns.of)
        if self.past is not None or not columns.all_real:
            past = torch.ones(batch, before, dtype=torch.bool) if self.past is None else self.past
            now = torch.ones(batch, tokens, dtype=torch.bool)
            for b, real in enumerate(columns.of):
                if real is not None:
                    now[b] = False
                    now[b, real] = True
            self.past = torch.cat([past, now], dim=1)
        self.counts = [a + b for a, b in zip(self.counts or [0] * batch, columns.counts)]
        self.first = columns.first


def _run(indices):
    """Ascending indices as a slice, if they have no gaps."""
    if len(indices) == 0:
        return slice(0, 0)
    low, high = int(indices[0]), int(indices[-1]) + 1
    return slice(low, high) if high - low == len(indices) else indices
