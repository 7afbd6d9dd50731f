#!/usr/bin/env python3
"""Decoding in transformers on a GPU under PithCache and other caches, in a random model of Llama-3.1-8B's shape:
prefill, decode tokens per second, cache and attention alone, bytes. Answers are checked first. Each cache runs twice
over the same lengths and the second run counts: cuDNN's sdpa plans 40 ms for each length that it has not seen. One JSON
line a result, then a table. tools/gpu/torch.sh builds what it needs.
    tools/gpu/torch_bench.py [--tokens 32768] [--layers 32] [--batch 1 4] [--policies ...] [--lines FILE]
"""

import argparse
import gc
import importlib.util
import json
import statistics
import time

import torch
import transformers
from transformers import AttentionInterface, AutoModelForCausalLM, DynamicCache, LlamaConfig, QuantizedCache

import pith
import pith.hf
from pith.hf._rope import cache_keyword

CACHE = cache_keyword(transformers.LlamaModel)
SCALE = 128 ** -0.5
PEER = "DynamicCache + sdpa"
QUANTIZED = {"quanto": "optimum.quanto", "hqq": "hqq"}  # backends of QuantizedCache, and what they import


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=32768)
    parser.add_argument("--layers", type=int, default=32)
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 4], help="sequences")
    parser.add_argument("--decode", type=int, default=32, help="tokens that are timed, twice")
    parser.add_argument("--policies", nargs="+",
                        default=["exact,dtype=bf16", "exact+kivi(bits=2),dtype=bf16", "express(s=2048)+int4,dtype=bf16",
                                 "snapkv(budget=2048)+int4,dtype=bf16"])
    parser.add_argument("--device", default="cuda", help="cpu: to try this program without a GPU, with --small")
    parser.add_argument("--small", action="store_true", help="a small model of the same form")
    parser.add_argument("--lines", help="also write the JSON lines to this file")
    return parser.parse_args()


def make_model(args):
    wide = {"hidden_size": 4096, "intermediate_size": 14336, "vocab_size": 128256, "num_attention_heads": 32,
            "num_key_value_heads": 8, "num_hidden_layers": args.layers}
    if args.small:
        wide = {"hidden_size": 256, "intermediate_size": 256, "vocab_size": 512, "num_attention_heads": 4,
                "num_key_value_heads": 2, "num_hidden_layers": min(args.layers, 2)}
    config = LlamaConfig(head_dim=128, max_position_embeddings=131072, rms_norm_eps=1e-5, rope_parameters={
        "rope_type": "llama3", "rope_theta": 500000.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192}, **wide)
    torch.manual_seed(0)
    with torch.device(args.device):
        return AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16, attn_implementation="sdpa").eval()


class Bench:
    def __init__(self, args):
        self.args, self.on_gpu = args, args.device != "cpu"
        self.rows = []
        self.file = open(args.lines, "w", encoding="utf-8") if args.lines else None
        self.model = make_model(args)
        self.all_ids = torch.randint(0, self.model.config.vocab_size, (max(args.batch), args.tokens),
                                     device=args.device)
        self.ids = self.all_ids[:1]

    def report(self, **row):
        line = json.dumps(row)
        print(line, flush=True)
        if self.file:
            print(line, file=self.file, flush=True)

    def wait(self):
        if self.on_gpu:
            torch.cuda.synchronize()

    def used(self):
        """Bytes of the card that are taken."""
        self.wait()
        gc.collect()
        if not self.on_gpu:
            return 0
        torch.cuda.empty_cache()
        free, everything = torch.cuda.mem_get_info()
        return everything - free

    def read(self, cache, ids):
        return self.model(ids, **{CACHE: cache}, logits_to_keep=1).logits[:, -1]

    def seconds(self, call):
        self.wait()
        begin = time.perf_counter()
        result = call()
        self.wait()
        return time.perf_counter() - begin, result

    def check(self, name, attention, make):
        """Relative error of logits after a prompt of 1,024 tokens and 8 more, against sdpa."""
        def run(cache):
            out = [self.read(cache, self.ids[:, :1024])]
            return torch.stack(out + [self.read(cache, self.ids[:, t:t + 1]) for t in range(1024, 1032)]).float()
        self.model.set_attn_implementation("sdpa")
        want = run(DynamicCache(config=self.model.config))
        self.model.set_attn_implementation(attention)
        got = run(make())
        error = float((got - want).norm() / want.norm())
        # Rounding grows with the root of the layers. Of random weights a policy may change anything: its error is
        # shown, and compared with the CPU's by tests/python_hf/test_cuda.py.
        bound = 0.02 * (len(self.model.model.layers) / 2) ** 0.5
        if name.startswith("exact,") and not error < bound:
            raise AssertionError(f"logits are off by {error:.3f} of their size, {bound:.3f} at most")
        return error

    def decode(self, cache, token, count):
        for _ in range(count):
            token = self.read(cache, token).argmax(-1, keepdim=True)
        return token

    def cache_alone(self, cache, attention, count):
        """Update and attention of each layer over the same q, k, v, without the model."""
        config, attend = self.model.config, AttentionInterface()[attention]
        heads = {n: torch.randn(len(self.ids), n, 1, 128, dtype=torch.bfloat16, device=self.args.device)
                 for n in (config.num_attention_heads, config.num_key_value_heads)}
        q, k = heads[config.num_attention_heads], heads[config.num_key_value_heads]
        v = k.clone()
        for _ in range(count):
            for index, layer in enumerate(self.model.model.layers):
                key, value = cache.update(k, v, index)
                attend(layer.self_attn, q, key, value, None, dropout=0.0, scaling=SCALE)

    def run(self, attention, make, bytes_of):
        """All that is measured of one cache."""
        before, layers, count = self.used(), len(self.model.model.layers), self.args.decode
        cache = make()
        prefill, logits = self.seconds(lambda: self.read(cache, self.ids))
        token = logits.argmax(-1, keepdim=True)
        del logits
        row = {"prefill_s": round(prefill, 3), "card_bytes": self.used() - before}
        token = self.decode(cache, token, 4)
        taken = []
        for _ in range(2):
            seconds, token = self.seconds(lambda: self.decode(cache, token, count))  # noqa: B023
            taken.append(seconds / count)
        self.cache_alone(cache, attention, 2)
        alone = [self.seconds(lambda: self.cache_alone(cache, attention, 4))[0] / 4 / layers for _ in range(5)]
        return {**row, "ms_per_token": round(1e3 * statistics.mean(taken), 3),
                "tokens_per_s": round(len(self.ids) / statistics.mean(taken), 2),
                "layer_us": round(1e6 * statistics.median(alone), 1), "cache_bytes": bytes_of(cache)}

    def measure(self, name, attention, make, bytes_of):
        """One row of the table; what fails is a line of its own."""
        try:
            error = self.check(name, attention, make)
            self.run(attention, make, bytes_of)
            row = {"name": name, "tokens": self.args.tokens, "batch": len(self.ids),
                   "layers": len(self.model.model.layers), **self.run(attention, make, bytes_of),
                   "logits_error": round(error, 5)}
            self.report(**row)
            self.rows.append(row)
        except Exception as error:  # the others are still wanted
            self.report(name=name, batch=len(self.ids), failed=f"{type(error).__name__}: {error}"[:600])
        finally:
            self.used()

    def table(self):
        if not self.rows:
            return
        print("\n| batch | cache | tokens/s | ratio | ms a token | cache and attention, us a layer | ratio | cache, MB "
              "| ratio | card, MB | prefill, s | logits' error |\n|---|---|---|---|---|---|---|---|---|---|---|---|")
        for row in self.rows:
            first = next((r for r in self.rows if r["name"] == PEER and r["batch"] == row["batch"]), None)

            def ratio(key, inverse=False):
                if first is None:  # noqa: B023
                    return ""
                value = first[key] / row[key] if inverse else row[key] / first[key]  # noqa: B023
                return f"{value:.3g}"
            cells = [str(row["batch"]), f"`{row['name']}`", f"{row['tokens_per_s']:.1f}", ratio("tokens_per_s"),
                     f"{row['ms_per_token']:.2f}", f"{row['layer_us']:.0f}", ratio("layer_us", True),
                     f"{row['cache_bytes'] / 1e6:.0f}", ratio("cache_bytes", True), f"{row['card_bytes'] / 1e6:.0f}",
                     f"{row['prefill_s']:.2f}", f"{row['logits_error']:.4f}"]
            print("| " + " | ".join(cells) + " |")


def tensors_of(cache):
    return sum(x.numel() * x.element_size() for layer in cache.layers for x in (layer.keys, layer.values))


def quantized_bytes(cache):
    """Of a QuantizedCache: the codes and what belongs to them, and the rows that wait."""
    def size(x):
        if isinstance(x, torch.Tensor):
            inner = [getattr(x, name) for name in getattr(x, "__tensor_flatten__", lambda: ([], None))()[0]]
            return sum(map(size, inner)) if inner else x.numel() * x.element_size()
        if isinstance(x, (list, tuple)):
            return sum(map(size, x))
        return sum(map(size, x.values())) if isinstance(x, dict) else 0
    names = ("keys", "values", "_quantized_keys", "_quantized_values")
    return sum(size(getattr(layer, name, None)) for layer in cache.layers for name in names)


def measure_all(bench, policies):
    config = bench.model.config
    bench.measure(PEER, "sdpa", lambda: DynamicCache(config=config), tensors_of)
    for policy in policies:
        bench.measure(policy, "pith", lambda: pith.hf.PithCache(policy, model=bench.model),  # noqa: B023
                      lambda cache: cache.ledger().total_bytes)
    for backend, module in QUANTIZED.items():
        if importlib.util.find_spec(module.split(".", maxsplit=1)[0]) is None:
            bench.report(name=f"QuantizedCache {backend}", skipped=f"{module} is not installed")
            continue
        for bits in (4, 2):
            bench.measure(f"QuantizedCache {backend}, {bits} bits", "sdpa",
                          lambda: QuantizedCache(backend, config, nbits=bits), quantized_bytes)  # noqa: B023


def main():
    args = arguments()
    transformers.logging.set_verbosity_error()
    with torch.inference_mode():
        bench = Bench(args)
        bench.report(device=torch.cuda.get_device_name() if bench.on_gpu else "cpu", torch=torch.__version__,
                     transformers=transformers.__version__, pith=pith.__version__, cuda=pith._pith.has_cuda,
                     tokens=args.tokens, layers=len(bench.model.model.layers))
        for batch in args.batch:
            bench.ids = bench.all_ids[:batch]
            measure_all(bench, args.policies)
        bench.table()


if __name__ == "__main__":
    main()
