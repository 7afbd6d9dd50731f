"""One layer's part of a forward: torch's tensors as the caches of the batch take them, without copies."""

import torch

DTYPES = {torch.float32: 0, torch.float16: 1, torch.bfloat16: 2}  # as Runtime.step_at counts them


def step(runtime, caches, columns, query, key, value, *, chunk):
    """Attention [B, T, H, D] of query [B, H, T, D]; the caches then hold key and value [B, G, T, D]. `chunk` tokens of
    each sequence at a time (0: all); on the GPU in the order of torch's current stream."""
    stream = None if query.is_cpu else torch.cuda.current_stream(query.device).cuda_stream
    if not query.stride()[3] == key.stride()[3] == value.stride()[3] == 1:  # the numbers of a row have to be adjacent
        query, key, value = query.contiguous(), key.contiguous(), value.contiguous()
    b, h, t, d = query.shape
    if not columns.all_real:
        out = query.new_zeros((b, t, h, d))
        _step_real(runtime, caches, columns, (out, *(x.detach().transpose(1, 2) for x in (query, key, value))), chunk,
                   stream)
        return out
    out = query.new_empty((b, t, h, d))
    if t <= chunk or not chunk:
        _step_at(runtime, caches, t, out, query, key, value, stream)
    else:
        for part in _parts(t, chunk):
            q, k, v = (x[:, :, part] for x in (query, key, value))
            _step_at(runtime, caches, q.shape[2], out[:, part], q, k, v, stream)
    return out


def _step_at(runtime, caches, tokens, out, q, k, v, stream):
    """By address: DLPack takes three microseconds per tensor."""
    runtime.step_at(caches, tokens, DTYPES[q.dtype], (out.data_ptr(), out.stride()), (q.data_ptr(), q.stride()),
                    (k.data_ptr(), k.stride()), (v.data_ptr(), v.stride()), stream)


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
