"""compressed(): a PithCache under code that cannot be changed."""

import collections
import contextlib
import inspect

import torch
from transformers.cache_utils import DynamicCache

from .. import _pith
from ._cache import PithCache
from ._rope import RopeProbe, cache_keyword
from ._support import ATTENTION, refuse, text_config


class Run:
    """The result of compressed(): `caches`, the newest last, of which it keeps `keep`."""

    def __init__(self, keep):
        self.caches = collections.deque(maxlen=keep)

    @property
    def cache(self):
        if not self.caches:
            raise _pith.InvalidArgument("no forward has run under compressed() yet")
        return self.caches[-1]

    def ledger(self):
        """Of the newest cache."""
        return self.cache.ledger()


@contextlib.contextmanager
def compressed(model, policy, *, keep=1, **options):
    """Within it, every text that the model begins to read gets a PithCache(policy, model=model, **options):
    in forwards, generate() and pipelines, where they give no cache or an empty DynamicCache.

        with pith.hf.compressed(model, "snapkv(budget=1024)+int4,sink=4") as run:
            model.generate(**inputs, max_new_tokens=100)
        print(run.ledger())
    """
    decoder = model.get_decoder() if hasattr(model, "get_decoder") else model
    if getattr(decoder, "_pith_compressed", False):
        raise _pith.InvalidArgument("the model is under compressed() already")
    before = text_config(model.config)._attn_implementation
    run = Run(keep)
    keyword = cache_keyword(decoder)
    names = [*inspect.signature(decoder.forward).parameters]

    def swap(module, args, kwargs):
        given = dict(zip(names, args), **kwargs)
        other = "past_key_values" if keyword == "cache" else "cache"
        cache = given.get(keyword) if given.get(keyword) is not None else given.get(other)
        if isinstance(cache, (PithCache, RopeProbe)):
            return None
        use = given.get("use_cache")
        if not (text_config(model.config).use_cache if use is None else use):
            refuse("use_cache=False under compressed(): attention 'pith' needs a cache")
        if cache is not None and (type(cache) is not DynamicCache or cache.get_seq_length() > 0):
            refuse(f"a {type(cache).__name__} that is not an empty DynamicCache, under compressed(); leave the cache "
                   "out, or give a PithCache")
        given.pop(other, None)
        given[keyword] = PithCache(policy, model=model, **options)
        run.caches.append(given[keyword])
        return (), given

    set_attention(model, ATTENTION)
    handle = None
    try:
        with torch.inference_mode():
            PithCache(policy, model=model, **options).close()  # refuses before anything is computed
        handle = decoder.register_forward_pre_hook(swap, with_kwargs=True)
        decoder._pith_compressed = True
        yield run
    finally:
        if handle is not None:
            handle.remove()
            decoder._pith_compressed = False
        set_attention(model, before)


def set_attention(model, name):
    """As the model's own method, which only warns where it cannot."""
    model.set_attn_implementation(name)
    if text_config(model.config)._attn_implementation != name:
        refuse(f"{type(model).__name__} cannot change its attention function to {name!r}")
