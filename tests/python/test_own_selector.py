"""Selectors written in Python keep what the same rule in C++ keeps."""

import numpy as np
import pytest

import pith


@pytest.fixture(scope="module", autouse=True)
def selectors():
    @pith.selector("py_norms", summary="as knorm")
    def norms(rows):
        return -np.square(rows.keys.astype(np.float64)).sum(axis=1)

    pith.add_selector("py_heavy", lambda rows: rows.mass, mass="all")
    pith.add_selector("py_votes", lambda rows: rows.mass, mass="last", queries=16)


@pytest.mark.parametrize("own, built_in", [
    ("py_norms(budget=32),sink=4,window=16", "knorm(budget=32),sink=4,window=16"),
    ("py_norms(budget=25%)+int4,sink=2,window=16", "knorm(budget=25%)+int4,sink=2,window=16"),
    ("py_heavy(budget=32),sink=0,window=16", "h2o(budget=32),sink=0,window=16"),
    ("py_votes(budget=32),sink=0,window=16", "snapkv(budget=32,queries=16,kernel=1),sink=0,window=16")])
def test_as_the_built_in_rule(engine, ids, own, built_in):
    with pith.Session(engine, own, percent_of=len(ids)) as a, \
         pith.Session(engine, built_in, percent_of=len(ids)) as b:
        for session in (a, b):
            session.append(ids[:200])
        np.testing.assert_array_equal(a.prefill(ids[200:]), b.prefill(ids[200:]))
        config = engine.model.config
        for layer in range(config.layers):
            for head in range(config.kv_heads):
                assert a.rows(layer, head).positions.tolist() == b.rows(layer, head).positions.tolist()


def test_what_it_sees(engine, ids):
    seen = []
    @pith.selector("py_look")
    def look(rows):
        """Looks on."""
        seen.append((rows.layer, rows.head, rows.keys.shape, rows.values.dtype, rows.mass))
        assert len(rows) == len(rows.positions) == len(rows.keys)
        return rows.positions
    with pith.Session(engine, "py_look(budget=32),sink=4,window=16") as s:
        s.append(ids)
        kept = s.rows(0, 0).positions.tolist()  # the newest, since positions are the scores
        assert 40 < len(kept) <= 52 and kept == [0, 1, 2, 3, *range(len(ids) + 4 - len(kept), len(ids))]
    config = engine.model.config
    assert {(layer, head) for layer, head, *_ in seen} == {
        (layer, head) for layer in range(config.layers) for head in range(config.kv_heads)}
    assert seen[0][2][1] == config.head_dim and seen[0][3] == np.float32 and seen[0][4] is None
    assert any(m.name == "py_look" and m.summary == "Looks on." for m in pith.methods())


def test_scores_of_a_layer(engine):
    cache = pith.LayerCache("py_norms(budget=50),sink=0,window=0,dtype=f32", query_heads=1, kv_heads=1, head_dim=16,
                            context=64)
    k = np.random.default_rng(1).standard_normal((50, 1, 16)).astype(np.float32)
    cache.append(k, k)
    np.testing.assert_allclose(cache.scores(0), -np.square(k[:, 0]).sum(axis=1), rtol=1e-5)


def test_its_mistakes_are_raised(engine, ids):
    pith.add_selector("py_short", lambda rows: [1, 2])
    pith.add_selector("py_broken", lambda rows: 1 / 0)
    for policy, error in (("py_short", pith.InvalidArgument), ("py_broken", ZeroDivisionError)):
        with pith.Session(engine, policy + "(budget=32),window=16") as s:
            with pytest.raises(error):
                s.append(ids)
    for name in ("knorm", "int8", "Upper", "half"):
        with pytest.raises(pith.InvalidArgument):
            pith.add_selector(name, lambda rows: rows.positions)
    with pytest.raises(pith.InvalidArgument, match="mass"):
        pith.add_selector("py_mass", lambda rows: rows.positions, mass="some")
