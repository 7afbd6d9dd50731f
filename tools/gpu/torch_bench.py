#!/usr/bin/env python3
"""Decoding in transformers on a GPU under PithCache and other caches, in a random model of Llama-3.1-8B's shape:
prefill, decode tokens per second, cache and attention alone, bytes. Answers are checked first. One prompt is read, and
a batch is copies of it: with many sequences the host's code no longer bounds the step. Each cache runs twice over the
same lengths and the second run counts: cuDNN's sdpa plans 40 ms for each length that it has not seen. One JSON line a
result, then a table. tools/gpu/torch.sh builds what it needs.
    tools/gpu/torch_bench.py [--tokens 32768] [--layers 32] [--batch 1 4 8 16] [--policies ...] [--lines FILE]
"""

import argparse
import copy
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
from card import process_bytes
from pith.hf._rope import cache_keyword

CACHE = cache_keyword(transformers.LlamaModel)
SCALE = 128 ** -0.5
PEER = "DynamicCache + sdpa"
QUANTIZED = {"quanto": "optimum.quanto", "hqq": "hqq"}  # backends of QuantizedCache, and what they import


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=32768)
    parser.add_argument("--layers", type=int, default=32)
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 4, 8, 16], help="sequences")
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
        self.ids = torch.randint(0, self.model.config.vocab_size, (1, args.tokens), device=args.device)

    def report(self, **row):
        line = json.dumps(row)
        print(line, flush=True)
        if self.file:
            print(line, file=self.file, flush=True)

    def wait(self):
        if self.on_gpu:
            torch.cuda.synchronize()

    def used(self):
        """Bytes of the card that this process has."""
        self.wait()
        gc.collect()
        return process_bytes() if self.on_gpu else 0

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

    def cache_alone(self, cache, attention, batch, count):
        """Update and attention of each layer over the same q, k, v, without the model."""
        config, attend = self.model.config, AttentionInterface()[attention]
        q, k = (torch.randn(batch, heads, 1, 128, dtype=torch.bfloat16, device=self.args.device)
                for heads in (config.num_attention_heads, config.num_key_value_heads))
        v = k.clone()
        for _ in range(count):
            for index, layer in enumerate(self.model.model.layers):
                key, value = cache.update(k, v, index)
                attend(layer.self_attn, q, key, value, None, dropout=0.0, scaling=SCALE)

    def run(self, kind, prompt, batch):
        """All that is measured of copies of a prompt's cache."""
        layers, count = len(self.model.model.layers), self.args.decode
        before = self.used()
        cache = kind.copies(prompt, batch)
        card = self.used() - before
        token = self.decode(cache, self.ids[:, -1:].expand(batch, 1), 4)
        taken = []
        for _ in range(2):
            seconds, token = self.seconds(lambda: self.decode(cache, token, count))  # noqa: B023
            taken.append(seconds / count)
        self.cache_alone(cache, kind.attention, batch, 2)
        alone = [self.seconds(lambda: self.cache_alone(cache, kind.attention, batch, 4))[0] / 4 / layers
                 for _ in range(5)]
        return {"ms_per_token": round(1e3 * statistics.mean(taken), 3),
                "tokens_per_s": round(batch / statistics.mean(taken), 2),
                "layer_us": round(1e6 * statistics.median(alone), 1), "cache_bytes": kind.bytes_of(cache),
                "card_bytes": card}

    def measure(self, kind):
        """A row of the table per batch; what fails is a line of its own."""
        row = {"name": kind.name, "tokens": self.args.tokens, "layers": len(self.model.model.layers)}
        prompt = None
        try:
            row["logits_error"] = round(self.check(kind.name, kind.attention, kind.make), 5)
            before = self.used()
            prompt = kind.make()
            seconds, _ = self.seconds(lambda: self.read(prompt, self.ids))
            row.update(prefill_s=round(seconds, 3), prompt_card_bytes=self.used() - before,
                       prompt_bytes=kind.bytes_of(prompt))
            for batch in self.args.batch:
                row["batch"] = batch
                self.run(kind, prompt, batch)
                found = {**row, **self.run(kind, prompt, batch)}
                self.report(**found)
                self.rows.append(found)
        except Exception as error:  # the others are still wanted
            self.report(**row, failed=f"{type(error).__name__}: {error}"[:600])
        finally:
            del prompt
            self.used()

    def table(self):
        if not self.rows:
            return
        print("\n| batch | cache | tokens/s | ratio | ms a step | cache and attention, us a layer | ratio | cache, MB "
              "| ratio | card, MB | after the prompt: card, MB | ledger, MB | prefill, s | logits' error |\n"
              "|---|---|---|---|---|---|---|---|---|---|---|---|---|---|")
        for row in sorted(self.rows, key=lambda row: row["batch"]):
            first = next((r for r in self.rows if r["name"] == PEER and r["batch"] == row["batch"]), None)

            def ratio(key, inverse=False):
                if first is None:  # noqa: B023
                    return ""
                value = first[key] / row[key] if inverse else row[key] / first[key]  # noqa: B023
                return f"{value:.3g}"
            cells = [str(row["batch"]), f"`{row['name']}`", f"{row['tokens_per_s']:.1f}", ratio("tokens_per_s"),
                     f"{row['ms_per_token']:.2f}", f"{row['layer_us']:.0f}", ratio("layer_us", True),
                     f"{row['cache_bytes'] / 1e6:.0f}", ratio("cache_bytes", True), f"{row['card_bytes'] / 1e6:.0f}",
                     f"{row['prompt_card_bytes'] / 1e6:.0f}", f"{row['prompt_bytes'] / 1e6:.0f}",
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


class Kind:
    """A cache that is measured: how it is made, and how a batch is made of a prompt's."""

    def __init__(self, name, attention, make, bytes_of):
        self.name, self.attention, self.make, self.bytes_of = name, attention, make, bytes_of

    def copies(self, prompt, batch):
        made = copy.deepcopy(prompt)
        made.batch_repeat_interleave(batch)
        return made


class Quantized(Kind):
    """batch_repeat_interleave() of a QuantizedCache leaves its codes as they are: rows are given to it again."""

    def copies(self, prompt, batch):
        made = self.make()
        for index, layer in enumerate(prompt.layers):
            keys, values = (layer._dequantize(codes) for codes in (layer._quantized_keys, layer._quantized_values))
            made.update(*(x.expand(batch, -1, -1, -1).contiguous() for x in (keys, values)), index)
        return made


def kinds_of(bench, policies):
    config = bench.model.config
    yield Kind(PEER, "sdpa", lambda: DynamicCache(config=config), tensors_of)
    for policy in policies:
        yield Kind(policy, "pith", lambda: pith.hf.PithCache(policy, model=bench.model),  # noqa: B023
                   lambda cache: cache.ledger().total_bytes)
    for backend, module in QUANTIZED.items():
        if importlib.util.find_spec(module.split(".", maxsplit=1)[0]) is None:
            bench.report(name=f"QuantizedCache {backend}", skipped=f"{module} is not installed")
            continue
        for bits in (4, 2):
            yield Quantized(f"QuantizedCache {backend}, {bits} bits", "sdpa",
                            lambda: QuantizedCache(backend, config, nbits=bits), quantized_bytes)  # noqa: B023


def main():
    args = arguments()
    transformers.logging.set_verbosity_error()
    with torch.inference_mode():
        bench = Bench(args)
        bench.report(device=torch.cuda.get_device_name() if bench.on_gpu else "cpu", torch=torch.__version__,
                     transformers=transformers.__version__, pith=pith.__version__, cuda=pith._pith.has_cuda,
                     tokens=args.tokens, layers=len(bench.model.model.layers))
        for kind in kinds_of(bench, args.policies):
            bench.measure(kind)
        bench.table()


if __name__ == "__main__":
    main()
