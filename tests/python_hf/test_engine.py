"""A model in transformers under a policy is the same model in Pith's engine: the rows that stay, and what it says."""

import pathlib

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

import pith
from pith.hf import PithCache
from small_models import CACHE

DEMO = pathlib.Path(__file__).resolve().parents[2] / "models" / "demo"
PAGE = DEMO.parent.parent / "docs" / "evaluation.md"
POLICIES = ["exact,dtype=f32", "exact+int4,dtype=f32", "streaming_llm(window=60),sink=4,dtype=f32",
            "knorm(budget=25%)+int8,sink=4,window=16,dtype=f32", "snapkv(budget=25%)+int4,sink=4,window=32,dtype=f32",
            "h2o(budget=48),sink=4,window=32,dtype=f32", "expected_attention(budget=25%),sink=4,window=16,dtype=f32",
            "uniform(rate=0.25),sink=4,window=32,dtype=f32"]


@pytest.fixture(scope="module")
def models():
    model = AutoModelForCausalLM.from_pretrained(DEMO, dtype=torch.float32, attn_implementation="pith").eval()
    return model, pith.Model.load(str(DEMO))


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("prompt, chunk", [(300, 300), (256, 128)])  # the engine's last chunk is never a short one
def test_a_cache_is_a_session(models, policy, prompt, chunk):
    model, own = models
    engine = pith.Engine(own, threads=1, f32_arithmetic=True, chunk=chunk)
    ids = own.tokenizer.encode(PAGE.read_text(encoding="utf-8"))[:prompt + 24]
    cache = PithCache(policy, model=model, chunk=chunk)
    with torch.inference_mode(), pith.Session(engine, policy, percent_of=prompt) as session:
        model(torch.tensor([ids[:prompt]]), **{CACHE: cache}, logits_to_keep=1)
        session.append(ids[:prompt])
        theirs = torch.cat([model(torch.tensor([[t]]), **{CACHE: cache}).logits[0] for t in ids[prompt:]])
        ours = torch.from_numpy(np.stack([session.decode(t) for t in ids[prompt:]]))
        for layer in range(model.config.num_hidden_layers):
            for head in range(model.config.num_key_value_heads):
                np.testing.assert_array_equal(cache.rows(layer, head).positions, session.rows(layer, head).positions)
        assert cache.ledger().rows_kept == session.ledger().rows_kept
    p, q = (torch.log_softmax(x.double(), -1) for x in (theirs, ours))
    assert abs(float((p.exp() * (p - q)).sum(-1).mean())) < 1e-6
