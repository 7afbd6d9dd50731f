"""Exact attention by the peers, timed as cuda_decode_bench times ours: CUDA graphs of calls with
inputs of their own, medians. One JSON line a result. Needs PyTorch on the GPU machine."""

import json
import statistics
import sys

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

H, G, D = 32, 8, 128
PEERS = {"FlashAttention 2": SDPBackend.FLASH_ATTENTION, "cuDNN": SDPBackend.CUDNN_ATTENTION}


def attention(backend, q, k, v, causal=False):
    with sdpa_kernel([backend]):
        return torch.nn.functional.scaled_dot_product_attention(
            q, k, v, is_causal=causal, enable_gqa=True)


def graph_us(call, calls):
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for i in range(3):
            call(i % calls)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for i in range(calls):
            call(i)
    times = []
    for i in range(13):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(1e3 * begin.elapsed_time(end) / calls)
    return statistics.median(times[3:])


def report(**row):
    print(json.dumps(row), flush=True)


def decode(rows, sequences):
    size = sequences * G * rows * D
    copies = max(1, (400 << 20) // (4 * size))
    k = [torch.randn(sequences, G, rows, D, device="cuda", dtype=torch.bfloat16)
         for _ in range(copies)]
    v = [torch.randn_like(x) for x in k]
    q = torch.randn(sequences, H, 1, D, device="cuda", dtype=torch.bfloat16)
    for name, backend in PEERS.items():
        us = graph_us(lambda i: attention(backend, q, k[i % copies], v[i % copies]),
                      max(copies, 4))
        report(what=f"exact, {name}", rows=rows, sequences=sequences, us=round(us, 2),
               TB_s=round(4 * size / us / 1e6, 3))


def prefill(rows):
    q = torch.randn(1, H, rows, D, device="cuda", dtype=torch.bfloat16)
    k = torch.randn(1, G, rows, D, device="cuda", dtype=torch.bfloat16)
    v = torch.randn_like(k)
    for name, backend in PEERS.items():
        times = []
        attention(backend, q[:, :, :1024], k[:, :, :1024], v[:, :, :1024], causal=True)
        for i in range(1 if rows > 400000 else 4 if rows > 100000 else 8):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            attention(backend, q, k, v, causal=True)
            end.record()
            end.synchronize()
            times.append(begin.elapsed_time(end))
        ms = statistics.median(times[1:] or times)  # half a million tokens: once, seconds long
        report(what=f"prefill, {name}", rows=rows, sequences=1, us=round(1e3 * ms, 1),
               TFLOP_s=round(2 * H * rows * rows * D / ms / 1e9, 1))


def main():
    quick = "--quick" in sys.argv
    report(device=torch.cuda.get_device_name(), torch=torch.__version__)
    if "--prefill-only" in sys.argv:
        for rows in [8192, 32768, 131072] + ([] if quick else [524288]):
            prefill(rows)
        return
    for rows in [8192, 131072] if quick else [8192, 32768, 131072, 524288]:
        decode(rows, 1)
    decode(32768, 8)
    if "--prefill" in sys.argv:
        for rows in [8192, 32768, 131072] + ([] if quick else [524288]):
            prefill(rows)


if __name__ == "__main__":
    main()
