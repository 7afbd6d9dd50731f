"""Pith's cache inside transformers: any policy under a torch model of yours.

    model = AutoModelForCausalLM.from_pretrained(path, attn_implementation="pith")   # after `import pith.hf`
    cache = pith.hf.PithCache("expected_attention(budget=1024)+int4,sink=4", model=model)
    model.generate(**inputs, cache=cache, max_new_tokens=200)                         # past_key_values= before 5.24
    print(cache.ledger())

`compressed(model, policy)` does it under code that cannot be changed, `check(model)` says what would be
refused. Nothing falls back: what is not supported raises before it is computed.
"""

try:
    import torch
    import transformers
except ImportError as error:
    raise ImportError("pith.hf needs torch and transformers 5.2 or newer: pip install 'pith-kv[hf]'") from error

from transformers import AttentionInterface, AttentionMaskInterface

from . import _attention
from ._cache import PithCache
from ._compressed import compressed
from ._support import ATTENTION, Report, check

__all__ = ["PithCache", "Report", "check", "compressed", "register"]

if tuple(int(part) for part in transformers.__version__.split(".")[:2]) < (5, 2):
    raise ImportError(f"pith.hf needs transformers 5.2 or newer; this is {transformers.__version__}")


def register():
    """Makes attn_implementation="pith" known to transformers; importing pith.hf does."""
    AttentionInterface.register(ATTENTION, _attention.attention)
    AttentionMaskInterface.register(ATTENTION, _attention.mask)


register()
