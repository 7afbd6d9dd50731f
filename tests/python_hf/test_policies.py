"""Policies under transformers: the same rows and numbers as the engine's own layers, and less memory."""

import ctypes
import gc

import numpy as np
import pytest
import torch
from transformers import DynamicCache, pipeline

import pith
from pith.hf import PithCache, compressed
from pith.hf._rope import rope_frequencies
from small_models import CACHE, CHUNKS_HAVE_POSITIONS, attention, make_model, prompt, words

POLICIES = ["exact", "streaming_llm(window=20),sink=4", "knorm(budget=16)+int8,sink=4,window=8",
            "snapkv(budget=25%)+int4,sink=4,window=16", "h2o(budget=16),sink=2,window=16",
            "expected_attention(budget=16),sink=4", "balancekv(rate=0.5),sink=4,window=16"]


@pytest.fixture(scope="module")
def llama():
    return make_model("Llama")


@pytest.fixture(autouse=True)
def inference():
    with torch.inference_mode():
        yield


def layer_inputs(model, ids, cache):
    """Each layer's (query, key, value, out) [T, heads, D] of one forward under the cache."""
    seen = []
    real = cache._attend

    def spy(ticket, module, query, value, *call):
        key = ticket.key
        out = real(ticket, module, query, value, *call)
        seen.append(tuple(x[0].transpose(0, 1).clone() for x in (query, key, value)) + (out[0].clone(),))
        return out
    cache._attend = spy
    model(ids, **{CACHE: cache})
    del cache._attend
    return seen


@pytest.mark.parametrize("policy", POLICIES)
def test_layers_are_layer_caches(llama, policy):
    """Rows and answers are, bit for bit, those of LayerCache over the same tensors."""
    ids = prompt(1, 90)
    cache = PithCache(policy, model=llama, chunk=32, threads=1)
    first, second = layer_inputs(llama, ids, cache), layer_inputs(llama, ids[:, :1], cache)
    rope = rope_frequencies(llama)
    for layer, steps in enumerate(zip(first, second)):
        own = pith.LayerCache(policy, query_heads=4, kv_heads=2, head_dim=16, context=512, percent_of=90,
                              layer=layer, layers=3, rope_frequencies=rope[layer])
        for q, k, v, out in steps:
            mine = np.concatenate([own.step(q[i:i + 32].numpy(), k[i:i + 32].numpy(), v[i:i + 32].numpy())
                                   for i in range(0, len(q), 32)])
            np.testing.assert_array_equal(out.numpy(), mine)
            if len(q) > 1:
                own.end_prompt()
        for head in range(2):
            np.testing.assert_array_equal(cache.rows(layer, head).positions, own.rows(head).positions)


@pytest.mark.parametrize("apart", [0, 1, 2])
def test_numbers_of_a_row_apart(llama, apart):
    given = [torch.randn(1, heads, 3, 16) for heads in (4, 2, 2)]

    def run(q, k, v):
        key, value = PithCache("exact", model=llama).update(k, v, 0)
        return pith.hf._attention.attention(llama.model.layers[0].self_attn, q, key, value, None)[0]
    spread = list(given)
    spread[apart] = given[apart].repeat_interleave(2, dim=-1)[..., ::2]
    assert spread[apart].stride(-1) == 2
    torch.testing.assert_close(run(*spread), run(*given), atol=0, rtol=0)


@pytest.mark.parametrize("policy", POLICIES)
def test_a_batch_is_its_sequences(llama, policy):
    """Sequences of a padded batch keep what each keeps alone."""
    lengths = [70, 41]
    ids = prompt(2, 70)
    mask = torch.tensor([[1] * 70, [0] * 29 + [1] * 41])
    together = PithCache(policy, model=llama, percent_of=64)
    out = llama.generate(ids * mask, attention_mask=mask, **{CACHE: together}, max_new_tokens=5, do_sample=False)
    for b, length in enumerate(lengths):
        alone = PithCache(policy, model=llama, percent_of=64)
        own = llama.generate(ids[b:b + 1, 70 - length:], **{CACHE: alone}, max_new_tokens=5, do_sample=False)
        assert torch.equal(out[b, -5:], own[0, -5:])
        np.testing.assert_array_equal(together.rows(2, 1, sequence=b).positions, alone.rows(2, 1).positions)


def test_per_cent_are_of_the_prompt(llama):
    cache = PithCache("knorm(budget=25%),sink=0,window=0", model=llama)
    llama(prompt(1, 80), **{CACHE: cache})
    assert 20 * 7 / 8 - 1 <= len(cache.rows(0, 0)) <= 20 and cache.tokens == 80  # an eighth leaves at once
    assert cache.ledger().rows_kept <= 20 * 2 * 3 and "budget=20" in cache.describe()
    of = PithCache("knorm(budget=25%),sink=0,window=0", model=llama, percent_of=200)
    llama(prompt(1, 80), **{CACHE: of})
    assert 40 < len(of.rows(0, 0)) <= 50


def test_when_a_prompt_ends(llama):
    ids, policy = prompt(1, 64), "snapkv(budget=8,interval=900),sink=0,window=8"
    held = {}
    for select in ("forward", "decode", "manual"):
        cache = PithCache(policy, model=llama, select=select)
        llama(ids, **{CACHE: cache})
        held[select] = [len(cache.rows(0, 0))]
        llama(ids[:, :1], **{CACHE: cache})
        held[select].append(len(cache.rows(0, 0)))
        cache.end_prefill()
        held[select].append(len(cache.rows(0, 0)))
    assert held["forward"][0] < 20 and held["decode"][0] == held["manual"][0] == 64
    assert held["decode"][1] < 20 and held["manual"][1] == 65 and held["manual"][2] < 20
    if not CHUNKS_HAVE_POSITIONS:
        return
    policy = "knorm(budget=8,interval=900),sink=0,window=8"
    pieces, whole = (PithCache(policy, model=llama, select="decode") for _ in range(2))
    a = llama.generate(ids, **{CACHE: pieces}, max_new_tokens=6, prefill_chunk_size=10, do_sample=False)
    b = llama.generate(ids, **{CACHE: whole}, max_new_tokens=6, do_sample=False)
    assert torch.equal(a, b) and len(pieces.rows(0, 0)) == len(whole.rows(0, 0)) < 30


def test_beams_share_a_past_and_part(llama):
    cache = PithCache("knorm(budget=16)+int8,sink=4,window=8", model=llama)
    out = llama.generate(prompt(1, 40), **{CACHE: cache}, num_beams=3, max_new_tokens=8, do_sample=False)
    assert out.shape == (1, 48) and cache.ledger().rows_kept <= 3 * 3 * 2 * (16 + 4 + 8 + 2)


def test_clones_protection_and_a_dynamic_cache(llama):
    ids = prompt(2, 60)
    cache = PithCache("knorm(budget=8),sink=0,window=4,dtype=f32", model=llama, protect="10:20")
    llama(ids, **{CACHE: cache})
    assert set(range(10, 20)) <= set(cache.rows(1, 1, sequence=1).positions)
    copy = cache.clone()
    step = torch.tensor([[5], [6]])
    a = llama(step, **{CACHE: cache}).logits
    torch.testing.assert_close(llama(step, **{CACHE: copy}).logits, a, atol=0, rtol=0)
    plain = cache.to_dynamic_cache()
    with attention(llama, "eager"):
        position = {"position_ids": torch.full((2, 1), cache.tokens)}
        expected = llama(step, **{CACHE: plain}, **position).logits
    torch.testing.assert_close(llama(step, **{CACHE: cache}).logits, expected, atol=1e-4, rtol=0)
    for policy, kv_heads, text in (("adakv(budget=16),sink=4,window=4", 2, "heads hold"),
                                   ("uniform(rate=0.5),sink=4,window=4", 1, "rows have weights")):
        model = make_model("Llama", num_key_value_heads=kv_heads)
        cannot = PithCache(policy, model=model)
        model(ids[:1], **{CACHE: cannot})
        with pytest.raises(pith.Unsupported, match=text):
            cannot.to_dynamic_cache()


@pytest.mark.parametrize("name", ["Llama", "GptOss"])
def test_a_saved_cache_goes_on(name, tmp_path):
    """Bit for bit, with padding in its past; files of others are refused."""
    model, policy = make_model(name), "expected_attention(budget=16)+int4,sink=2,window=8"
    ids, mask = prompt(2, 40), torch.ones(2, 44, dtype=torch.long)
    mask[1, :7] = 0
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    cache = PithCache(policy, model=model, protect="3:5", select="decode")

    def run(cache, begin, end):
        return model(ids[:, :end - begin], **{CACHE: cache}, attention_mask=mask[:, :end],
                     position_ids=positions[:, begin:end]).logits
    run(cache, 0, 40)
    cache.save(tmp_path / "a.pith")
    other = PithCache.load(tmp_path / "a.pith", model=model, threads=1)
    assert other.tokens == 40 and other.describe() == cache.describe()
    for begin in range(40, 44):
        torch.testing.assert_close(run(other, begin, begin + 1), run(cache, begin, begin + 1), atol=0, rtol=0)
    np.testing.assert_array_equal(other.rows(1, 1, sequence=1).positions, cache.rows(1, 1, sequence=1).positions)
    with pytest.raises(pith.InvalidArgument, match="another model"):
        PithCache.load(tmp_path / "a.pith", model=make_model(name, num_key_value_heads=4))
    PithCache("exact", model=model).save(tmp_path / "empty.pith")
    assert PithCache.load(tmp_path / "empty.pith", model=model).tokens == 0
    (tmp_path / "bad").write_bytes(b"nothing")
    with pytest.raises(pith.Corrupt, match="no saved PithCache"):
        PithCache.load(tmp_path / "bad", model=model)
    with pytest.raises(FileNotFoundError):
        PithCache.load(tmp_path / "none", model=model)


@pytest.mark.parametrize("dtype, tolerance", [(torch.float16, 2e-2), (torch.bfloat16, 2e-1)])
def test_models_of_16_bits(dtype, tolerance):
    model = make_model("Qwen3").to(dtype)
    ids = prompt(1, 30)
    name = "f16" if dtype is torch.float16 else "bf16"
    with attention(model, "eager"):
        expected = model(ids, **{CACHE: DynamicCache()}).logits
    ours = model(ids, **{CACHE: PithCache(f"exact,dtype={name}", model=model)}).logits
    assert ours.dtype == dtype
    assert float((ours - expected).norm() / expected.norm()) < tolerance


def test_rope_is_found_per_layer():
    gemma, smol = rope_frequencies(make_model("Gemma3Text")), rope_frequencies(make_model("SmolLM3"))
    assert gemma[0] == gemma[2] != gemma[1]  # two bases
    assert set(smol[1]) == {0.0} and smol[0] == smol[2] and smol[0][0] == 1.0  # a layer without
    assert rope_frequencies(make_model("Phi")) == [None] * 3
    scaled = make_model("Llama", rope_parameters={"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
                                                  "high_freq_factor": 4.0, "rope_theta": 1e4,
                                                  "original_max_position_embeddings": 64})
    assert rope_frequencies(scaled)[0] != rope_frequencies(make_model("Llama"))[0] != None  # noqa: E711


def test_compressed_serves_code_that_knows_nothing(llama):
    ids, policy = prompt(2, 40), "knorm(budget=16),sink=4,window=8"
    expected = llama.generate(ids, **{CACHE: PithCache(policy, model=llama)}, max_new_tokens=6, do_sample=False)
    with attention(llama, "sdpa"):
        plain = llama.generate(ids, max_new_tokens=6, do_sample=False)
        with compressed(llama, policy, keep=2) as run:
            assert torch.equal(llama.generate(ids, max_new_tokens=6, do_sample=False), expected)
            assert run.ledger().rows_kept < 2 * 3 * 2 * 40 and run.cache.tokens == 45
            llama.generate(ids, max_new_tokens=3, **({"prefill_chunk_size": 7} if CHUNKS_HAVE_POSITIONS else {}))
            llama(ids)
            assert [cache.tokens for cache in run.caches] == [42, 40]
            pipe = pipeline("text-generation", model=llama, tokenizer=words())
            assert pipe("a b c d e", max_new_tokens=4, do_sample=False)[0]["generated_text"].startswith("a b c d e")
            assert run.cache.tokens == 8
        assert llama.config._attn_implementation == "sdpa"
        assert torch.equal(llama.generate(ids, max_new_tokens=6, do_sample=False), plain)
        with pytest.raises(ZeroDivisionError):
            with compressed(llama, policy):
                1 / 0
        assert torch.equal(llama.generate(ids, max_new_tokens=6, do_sample=False), plain)


def resident():
    """Bytes of this process in memory, without what malloc keeps of freed tensors."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    with open("/proc/self/statm", encoding="ascii") as f:
        return int(f.read().split()[1]) * 4096


def test_resident_memory_falls():
    """The process grows by what the ledger says, and under a policy by much less."""
    model = make_model("Llama", head_dim=128, num_hidden_layers=4, num_key_value_heads=4, hidden_size=32,
                       max_position_embeddings=1 << 16)
    grown, said = {}, {}
    for policy in ("exact", "knorm(budget=25%)+int4,sink=4,window=64"):
        cache = PithCache(policy, model=model, percent_of=4096, threads=1)
        ids = prompt(1, 512)
        model(ids, **{CACHE: cache})
        before, start = resident(), cache.ledger().total_bytes
        for _ in range(7):
            model(ids, **{CACHE: cache})
        grown[policy], said[policy] = resident() - before, cache.ledger().total_bytes - start
        cache.close()
    exact, small = grown.values()
    assert said["exact"] > 25e6
    assert abs(exact - said["exact"]) < 0.2 * said["exact"]  # pages that were free are taken again
    assert small < exact / 4
