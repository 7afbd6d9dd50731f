"""An exact PithCache gives what DynamicCache with eager attention gives, in every architecture."""

import pytest
import torch
from transformers import DynamicCache

import pith
from pith.hf import PithCache, check
from small_models import ARCHITECTURES, CACHE, CHUNKS_HAVE_POSITIONS, attention, make_model, prompt

EXACT = "exact,dtype=f32"


@pytest.fixture(scope="module", params=ARCHITECTURES)
def model(request):
    return make_model(request.param)


def both(model, run):
    """run(cache) with eager attention over a DynamicCache, and over a PithCache."""
    with torch.inference_mode():
        with attention(model, "eager"):
            expected = run(DynamicCache(config=model.config))
        return expected, run(PithCache(EXACT, model=model))


def generated(model, ids, cache, **options):
    out = model.generate(ids, **{CACHE: cache}, do_sample=False, return_dict_in_generate=True, output_logits=True,
                         **{"max_new_tokens": 12, **options})
    return out.sequences, torch.stack(out.logits)


def assert_same(pair, tolerance=1e-4):
    (ids, logits), (our_ids, our_logits) = pair
    assert torch.equal(ids, our_ids)
    torch.testing.assert_close(our_logits, logits, atol=tolerance, rtol=0)


def padded(lengths, width, left=True):
    """ids and mask of sequences of these lengths."""
    ids, mask = prompt(len(lengths), width), torch.zeros(len(lengths), width, dtype=torch.long)
    for row, length in enumerate(lengths):
        mask[row, width - length if left else 0:width if left else length] = 1
    return ids * mask, mask


def test_greedy_with_pads_on_the_left(model):
    ids, mask = padded([23, 9, 17], 23)
    assert_same(both(model, lambda cache: generated(model, ids, cache, attention_mask=mask)))


def test_a_bare_forward_with_pads_on_the_right(model):
    ids, mask = padded([23, 9, 17], 23, left=False)
    expected, ours = both(model, lambda cache: model(ids, attention_mask=mask, **{CACHE: cache}).logits)
    torch.testing.assert_close(ours[mask.bool()], expected[mask.bool()], atol=1e-4, rtol=0)


def test_beams(model):
    ids, mask = padded([15, 11], 15)
    assert_same(both(model, lambda cache: generated(model, ids, cache, attention_mask=mask, num_beams=3,
                                                    num_return_sequences=2)))


def test_two_turns(model):
    def turns(cache):
        first, _ = generated(model, prompt(2, 13), cache)
        return generated(model, torch.cat([first, prompt(2, 9, seed=2)], dim=1), cache)
    assert_same(both(model, turns))


def test_a_prompt_in_chunks(model):
    ids = prompt(1, 33)
    if CHUNKS_HAVE_POSITIONS:
        assert_same(both(model, lambda cache: generated(model, ids, cache, prefill_chunk_size=8)))
    else:
        with pytest.raises(pith.Unsupported, match="by one from"):
            generated(model, ids, PithCache(EXACT, model=model), prefill_chunk_size=8)


@pytest.mark.parametrize("kv_heads", [1, 4])
def test_one_kv_head_and_one_for_each_query_head(kv_heads):
    model, (ids, mask) = make_model("Qwen3", num_key_value_heads=kv_heads), padded([23, 9], 23)
    assert_same(both(model, lambda cache: generated(model, ids, cache, attention_mask=mask)))


def test_check_says_supported(model):
    report = check(model, EXACT)
    assert report.ok and len(report.layers) == 3 and "supported" in repr(report)
