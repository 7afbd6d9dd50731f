"""Codecs written in Python, beside built-in ones that store the same."""

import numpy as np
import pytest

import pith


@pytest.fixture(scope="module", autouse=True)
def codecs():
    @pith.codec("py_halves", row_bytes=lambda head_dim: 2 * head_dim, summary="as f16")
    class Halves:
        def encode(x, rows):
            assert x.shape == (len(rows), rows.head_dim) and x.dtype == np.float32
            return x.astype(np.float16).view(np.uint8)

        def decode(codes, rows):
            return codes.view(np.float16).astype(np.float32)

    @pith.codec("py_bytes", row_bytes=lambda head_dim: head_dim + 4)
    class Bytes:
        """One scale per row."""
        def encode(x, rows):
            scale = np.abs(x).max(axis=1, keepdims=True) / 127 + np.float32(1e-30)
            return np.hstack([np.round(x / scale).astype(np.int8).view(np.uint8),
                              scale.astype(np.float32).view(np.uint8)])

        def decode(codes, rows):
            scale = np.ascontiguousarray(codes[:, -4:]).view(np.float32)
            return codes[:, :-4].view(np.int8) * scale


@pytest.mark.parametrize("rule", ["exact", "keydiff(budget=32)", "uniform(rate=0.5)", "h2o(budget=40)"])
def test_as_the_built_in_codec(engine, ids, rule):
    rest = ",sink=4,window=16"
    with pith.Session(engine, f"{rule}+py_halves{rest}") as own, pith.Session(engine, f"{rule}+f16{rest}") as f16:
        for session in (own, f16):
            session.append(ids[:150])
        np.testing.assert_allclose(own.prefill(ids[150:]), f16.prefill(ids[150:]), atol=2e-3)
        assert own.rows(0, 0).positions.tolist() == f16.rows(0, 0).positions.tolist()
        assert own.ledger().effective_bits == pytest.approx(f16.ledger().effective_bits, rel=0.02)


def test_forks_files_and_threads(model, ids, tmp_path):
    policy = "keydiff(budget=32)+py_bytes,sink=4,window=16"
    logits = []
    for threads in (1, 3):
        engine = pith.Engine(model, threads=threads)
        with pith.Session(engine, policy) as s:
            s.append(ids[:100])
            s.save(tmp_path / f"{threads}.pith")
            with s.fork() as other:
                other.append(ids[100:])
                logits.append(other.decode(7))
        with pith.Session.restore(engine, tmp_path / f"{threads}.pith", policy) as s:
            s.append(ids[100:])
            logits.append(s.decode(7))
    for other in logits[1:]:
        np.testing.assert_array_equal(other, logits[0])


def test_values_alone_and_a_layer(engine, ids):
    with pith.Session(engine, "exact+k:int8+v:py_bytes,window=16") as s:
        s.append(ids)
        assert 8 < s.ledger().effective_bits < 16
    cache = pith.LayerCache("keydiff(budget=20)+py_bytes,sink=0,window=0", query_heads=2, kv_heads=2, head_dim=64,
                            context=256)
    k = np.random.default_rng(3).standard_normal((200, 2, 64)).astype(np.float32)
    cache.append(k, k)
    keys, values = cache.read_rows(1)
    positions = cache.rows(1).positions
    np.testing.assert_allclose(keys, k[positions, 1], atol=0.02)
    np.testing.assert_allclose(keys, values)
    assert len(cache.scores(1)) == len(positions)
    assert any(m.name == "py_bytes" and m.summary == "One scale per row." for m in pith.methods())


def test_mistakes_are_raised(engine, ids):
    def half(x, rows):
        return x.astype(np.float16).view(np.uint8)
    wrong = {"py_few": (lambda x, rows: np.zeros((len(x), 3), np.uint8), pith.InvalidArgument),
             "py_floats": (lambda x, rows: x, pith.InvalidArgument),
             "py_fails": (lambda x, rows: 1 / 0, ZeroDivisionError)}
    for name, (encode, error) in wrong.items():
        pith.add_codec(name, encode, lambda codes, rows: codes, 16)
        with pith.Session(engine, f"exact+{name},window=16") as s, pytest.raises(error):
            s.append(ids)
    pith.add_codec("py_nan", half, lambda codes, rows: np.full((len(rows), rows.head_dim), np.nan, np.float32),
                   lambda head_dim: 2 * head_dim)
    with pith.Session(engine, "exact+py_nan,window=16") as s:
        with pytest.raises(pith.NonFinite, match="py_nan"):
            s.append(ids)
            s.decode(1)
    for name in ("knorm", "int8", "Upper", "half"):
        with pytest.raises(pith.InvalidArgument):
            pith.add_codec(name, half, half, 16)
    pith.add_codec("py_nothing", half, half, 0)
    with pytest.raises(pith.InvalidArgument, match="row_bytes"):
        pith.Session(engine, "exact+py_nothing").append(ids)
    with pytest.raises(pith.InvalidArgument, match="did you mean"):
        pith.Session(engine, "exact+py_halve")
