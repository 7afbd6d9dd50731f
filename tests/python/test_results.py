"""Tables of results: every form that the program writes, against its own figures."""

import json
import math

import pytest

import pith
from conftest import DEMO, REPO, TEXT
from pith import results


@pytest.fixture
def ppl(program, tmp_path):
    (tmp_path / "text").write_text(TEXT)
    run = ["eval", "ppl", "-m", DEMO, "-f", tmp_path / "text", "-c", 128, "-ub", 32, "-t", 1, "--pieces", 1,
           "--kv-policy", "keydiff(budget=16),window=16", "--json", "-o", tmp_path / "ppl.jsonl"]
    return json.loads(program(*run)), tmp_path / "ppl.jsonl"


def one(rows, **wanted):
    found = [row for row in rows if all(row[k] == v for k, v in wanted.items())]
    assert len(found) == 1, found
    return found[0]


def test_lines_of_pieces_join_to_what_the_program_says(ppl):
    whole, file = ppl
    lines, told = results.rows(file), results.rows([json.dumps(whole)])
    assert {row["policy"] for row in lines} == {"exact", "keydiff(budget=16),window=16"}
    for policy in ("exact", "keydiff(budget=16),window=16"):
        joined = one(results.summary(lines), policy=policy, metric="kl", task="continue")
        summed = one(told, policy=policy, metric="kl", seed=0)
        assert joined["value"] == pytest.approx(summed["value"], abs=1e-9)
        assert joined["count"] == summed["count"]
        assert joined["stderr"] == pytest.approx(summed["stderr"], rel=1e-5), "blocks of one piece"
        assert joined["null_control"] == (policy == "exact") and joined["model"] == "demo"
    assert one(results.summary(lines), selector="keydiff", metric="kl")["codec"] == "f16"
    assert one(results.summary(lines), selector="keydiff", metric="kl")["value"] > 0


def made(piece, seed, value, stderr):
    return dict.fromkeys(results.COLUMNS) | {"policy": "x", "piece": piece, "seed": seed, "value": value,
                                             "stderr": stderr, "count": 4, "metric": "kl"}


def test_errors_of_joined_rows():
    [joined] = results.summary([made(0, 0, 1, 3), made(1, 0, 1, 4)])
    assert joined["stderr"] == pytest.approx(2.5), "pieces say more of themselves than by how they differ"
    [joined] = results.summary([made(0, 0, 1, 0.1), made(1, 0, 3, 0.1)])
    assert joined["stderr"] == pytest.approx(1), "of 1 and 3"
    [joined] = results.summary([made(0, 0, 1, 3), made(0, 1, 3, 3)])
    assert joined["stderr"] == pytest.approx(math.hypot(3, 1)), "two seeds read one text"


def test_samples_of_tasks(program, tmp_path):
    told = json.loads(program("eval", "tasks", "-m", DEMO, "--task", "facts", "-c", 256, "--samples", 2, "--turns",
                              2, "-t", 1, "--kv-policy", "exact", "--json", "-o", tmp_path / "tasks.jsonl"))
    lines = results.rows(tmp_path / "tasks.jsonl")
    assert [row["piece"] for row in lines if row["seed"] == 0] == [0, 1]
    [joined], [whole] = results.summary(lines), results.rows([json.dumps(told)])
    assert joined["value"] == pytest.approx(whole["value"]) and whole["task"] == "facts"
    assert whole["rows_kept"] == 1


def test_boards():
    lines = results.rows(REPO / "docs" / "results" / "fidelity.jsonl")
    exact = [row for row in lines if row["policy"] == "exact" and row["metric"] == "kl"]
    assert exact and all(row["value"] == 0 and row["null_control"] for row in exact)
    assert {row["kind"] for row in lines} == {"ppl", "task"}
    assert all(set(row) == set(results.COLUMNS) for row in lines)


def test_what_is_no_result_is_refused(tmp_path):
    (tmp_path / "x").write_text('{"a": 1}\n')
    with pytest.raises(pith.Corrupt, match="line 1"):
        results.rows(tmp_path / "x")
    with pytest.warns(UserWarning, match="null control"):
        results.rows(['{"result": "ppl", "name": "a", "length": 1}',
                      '{"policy": "knorm(budget=64)", "kl": [0.5, 0.1]}'])


def test_a_frame_has_the_columns():
    pandas = pytest.importorskip("pandas")
    frame = results.read(REPO / "docs" / "results" / "fidelity_gemma3.jsonl")
    assert isinstance(frame, pandas.DataFrame) and list(frame.columns) == list(results.COLUMNS)
    assert len(results.summary(frame)) <= len(frame)
