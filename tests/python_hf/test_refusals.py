"""What attention "pith" cannot compute raises, and nothing was stored then."""

import copy
import pickle

import pytest
import torch
from transformers import AttentionInterface, Cache, DynamicCache, StaticCache

import pith
from pith.hf import PithCache, check, compressed
from small_models import CACHE, attention, make_model, prompt


@pytest.fixture(scope="module")
def llama():
    return make_model("Llama")


@pytest.fixture
def cache(llama):
    return PithCache("exact,dtype=f32", model=llama)


@pytest.fixture(autouse=True)
def inference():
    with torch.inference_mode():
        yield


def refused(call, text, cache=None, kind=pith.PithError):
    """Raises, with `text`; the cache holds what it held."""
    tokens = cache.tokens if cache is not None else 0
    with pytest.raises(kind, match=text):
        call()
    if cache is not None:
        assert cache.tokens == tokens and (tokens == 0 or len(cache.rows(0, 0)) == tokens)


def run(model, ids, cache, **options):
    return model(ids, **{CACHE: cache}, **options).logits


def test_refused_and_then_used(llama, cache):
    """After each refusal the cache goes on as if it had not been asked."""
    ids = prompt(2, 12)
    expected = run(llama, ids, PithCache("exact,dtype=f32", model=llama))
    run(llama, ids[:, :5], cache)
    four = torch.zeros(2, 1, 3, 8)
    refused(lambda: run(llama, ids[:, 5:8], cache, attention_mask=four), "2D mask", cache)
    hidden = torch.ones(2, 8, dtype=torch.long)
    hidden[0, 2] = 0
    refused(lambda: run(llama, ids[:, 5:8], cache, attention_mask=hidden), "read before", cache)
    refused(lambda: run(llama, ids[:, 5:8], cache, attention_mask=hidden[:, :3]), "covers all tokens", cache)
    packed = torch.tensor([[5, 6, 0]])
    refused(lambda: run(llama, ids[:, 5:8], cache, position_ids=packed), "packed", cache)
    refused(lambda: run(llama, ids[:, 5:8], cache, position_ids=torch.tensor([[9, 10, 11]])), "by one from 5", cache)
    refused(lambda: run(llama, ids[:1, 5:8], cache), "batch of 1 after one of 2", cache)
    with torch.inference_mode(False), torch.enable_grad():
        refused(lambda: run(llama, ids[:, 5:8].clone(), cache), "inference_mode", cache)
    refused(lambda: run(llama, ids[:, 5:8], cache, output_attentions=True), "output_attentions", cache)
    torch.testing.assert_close(run(llama, ids[:, 5:], cache), expected[:, 5:], atol=1e-4, rtol=0)


@pytest.mark.parametrize("keyword", ["position_bias", "cache", "is_causal", "dropout"])
def test_terms_that_the_kernels_lack(llama, cache, keyword):
    value = {"is_causal": False, "dropout": 0.1}.get(keyword, torch.ones(4))
    layer = llama.model.layers[0].self_attn
    q, k, v = torch.randn(1, 4, 3, 16), torch.randn(1, 2, 3, 16), torch.randn(1, 2, 3, 16)

    def call(**more):
        key, value = cache.update(k, v, 0)
        return pith.hf._attention.attention(layer, q, key, value, None, **{"scaling": 0.25, **more})
    refused(lambda: call(**{keyword: value}), keyword if keyword not in ("is_causal", "dropout") else "causal|dropout",
            cache)
    assert call()[0].shape == (1, 3, 4, 16)


def test_caps_and_sinks_stay(llama, cache):
    layers = [layer.self_attn for layer in llama.model.layers]
    q, k, v = torch.randn(1, 4, 3, 16), torch.randn(1, 2, 3, 16), torch.randn(1, 2, 3, 16)
    sinks = torch.arange(4.0)

    def call(tokens=slice(None), **more):
        for index, layer in enumerate(layers):  # a forward
            key, value = cache.update(k[:, :, tokens], v[:, :, tokens], index)
            out = pith.hf._attention.attention(layer, q[:, :, tokens], key, value, None, **{"scaling": 0.25, **more})[0]
        return out
    refused(lambda: call(s_aux=sinks[:3]), "3 sink logits", cache)
    refused(lambda: call(s_aux=[0.0] * 4), "tensor", cache)
    refused(lambda: call(softcap=-1.0), "soft cap of -1", cache)
    got = call(slice(0, 3), softcap=0.5, s_aux=sinks)
    scores = torch.einsum("bhtd,bhsd->bhts", q, k.repeat_interleave(2, 1)) * 0.25
    scores = 0.5 * torch.tanh(scores / 0.5) + torch.full((3, 3), -torch.inf).triu(1)
    scores = torch.cat([scores, sinks.view(1, 4, 1, 1).expand(1, 4, 3, 1)], -1)
    expected = torch.einsum("bhts,bhsd->bthd", scores.softmax(-1)[..., :3], v.repeat_interleave(2, 1))
    torch.testing.assert_close(got, expected, atol=1e-4, rtol=0)
    one = slice(0, 1)
    for softcap, s_aux, text in ((0.6, sinks, "soft_cap of 0.6 after one of 0.5"), (None, sinks, "soft_cap of 0.0"),
                                 (0.5, sinks + 1, "other sink logits"), (0.5, None, "other sink logits")):
        with pytest.raises(pith.Unsupported, match=text):
            call(one, softcap=softcap, s_aux=s_aux)
    assert call(one, softcap=0.5, s_aux=sinks.clone()).shape == (1, 1, 4, 16)  # the same numbers elsewhere
    module = copy.deepcopy(layers[0])
    module.sinks = torch.nn.Parameter(sinks)
    with pytest.raises(pith.Unsupported, match="does not give it"):
        other = PithCache("exact,dtype=f32", model=llama)
        key, value = other.update(k, v, 0)
        pith.hf._attention.attention(module, q, key, value, None, scaling=0.25)


def test_shapes_types_and_keys_of_others(llama, cache):
    layer = llama.model.layers[0].self_attn
    attend = pith.hf._attention.attention
    q, k, v = torch.randn(1, 4, 3, 16), torch.randn(1, 2, 3, 16), torch.randn(1, 2, 3, 16)
    refused(lambda: attend(layer, q, k, v, None), "no PithCache")

    def call(q, k, v, **more):
        key, value = cache.update(k, v, 0)
        return attend(layer, q, key, value, None, scaling=0.25, **more)
    refused(lambda: call(q.double(), k.double(), v.double()), "float64", cache, TypeError)
    refused(lambda: call(q.half(), k, v), "float16", cache, TypeError)
    refused(lambda: call(q, k, v[..., :8]), "equal tokens and head_dim", cache)
    refused(lambda: call(q[:, :, :2], k, v), "equal tokens", cache)
    refused(lambda: call(q[:, :2], k, v), "its configuration says", cache)
    refused(lambda: call(torch.empty(1, 4, 3, 16, device="meta"), k, v), "one device is needed", cache)
    refused(lambda: call(q, k, v, sliding_window=7), "sliding window of 7", cache)
    three = torch.arange(3).expand(3, 1, 3)  # of text, height and width
    refused(lambda: call(q, k, v, position_ids=three), "position_ids of 3 dimensions", cache)
    key, value = cache.update(k, v, 0)
    refused(lambda: attend(layer, q, key, value.clone(), None), "values are not those")
    call(q, k, v)
    key, value = cache.update(k, v, 1)
    attend(layer, q, key, value, None)
    refused(lambda: attend(layer, q, key, value, None), "read by a second layer")


def test_layers_of_one_forward_agree(llama, cache):
    q, k, v = torch.randn(1, 4, 3, 16), torch.randn(1, 2, 3, 16), torch.randn(1, 2, 3, 16)

    def call(index, first):
        key, value = cache.update(k, v, index)
        pith.hf._attention.attention(llama.model.layers[index].self_attn, q, key, value, None, scaling=0.25,
                                     position_ids=torch.arange(first, first + 3)[None])
    call(0, 0)
    refused(lambda: call(1, 1), "different padding or positions")
    refused(lambda: cache.update(k[:, :, :2], v[:, :, :2], 1), "1 x 2 tokens in a forward of 1 x 3")
    call(1, 0)
    call(2, 0)
    assert cache.tokens == 3


def test_weights_that_a_configuration_asks_for(llama, cache):
    module = copy.copy(llama.model.layers[0].self_attn)
    module.config = copy.deepcopy(module.config)
    module.config._output_attentions = True  # transformers lets nobody set it under "pith"
    key, value = cache.update(torch.randn(1, 2, 3, 16), torch.randn(1, 2, 3, 16), 0)
    refused(lambda: pith.hf._attention.attention(module, torch.randn(1, 4, 3, 16), key, value, None, scaling=0.25),
            "output_attentions", cache)


def test_padding_that_is_forgotten(llama, cache):
    ids, mask = prompt(2, 6), torch.ones(2, 6, dtype=torch.long)
    mask[0, :2] = 0
    run(llama, ids, cache, attention_mask=mask)
    refused(lambda: run(llama, ids[:, :1], cache), "earlier tokens were padding")
    refused(lambda: cache.to_dynamic_cache(), "different numbers of rows")


def test_another_attention_function(llama):
    ids = prompt(1, 6)
    with attention(llama, "sdpa"):
        refused(lambda: PithCache("exact", model=llama), "set_attn_implementation")
        by_config = PithCache("exact", config=llama.config)
        refused(lambda: (run(llama, ids, by_config), run(llama, ids, by_config)), "never attended")
    refused(lambda: run(llama, ids, DynamicCache()), "no PithCache")
    refused(lambda: llama(ids, use_cache=False), "no PithCache")


def test_without_the_mask_function_padding_is_refused_not_ignored(llama, cache, monkeypatch):
    """transformers hands no mask at all to an attention function that has no mask function. Ours is there."""
    from transformers import AttentionMaskInterface
    assert "pith" in AttentionMaskInterface._global_mapping
    mask = torch.tensor([[0, 0, 1, 1, 1, 1]])
    run(llama, prompt(1, 6), cache, attention_mask=mask)
    assert [len(cache.rows(layer, 0)) for layer in range(3)] == [4, 4, 4]


@pytest.mark.parametrize("asked", [{"use_vmap": True}, {"allow_is_causal_skip": False}])
def test_other_masks(asked):
    """As transformers asks for masks of packed sequences, of blocks, of a mask function."""
    every = {"attention_mask": torch.ones(1, 4, dtype=torch.bool), "q_length": 4, "kv_length": 4}
    refused(lambda: pith.hf._attention.mask(**every, **asked), "other than causal with padding")
    assert pith.hf._attention.mask(**every) is None


def test_what_caches_are_asked(llama, cache):
    run(llama, prompt(1, 6), cache)
    refused(lambda: cache.crop(-1), "clone", cache)
    cache.crop(0 if hasattr(Cache, "get_max_length") else 6)  # nothing, before and since transformers 5.15
    refused(lambda: cache.activate_past_recording(), "assisted", cache)
    refused(lambda: cache.offload(0), "offloaded", cache)
    refused(lambda: cache.layers[0].keys, "to_dynamic_cache", cache)
    refused(lambda: cache.layers[0].values, "to_dynamic_cache", cache)
    refused(lambda: cache.layers[0].offload(), "offloaded", cache)
    refused(lambda: cache.early_initialization(), "export", cache)
    refused(lambda: pickle.dumps(cache), "save\\(\\)", cache, TypeError)
    refused(lambda: cache.protect("2:3"), "before they come", cache)
    other = copy.deepcopy(cache)
    run(llama, prompt(1, 3), other)
    assert (cache.tokens, other.tokens) == (6, 9)
    cache.close()
    cache.close()
    with pytest.raises(pith.InvalidArgument, match="closed"):
        cache.ledger()


def test_assisted_decoding(llama):
    ids = prompt(1, 6).repeat(1, 4)  # there is something to look up
    refused(lambda: llama.generate(ids, **{CACHE: PithCache("exact", model=llama)}, max_new_tokens=8,
                                   eos_token_id=1, prompt_lookup_num_tokens=2), "assisted|crop")


def test_a_forward_that_breaks_off(llama, cache):
    ids = prompt(1, 6)
    broken = llama.model.layers[1].mlp.register_forward_hook(lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        run(llama, ids, cache)
    broken.remove()
    refused(lambda: run(llama, ids, cache), "between two layers")
    cache.reset()
    run(llama, ids, cache)


def test_export(llama, cache):
    class Logits(torch.nn.Module):
        def forward(self, ids):
            return run(llama, ids, cache)
    refused(lambda: torch.export.export(Logits(), (prompt(1, 6),), strict=False), "no part of a graph", cache)


def test_a_step_that_fails(llama, cache):
    run(llama, prompt(1, 6), cache)
    limited = PithCache("exact", model=llama, context=8)
    run(llama, prompt(1, 6), limited)
    with pytest.raises(pith.ContextFull):
        run(llama, prompt(1, 3), limited)
    refused(lambda: run(llama, prompt(1, 1), limited), "no more use")


def test_constructor(llama):
    for bad in ({}, {"model": llama, "select": "never"}, {"model": llama, "context": -1}):
        with pytest.raises((pith.PithError, TypeError)):
            PithCache("exact", **bad)
    refused(lambda: PithCache("snapcv", model=llama), "snapkv")
    refused(lambda: PithCache("expected_attention(budget=8)", config=llama.config), "give model=")


def test_devices(llama, monkeypatch):
    refused(lambda: PithCache("exact", model=llama, device="mps"), "the CPU and on NVIDIA GPUs")
    refused(lambda: PithCache("exact", config=llama.config, device="meta"), "offloaded")
    monkeypatch.setattr(pith._pith, "has_cuda", False)
    refused(lambda: PithCache("exact", config=llama.config, device="cuda"), "without CUDA.*PITH_CUDA=ON")
    monkeypatch.setattr(pith._pith, "has_cuda", True)
    if not torch.cuda.is_available():
        refused(lambda: PithCache("exact", config=llama.config, device="cuda:0"), "finds no GPU")
    halves = copy.deepcopy(llama)
    halves.lm_head.to("meta")
    problems = check(halves).all_problems()
    assert any("on meta: " in p for p in problems) and any("one device" in p for p in problems)
    refused(lambda: PithCache("exact", model=halves), "one device")
    by_config = PithCache("exact,dtype=f32", config=llama.config)  # where its first keys are
    run(llama, prompt(1, 5), by_config)

    def attend_elsewhere():  # by itself: RoPE of transformers 5.2 does not run there under a newer torch
        config = llama.config
        query, key = (torch.zeros(1, heads, 2, config.head_dim, device="meta")
                      for heads in (config.num_attention_heads, config.num_key_value_heads))
        key, value = by_config.update(key, key.clone(), 0)
        AttentionInterface()["pith"](llama.model.layers[0].self_attn, query, key, value, None)
    refused(attend_elsewhere, "is on meta, and this PithCache", by_config)


@pytest.mark.parametrize("name, changes, text", [
    ("Bloom", {}, "cannot be replaced|chunked|ALiBi"),
    ("DeepseekV3", {"kv_lora_rank": 16, "q_lora_rank": 16, "qk_rope_head_dim": 16, "qk_nope_head_dim": 16,
                    "v_head_dim": 16, "n_routed_experts": 4, "n_group": 1, "topk_group": 1,
                    "num_experts_per_tok": 2, "moe_intermediate_size": 32}, "latent"),
    ("Llama", {"head_dim": 24}, "multiple of 16"),
    ("Qwen3Next", {"num_experts": 4, "linear_num_value_heads": 4, "linear_num_key_heads": 2,
                   "linear_key_head_dim": 16, "linear_value_head_dim": 16, "num_hidden_layers": 4,
                   "moe_intermediate_size": 32, "shared_expert_intermediate_size": 32}, "linear_attention"),
])
def test_models_that_are_refused(name, changes, text):
    try:
        model = make_model(name, **changes)
    except (KeyError, ValueError) as error:  # transformers itself refuses an attention function it cannot set
        assert name == "Bloom", error
        model = make_model(name, attention="eager", **changes)
    report = check(model, "exact")
    assert not report.ok and any(text.split("|")[0] in p or text in p for p in report.all_problems()), report
    refused(lambda: PithCache("exact", model=model), text)


def test_rope_that_pith_cannot_turn_back():
    policy = "expected_attention(budget=8),sink=2"
    for name in ("Phi", "GPTNeoX", "Cohere2"):
        model = make_model(name)
        refused(lambda: PithCache(policy, model=model), "partial or interleaved")
        PithCache("knorm(budget=8),sink=2", model=model)
    dynamic = make_model("Llama", rope_parameters={"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4})
    refused(lambda: PithCache(policy, model=dynamic), "dynamic")


def test_compressed_refuses(llama):
    with compressed(llama, "exact"):
        refused(lambda: compressed(llama, "exact").__enter__(), "already")
        refused(lambda: llama(prompt(1, 4), use_cache=False), "use_cache")
        filled = DynamicCache()
        filled.update(torch.ones(1, 2, 1, 16), torch.ones(1, 2, 1, 16), 0)
        refused(lambda: run(llama, prompt(1, 4), filled), "DynamicCache")
        refused(lambda: run(llama, prompt(1, 4), StaticCache(config=llama.config, max_cache_len=16)), "StaticCache")
    with attention(llama, "sdpa"):
        with pytest.raises(pith.PithError):
            with compressed(llama, "snapcv"):
                pass
        assert llama.config._attn_implementation == "sdpa"
        llama(prompt(1, 4))
