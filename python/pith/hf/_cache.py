"""PithCache: the rows of a transformers model, held and compressed by Pith.

update() stores nothing: it gives the new keys a ticket, with which attention "pith" comes to the cache,
attends to the rows held and to the new ones, and stores these. A LayerCache for each layer and sequence.
"""

import functools

import torch
from transformers.cache_utils import Cache, DynamicCache

from .. import _pith
from ._attention import Padding, Terms, check_call, check_module
from ._device import device_of, make_runtime, weights_on
from ._layer import OFFLOAD, PithLayer, Ticket, tensors_of
from ._rope import rope_frequencies
from ._saved import load, save
from ._step import step
from ._support import ATTENTION, USE_IT, check, refuse, text_config

_UNKNOWN_CONTEXT = 1 << 20


def _between_forwards(call):
    @functools.wraps(call)
    def checked(self, *args, **kwargs):
        self._usable()
        self._finish_forward()
        return call(self, *args, **kwargs)
    return checked


class PithCache(Cache):
    """A cache of transformers under one of Pith's policies.

    policy      as everywhere in Pith: "exact", "snapkv(budget=25%)+int4,sink=4". Exact rows are f16
                unless it says dtype=f32 or dtype=bf16
    model       whose cache it is, with attn_implementation="pith"; or its `config` alone, for policies
                that need no RoPE
    context     the most tokens; 0 = the model's max_position_embeddings
    percent_of  tokens that budgets in per cent are of; 0 = those of the first forward (the prompt)
    select      when a prompt ends, which is when selectors such as SnapKV choose: "forward" = after each
                forward of more than one token; "decode" = before the first forward of one token after it,
                for prompts in pieces; "manual" = when end_prefill() is called
    chunk       tokens that are read before rows are dropped; 0 = all of a forward
    device      where the keys are; None = where the model is, or, of a config alone, its first keys
    threads     None = torch's; on the GPU only the probe uses them

    Pass it to the model or to generate() as cache= (past_key_values= before transformers 5.24). Its
    length is the tokens seen, pads included; rows held are in rows() and ledger().
    """

    def __init__(self, policy="exact", *, model=None, config=None, context=0, percent_of=0, seed=0, device=None,
                 threads=None, chunk=0, select="forward", protect="", memory_limit=0, probe_rows=0, probe_every=16):
        if model is None and config is None:
            raise _pith.InvalidArgument("PithCache needs model= or config=: layers and RoPE are the model's")
        if select not in ("forward", "decode", "manual"):
            raise _pith.InvalidArgument(f"select={select!r}: there are 'forward', 'decode' and 'manual'")
        self.policy = str(_pith.Policy(str(policy)))
        self.select, self.chunk = select, int(chunk)
        self.shapes = self._checked(model, config)
        super().__init__(layers=[PithLayer(self, shape.layer) for shape in self.shapes])
        config = text_config(model.config if model is not None else config)
        self._is_user_defined = True  # generate() then leaves it at the last token that it returns
        self._percent_of = percent_of
        self._options = {
            "context": context or getattr(config, "max_position_embeddings", None) or _UNKNOWN_CONTEXT,
            "seed": seed, "layers": len(self.shapes), "protect": protect, "probe_rows": probe_rows,
            "probe_every": probe_every}
        self._limits = {"threads": threads, "memory_limit": memory_limit}
        self._device = self._chosen_device(device, model)
        self._runtime = make_runtime(self._device or torch.device("cpu"), **self._limits)  # for a trial if not known
        self._closed = False
        self._clear()
        self._frequencies = self._needed_rope(model)

    # Construction

    @staticmethod
    def _checked(model, config):
        report = check(model if model is not None else config)
        if not report.ok:
            refuse("PithCache cannot serve this model: " + "; ".join(report.all_problems()))
        if model is not None:
            used = text_config(model.config)._attn_implementation
            if used != ATTENTION:
                raise _pith.InvalidArgument(
                    f"the model uses attn_implementation {used!r}, which does not read a PithCache; {USE_IT}")
        return report.layers

    @staticmethod
    def _chosen_device(given, model):
        """None: that of the first keys."""
        device = None if given is None else device_of(given)
        if model is None:
            return device
        if device not in (None, weights_on(model)):
            raise _pith.InvalidArgument(f"device={str(given)!r}, and the model is on {weights_on(model)}: leave device "
                                        "out")
        return weights_on(model)

    def _place(self, key, layer):
        """Computes where the keys are; refuses keys from elsewhere."""
        if self._device is None:
            self._device = device_of(key.device)
            self._runtime = make_runtime(self._device, **self._limits)
        if key.device != self._device:
            refuse(f"layer {layer} is on {key.device}, and this PithCache on {self._device}: all layers are on one "
                   "device, where the model was when its cache was made")

    def _needed_rope(self, model):
        """Per layer, the RoPE's frequencies, if the policy needs them; refuses what cannot be."""
        try:
            for shape in self.shapes:
                self._make(shape)
            return None
        except _pith.Unsupported as error:
            if model is None:
                raise _pith.Unsupported(f"{error} (of a config alone no RoPE is known: give model=)") from None
        frequencies = rope_frequencies(model)
        for shape, known in zip(self.shapes, frequencies):
            try:
                self._make(shape, frequencies=known)
            except _pith.Unsupported as error:
                if known is not None:
                    raise
                raise _pith.Unsupported(f"layer {shape.layer}: {error} (its RoPE does not turn channels i and i + D/2 "
                                        "by a table of the model's: partial or interleaved)") from None
        return frequencies

    def _make(self, shape, frequencies=None, **terms):
        # Before the first forward any base of per cent will do, for a trial.
        return _pith.LayerCache(self.policy, query_heads=shape.query_heads, kv_heads=shape.kv_heads,
                                head_dim=shape.head_dim, layer=shape.layer, sliding_window=shape.window, **terms,
                                percent_of=self._percent_of or self._first_tokens,
                                rope_frequencies=frequencies or [], runtime=self._runtime, **self._options)

    def _clear(self):
        self._rows = [None] * len(self.shapes)    # per layer: a LayerCache per sequence
        self._terms = [None] * len(self.shapes)   # what scores become, which must stay
        self._seen = [0] * len(self.shapes)
        self._before = self._now = 0              # tokens before the running forward, and its own
        self._first_tokens = self._last_tokens = 0  # of the first forward, and of the one before this
        self._batch = None
        self._pending = None                      # the ticket that attention has not come back with
        self._plan = None                         # (mask, position_ids, Columns) of the running forward
        self._padding = Padding()
        self._broken = None
        for layer in self.layers:
            layer.is_initialized = False

    # What transformers asks

    def _usable(self):
        if self._closed:
            raise _pith.InvalidArgument("this PithCache was closed")
        if self._broken:
            raise _pith.InvalidArgument(f"this PithCache is of no more use: {self._broken}. Make a new one; clone() "
                                        "before a risky step keeps one")
        if self._pending is not None:
            raise _pith.InvalidArgument(
                f"rows of layer {self._pending.layer} were never attended to: the model does not use "
                f"attn_implementation '{ATTENTION}'; {USE_IT}")

    def _finish_forward(self):
        """The tokens of the last forward become past ones."""
        if self._seen.count(self._before + self._now) != len(self._seen):
            self._broken = "a forward ended between two layers, which now hold different tokens"
            self._usable()
        if self._plan is not None:
            self._padding.commit(self._plan[2], self._before, self._now)
            self._plan = None
        if self._now > 0:
            self._last_tokens = self._now
        self._before, self._now = self._before + self._now, 0

    def update(self, key_states, value_states, layer_idx, *args, **kwargs):
        """The keys with a ticket; nothing is stored yet."""
        self._usable()
        index, shape = layer_idx, key_states.shape
        batch, tokens = shape[0], shape[-2]
        if self._seen[index] == self._before + self._now:
            self._finish_forward()
            if self._batch not in (None, batch):
                refuse(f"a batch of {batch} after one of {self._batch}; reorder_cache() and batch_select_indices() "
                       "change it")
            self._now, self._batch = tokens, batch
            self._first_tokens = self._first_tokens or tokens
        elif (batch, tokens) != (self._batch, self._now):
            refuse(f"layer {index} got {batch} x {tokens} tokens in a forward of {self._batch} x {self._now}")
        self._pending = key_states._pith = Ticket(self, index, key_states, value_states)
        return key_states, value_states

    def get_seq_length(self, layer_idx=0):
        self._usable()
        return self._seen[layer_idx]

    def get_max_length(self, layer_idx=None):
        return -1

    get_max_cache_shape = get_max_length

    def reset(self):
        """Empties it; the policy stays."""
        self._clear()

    def crop(self, tokens_to_remove):
        # Up to transformers 5.14 the argument was the length to keep.
        if tokens_to_remove == (0 if hasattr(Cache, "get_max_length") else self._seen[0]):
            return
        refuse("crop(): rows that were dropped cannot come back; clone() first, and continue with the clone")

    def activate_past_recording(self):
        refuse("assisted (speculative) decoding: it crops the cache, and rows that were dropped cannot come back")

    @_between_forwards
    def reorder_cache(self, beam_idx):
        self._select(beam_idx.tolist())

    @_between_forwards
    def batch_repeat_interleave(self, repeats):
        self._select([i for i in range(self._batch or 0) for _ in range(repeats)])

    @_between_forwards
    def batch_select_indices(self, indices):
        self._select((indices.nonzero().flatten() if indices.dtype == torch.bool else indices).tolist())

    def _select(self, indices):
        """Sequences by index. The first use of one moves it, later ones copy."""
        if self._batch is None:
            return
        for layer, rows in enumerate(self._rows):
            used = set()
            chosen = []
            for i in indices:
                chosen.append(rows[i].clone() if i in used else rows[i])
                used.add(i)
            self._rows[layer] = chosen
        self._padding.select(indices)
        self._batch = len(indices)

    def early_initialization(self, *args, **kwargs):
        refuse("early initialization (export): a PithCache grows as tokens come")

    def offload(self, *args, **kwargs):
        refuse(OFFLOAD)

    prefetch = offload

    # Attention

    def _attend(self, ticket, module, query, value, mask, dropout, scaling, is_causal, others):
        """As the attention function is called; `others`: arguments that only some models give."""
        try:
            check_call(ticket, module, query, value, mask, dropout, is_causal, others)
            self._place(ticket.key, ticket.layer)
            caches = self._caches_of(ticket, module, query, scaling, others)
            columns = self._columns(mask, others.get("position_ids"))
        except Exception:
            # Nothing was stored. After a refusal in a forward's first layer the cache is as it was.
            self._pending = None
            if all(seen == self._before for seen in self._seen):
                self._now, self._plan = 0, None
                if self._before == 0:
                    self._clear()
            raise
        self._pending, ticket.used = None, True
        try:
            out = self._step(caches, columns, query, ticket.key, value)
        except BaseException as error:
            self._broken = f"a step of layer {ticket.layer} failed: {error}"
            raise
        self._seen[ticket.layer] = self._before + self._now
        self.layers[ticket.layer].is_initialized = True
        ticket.key = ticket.value = None
        return out

    def _caches_of(self, ticket, module, query, scaling, others):
        """The layer's LayerCache per sequence, made at its first tokens."""
        layer, shape = ticket.layer, self.shapes[ticket.layer]
        found = (query.shape[1], ticket.key.shape[1], ticket.key.shape[3])
        said = (shape.query_heads, shape.kv_heads, shape.head_dim)
        if found != said:
            refuse(f"layer {layer} has (query heads, KV heads, head_dim) = {found}; its configuration says {said}")
        window, given = others.get("sliding_window"), (scaling, others.get("softcap"), others.get("s_aux"))
        if (window or 0) != shape.window:
            refuse(f"layer {layer} asks for a sliding window of {window}; its configuration says {shape.window}")
        if self._rows[layer] is None:
            check_module(layer, module, *given[1:])
            terms = Terms(ticket, *given)
            frequencies = self._frequencies and self._frequencies[layer]
            self._rows[layer] = [self._make(shape, frequencies, **terms.options()) for _ in range(self._batch)]
            self._terms[layer] = terms
        elif not self._terms[layer].are(*given):
            terms = Terms(ticket, *given)
            terms.check_same(self._terms[layer], layer)
            self._terms[layer] = terms
        return self._rows[layer]

    def _columns(self, mask, position_ids):
        """Which tokens of the running forward are real. Layers of one kind share the tensors, so it is seldom
        looked at twice."""
        plan = self._plan
        if plan is None or plan[0] is not mask or plan[1] is not position_ids:
            columns = self._padding.columns(mask, position_ids, self._batch, self._before, self._now)
            if plan is not None and columns != plan[2]:
                refuse("layers of one forward have different padding or positions")
            self._plan = plan = (mask, position_ids, columns)
        return plan[2]

    def _step(self, caches, columns, query, key, value):
        if self.select == "decode" and self._last_tokens > 1 and self._now == 1:
            for cache in caches:
                cache.end_prompt()
        out = step(self._runtime, caches, columns, query, key, value, chunk=self.chunk)
        if self.select == "forward" and self._now > 1:
            for cache in caches:
                cache.end_prompt()
        return out

    # What users ask

    def _held(self):
        """(layer, sequence, LayerCache) of all that was made."""
        return [(layer, b, cache) for layer, rows in enumerate(self._rows) for b, cache in enumerate(rows or [])]

    def _one(self, layer, sequence):
        if self._rows[layer] is None:
            raise _pith.InvalidArgument("this PithCache is empty: no model has used it yet")
        return self._rows[layer][sequence]

    @property
    def tokens(self):
        """Seen so far, pads included."""
        return self._seen[0]

    def ledger(self):
        """Every byte of all layers and sequences."""
        self._usable()
        total = None
        for _, _, cache in self._held():
            total = cache.ledger() if total is None else total + cache.ledger()
        return total if total is not None else self._make(self.shapes[0]).ledger()

    @property
    def bytes_in_use(self):
        """Everything that is allocated: what the ledger counts, and the scratch memory of steps."""
        return 0 if self._closed else self._runtime.bytes_in_use

    def rows(self, layer, head, sequence=0):
        """The rows that one KV head holds; positions count a sequence's real tokens from 0."""
        self._usable()
        return self._one(layer, sequence).rows(head)

    def describe(self):
        """The policy with every budget as rows and every default spelled out."""
        self._usable()
        return (self._rows[0][0] if self._rows[0] else self._make(self.shapes[0])).describe()

    def attention_errors(self, sequence=0):
        """The error probe's estimates, of layers that have one."""
        self._usable()
        found = [cache.attention_error() for _, b, cache in self._held() if b == sequence]
        return [error for error in found if error is not None]

    @_between_forwards
    def end_prefill(self):
        """The prompt is complete: selectors that choose at its end do."""
        for _, _, cache in self._held():
            cache.end_prompt()

    @_between_forwards
    def protect(self, ranges, sequence=None):
        """Tokens to come whose rows stay exact, e.g. "120:200"; of all sequences or of one."""
        held = self._held()
        if not held:
            if sequence is not None:
                raise _pith.InvalidArgument("protect() of one sequence: there is none before the first forward")
            self._options["protect"] = ",".join(filter(None, [self._options["protect"], ranges]))
        for _, b, cache in held:
            if sequence in (None, b):
                cache.protect(ranges)

    @_between_forwards
    def clone(self):
        """A second cache with the same past; both continue independently."""
        made = PithCache.__new__(PithCache)
        made.__dict__.update(self.__dict__)
        made.layers = [PithLayer(made, shape.layer) for shape in self.shapes]
        made._options, made._seen, made._terms = dict(self._options), list(self._seen), list(self._terms)
        made._padding = self._padding.clone()
        made._rows = [rows and [cache.clone() for cache in rows] for rows in self._rows]
        for layer, of in zip(made.layers, self.layers):
            layer.is_initialized = of.is_initialized
        return made

    def __deepcopy__(self, memo):
        return self.clone()

    @_between_forwards
    def save(self, path):
        """Writes all that is held: load() continues in another process, bit for bit."""
        save(self, path)

    @classmethod
    def load(cls, path, *, model, **limits):
        """What save() wrote, for the same model; limits: threads=, memory_limit=."""
        return load(cls, path, model, limits)

    def __reduce__(self):
        raise TypeError("a PithCache is not pickled; save() and load() take it elsewhere, clone() copies it here")

    @_between_forwards
    def to_dynamic_cache(self, dtype=torch.float32):
        """The rows held as a DynamicCache, where the model is: keys after RoPE, ascending. Its length is the rows, so
        that a model which continues with it needs position_ids from `tokens` on. Refused for rows that tensors cannot
        say."""
        made = DynamicCache()
        where = {"device": self._device, "dtype": dtype}
        for layer in range(len(self.shapes)):
            heads = [tensors_of(self._one(layer, b), self.shapes[layer].kv_heads, layer)
                     for b in range(self._batch or 0)]
            if heads and len({k.shape for k, _ in heads}) > 1:
                refuse(f"layer {layer}: sequences hold different numbers of rows, and a tensor has one")
            if heads:
                keys, values = (torch.stack(side).to(**where) for side in zip(*heads))
                made.update(keys, values, layer)
        return made

    def close(self):
        """Frees its memory; may be called twice."""
        self._clear()
        self._runtime = None
        self._closed = True

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.close()

    def __repr__(self):
        if self._closed:
            return f"PithCache({self.policy!r}, closed)"
        held = sum(cache.ledger().cache_bytes for _, _, cache in self._held())
        return f"PithCache({self.policy!r}, tokens={self.tokens}, batch={self._batch or 0}, cache_bytes={held})"
