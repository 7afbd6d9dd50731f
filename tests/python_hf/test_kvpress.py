"""Our selectors under kvpress keep the rows that its own presses keep."""

import pytest
import torch

kvpress = pytest.importorskip("kvpress", reason="there is no kvpress (it needs a transformers below 5.3)")

import pith  # noqa: E402
from pith.hf import PithCache  # noqa: E402
from pith.kvpress import PithPress, PithScorerPress  # noqa: E402
from small_models import CACHE, attention, make_model  # noqa: E402

PAIRS = {
    "knorm,sink=0,window=0": lambda ratio: kvpress.KnormPress(ratio),
    "keydiff,sink=0,window=0": lambda ratio: kvpress.KeyDiffPress(ratio),
    "tova,sink=0,window=1": lambda ratio: kvpress.TOVAPress(ratio),
    "snapkv(kernel=5),sink=0,window=64": lambda ratio: kvpress.SnapKVPress(ratio, window_size=64, kernel_size=5),
    "expected_attention,sink=4,window=0": lambda ratio: kvpress.ExpectedAttentionPress(ratio, n_sink=4),
}


@pytest.fixture(scope="module", params=["Llama", "Qwen3"])
def model(request):
    model = make_model(request.param, vocab_size=1031)
    for name, weight in model.named_parameters():
        if name.endswith("k_norm.weight"):  # of ones, all keys have one norm
            weight.data.uniform_(0.5, 1.5)
    return model


def text(batch, tokens):
    """No token twice: in the first layer its keys would have one norm, and which of them stays is nobody's rule."""
    generator = torch.Generator().manual_seed(5)
    return torch.stack([2 + torch.randperm(1029, generator=generator)[:tokens] for _ in range(batch)])


def held(model, press, ids):
    """Each layer's keys [B, G, rows, D] after a prefill under the press."""
    cache = kvpress_cache()
    with torch.inference_mode(), attention(model, "sdpa"), press(model):
        model.model(ids, past_key_values=cache)
    return [layer.keys for layer in cache.layers]


def kvpress_cache():
    from transformers import DynamicCache
    return DynamicCache()


def in_order(keys):
    """Rows in an order of their own: kvpress leaves them in the order of scores."""
    order = keys[..., 0].argsort(dim=-1)
    return keys.gather(2, order.unsqueeze(-1).expand_as(keys))


@pytest.mark.parametrize("policy", PAIRS)
@pytest.mark.parametrize("tokens, ratio", [(65, 0.0), (65, 0.1), (257, 0.5), (257, 0.7), (400, 0.8), (1023, 0.9)])
def test_the_same_rows_stay(model, policy, tokens, ratio):
    if "window=64" in policy and tokens * (1 - ratio) < 64:
        pytest.skip("fewer rows than SnapKV's window")
    ids = text(2, tokens)
    theirs = held(model, PAIRS[policy](ratio), ids)
    ours = held(model, PithScorerPress(ratio, policy), ids)
    for layer, (a, b) in enumerate(zip(theirs, ours)):
        torch.testing.assert_close(in_order(a), in_order(b), atol=0, rtol=0, msg=f"layer {layer}: other rows stay")


@pytest.mark.parametrize("policy", ["knorm,sink=0,window=0", "keydiff,sink=0,window=0", "tova,sink=0,window=1"])
def test_one_row_of_a_thousand(model, policy):
    ids = text(1, 1023)
    theirs, ours = held(model, PAIRS[policy](0.999), ids), held(model, PithScorerPress(0.999, policy), ids)
    for a, b in zip(theirs, ours):
        assert a.shape[2] == 1
        torch.testing.assert_close(a, b, atol=0, rtol=0)


@pytest.mark.parametrize("policy", PAIRS)
def test_wide_heads(policy):
    model = make_model("Llama", vocab_size=1031, head_dim=128)
    ids = text(1, 257)
    for a, b in zip(held(model, PAIRS[policy](0.5), ids), held(model, PithScorerPress(0.5, policy), ids)):
        torch.testing.assert_close(in_order(a), in_order(b), atol=0, rtol=0)


@pytest.mark.parametrize("policy", ["knorm,sink=0,window=0", "keydiff,sink=0,window=0"])
def test_bf16_differs_in_ties_alone(policy):
    """kvpress rounds scores to bf16: rows within 4 of its steps of the last that stays are equals to it."""
    model = make_model("Llama", vocab_size=1031).to(torch.bfloat16)
    ids = text(1, 257)
    every = held(model, kvpress.KnormPress(0.0), ids)
    theirs, ours = held(model, PAIRS[policy](0.5), ids), held(model, PithScorerPress(0.5, policy), ids)
    for keys, a, b in zip(every, theirs, ours):
        for g in range(keys.shape[1]):
            rows = keys[0, g].double()
            if policy.startswith("knorm"):
                scores = -rows.norm(dim=-1)
            else:
                unit = torch.nn.functional.normalize(rows, dim=-1)
                scores = -(unit @ torch.nn.functional.normalize(unit.mean(0), dim=-1))
            kept = [{int((rows == row.double()).all(-1).nonzero()[0, 0]) for row in side[0, g]} for side in (a, b)]
            assert len(kept[0]) == len(kept[1]) == 128
            last = scores.sort(descending=True).values[127]
            step = 2.0 ** (last.abs().log2().floor() - 7)
            assert all(abs(scores[i] - last) <= 4 * step for i in kept[0] ^ kept[1])


@pytest.mark.parametrize("batch", [1, 2])
def test_a_pyramid_of_rows(model, batch):
    """64 rows on average; the engine chooses once, at the prompt's end."""
    ids = text(batch, 200)
    press = kvpress.PyramidKVPress(compression_ratio=1 - 64 / 200, window_size=16, kernel_size=5, beta=2)
    theirs = held(model, press, ids)
    policy = "pyramidkv(budget=48,beta=2,kernel=5,interval=100000),sink=0,window=16,dtype=f32"
    ours = held(model, PithPress(policy), ids)
    assert [keys.shape[2] for keys in theirs] == [96, 64, 32]
    for layer, (a, b) in enumerate(zip(theirs, ours)):
        torch.testing.assert_close(in_order(a), in_order(b), atol=0, rtol=0, msg=f"layer {layer}: other rows stay")


def test_under_their_wrappers(model):
    ids = text(1, 200)
    theirs = held(model, kvpress.ChunkPress(kvpress.KnormPress(0.5), chunk_length=50), ids)
    ours = held(model, kvpress.ChunkPress(PithScorerPress(0.5, "knorm,sink=0,window=0"), chunk_length=50), ids)
    for a, b in zip(theirs, ours):
        torch.testing.assert_close(in_order(a), in_order(b), atol=0, rtol=0)


def test_the_engines_choice_in_their_cache(model):
    ids = text(2, 150)
    for policy, low in (("streaming_llm(window=60),sink=4", 64), ("knorm(budget=25%)+int8,sink=4,window=16", 45)):
        keys = held(model, PithPress(policy), ids)
        assert all(low <= k.shape[2] <= 66 for k in keys)
    exact = held(model, PithPress("exact,dtype=f32"), ids)
    for a, b in zip(exact, held(model, kvpress.KnormPress(0.0), ids)):
        torch.testing.assert_close(a, b, atol=0, rtol=0)
    streaming = held(model, kvpress.StreamingLLMPress(compression_ratio=1 - 64 / 150, n_sink=4), ids)
    for a, b in zip(streaming, held(model, PithPress("streaming_llm(window=60),sink=4,dtype=f32"), ids)):
        torch.testing.assert_close(in_order(a), in_order(b), atol=0, rtol=0)


def test_refusals(model):
    with pytest.raises(pith.Unsupported, match="score"):
        held(model, PithScorerPress(0.5, "uniform"), text(1, 90))
    with pytest.raises(pith.Unsupported, match="weights|heads hold"):
        held(model, PithPress("uniform(rate=0.25),sink=4,window=4"), text(1, 90))
    with torch.inference_mode(), kvpress.KnormPress(0.5)(model):  # their presses slice tensors
        with pytest.raises(pith.Unsupported, match="no tensor of keys"):
            model.model(text(1, 90), **{CACHE: PithCache("exact", model=model)})
