"""One layer's part of a forward: torch's tensors as the caches of the batch take them, without copies."""

import torch


def step(runtime, caches, columns, query, key, value, *, chunk, stream):
    """Attention [B, T, H, D] of query [B, H, T, D]; the caches then hold key and value [B, G, T, D]. `chunk` tokens of
    each sequence at a time (0: all), in the order of `stream` (None: on the CPU)."""
    # Views [B, T, heads, D]; the numbers of a row have to be adjacent.
    q, k, v = (x.detach().transpose(1, 2) for x in (query, key, value))
    q, k, v = (x if x.stride(-1) == 1 else x.contiguous() for x in (q, k, v))
    out = (torch.empty if columns.all_real else torch.zeros)(q.shape, dtype=q.dtype, device=q.device)
    if not columns.all_real:
        _step_real(runtime, caches, columns, (out, q, k, v), chunk, stream)
    elif q.shape[1] <= chunk or not chunk:
        runtime.step_batch(caches, q, k, v, out=out, stream=stream)
    else:
        for part in _parts(q.shape[1], chunk):
            runtime.step_batch(caches, *(x[:, part] for x in (q, k, v)), out=out[:, part], stream=stream)
    return out


def _parts(tokens, chunk):
    size = chunk or max(tokens, 1)
    return (slice(begin, begin + size) for begin in range(0, tokens, size))


def _step_real(runtime, caches, columns, tensors, chunk, stream):
    """The tokens that are no padding."""
    steps, gathered = [], []
    for b, cache in enumerate(caches):
        out, q, k, v = (x[b] for x in tensors)
        real = columns.of[b]
        if isinstance(real, slice):
            out, q, k, v = (x[real] for x in (out, q, k, v))
        elif real is not None:
            q, k, v = (x[real] for x in (q, k, v))
            gathered.append((out, real, torch.empty_like(q)))
            out = gathered[-1][2]
        steps.append((cache, out, q, k, v))
    for part in _parts(max(len(q) for _, _, q, _, _ in steps), chunk):
        now = [(cache, *(x[part] for x in views)) for cache, *views in steps if len(views[1]) > part.start]
        of, out, q, k, v = map(list, zip(*now))
        runtime.step(of, q, k, v, out=out, stream=stream)
    for out, real, answers in gathered:
        out[real] = answers
