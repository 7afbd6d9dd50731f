"""pith.lm_eval beside the harness's own transformers model, and what a policy changes."""

import os
import pathlib
import subprocess
import sys

import numpy as np
import pytest

lm_eval = pytest.importorskip("lm_eval", reason="tools/python_torch.sh installs it")
from lm_eval.api.instance import Instance  # noqa: E402

import pith  # noqa: E402
import pith.lm_eval  # noqa: E402

sys.path.append(str(pith.lm_eval.TASKS))
import data  # noqa: E402

DEMO = pathlib.Path(__file__).parent.parent.parent / "models" / "demo"
COMPRESSED = "knorm(budget=25%)+int8,sink=4,window=16"


@pytest.fixture(autouse=True)
def offline(monkeypatch, tmp_path):
    for name in ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE"):
        monkeypatch.setenv(name, "1")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))


def make(policy="exact", **options):
    return pith.lm_eval.PithLM(str(DEMO), policy=policy, threads=1, isa="avx2", **options)


def asked(kind, *args):
    return [Instance(kind, {}, one, i) for i, one in enumerate(args)]


def run(model, tasks, limit=4, **metadata):
    manager = pith.lm_eval.task_manager(metadata={"words": 120, **metadata})
    return lm_eval.simple_evaluate(model, tasks=tasks, task_manager=manager, limit=limit, bootstrap_iters=0)


def pairs():
    rows = data.choice(words=30, samples=50)["test"]
    return [(f"{row['text']} The secret number of {row['name']} is", f" {choice}")
            for row in rows for choice in row["choices"]]


def test_exact_is_transformers():
    """200 log-probabilities, whole texts, answers, and the figures of a choice and of a generation task."""
    torch = pytest.importorskip("torch")
    from lm_eval.models.huggingface import HFLM
    # The demo's files disagree about a first token, which lm_eval reads from one and Pith from another.
    theirs = HFLM(pretrained=str(DEMO), dtype="float32", device="cpu", batch_size=1, add_bos_token=False)
    requests = pairs()
    with torch.inference_mode():
        expected = theirs.loglikelihood(asked("loglikelihood", *requests), disable_tqdm=True)
    for hold_back in (0, 1):
        ours = make("exact,dtype=f32", hold_back=hold_back, add_bos_token=False)  # no rows rounded to f16
        found = ours.loglikelihood(asked("loglikelihood", *requests), disable_tqdm=True)
        assert [greedy for _, greedy in found] == [greedy for _, greedy in expected]
        np.testing.assert_allclose([x for x, _ in found], [x for x, _ in expected], atol=1e-3)
    page = requests[0][0]
    rolling = asked("loglikelihood_rolling", (page,), (page[:300],))
    np.testing.assert_allclose(ours.loglikelihood_rolling(rolling, disable_tqdm=True),
                               theirs.loglikelihood_rolling(rolling, disable_tqdm=True), rtol=1e-5)
    until = asked("generate_until", *[(context, {"until": ["."], "max_gen_toks": 8}) for context, _ in requests[::40]])
    assert ours.generate_until(until, disable_tqdm=True) == theirs.generate_until(until, disable_tqdm=True)
    figures = [run(model, ["pith_choice", "pith_facts"], 12)["results"] for model in (ours, theirs)]
    for task, metric in (("pith_choice", "acc,none"), ("pith_facts", "exact_match,none")):
        assert figures[0][task][metric] == figures[1][task][metric]


def test_scores_are_the_sessions():
    model = make()
    context, ids = list(range(300, 340)), [350, 351, 352]
    ((logprob, greedy),) = model._loglikelihood_tokens([(None, context, ids)], disable_tqdm=True)
    with pith.Session(model.llm.engine) as session:
        logprobs, likeliest = session.score(context + ids)
    assert abs(logprob - float(logprobs[-3:].sum())) < 1e-3
    assert greedy == (likeliest[-3:].tolist() == ids)


def test_a_held_back_token_reads_the_compressed_cache():
    context, ids = list(range(300, 500)), [[350], [351], [352, 353]]
    requests = [(None, context, one) for one in ids]

    def scores(policy, hold_back):
        return np.array([x for x, _ in make(policy, hold_back=hold_back)._loglikelihood_tokens(requests, True)])
    assert np.abs(scores(COMPRESSED, 1) - scores("exact", 1)).min() > 0.01
    # The prompt's own pass saw every row as it is.
    assert np.abs(scores(COMPRESSED, 0) - scores("exact", 0))[:2].max() < 1e-5


def test_tasks_run_without_a_network_and_say_what_ran():
    results = run(make(COMPRESSED), ["pith_facts", "pith_choice"])
    assert set(results["results"]) == {"pith_facts", "pith_choice"}
    config = results["config"]
    assert config["policy"] == COMPRESSED and config["contexts"] == 8 and config["contexts_compressed"] == 1
    assert 0.2 < config["rows_kept"][1] < 0.5 and config["effective_bits"][1] < 5
    again = run(make(COMPRESSED), ["pith_facts"])
    first, second = (x["samples"]["pith_facts"] for x in (results, again))
    assert [s["resps"] for s in first] == [s["resps"] for s in second]


def test_needles_of_ruler_run_without_a_network(monkeypatch):
    pytest.importorskip("wonderwords", reason="tools/python_torch.sh installs it")
    import nltk
    monkeypatch.setattr(nltk, "download", lambda _: False)  # its data are for the essays of other needles
    model = make(COMPRESSED)
    found = lm_eval.simple_evaluate(model, tasks=["niah_single_1"], limit=1, bootstrap_iters=0,
                                    task_manager=pith.lm_eval.task_manager(metadata={"max_seq_lengths": [4096],
                                                                                     "pretrained": str(DEMO)}))
    (sample,) = found["samples"]["niah_single_1"]
    assert 3900 < sample["doc"]["length"] <= 4096
    ids = model.tok_encode(sample["arguments"][0][0])
    answer = model.llm.generate(ids, max_tokens=128, temperature=0.0).text
    assert answer.startswith(sample["resps"][0][0]) and sample["resps"][0][0]
    assert found["results"]["niah_single_1"]["4096,none"] == float(sample["target"][0] in answer)
    assert 0.2 < found["config"]["rows_kept"][1] < 0.3 and found["config"]["contexts"] == 1


def test_a_text_of_the_users(tmp_path):
    (tmp_path / "book.txt").write_text("The ship lay at anchor, and nobody spoke. " * 40, encoding="utf-8")
    text = {"text": str(tmp_path / "book.txt"), "characters": 400, "pieces": 2}
    found = run(make(), ["pith_text"], **text)["results"]["pith_text"]
    assert 0 < found["bits_per_byte,none"] < 3
    with pytest.raises(ValueError, match="needs a file"):
        run(make(), ["pith_text"])


def test_long_requests_lose_their_beginning():
    model, ids = make(context=64), list(range(300, 500))
    ((cut, _),) = model._loglikelihood_tokens([(None, ids, [350])], True)
    ((whole, _),) = model._loglikelihood_tokens([(None, ids[-64:], [350])], True)
    assert cut == whole
    with pytest.raises(ValueError, match="does not fit"):
        model._loglikelihood_tokens([(None, [300], ids)], True)
    with pytest.raises(ValueError, match="leaves no room"):
        model.generate_until(asked("generate_until", ("a", {"max_gen_toks": 64, "until": []})), True)


def test_refusals():
    with pytest.raises(TypeError, match="give a dict, or quotes"):
        pith.lm_eval.PithLM(str(DEMO), policy="knorm(budget=25%)", sink="4")
    with pytest.raises(TypeError, match="did you mean 'chunk'"):
        make(chunks=4)
    with pytest.raises(ValueError, match="batch_size=8"):
        make(batch_size=8)
    with pytest.raises(ValueError, match="top_a is not supported"):
        make().generate_until(asked("generate_until", ("a", {"top_a": 1, "until": []})), True)
    with pytest.raises(ValueError, match="empty continuation"):
        make()._loglikelihood_tokens([(None, [300], [])], True)


def test_the_command_line(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "pith.lm_eval", "run", "--model", "pith", "--model_args",
         f'pretrained={DEMO},threads=1,policy="knorm(budget=25%),sink=4,window=16"', "--tasks", "pith_choice",
         "--limit", "2", "--metadata", '{"words": 60}'], cwd=tmp_path, capture_output=True, text=True, timeout=600,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)})
    assert done.returncode == 0, done.stderr[-2000:]
    assert "pith_choice" in done.stdout and "knorm(budget=25%),sink=4,window=16" in done.stdout
