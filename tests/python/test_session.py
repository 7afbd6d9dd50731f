"""Sessions: the engine's own answers, as arrays."""

import numpy as np
import pytest

import pith


def log_softmax(logits):
    wide = logits.astype(np.float64)
    wide -= wide.max(axis=-1, keepdims=True)
    return wide - np.log(np.exp(wide).sum(axis=-1, keepdims=True))


def test_logits_of_all_ways_of_reading_agree(engine, ids):
    with pith.Session(engine) as a, pith.Session(engine) as b, pith.Session(engine) as c:
        every = a.logits(ids)
        assert every.shape == (len(ids), engine.model.config.vocab) and every.dtype == np.float32
        np.testing.assert_allclose(b.prefill(np.array(ids)), every[-1], atol=1e-4)
        c.append(ids[:-1])
        np.testing.assert_allclose(c.decode(ids[-1]), every[-1], atol=1e-2)  # other kernels, f16 rows
        assert a.tokens == b.tokens == c.tokens == len(ids) and a.token_ids == ids


def test_scores_are_the_log_softmax_of_the_logits(engine, ids):
    with pith.Session(engine) as a, pith.Session(engine) as b:
        logprobs, likeliest = a.score(ids)
        expected = log_softmax(b.logits(ids))
    at = np.arange(len(ids) - 1)
    np.testing.assert_allclose(logprobs[1:], expected[at, ids[1:]], atol=1e-4)
    assert (likeliest[1:] == expected[:-1].argmax(axis=1)).all()
    assert logprobs[0] == 0 and likeliest[0] == -1


def test_logits_outlive_the_next_call_and_the_session(engine, ids):
    with pith.Session(engine) as s:
        first = s.prefill(ids[:10])
        kept = first.copy()
        s.prefill(ids[10:20])
    np.testing.assert_array_equal(first, kept)


def test_rows_and_ledger_show_what_a_policy_keeps(engine, ids):
    with pith.Session(engine, "streaming_llm(window=12),sink=4") as s:
        s.append(ids)
        rows, ledger, config = s.rows(0, 0), s.ledger(), engine.model.config
    expected = [0, 1, 2, 3, *range(len(ids) - 12, len(ids))]
    assert rows.positions.tolist() == expected and len(rows) == 16
    assert rows.positions.dtype == np.int64 and (rows.log_weights == 0).all() and (rows.roles == 0).all()
    assert ledger.rows_kept == 16 * config.layers * config.kv_heads
    assert ledger.rows_seen == len(ids) * config.layers * config.kv_heads
    assert ledger.as_dict()["cache_bytes"] == ledger.cache_bytes <= ledger.total_bytes
    assert 0 < ledger.effective_bits < 16


def test_a_fork_goes_on_apart(engine, ids):
    with pith.Session(engine) as s:
        s.append(ids)
        with s.fork() as other:
            other.append([5, 6, 7])
            assert other.tokens == s.tokens + 3
        np.testing.assert_array_equal(s.fork().decode(9), s.fork().decode(9))


def test_saved_sessions_go_on_bit_for_bit(engine, ids, tmp_path):
    policy = "snapkv(budget=25%)+int4,sink=4"
    s = pith.Session(engine, policy, percent_of=len(ids))
    s.append(ids)
    s.save(tmp_path / "talk.pith")
    with pytest.raises(pith.IoError):
        s.save(tmp_path / "talk.pith")
    again = pith.Session.restore(engine, tmp_path / "talk.pith", policy)
    np.testing.assert_array_equal(again.decode(7), s.decode(7))
    with pytest.raises(pith.InvalidArgument, match="policy"):
        pith.Session.restore(engine, tmp_path / "talk.pith", "exact")


def test_protected_tokens_stay(engine, ids):
    with pith.Session(engine, "streaming_llm(window=12)", protect="20:30") as s:
        s.append(ids)
        assert set(range(20, 30)) <= set(s.rows(1, 0).positions.tolist())


def test_progress_can_stop_and_raise(engine, ids):
    many = (ids * 30)[:1500]
    with pith.Session(engine) as s:
        s.append(many, progress=lambda done, total: done < 512)
        assert s.tokens == 512
    class Stop(Exception):
        pass
    def stop(done, total):
        raise Stop
    with pith.Session(engine) as s:
        with pytest.raises(Stop):
            s.append(many, progress=stop)
        assert s.tokens < len(many)
        s.append([5])  # it can be used


def test_estimates_bound_what_a_session_holds(engine, model, ids):
    policy = "keydiff(budget=64)+int8"
    with pith.Session(engine, policy) as s:
        s.append(ids)
        assert s.ledger().cache_bytes <= pith.estimate(model, policy, len(ids)).total_bytes


def test_probe_estimates_errors(engine, ids):
    with pith.Session(engine, "streaming_llm(window=28)", probe_rows=64, probe_every=1) as s:
        s.append(ids)
        for token in ids[:4]:
            s.decode(token)
        errors = s.attention_errors()
    assert [e.layer for e in errors] == list(range(engine.model.config.layers))
    assert all(e.steps > 0 and e.low <= e.estimate <= e.high for e in errors)


def test_values():
    policy = pith.Policy("snapkv(budget=25%)+int4")
    assert policy == pith.Policy(str(policy)) != pith.Policy("exact")
    assert "budget=64" in str(pith.Policy("snapkv").with_budget("64"))
    import pickle
    assert pickle.loads(pickle.dumps(policy)) == policy
    names = [method.name for method in pith.methods()]
    assert "snapkv" in names and "int4" in names
    for method in pith.methods():
        assert bool(method.needs) == method.is_selector and bool(method.offers) != method.is_selector
        assert (method.block_rows > 0) != method.is_selector
    snapkv, kivi = (next(m for m in pith.methods() if m.name == name) for name in ("snapkv", "kivi"))
    assert snapkv.needs_mass and "attention mass" in snapkv.needs
    assert kivi.shares and kivi.block_rows == 32 and not kivi.needs_rope
