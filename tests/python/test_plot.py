"""Figures hold the numbers that they were given; the examples run on the demo model."""

import os
import subprocess
import sys

import numpy as np
import pytest

import pith
from conftest import DEMO, REPO, TEXT

matplotlib = pytest.importorskip("matplotlib", reason="tools/python.sh installs it")
matplotlib.use("Agg")
import pith.plot  # noqa: E402


@pytest.fixture(autouse=True)
def closed():
    yield
    matplotlib.pyplot.close("all")


def row(policy, bits, value, stderr=0.01, metric="kl", **more):
    selector = pith.Policy(policy).selector
    return {**dict.fromkeys(pith.results.COLUMNS), "policy": policy, "selector": selector, "kind": "ppl",
            "task": "continue", "length": 8000, "seed": 0, "piece": 0, "count": 100, "metric": metric, "value": value,
            "stderr": stderr, "effective_bits": bits, "bytes": 1000 * bits, "null_control": policy == "exact",
            "model": "demo", "model_fingerprint": "x", **more}


FOUND = [row("exact", 16, 0.0), row("exact+int8", 8.5, 0.001), row("exact+int4", 4.7, 0.02),
         row("knorm(budget=25%)", 4.0, 0.3), row("snapkv(budget=25%)", 4.0, 0.03), row("knorm(budget=12%)", 5.0, 0.4)]


def points(ax):
    return {container.get_label(): np.array(container.lines[0].get_data()).T.tolist() for container in ax.containers}


def test_frontier_shows_every_policy_and_the_best():
    ax = pith.plot.frontier(FOUND)
    shown = points(ax)
    assert shown["exact"] == [[8.5, 0.001], [4.7, 0.02]]  # exact itself is the null control
    assert sorted(shown["knorm"]) == [[4.0, 0.3], [5.0, 0.4]]
    assert shown["snapkv"] == [[4.0, 0.03]]
    front = [line for line in ax.lines if line.get_drawstyle() == "steps-post"]
    assert [line.get_xydata().tolist() for line in front] == [[[4.0, 0.03], [4.7, 0.02], [8.5, 0.001]]]
    assert ax.get_yscale() == "log" and "bits" in ax.get_xlabel() and "nats" in ax.get_ylabel()
    assert "demo" in ax.get_title() and "8000 tokens" in ax.get_title()


def test_frontier_of_scores_has_exact_as_a_line_and_more_is_better():
    found = [row(p, b, v, metric="score") for p, b, v in (("exact", 16, 0.9), ("exact+int4", 4.7, 0.8),
                                                          ("knorm(budget=25%)", 4.0, 0.1))]
    ax = pith.plot.frontier(found, y="score", hue=None)
    assert [line.get_ydata()[0] for line in ax.lines if line.get_linestyle() == "--"] == [0.9]
    front = [line for line in ax.lines if line.get_drawstyle() == "steps-post"]
    assert front[0].get_ydata().tolist() == [0.1, 0.8]


def test_frontier_refuses_what_does_not_compare():
    with pytest.raises(ValueError, match="no result has the metric 'score'"):
        pith.plot.frontier(FOUND, y="score")
    mixed = [*FOUND, row("exact+int4", 4.7, 0.5, length=2000)]
    with pytest.raises(ValueError, match="several tasks, lengths or models"):
        pith.plot.frontier(mixed)
    assert len(points(pith.plot.frontier(mixed, length=2000))) == 1


def test_a_session_is_shown_as_it_is(engine, ids):
    with pith.Session(engine, "knorm(budget=25%),sink=4,window=16", probe_rows=64, probe_every=1,
                      percent_of=len(ids)) as session:
        session.append(ids)
        session.decode(ids[0])
        ax = pith.plot.rows(session, layers=[1])
        assert len(ax.collections) == session.config.kv_heads
        for head, dots in enumerate(ax.collections):
            assert dots.get_offsets()[:, 0].tolist() == session.rows(1, head).positions.tolist()
        errors = session.attention_errors()
        bars = pith.plot.attention_error(session).patches
        np.testing.assert_allclose([bar.get_height() for bar in bars], [e.estimate for e in errors])
        ledger = session.ledger()
        bars = pith.plot.ledger({"this": ledger}).patches
        np.testing.assert_allclose(sum(bar.get_width() for bar in bars) * 2**20, ledger.total_bytes)
    with pith.Session(engine) as session, pytest.raises(ValueError, match="probe_rows"):
        pith.plot.attention_error(session)
    with pytest.raises(ValueError, match="no ledger"):
        pith.plot.ledger({})


@pytest.mark.parametrize("example", sorted(path.name for path in (REPO / "examples").glob("*.py")))
def test_examples_run(example, tmp_path):
    (tmp_path / "text").write_text(TEXT, encoding="utf-8")
    done = subprocess.run([sys.executable, str(REPO / "examples" / example)], cwd=tmp_path, text=True,
                          capture_output=True,
                          env={**os.environ, "MPLBACKEND": "Agg", "PITH_EXAMPLE_MODEL": str(DEMO),
                               "PITH_EXAMPLE_TEXT": str(tmp_path / "text"), "PITH_EXAMPLE_TOKENS": "160"})
    assert done.returncode == 0, done.stderr
    assert list(tmp_path.glob("*.svg"))
