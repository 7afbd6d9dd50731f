#!/usr/bin/env python3
"""Speed beside llama.cpp: the same GGUF file, the same threads, turns interleaved.

    tools/peer_llama_cpp.py --model smollm2.gguf                      # this program alone
    tools/peer_llama_cpp.py --model smollm2.gguf --python PEER/bin/python --depths 0,64,8192

--python is the interpreter of an environment that has the package llama-cpp-python, built from source for
this machine (pip install --no-binary llama-cpp-python llama-cpp-python, CMAKE_ARGS=-DGGML_NATIVE=ON);
without it the peer's columns are left out, which is said.

Each turn is a process of its own for each engine, one after the other. Of the turns the best counts:
on a machine with neighbours the least disturbed one. Two figures each: tokens a second by the clock, and
CPU milliseconds a token (of all threads; the difference of a long and a short run, so that loading and
prefill cancel), which neighbours stretch less. The read rate is `pith bench`'s own, of the same turns.
"""

import argparse
import json
import os
import resource
import subprocess
import sys

REPO = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
SHORT = 4  # tokens of the shorter run
PEER = r'''
import ctypes, json, sys, time
import llama_cpp as L
path, threads, depth, prompt, tokens, kind = sys.argv[1], *map(int, sys.argv[2:6]), sys.argv[6]
quiet = L.llama_log_callback(lambda *_: None)  # kept: C holds the pointer
L.llama_log_set(quiet, ctypes.c_void_p(0))
L.llama_backend_init()
model = L.llama_model_load_from_file(path.encode(), L.llama_model_default_params())
p = L.llama_context_default_params()
p.n_ctx, p.n_batch, p.n_ubatch = depth + prompt + tokens + 8, 512, 512
p.n_threads = p.n_threads_batch = threads
p.flash_attn_type = L.LLAMA_FLASH_ATTN_TYPE_ENABLED
p.type_k = p.type_v = {"f16": 1, "q8_0": 8, "q4_0": 2}[kind]
context = L.llama_init_from_model(model, p)
if not context:
    sys.exit("llama.cpp made no context")
def run(count, at):
    for first in range(0, count, 512):
        n = min(512, count - first)
        ids = (L.llama_token * n)(*[(7 * (at + first + i) + 3) % 40000 for i in range(n)])
        if L.llama_decode(context, L.llama_batch_get_one(ids, n)) != 0:
            sys.exit("llama_decode failed")
run(depth, 0)
start = time.perf_counter()
run(prompt, depth)
middle = time.perf_counter()
L.llama_memory_seq_rm(L.llama_get_memory(context), -1, depth, -1)
times = []
for i in range(tokens):
    begin = time.perf_counter()
    run(1, depth + i)
    times.append(time.perf_counter() - begin)
print(json.dumps({"prefill": prompt / (middle - start) if prompt else 0,
                  "decode": len(times) / sum(times) if times else 0}))
'''


def timed(command):
    """Standard output of a command, and the CPU seconds that it took."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command[:4])} ...: {done.stderr.strip()[-400:]}")
    return done.stdout, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


class Pith:
    def __init__(self, args, policy):
        self.args, self.policy, self.name = args, policy, f"pith {policy}"
        self.read_rate = self.limit = 0

    def run(self, depth, prompt, tokens):
        a = self.args
        out, _ = timed([a.pith, "bench", "-m", a.model, "-t", str(a.threads), "-d", str(depth), "-p",
                          str(prompt), "-n", str(tokens), "-r", "1", "--kv-policy", self.policy, "--json"])
        bench = json.loads(out)
        line = bench["lines"][0]
        self.read_rate = max(self.read_rate, bench["read_bytes_per_second"])
        self.limit = max(self.limit, line["decode_limit_tokens_per_second"])
        speed = lambda name: line[name]["median"] if line.get(name) else 0
        return speed("prefill_tokens_per_second"), speed("decode_tokens_per_second")

    def cpu(self, prompt, tokens):
        """Of an answer: `pith bench` measures more than the model."""
        a = self.args
        _, cpu = timed([a.pith, "run", "-m", a.model, "-t", str(a.threads), "-q", "--no-display-prompt",
                        "--no-check-weights", "--ignore-eos", "--temp", "0", "--kv-policy", self.policy,
                        "-p", " a" * prompt, "-n", str(tokens)])
        return cpu


class LlamaCpp:
    def __init__(self, args, kind):
        self.args, self.kind, self.name = args, kind, f"llama.cpp {kind}"
        self.read_rate = self.limit = 0

    def start(self, depth, prompt, tokens):
        a = self.args
        return timed([a.python, "-c", PEER, a.model, str(a.threads), str(depth), str(prompt),
                      str(tokens), self.kind])

    def run(self, depth, prompt, tokens):
        result = json.loads(self.start(depth, prompt, tokens)[0])
        return result["prefill"], result["decode"]

    def cpu(self, prompt, tokens):
        return self.start(prompt, 0, tokens)[1]


def measure(engines, depth, args):
    """Best of the turns for each engine: prefill, decode, CPU ms a token of each."""
    best = {e.name: [0.0, 0.0, float("inf"), float("inf")] for e in engines}
    for _ in range(args.turns):
        for e in engines:
            b = best[e.name]
            b[0] = max(b[0], e.run(depth, args.prompt, 0)[0])
            b[1] = max(b[1], e.run(depth, 0, args.tokens)[1])
            short, prefilled = e.cpu(depth + 1, SHORT), e.cpu(depth + 1 + args.prompt, SHORT)
            longer = e.cpu(depth + 1, SHORT + args.tokens)
            b[2] = min(b[2], 1000 * (prefilled - short) / args.prompt)
            b[3] = min(b[3], 1000 * (longer - short) / args.tokens)
    return best


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", required=True)
    parser.add_argument("--pith", default=os.path.join(REPO, "build", "bin", "pith"))
    parser.add_argument("--python", help="interpreter that has llama-cpp-python")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--prompt", type=int, default=512, help="tokens of prefill")
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--depths", default="0,64")
    parser.add_argument("--policies", default="exact;exact+int4", help="separated by ;")
    parser.add_argument("--caches", default="f16", help="llama.cpp's: f16,q8_0,q4_0")
    args = parser.parse_args()
    args.model = os.path.abspath(args.model)
    engines = [Pith(args, p) for p in args.policies.split(";")]
    if args.python:
        version, _ = timed([args.python, "-c", "import llama_cpp; print(llama_cpp.__version__)"])
        print(f"llama-cpp-python {version.strip()}")
        engines += [LlamaCpp(args, kind) for kind in args.caches.split(",")]
    else:
        print("no --python: llama.cpp is NOT measured, its rows are missing below")
    print(f"{os.path.basename(args.model)}, {args.threads} threads, best of {args.turns} turns\n")
    print("| depth | engine, cache | prefill, tokens/s | CPU ms | decode, tokens/s | CPU ms | of limit |")
    print("|---|---|---|---|---|---|---|")
    for depth in (int(d) for d in args.depths.split(",")):
        best = measure(engines, depth, args)
        for e in engines:
            prefill, decode, cpu_prefill, cpu_decode = best[e.name]
            part = f"{100 * decode / e.limit:.0f}%" if e.limit else ""
            print(f"| {depth} | {e.name} | {prefill:.0f} | {cpu_prefill:.2f} | {decode:.1f} | "
                  f"{cpu_decode:.2f} | {part} |", flush=True)
    rate = max(e.read_rate for e in engines)
    print(f"\nread rate {rate / 1e9:.1f} GB/s, the best of all turns; limit: what reading weights and cache "
          "once a token would allow at the rate of its turn")


if __name__ == "__main__":
    main()
