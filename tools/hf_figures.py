#!/usr/bin/env python3
"""The figures of docs/transformers.md, as tables. Needs torch (tools/python_torch.sh), `gguf`, and a model
(`pith pull smollm2`; --model names another of them):
    tools/hf_figures.py fidelity     KL of policies in transformers, beside the engine's own figure
    tools/hf_figures.py presses      KL of kvpress's presses, beside Pith's selectors of the same rows (with kvpress)
    tools/hf_figures.py speed        attention at 16K tokens beside sdpa over a DynamicCache
    tools/hf_figures.py overhead     what Python costs per layer and token
    tools/hf_figures.py memory       resident memory of 32K tokens
"""

import argparse
import contextlib
import ctypes
import gc
import pathlib
import statistics
import time

import numpy as np
import torch
import transformers
from transformers import AutoModelForCausalLM, DynamicCache, LlamaConfig

import pith
import pith.hf
from pith.hf._rope import cache_keyword

CACHE = cache_keyword(transformers.LlamaModel)
TEXT = pathlib.Path(__file__).resolve().parent.parent / "docs" / "evaluation.md"
POLICIES = ["exact", "exact+int4", "streaming_llm(window=25%),sink=4", "keydiff(budget=25%),sink=4,window=64",
            "snapkv(budget=25%),sink=4,window=64", "expected_attention(budget=25%)+int8,sink=4,window=64",
            "uniform(rate=0.25),sink=16,window=64"]
CACHES = ["exact", "exact+int4", "keydiff(budget=25%)", "keydiff(budget=25%)+int4"]  # of speed and memory


def kl(expected, ours):
    """Mean over positions of KL(expected || ours), in nats; [tokens, vocabulary]."""
    p, q = torch.log_softmax(expected.double(), -1), torch.log_softmax(ours.double(), -1)
    return float((p.exp() * (p - q)).sum(-1).mean())


class Text:
    """A model in transformers, dequantised, and a text of which it reads a prompt, then a token at a time."""

    def __init__(self, args):
        self.path = pathlib.Path(pith.pull(args.model))
        self.model = AutoModelForCausalLM.from_pretrained(self.path.parent, gguf_file=self.path.name,
                                                          dtype=torch.float32).eval()
        self.own = pith.Model.load(str(self.path))
        self.prompt = args.prompt
        self.ids = self.own.tokenizer.encode(TEXT.read_text(encoding="utf-8"))[:args.prompt + args.continuation]
        print(f"{args.model}, {args.prompt} tokens of {TEXT.name}, KL over the {args.continuation} after them\n")

    def logits(self, cache, press=contextlib.nullcontext):
        """[continuation, vocabulary] after the prompt, which is read under the press."""
        ids = torch.tensor([self.ids])
        with press(self.model):
            self.model(ids[:, :self.prompt], **{CACHE: cache}, logits_to_keep=1)
        # A press's cache is shorter than the text.
        return torch.cat([self.model(ids[:, t:t + 1], position_ids=torch.tensor([[t]]), **{CACHE: cache}).logits[0]
                          for t in range(self.prompt, len(self.ids))])


def fidelity(args):
    """Both read what the policy left of the prompt."""
    text = Text(args)
    engine = pith.Engine(text.own, threads=torch.get_num_threads(), f32_arithmetic=True, chunk=args.prompt)
    print("| policy | KL in transformers | KL in the engine | bits | rows kept |\n|---|---|---|---|---|")

    def in_engine(policy):
        with pith.Session(engine, policy, percent_of=args.prompt) as session:
            session.append(text.ids[:args.prompt])
            return torch.from_numpy(np.stack([session.decode(t) for t in text.ids[args.prompt:]]))

    with torch.inference_mode():
        expected, own_expected = text.logits(DynamicCache()), in_engine("exact,dtype=f32")
        text.model.set_attn_implementation("pith")
        for policy in args.policies or POLICIES:
            cache = pith.hf.PithCache(policy, model=text.model)
            ours = kl(expected, text.logits(cache))
            ledger = cache.ledger()
            print(f"| `{policy}` | {ours:.5f} | {kl(own_expected, in_engine(policy)):.5f} "
                  f"| {ledger.effective_bits:.2f} | {100 * ledger.rows_kept / ledger.rows_seen:.0f} % |", flush=True)


def pairs(kept):
    """kvpress's presses that keep so many rows of the prompt, and Pith's policies of as many."""
    import kvpress
    ours = "dtype=f32,sink={},window={}"  # a selection at the prompt's end and none after it, as theirs
    plain = f"(budget={kept},interval=100000)," + ours.format(0, 0)
    behind = f"budget={kept - 64},interval=100000)," + ours.format(0, 64)
    return [("KnormPress", kvpress.KnormPress, "knorm" + plain),
            ("KeyDiffPress", kvpress.KeyDiffPress, "keydiff" + plain),
            ("TOVAPress", kvpress.TOVAPress, f"tova(budget={kept - 1},interval=100000)," + ours.format(0, 1)),
            ("SnapKVPress", kvpress.SnapKVPress, "snapkv(kernel=5," + behind),
            ("PyramidKVPress", kvpress.PyramidKVPress, "pyramidkv(kernel=5,beta=20," + behind),
            ("ExpectedAttentionPress", kvpress.ExpectedAttentionPress,
             f"expected_attention(budget={kept - 4},interval=100000)," + ours.format(4, 0)),
            ("StreamingLLMPress", kvpress.StreamingLLMPress, f"streaming_llm(window={kept - 4}),dtype=f32,sink=4")]


def presses(args):
    """Each reads the prompt exactly, keeps a part of the rows, and reads on; float32 rows on both sides."""
    text = Text(args)
    kept = int(args.prompt * args.keep)
    print(f"{kept} of {args.prompt} rows per layer and KV head after the prompt\n\n"
          "| press | its KL | Pith's policy | its KL |\n|---|---|---|---|")
    with torch.inference_mode():
        expected = text.logits(DynamicCache())
        for name, press, policy in pairs(kept):
            text.model.set_attn_implementation("sdpa")
            # Half a row more: kvpress rounds down.
            theirs = kl(expected, text.logits(DynamicCache(), press(compression_ratio=1 - (kept + 0.5) / args.prompt)))
            text.model.set_attn_implementation("pith")
            ours = kl(expected, text.logits(pith.hf.PithCache(policy, model=text.model)))
            print(f"| {name} | {theirs:.5f} | `{policy}` | {ours:.5f} |", flush=True)


def long_model(layers, implementation, heads=32):
    """The attention of Llama-3.2-1B: 32 query heads and 8 KV heads of 64 channels."""
    config = LlamaConfig(vocab_size=256, hidden_size=64 * heads, intermediate_size=64, num_hidden_layers=layers,
                         num_attention_heads=heads, num_key_value_heads=8, head_dim=64, max_position_embeddings=1 << 16)
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(config, attn_implementation=implementation).eval()


def median_ms(call, times):
    taken = []
    for _ in range(times):
        start = time.perf_counter()
        call()
        taken.append((time.perf_counter() - start) * 1e3)
    return statistics.median(taken)


def speed(args):
    """One layer's attention for one token after so many, cache update included; random rows."""
    config = long_model(1, "pith")
    module = config.model.layers[0].self_attn
    generator = torch.Generator().manual_seed(1)
    draw = lambda heads, tokens: torch.randn(1, heads, tokens, 64, generator=generator)  # noqa: E731
    q, k, v = draw(32, 1), draw(8, 1), draw(8, 1)
    long_k, long_v = draw(8, args.tokens), draw(8, args.tokens)
    print(f"one token after {args.tokens}: 32 query heads, 8 KV heads of 64, float32 tensors, "
          f"{torch.get_num_threads()} threads\n\n| cache | attention, ms a layer and token |\n|---|---|")
    with torch.inference_mode():
        plain = DynamicCache()
        plain.update(long_k, long_v, 0)
        sdpa = transformers.AttentionInterface()["sdpa"]

        def by_sdpa():
            key, value = plain.update(k, v, 0)
            sdpa(module, q, key, value, None, dropout=0.0, scaling=0.125)
        attend = transformers.AttentionInterface()["pith"]
        print(f"| DynamicCache, sdpa | {median_ms(by_sdpa, args.times):.2f} |", flush=True)
        held = plain.layers[0].keys, plain.layers[0].values
        alone = median_ms(lambda: sdpa(module, q, *held, None, dropout=0.0, scaling=0.125), args.times)
        print(f"| the same without the update, which copies the cache | {alone:.2f} |", flush=True)
        for policy in args.policies or CACHES:
            cache = pith.hf.PithCache(policy, model=config, percent_of=args.tokens)
            for begin in range(0, args.tokens, 512):
                part = slice(begin, begin + 512)
                key, value = cache.update(long_k[:, :, part], long_v[:, :, part], 0)
                attend(module, draw(32, key.shape[2]), key, value, None, scaling=0.125)

            def by_pith():
                key, value = cache.update(k, v, 0)
                attend(module, q, key, value, None, scaling=0.125)
            print(f"| `{policy}` | {median_ms(by_pith, args.times):.2f} |", flush=True)


def overhead(args):
    """One token's attention over 20 rows of 2 KV heads, by a forward's layers, beside LayerCache.step over numpy."""
    torch.set_num_threads(1)
    policy, runtime, most = "streaming_llm(window=16),sink=4,dtype=f32", pith.Runtime(threads=1), 1 << 20
    attend = transformers.AttentionInterface()["pith"]
    q, k, v = (torch.randn(1, 1, heads, 16).transpose(1, 2) for heads in (4, 2, 2))
    own = pith.LayerCache(policy, query_heads=4, kv_heads=2, head_dim=16, context=most, runtime=runtime)
    rows, out = [x[0].transpose(0, 1).numpy() for x in (q, k, v)], np.empty((1, 4, 16), np.float32)
    some = lambda call, times: median_ms(lambda: [call() for _ in range(times)], args.times) * 1e3 / 16  # noqa: E731
    alone = some(lambda: own.step(*rows, out=out), 16)
    print(f"LayerCache.step alone: {alone:.1f} us\n\n| layers | us a layer and token | Python's part |\n|---|---|---|")
    for layers in (1, 16):
        config = LlamaConfig(vocab_size=64, hidden_size=64, intermediate_size=64, num_hidden_layers=layers,
                             num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=most)
        model = AutoModelForCausalLM.from_config(config, attn_implementation="pith").eval()
        modules, cache = [layer.self_attn for layer in model.model.layers], pith.hf.PithCache(policy, config=config)
        positions = iter(torch.arange(16 * args.times).view(-1, 1, 1))

        def forward():
            position = next(positions)
            for index, module in enumerate(modules):
                key, value = cache.update(k, v, index)
                attend(module, q, key, value, None, dropout=0.0, scaling=0.25, position_ids=position)
        with torch.inference_mode():
            taken = some(forward, 16 // layers)
        print(f"| {layers} | {taken:.1f} | {taken - alone:.1f} |", flush=True)


def resident():
    """Without what malloc keeps of freed tensors."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    with open("/proc/self/statm", encoding="ascii") as f:
        return int(f.read().split()[1]) * 4096 / 1e6


def memory(args):
    """What the process and the ledger grow by while a model of 2 such layers, of 8 query heads, reads a text."""
    model = long_model(2, "pith", heads=8)
    print(f"2 layers, {args.tokens} tokens\n\n| cache | resident, MB more | ledger, MB more |\n|---|---|---|")
    ids = torch.randint(0, 256, (1, 512))
    with torch.inference_mode():
        for policy in [None, *(args.policies or CACHES)]:
            model.set_attn_implementation("sdpa" if policy is None else "pith")
            cache = DynamicCache() if policy is None else pith.hf.PithCache(policy, model=model, percent_of=args.tokens)
            model(ids, **{CACHE: cache})
            before, held = resident(), 0 if policy is None else cache.ledger().total_bytes
            for _ in range(args.tokens // 512 - 1):
                model(ids, **{CACHE: cache})
            ledger = "" if policy is None else f"{(cache.ledger().total_bytes - held) / 1e6:.1f}"
            name = "DynamicCache, float32" if policy is None else f"`{policy}`"
            print(f"| {name} | {resident() - before:.1f} | {ledger} |", flush=True)
            del cache


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["fidelity", "presses", "speed", "overhead", "memory"])
    parser.add_argument("--model", default="smollm2", help="a name of `pith pull`")
    parser.add_argument("--keep", type=float, default=0.25, help="presses: the share of the prompt's rows that stays")
    parser.add_argument("--prompt", type=int, default=512)
    parser.add_argument("--continuation", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=0, help="0: 16384 for speed, 32768 for memory")
    parser.add_argument("--times", type=int, default=50)
    parser.add_argument("--policies", nargs="+", metavar="POLICY", help="in place of the table's")
    args = parser.parse_args()
    args.tokens = args.tokens or {"speed": 16384, "memory": 32768}.get(args.what, 0)
    torch.set_num_threads(2)
    transformers.logging.set_verbosity_error()
    {"fidelity": fidelity, "presses": presses, "speed": speed, "overhead": overhead, "memory": memory}[args.what](args)


if __name__ == "__main__":
    main()
