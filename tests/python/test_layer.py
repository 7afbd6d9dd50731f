"""One layer's cache over arrays, against attention in numpy."""

import numpy as np
import pytest

import pith

H, G, D = 4, 2, 16
SHAPE = {"query_heads": H, "kv_heads": G, "head_dim": D, "context": 512}


def rows(seed, tokens, heads):
    return np.random.default_rng(seed).standard_normal((tokens, heads, D)).astype(np.float32)


def attention(q, k, v, scale=D ** -0.5, soft_cap=None, sinks=None):
    """Causal attention of the last len(q) tokens, in double."""
    out, before = np.empty(q.shape), len(k) - len(q)
    for t in range(len(q)):
        for h in range(H):
            g, seen = h * G // H, before + t + 1
            logits = k[:seen, g].astype(np.float64) @ q[t, h] * scale
            logits = logits if soft_cap is None else soft_cap * np.tanh(logits / soft_cap)
            weights = np.exp(logits)
            sink = 0 if sinks is None else np.exp(sinks[h])
            out[t, h] = weights / (weights.sum() + sink) @ v[:seen, g]
    return out


@pytest.fixture(scope="module")
def runtime():
    return pith.Runtime(threads=1)


def test_exact_is_attention(runtime):
    q, k, v = rows(1, 40, H), rows(2, 40, G), rows(3, 40, G)
    cache = pith.LayerCache("exact,dtype=f32", runtime=runtime, **SHAPE)
    first = cache.step(q[:33], k[:33], v[:33])
    last = np.concatenate([cache.step(q[t:t + 1], k[t:t + 1], v[t:t + 1]) for t in range(33, 40)])
    np.testing.assert_allclose(np.concatenate([first, last]), attention(q, k, v), atol=1e-5)
    assert first.dtype == np.float32 and cache.tokens == 40
    np.testing.assert_allclose(cache.attend(q[39:]), attention(q[39:], k, v), atol=1e-5)


@pytest.mark.parametrize("terms", [{"soft_cap": 0.7}, {"sink_logits": [2, -1, 0.5, 3]},
                                   {"soft_cap": 0.7, "sink_logits": [2, -1, 0.5, 3]}])
def test_soft_caps_and_sinks(runtime, terms):
    q, k, v = rows(1, 40, H), rows(2, 40, G), rows(3, 40, G)
    cache = pith.LayerCache("exact,dtype=f32", runtime=runtime, **terms, **SHAPE)
    got = np.concatenate([cache.step(q[:39], k[:39], v[:39]), cache.step(q[39:], k[39:], v[39:])])
    expected = attention(q, k, v, soft_cap=terms.get("soft_cap"), sinks=terms.get("sink_logits"))
    np.testing.assert_allclose(got, expected, atol=1e-5)
    with pytest.raises(pith.InvalidArgument, match="3 sink logits for 4 query heads"):
        pith.LayerCache("exact", sink_logits=[1, 2, 3], runtime=runtime, **SHAPE)
    with pytest.raises(pith.InvalidArgument, match="soft cap of -1"):
        pith.LayerCache("exact", soft_cap=-1, runtime=runtime, **SHAPE)


def test_strides_types_and_out(runtime):
    q, k, v = rows(1, 9, H), rows(2, 9, G), rows(3, 9, G)
    expected = attention(q, k, v, scale=0.5)
    by_head = [np.ascontiguousarray(x.transpose(1, 0, 2)).transpose(1, 0, 2) for x in (q, k, v)]
    out = np.full((9, 2 * H, D), np.nan, np.float32)
    cache = pith.LayerCache("exact,dtype=f32", scale=0.5, runtime=runtime, **SHAPE)
    assert cache.step(*by_head, out=out[:, ::2]) is not None
    np.testing.assert_allclose(out[:, ::2], expected, atol=1e-5)
    assert np.isnan(out[:, 1::2]).all()
    half = pith.LayerCache("exact", scale=0.5, runtime=runtime, **SHAPE)
    np.testing.assert_allclose(half.step(*(x.astype(np.float16) for x in (q, k, v))), expected, atol=1e-2)


def test_rows_scores_and_what_is_stored(runtime):
    k, v = rows(2, 100, G), rows(3, 100, G)
    cache = pith.LayerCache("knorm(budget=100),sink=2,window=8,dtype=f32", runtime=runtime, **SHAPE)
    cache.append(k, v)
    held, scores = cache.rows(1), cache.scores(1)
    keys, values = cache.read_rows(1)
    np.testing.assert_array_equal(keys, k[held.positions, 1])
    np.testing.assert_array_equal(values, v[held.positions, 1])
    chosen = np.isfinite(scores)
    assert scores.dtype == np.float64 and chosen.sum() == 90
    norms = np.linalg.norm(k[held.positions, 1], axis=1)
    assert (np.argsort(scores[chosen]) == np.argsort(-norms[chosen])).all()  # small keys stay


def test_a_budget_and_a_codec_take_less(runtime):
    cache = pith.LayerCache("knorm(budget=32)+int8,sink=4,window=16", runtime=runtime, **SHAPE)
    cache.append(rows(2, 300, G), rows(3, 300, G))
    assert len(cache.rows(0)) == 52 and cache.ledger().rows_kept == 2 * 52
    assert 0 < cache.ledger().effective_bits < 16 and "int8" in cache.describe()


def test_clones_and_saved_caches_go_on_alike(runtime):
    policy = "h2o(budget=16)+int4,sink=2,window=16"
    q, k, v = rows(1, 90, H), rows(2, 90, G), rows(3, 90, G)
    cache = pith.LayerCache(policy, runtime=runtime, **SHAPE)
    cache.step(q[:80], k[:80], v[:80])
    cache.end_prompt()
    other, third = cache.clone(), pith.LayerCache(policy, runtime=runtime, **SHAPE)
    third.restore(cache.save())
    expected = cache.step(q[80:], k[80:], v[80:])
    for same in (other, third):
        np.testing.assert_array_equal(same.step(q[80:], k[80:], v[80:]), expected)


def test_many_caches_in_one_call():
    lengths, policy = (40, 1, 17), "snapkv(budget=32)+int4,sink=4,window=16"
    for threads in (1, 3):
        runtime = pith.Runtime(threads=threads)
        alone, together = ([pith.LayerCache(policy, runtime=runtime, **SHAPE) for _ in lengths] for _ in range(2))
        for turn in range(30):
            now = [n if turn == 0 else 1 for n in lengths]
            q, k, v = ([rows(100 * turn + 10 * i + kind, n, heads) for i, n in enumerate(now)]
                       for kind, heads in ((1, H), (2, G), (3, G)))
            expected = [cache.step(*x) for cache, *x in zip(alone, q, k, v)]
            for got, right in zip(runtime.step(together, q, k, v), expected):
                np.testing.assert_array_equal(got, right)
        assert [c.save() for c in together] == [c.save() for c in alone]
    out = [np.empty((1, H, D), np.float32)]
    runtime.step(together[:1], q[:1], k[:1], v[:1], out=out)
    np.testing.assert_array_equal(out[0], alone[0].step(q[0], k[0], v[0]))
    with pytest.raises(pith.InvalidArgument, match="one length; they have 2, 1, 1, 1 and 2"):
        runtime.step(together[:2], q[:1], k[:1], v[:1])
    with pytest.raises(pith.InvalidArgument, match="two steps"):
        runtime.step([together[1]] * 2, q[1:], k[1:], v[1:])
    with pytest.raises(pith.InvalidArgument, match="another Runtime"):
        pith.Runtime(threads=1).step(together[:1], q[:1], k[:1], v[:1])
    together[1].append(k[1], v[1])  # none of these holds it


def test_a_batch_by_address(runtime):
    """As torch's tensors come: [sequences, heads, tokens, head_dim], in any order of the first three."""
    policy, dtypes = "knorm(budget=8)+int8,sink=1,window=4", [np.float32, np.float16]
    place = lambda x: (x.ctypes.data, [s // x.itemsize for s in x.strides])  # noqa: E731
    for code, dtype in enumerate(dtypes):
        alone, together = ([pith.LayerCache(policy, runtime=runtime, **SHAPE) for _ in range(2)] for _ in range(2))
        for turn, tokens in enumerate([20, 1, 1, 7]):
            q, k, v = (np.stack([rows(10 * turn + seed, tokens, n) for seed in seeds]).astype(dtype)
                       for *seeds, n in ((1, 4, H), (2, 5, G), (3, 6, G)))
            by_head = np.ascontiguousarray(q.transpose(0, 2, 1, 3))
            out, expected = np.full(q.shape, np.nan, dtype), np.empty(q.shape, dtype)
            runtime.step_at(together, tokens, code, place(out), place(by_head), place(k.transpose(0, 2, 1, 3)),
                            place(v.transpose(0, 2, 1, 3)))
            for b, cache in enumerate(alone):
                cache.step(q[b], k[b], v[b], out=expected[b])
            np.testing.assert_array_equal(out, expected)
        assert [c.save() for c in together] == [c.save() for c in alone]
        there = [place(x) for x in (out, by_head, k.transpose(0, 2, 1, 3), v.transpose(0, 2, 1, 3))]
        for wrong, text in (((0, there[1][1]), "q is null"), ((there[1][0], [1, 1, 1, 2]), "have to be adjacent")):
            with pytest.raises(pith.InvalidArgument, match=text):
                runtime.step_at(together, 7, code, there[0], wrong, *there[2:])
        with pytest.raises(pith.InvalidArgument, match="dtype 7"):
            runtime.step_at(together, 7, 7, *there)
        with pytest.raises(pith.InvalidArgument, match="None"):
            runtime.step_at([together[0], None], 7, code, *there)
        assert together[0].tokens == 29


def test_refusals(runtime):
    cache = pith.LayerCache("exact", runtime=runtime, **SHAPE)
    good = rows(1, 4, H), rows(2, 4, G), rows(3, 4, G)
    with pytest.raises(pith.InvalidArgument, match=r"k: .*\[4, 2, 16\].*it is \[3, 2, 16\]"):
        cache.step(good[0], good[1][:3], good[2])
    with pytest.raises(pith.InvalidArgument, match="adjacent"):
        cache.append(rows(1, 4, G), np.asfortranarray(rows(1, 4, G)))
    with pytest.raises(TypeError, match="float32"):
        cache.append(good[1].astype(np.float64), good[2])
    with pytest.raises(TypeError):
        cache.step([1, 2], good[1], good[2])
    assert cache.tokens == 0
    with pytest.raises(pith.ContextFull):
        cache.append(rows(1, 513, G), rows(2, 513, G))
    drawn = pith.LayerCache("uniform(rate=0.25)", runtime=runtime, **SHAPE)
    drawn.append(good[1], good[2])
    with pytest.raises(pith.Unsupported, match="score"):
        drawn.scores(0)
    with pytest.raises(pith.PithError):
        pith.LayerCache("exact", runtime=runtime, **{**SHAPE, "head_dim": 17})
    with pytest.raises(pith.Corrupt):
        cache.restore(b"nothing")


def test_engines_and_layers_share_a_runtime(model):
    runtime = pith.Runtime(threads=1)
    engines = [pith.Engine(model, runtime=runtime) for _ in range(2)]
    cache = pith.LayerCache("exact", runtime=runtime, **SHAPE)
    cache.append(rows(1, 5, G), rows(2, 5, G))
    parts = [e.bytes_in_use for e in engines]
    assert min(parts) > 0 and runtime.bytes_in_use > sum(parts)
    assert runtime.threads == engines[0].threads == 1 and runtime.isa == engines[0].isa
    with pytest.raises(pith.InvalidArgument, match="threads 3 and a runtime of 1"):
        pith.Engine(model, threads=3, runtime=runtime)
