"""One layer of a PithCache as transformers sees it, and its rows as tensors."""

import weakref

import numpy as np
import torch
from transformers.cache_utils import CacheLayerMixin

from ._support import refuse

OFFLOAD = "a PithCache is not offloaded; its rows are compressed where they are"


class Ticket:
    """The ticket that the keys of one update() carry to attention."""

    __slots__ = ("cache", "layer", "key", "value", "used")

    def __init__(self, cache, layer, key, value):
        self.cache, self.layer, self.key, self.value, self.used = cache, layer, key, value, False

    def attend(self, *call):
        return self.cache._attend(self, *call)


class PithLayer(CacheLayerMixin):
    """A layer's face towards transformers; the rows are PithCache's."""

    is_sliding = False  # masks are the kernels' matter
    is_compileable = False
    is_croppable = False
    supports_early_init = False

    def __init__(self, cache, index):
        self._cache = weakref.ref(cache)
        self.index = index
        self.is_initialized = False

    @property
    def keys(self):
        refuse("a PithCache has no tensor of keys; to_dynamic_cache() makes one, rows() names what is held")

    @property
    def values(self):
        refuse("a PithCache has no tensor of values; to_dynamic_cache() makes one, rows() names what is held")

    def lazy_initialization(self, key_states, value_states):
        self.is_initialized = True

    def update(self, key_states, value_states, *args, **kwargs):
        return self._cache().update(key_states, value_states, self.index)

    def get_seq_length(self):
        return self._cache().get_seq_length(self.index)

    def get_mask_sizes(self, query_length):
        new = query_length if isinstance(query_length, int) else len(query_length)  # up to 5.3: cache_position
        return self.get_seq_length() + new, 0

    def get_max_length(self):
        return -1

    get_max_cache_shape = get_max_length  # its name before 5.15

    def offload(self):
        refuse(OFFLOAD)

    prefetch = offload


def tensors_of(cache, kv_heads, layer):
    """The rows of a LayerCache as (keys, values) float32 [G, rows, D]."""
    rows = [cache.rows(head) for head in range(kv_heads)]
    if len({len(r) for r in rows}) > 1:
        refuse(f"layer {layer}: its heads hold {sorted({len(r) for r in rows})} rows, and a tensor has one number")
    if any(np.any(r.log_weights) or np.any(r.roles) for r in rows):
        refuse(f"layer {layer}: its rows have weights, which a DynamicCache cannot say")
    pairs = [cache.read_rows(head) for head in range(kv_heads)]
    return tuple(torch.from_numpy(np.stack(side)) for side in zip(*pairs))
