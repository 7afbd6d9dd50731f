"""Models on an NVIDIA GPU: the cache is there, in the order of torch's streams. Skipped without one, and for a package
without CUDA (pip install . -C cmake.define.PITH_CUDA=ON; tools/gpu/torch.sh runs this file alone)."""

import copy
import pathlib
import sys

import pytest
import torch
from transformers import DynamicCache

import pith
from pith import _pith
from pith.hf import PithCache, check, compressed
from small_models import ARCHITECTURES, CACHE, CHUNKS_HAVE_POSITIONS, EXPERTS, attention, make_model, prompt

sys.path.append(str(pathlib.Path(__file__).resolve().parents[2] / "tools" / "gpu"))
from card import pool_bytes, process_bytes, used_bytes  # noqa: E402

DEVICE = "cuda"
MB = 1 << 20
pytestmark = pytest.mark.skipif(not (_pith.has_cuda and torch.cuda.is_available()),
                                reason="needs a GPU and a package with CUDA")
POLICIES = ["exact+int8,window=16", "exact+int4,window=16", "exact+kivi(bits=4),window=16",
            "exact+turboquant(bits=4),window=16", "streaming_llm(window=40),sink=4",
            "knorm(budget=48),sink=4,window=16", "keydiff(budget=48)+int8,sink=4,window=16",
            "snapkv(budget=50%),sink=4,window=16", "expected_attention(budget=48)+int8,sink=4,window=16",
            "h2o(budget=48),sink=4,window=16", "uniform(rate=0.5),sink=4,window=16",
            "express(s=32,heavy=0),sink=4,window=16"]


@pytest.fixture(autouse=True)
def inference():
    with torch.inference_mode():
        yield


def on_gpu(name, **changes):
    """Heads of 64 channels, which the GPU has."""
    return make_model(name, hidden_size=256, head_dim=64, **changes).to(DEVICE)


@pytest.fixture(scope="module", params=ARCHITECTURES)
def architecture(request):
    return request.param, on_gpu(request.param)


@pytest.fixture(scope="module")
def llama():
    return on_gpu("Llama")


def logits_of(model, cache, ids, cuts, mask=None):
    """Of every token, read in pieces that end at the cuts."""
    out, device = [], model.device
    for begin, end in zip([0, *cuts], [*cuts, ids.shape[1]]):
        more = {} if mask is None else {"attention_mask": mask[:, :end].to(device),
                                        "position_ids": (mask.cumsum(1) - 1).clamp(min=0)[:, begin:end].to(device)}
        out.append(model(ids[:, begin:end].to(device), **{CACHE: cache}, **more).logits)
    return torch.cat(out, dim=1).float().cpu()


def errors(got, want):
    """Per token, relative."""
    return (got - want).norm(dim=-1) / want.norm(dim=-1)


def assert_close(got, want, experts=False):
    """Rows and queries are f16. A token's experts may change where two are equally likely."""
    found = errors(got, want)
    assert float(found.median()) < 4e-3
    assert float(found.quantile(0.9 if experts else 1.0)) < 2e-2, found


TURNS = [23, 24, 25, 26, 35, 36]  # a prompt, tokens, a second prompt, tokens


@pytest.mark.parametrize("padding", ["none", "left", "right"])
def test_exact_is_eager_attention(architecture, padding):
    """A batch in two turns, with padding in the first prompt; on the right, that prompt alone: the windows of
    transformers count pads that later tokens leave behind, Pith's count tokens."""
    name, model = architecture
    ids, cuts = (prompt(3, 23), []) if padding == "right" else (prompt(3, 38), TURNS)
    mask = None
    if padding != "none":
        mask = torch.ones_like(ids)
        for row, length in enumerate([23, 9, 17]):
            mask[row, slice(0, 23 - length) if padding == "left" else slice(length, 23)] = 0
    with attention(model, "eager"):
        want = logits_of(model, DynamicCache(config=model.config), ids, cuts, mask)
    got = logits_of(model, PithCache("exact", model=model), ids, cuts, mask)
    real = slice(None) if mask is None else mask.bool()
    assert_close(got[real], want[real], experts=EXPERTS.items() <= ARCHITECTURES[name].items())


def test_generate(llama):
    """Chunks, beams, compressed(): generate() as it is on the CPU."""
    ids = prompt(2, 33).to(DEVICE)
    options = {"max_new_tokens": 8, "do_sample": False}
    whole = llama.generate(ids, **{CACHE: PithCache("exact", model=llama)}, **options)
    if CHUNKS_HAVE_POSITIONS:
        cache = PithCache("exact", model=llama)
        pieces = llama.generate(ids, **{CACHE: cache}, prefill_chunk_size=8, **options)
        assert float((pieces == whole).float().mean()) > 0.9 and cache.tokens == 40
    with attention(llama, "sdpa"), compressed(llama, "exact") as run:
        assert torch.equal(llama.generate(ids, **options), whole)
        assert run.cache.tokens == 40 and run.ledger().cache_bytes > 0
    beams = PithCache("knorm(budget=16)+int8,sink=4,window=8", model=llama)
    assert llama.generate(ids, **{CACHE: beams}, num_beams=3, **options).shape == (2, 41)
    assert beams.ledger().rows_kept < 6 * 3 * 2 * 40


def test_a_saved_cache_goes_on(llama, tmp_path):
    ids, cache = prompt(2, 60).to(DEVICE), PithCache("knorm(budget=16)+int8,sink=4,window=8", model=llama)
    llama(ids, **{CACHE: cache})
    cache.save(tmp_path / "a.pith")
    other = PithCache.load(tmp_path / "a.pith", model=llama)
    for _ in range(3):
        got, want = (llama(ids[:, :1], **{CACHE: c}).logits for c in (other, cache))
        torch.testing.assert_close(got, want, atol=1e-4, rtol=1e-4)
    assert other.tokens == 63 and other.ledger().rows_kept == cache.ledger().rows_kept


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_models_of_16_bits(dtype):
    model = on_gpu("Qwen3").to(dtype)
    ids = prompt(2, 38)
    with attention(model, "eager"):
        want = logits_of(model, DynamicCache(), ids, TURNS)
    policy = f"exact,dtype={'f16' if dtype is torch.float16 else 'bf16'}"
    assert float(errors(logits_of(model, PithCache(policy, model=model), ids, TURNS), want).median()) < 0.1


@pytest.mark.parametrize("policy", POLICIES)
def test_policies_are_those_of_the_cpu(llama, policy):
    """As far from the exact cache as on the CPU, with as many rows, and for selectors the same ones."""
    ids, cuts = prompt(1, 150, seed=5), [100, *range(101, 150)]
    on_cpu = copy.deepcopy(llama).cpu()
    with attention(llama, "eager"):
        exact = logits_of(llama, DynamicCache(), ids, cuts)[:, 100:]
    caches = PithCache(policy, model=llama), PithCache(policy, model=on_cpu)
    gpu = errors(logits_of(llama, caches[0], ids, cuts)[:, 100:], exact).mean()
    cpu = errors(logits_of(on_cpu, caches[1], ids, cuts)[:, 100:], exact).mean()
    assert 0.6 * float(cpu) - 5e-3 < float(gpu) < 1.5 * float(cpu) + 5e-3
    ours, theirs = (set(cache.rows(1, 1).positions.tolist()) for cache in caches)
    assert abs(len(ours) - len(theirs)) <= 40  # codecs of the GPU code blocks of 32 rows
    if "uniform" not in policy and "express" not in policy:
        assert len(ours & theirs) >= 0.7 * min(len(ours), len(theirs))
    assert caches[0].describe().split(",")[0] == caches[1].describe().split(",")[0]


def test_streams_are_in_order(llama):
    """Inputs that come late, on streams that change: the answers of a patient caller."""
    ids = prompt(2, 38).to(DEVICE)

    def run(streams, cycles):
        cache, out = PithCache("knorm(budget=16)+int8,sink=2,window=8", model=llama), []
        before = torch.cuda.current_stream()
        for t, (begin, end) in enumerate(zip([0, 20, *range(21, 38)], [20, *range(21, 39)])):
            stream = streams[t % len(streams)]
            stream.wait_stream(before)
            with torch.cuda.stream(stream):
                torch.cuda._sleep(cycles)
                part = ids[:, begin:end].clone()
                out.append(llama(part, **{CACHE: cache}).logits.clone())
                part.zero_()
            before = stream
        torch.cuda.synchronize()
        return torch.cat(out, dim=1)
    want = run([torch.cuda.default_stream()], 0)
    torch.testing.assert_close(run([torch.cuda.Stream() for _ in range(3)], 20_000_000), want, atol=1e-3, rtol=1e-3)


def test_capture_is_refused(llama):
    cache = PithCache("exact", model=llama)
    ids = prompt(1, 9).to(DEVICE)
    llama(ids, **{CACHE: cache})
    q, k = torch.zeros(1, 4, 1, 64, device=DEVICE), torch.zeros(1, 2, 1, 64, device=DEVICE)
    layer = llama.model.layers[0].self_attn
    with pytest.raises(pith.Unsupported, match="captured"):
        with torch.cuda.graph(torch.cuda.CUDAGraph()):
            key, value = cache.update(k, k.clone(), 0)
            pith.hf._attention.attention(layer, q, key, value, None, scaling=0.125)


def test_memory_falls():
    """A cache takes of the card what its ledger says, under a policy much less, and gives it back at close()."""
    model = on_gpu("Llama", num_key_value_heads=4, max_position_embeddings=1 << 17, num_hidden_layers=4)
    ids = prompt(1, 4096).to(DEVICE)
    small = "knorm(budget=25%)+int4,sink=4,window=64"
    said, blocks = {}, {}
    for policy in ("exact", small):
        cache = PithCache(policy, model=model, percent_of=1 << 16)
        model(ids, **{CACHE: cache}, logits_to_keep=1)
        held, used, start = pool_bytes(), used_bytes(), cache.ledger().total_bytes
        for _ in range(15):
            model(ids, **{CACHE: cache}, logits_to_keep=1)
        said[policy], blocks[policy] = cache.ledger().total_bytes - start, pool_bytes() - held
        assert abs(used_bytes() - used - said[policy]) < 0.02 * said[policy] + MB, policy
        cache.close()
        assert pool_bytes() - held < 32 * MB
    assert said["exact"] > 200 * MB and said[small] < said["exact"] / 8
    assert blocks[small] < blocks["exact"] / 3


def test_what_torch_keeps_makes_room():
    """torch holds all of the card in blocks that no tensor uses: they are freed for the cache."""
    model = on_gpu("Llama", num_key_value_heads=4, max_position_embeddings=1 << 17)
    ids = prompt(1, 1 << 16).to(DEVICE)

    def rows_of_a_new_cache():
        with PithCache("exact", model=model) as cache:  # 200 MB
            model(ids, **{CACHE: cache}, logits_to_keep=1)
            return cache.ledger().rows_kept
    expected = rows_of_a_new_cache()  # and all kernels are loaded, which take memory too
    process_bytes()
    held = []
    with pytest.raises(torch.OutOfMemoryError):
        while True:
            held.append(torch.empty(128 * MB, dtype=torch.uint8, device=DEVICE))
    held.clear()
    assert torch.cuda.mem_get_info()[0] < 128 * MB
    assert rows_of_a_new_cache() == expected == 3 * 4 * (1 << 16)


def test_one_layer_over_tensors(llama):
    """pith.LayerCache itself, and where arrays have to be."""
    runtime = pith.Runtime(device="cuda")
    shape = {"query_heads": 4, "kv_heads": 2, "head_dim": 64, "context": 100, "runtime": runtime}
    cache = pith.LayerCache("exact", **shape)
    cache.use_stream(torch.cuda.current_stream().cuda_stream)
    q, k, v = (torch.randn(30, heads, 64, device=DEVICE) for heads in (4, 2, 2))
    out = cache.step(q, k, v, out=torch.empty_like(q))
    want = torch.nn.functional.scaled_dot_product_attention(
        *(x.transpose(0, 1).repeat_interleave(4 // x.shape[1], 0) for x in (q, k, v)), is_causal=True).transpose(0, 1)
    torch.testing.assert_close(out, want, atol=5e-3, rtol=5e-3)
    assert runtime.bytes_in_use > 0 and cache.tokens == len(cache.rows(0)) == 30
    with pytest.raises(pith.InvalidArgument, match="out is needed"):
        cache.step(q, k, v)
    with pytest.raises(pith.InvalidArgument, match="on the GPU, and this array is not"):
        cache.step(q, k.cpu(), v, out=out)
    with pytest.raises(pith.InvalidArgument, match="on the CPU, and this array is not"):
        pith.LayerCache("exact", **{**shape, "runtime": pith.Runtime()}).append(k, v)
    for head in range(2):
        for read, came in zip(cache.read_rows(head), (k, v)):
            torch.testing.assert_close(torch.from_numpy(read), came[:, head].cpu(), atol=1e-6, rtol=1e-3)
    assert cache.tokens == 30


def test_refused_on_the_gpu(llama):
    """Before anything is computed."""
    ids = prompt(1, 8)
    with pytest.raises(pith.Unsupported, match="head_dim"):
        PithCache("exact", model=make_model("Llama").to(DEVICE))
    assert not check(llama, "exact,dtype=f32").ok and check(llama, "exact").ok
    with pytest.raises(pith.InvalidArgument, match="leave device out"):
        PithCache("exact", model=llama, device="cpu")
    by_config = PithCache("exact", config=llama.config)
    assert logits_of(llama, by_config, ids, []).shape[1] == 8 and by_config.rows(0, 0).positions[-1] == 7
    late = PithCache("exact", config=llama.config, device="cpu")
    with pytest.raises(pith.Unsupported, match="cuda:0, and this PithCache on cpu"):
        llama(ids.to(DEVICE), **{CACHE: late})
    split = copy.deepcopy(llama)
    split.lm_head.cpu()
    with pytest.raises(pith.Unsupported, match="cpu, cuda:0; a PithCache is on one device"):
        PithCache("exact", model=split)
    weighted = PithCache("uniform(rate=0.5),sink=4,window=4", model=llama)
    logits_of(llama, weighted, prompt(1, 60), [])
    with pytest.raises(pith.Unsupported, match="weights|heads hold"):
        weighted.to_dynamic_cache()


@pytest.mark.parametrize("policy", ["exact", "knorm(budget=24),sink=4,window=8",
                                    "keydiff(budget=24)+int8,sink=4,window=8"])
def test_goes_on_as_a_dynamic_cache(llama, policy):
    cache = PithCache(policy, model=llama)
    logits_of(llama, cache, prompt(2, 60), [])
    plain = cache.to_dynamic_cache(dtype=llama.dtype)
    assert plain.layers[0].keys.device.type == DEVICE and plain.get_seq_length() == len(cache.rows(0, 0))
    step = torch.tensor([[5], [6]], device=DEVICE)
    with attention(llama, "eager"):
        expected = llama(step, position_ids=torch.full((2, 1), 60, device=DEVICE), **{CACHE: plain}).logits
    torch.testing.assert_close(llama(step, **{CACHE: cache}).logits, expected, atol=2e-2, rtol=0)


def test_ids_of_a_gpu_that_hide_the_past(llama):
    """Masks and positions are looked at wherever they are."""
    ids = prompt(1, 12).to(DEVICE)
    cache = PithCache("exact", model=llama)
    llama(ids[:, :5], **{CACHE: cache})
    hidden = torch.ones(1, 8, dtype=torch.long, device=DEVICE)
    hidden[0, 2] = 0
    with pytest.raises(pith.PithError, match="read before"):
        llama(ids[:, 5:8], attention_mask=hidden, **{CACHE: cache})
    with pytest.raises(pith.PithError, match="by one from 5"):
        llama(ids[:, 5:8], position_ids=torch.tensor([[9, 10, 11]], device=DEVICE), **{CACHE: cache})
    assert cache.tokens == 5
