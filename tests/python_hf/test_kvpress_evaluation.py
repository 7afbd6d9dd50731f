"""The engine behind kvpress's pipeline, and kvpress's own evaluation with Pith inside (PITH_KVPRESS: a checkout)."""

import json
import os
import pathlib
import sys

import pytest
import torch

kvpress = pytest.importorskip("kvpress", reason="there is no kvpress (it needs a transformers below 5.3)")

import pith  # noqa: E402
from pith.kvpress import PithEnginePipeline, PithPress, PithScorerPress, evaluate  # noqa: E402
from transformers import AutoModelForCausalLM, DynamicCache  # noqa: E402

DEMO = pathlib.Path(__file__).resolve().parents[2] / "models" / "demo"
TEXT = "Once upon a time there was a king who lived in a house by the sea. He had three sons. " * 4
QUESTIONS = ["The youngest of them", "The king"]


@pytest.fixture(scope="module")
def pipeline():
    return PithEnginePipeline(DEMO, "exact,dtype=f32", threads=1, f32_arithmetic=True)


def greedy(model, before, question, count, stops):
    """transformers' own, without a press."""
    cache = DynamicCache()
    with torch.inference_mode():
        model(torch.tensor([before]), past_key_values=cache)
        found, feed = [], question
        while len(found) < count and (len(found) < 2 or found[-1] not in stops):
            found.append(int(model(torch.tensor([feed]), past_key_values=cache).logits[0, -1].argmax()))
            feed = found[-1:]
    return found


def test_exact_answers_are_those_of_transformers(pipeline):
    """The demo model has no chat template: a text, a line for the question, the answer."""
    model = AutoModelForCausalLM.from_pretrained(DEMO, dtype=torch.float32).eval()
    tokens = pipeline.tokenizer
    before = tokens.encode(tokens.decode([tokens.bos]) + TEXT)
    assert before[0] == tokens.bos and before[1] != tokens.bos
    for prefix in ("", "He"):
        want = [tokens.decode(greedy(model, before, tokens.encode(q + "\n" + prefix), 12, tokens.eos_ids), True)
                for q in QUESTIONS]
        got = pipeline(TEXT, questions=QUESTIONS, answer_prefix=prefix, max_new_tokens=12)
        assert got == {"answers": want}
        assert pipeline(TEXT, question=QUESTIONS[1], answer_prefix=prefix, max_new_tokens=12) == {"answer": want[1]}
    assert pipeline.ledger.tokens == len(before) and pipeline.ledger.rows_kept == pipeline.ledger.rows_seen


def test_a_policy_holds_and_a_context_is_cut(pipeline):
    small = PithEnginePipeline(pipeline.model_read, "knorm(budget=25%)+int4,sink=4,window=8", threads=1)
    assert isinstance(small(TEXT, max_new_tokens=3)["answer"], str)
    assert small.ledger.rows_kept < 0.5 * small.ledger.rows_seen
    small(TEXT, max_new_tokens=1, max_context_length=20)
    assert small.ledger.tokens == 20


@pytest.mark.parametrize("given, text", [({"press": object()}, "policy="), ({"cache": object()}, "policy="),
                                         ({"question": "a", "questions": ["b"]}, "one of them"),
                                         ({"max_new_tokens": 0}, "one token")])
def test_the_pipeline_refuses(pipeline, given, text):
    with pytest.raises(pith.PithError, match=text):
        pipeline(TEXT, **given)


def test_names_of_presses():
    assert evaluate.press_of("knorm") is None
    assert isinstance(evaluate.press_of("pith:knorm(budget=25%)"), PithPress)
    assert isinstance(evaluate.press_of("pith-scores:knorm"), PithScorerPress)
    assert evaluate.press_of("pith-engine:exact,dtype=f32").policy == "exact,dtype=f32"
    with pytest.raises(pith.InvalidArgument, match="pith-engine"):
        evaluate.press_of("press:knorm")
    with pytest.raises(pith.PithError, match="knrom"):
        evaluate.press_of("pith:knrom")


def run_in(monkeypatch, checkout, *words):
    monkeypatch.setattr(sys, "path", list(sys.path))
    for name in [n for n in sys.modules if n.split(".")[0] in ("evaluate", "evaluate_registry", "benchmarks")]:
        monkeypatch.delitem(sys.modules, name)
    evaluate.main(["--kvpress", str(checkout), *map(str, words)])


def test_evaluation_of_a_checkout(monkeypatch, tmp_path):
    """Which press, pipeline and data a stand-in of kvpress's evaluation gets."""
    folder = tmp_path / "evaluation"
    folder.mkdir()
    with pytest.raises(pith.NotFound, match="evaluate_registry"):
        run_in(monkeypatch, tmp_path, "--press_name", "knorm")
    (folder / "evaluate_registry.py").write_text("PRESS_REGISTRY, DATASET_REGISTRY = {}, {}\n")
    (folder / "evaluate.py").write_text('''
import evaluate_registry
SEEN = {}
class EvaluationRunner:
    def _setup_model_pipeline(self): SEEN["theirs"] = True
class CliEntryPoint: pass
def Fire(entry, name, command):
    SEEN.update(dict(word.lstrip("-").split("=", 1) for word in command))
    runner = EvaluationRunner()
    runner.press = evaluate_registry.PRESS_REGISTRY[SEEN["press_name"]]
    import types
    runner.config = types.SimpleNamespace(model=SEEN.get("model"), seed=3, device=None, model_kwargs={"threads": 1})
    runner._setup_model_pipeline()
    SEEN["pipeline"] = getattr(runner, "pipeline", None)
''')
    run_in(monkeypatch, tmp_path, "--press_name", "pith-engine:exact,dtype=f32", f"--model={DEMO}", "--data", "here")
    seen, registry = sys.modules["evaluate"].SEEN, sys.modules["evaluate_registry"]
    assert registry.DATASET_REGISTRY == {"ruler": "here"} and seen["compression_ratio"] == "0.0"
    assert seen["pipeline"](TEXT, questions=["Who?"], press=object(), max_new_tokens=2)["answers"][0]
    run_in(monkeypatch, tmp_path, "--press_name", "pith-scores:knorm", "--compression_ratio=0.5")
    assert sys.modules["evaluate"].SEEN["theirs"] and sys.modules["evaluate"].SEEN["compression_ratio"] == "0.5"
    with pytest.raises(pith.InvalidArgument, match="what stays"):
        run_in(monkeypatch, tmp_path, "--press_name", "pith:exact", "--compression_ratio=0.5")


@pytest.mark.skipif("PITH_KVPRESS" not in os.environ, reason="PITH_KVPRESS names no checkout of kvpress")
def test_kvpress_own_evaluation(monkeypatch, tmp_path):
    """Theirs on data of our own, without a network: exact answers score as their pipeline without a press."""
    pandas = pytest.importorskip("pandas")
    rows = [{"context": TEXT + f"The number of the house is {n}. ", "question": "What is the number of the house?",
             "answer_prefix": "The number is", "answer": [str(n)], "max_new_tokens": 4, "task": "niah_single_1"}
            for n in (41, 87)]
    (tmp_path / "test.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    scores = {}
    for press in ("no_press", "pith-engine:exact,dtype=f32", "pith:exact,dtype=f32"):
        out = tmp_path / press.split(":")[0]
        name = "'f32_arithmetic': True" if "engine" in press else "'dtype': 'float32'"
        run_in(monkeypatch, os.environ["PITH_KVPRESS"], "--press_name", press, f"--model={DEMO}", "--data", tmp_path,
               f"--output_dir={out}", "--device=cpu", f"--model_kwargs={{{name}}}")
        (found,) = out.glob("*/predictions.csv")
        scores[press] = pandas.read_csv(found).sort_values("answer")["predicted_answer"].tolist()
        assert len(scores[press]) == 2 and (found.parent / "metrics.json").exists()
    assert len({str(s) for s in scores.values()}) == 1, scores
