"""A PithCache as a file: what transformers has seen, and the saved bytes of every layer and sequence."""

import dataclasses

import numpy as np
import torch

from .. import _pith
from ._attention import Terms

_FORMAT = "PithCache 1"


def _bytes_of(cache):
    return torch.from_numpy(np.frombuffer(cache.save(), dtype=np.uint8).copy())


def _shapes_of(cache):
    return [[*dataclasses.asdict(shape).values()][:-1] for shape in cache.shapes]


def save(cache, path):
    padding = cache._padding
    torch.save({
        "format": _FORMAT, "policy": cache.policy, "select": cache.select, "chunk": cache.chunk,
        "percent_of": cache._percent_of, "options": cache._options, "shapes": _shapes_of(cache),
        "tokens": cache._before, "first_tokens": cache._first_tokens, "last_tokens": cache._last_tokens,
        "batch": cache._batch, "past": padding.past, "counts": padding.counts, "first": padding.first,
        "terms": [terms and terms.options() for terms in cache._terms],
        "rows": [rows and [_bytes_of(row) for row in rows] for rows in cache._rows]}, path)


def load(cls, path, model, limits):
    try:
        saved = torch.load(path, weights_only=True)
    except OSError:
        raise
    except Exception as error:
        raise _pith.Corrupt(f"{path} is no saved PithCache: {error}") from None
    if not isinstance(saved, dict) or saved.get("format") != _FORMAT:
        raise _pith.Corrupt(f"{path} is no saved PithCache, or one of another version")
    options = {name: saved["options"][name] for name in ("context", "seed", "probe_rows", "probe_every")}
    made = cls(saved["policy"], model=model, percent_of=saved["percent_of"], select=saved["select"],
               chunk=saved["chunk"], protect=saved["options"]["protect"], **options, **limits)
    if _shapes_of(made) != saved["shapes"]:
        raise _pith.InvalidArgument(f"{path} is the cache of another model: its layers are {saved['shapes'][0]}, ..., "
                                    f"and this model's {_shapes_of(made)[0]}, ...")
    made._before, made._batch = saved["tokens"], saved["batch"]
    made._first_tokens, made._last_tokens = saved["first_tokens"], saved["last_tokens"]
    padding = made._padding
    padding.past, padding.counts, padding.first = saved["past"], saved["counts"], saved["first"]
    made._seen = [saved["tokens"]] * len(made.shapes)
    for layer, (terms, rows) in enumerate(zip(saved["terms"], saved["rows"])):
        if rows is None:
            continue
        frequencies = made._frequencies and made._frequencies[layer]
        made._rows[layer] = [made._make(made.shapes[layer], frequencies, **terms) for _ in rows]
        for cache, state in zip(made._rows[layer], rows):
            cache.restore(state.numpy().tobytes())
        made._terms[layer] = Terms.from_options(terms)
        made.layers[layer].is_initialized = True
    return made
