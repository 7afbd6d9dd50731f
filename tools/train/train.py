#!/usr/bin/env python3
"""Trains the demo model; README.md beside this file says how.

Two phases with the same number of tokens a step: short sequences first (cheap, they teach the
language and the tasks), then long ones (they stretch both over the whole context).
"""

import argparse
import dataclasses
import math
import pathlib
import time

import numpy as np
import torch

import corpus
from data import Maker, Sequences, needle, needle_head, needle_question
from model import LanguageModel, Shape, save

WARM_UP_STEPS = 200
LOWEST_RATE = 0.02  # of --lr, where the decay ends


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("corpus", help="folder of *.txt.xz")
    parser.add_argument("out", type=pathlib.Path, help="folder for the model, made if absent")
    parser.add_argument("--device", default="cuda", help="cuda or cpu (default: %(default)s)")
    parser.add_argument("--steps", type=int, nargs=2, default=[6000, 5000],
                        metavar=("SHORT", "LONG"),
                        help="steps of the two phases (default: %(default)s)")
    parser.add_argument("--lengths", type=int, nargs=2, default=[2048, 8192],
                        metavar=("SHORT", "LONG"), help="tokens a sequence (default: %(default)s)")
    parser.add_argument("--batch", type=int, default=131072,
                        help="tokens a step, shared out over sequences (default: %(default)s)")
    parser.add_argument("--tasks", type=float, default=0.5,
                        help="share of sequences made of tasks (default: %(default)s)")
    parser.add_argument("--lr", type=float, default=3e-3, help="highest learning rate")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=13, help="processes that make sequences")
    parser.add_argument("--no-compile", action="store_true", help="run without torch.compile")
    for field in dataclasses.fields(Shape):
        if field.name != "context":  # that is the longer of --lengths
            parser.add_argument("--" + field.name.replace("_", "-"), type=field.type,
                                default=field.default, help="default: %(default)s")
    return parser.parse_args()


class Log:
    """Writes each line to a file and to the terminal."""

    def __init__(self, path):
        self.file = open(path, "a", encoding="utf-8")

    def __call__(self, line):
        print(line, file=self.file, flush=True)
        print(line, flush=True)


def autocast(device):
    return torch.autocast(device, torch.bfloat16)


def rate(step, total):
    """Share of the highest learning rate: warm-up, flat to the half, then a straight line down."""
    done = step / total
    return min(1, (step + 1) / WARM_UP_STEPS) * (
        1 if done < 0.5 else max(LOWEST_RATE, 1 - (done - 0.5) / 0.5))


def optimizer_of(model, args):
    matrices = [weight for weight in model.parameters() if weight.dim() == 2]
    norms = [weight for weight in model.parameters() if weight.dim() < 2]
    return torch.optim.AdamW([{"params": matrices, "weight_decay": 0.05},
                              {"params": norms, "weight_decay": 0.0}],
                             lr=args.lr, betas=(0.9, 0.95), fused=args.device == "cuda")


def train(model, args, say):
    optimizer = optimizer_of(model, args)
    forward = model if args.no_compile else torch.compile(model, dynamic=False)
    started, step, total = time.time(), 0, sum(args.steps)
    for steps, length in zip(args.steps, args.lengths):
        sequences = Sequences(args.out, length, args.tasks, args.seed)
        loader = iter(torch.utils.data.DataLoader(
            sequences, batch_size=max(1, args.batch // length), num_workers=args.workers,
            prefetch_factor=4 if args.workers else None, pin_memory=args.device == "cuda"))
        cos, sin = model.rope_tables(length, args.device)
        for _ in range(steps):
            for group in optimizer.param_groups:
                group["lr"] = args.lr * rate(step, total)
            ids = next(loader).to(args.device, non_blocking=True)
            with autocast(args.device):
                loss = forward(ids[:, :-1], ids[:, 1:], cos, sin)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            step += 1
            if step % 50 == 0 or step == total:
                say(f"length {length} step {step} loss {loss.item():.4f} "
                    f"lr {args.lr * rate(step - 1, total):.5f} {time.time() - started:.0f} s")
            if step % 1000 == 0:
                say(f"needles at {length}: {needles_found(model, args, length, 32):.3f}")
                save(model, args.out)
        del loader
    save(model, args.out)


@torch.no_grad()
def needles_found(model, args, length, count):
    """The share of `count` held-out texts of `length` tokens whose hidden number is answered."""
    maker = Maker.from_folder(args.out, "valid.npy", seed=7)
    right = 0
    for _ in range(count):
        key, value = maker.key(), maker.value("numbers")
        head = maker.encode(needle_head("numbers"))
        hidden = maker.encode(needle("numbers", key, value))
        question = maker.encode(needle_question("numbers", key))
        answer = maker.encode(f" {value}.")
        room = length - sum(map(len, (head, hidden, question, answer))) - 1
        if room < 1 or len(maker.stream) <= room + 1:
            return math.nan  # the corpus or the length is too small for this question
        ids = ([corpus.BOS] + head + maker.splice(maker.window(room), [hidden]) + question + answer)
        tables = model.rope_tables(len(ids), args.device)
        with autocast(args.device):
            states = model.hidden(torch.tensor([ids], device=args.device), *tables)
        # Teacher forcing: right only if every token of the answer is the most likely one.
        predicted = model.logits(states[0, -len(answer) - 1:-1].float()).argmax(-1).tolist()
        right += predicted == answer
    return right / count


@torch.no_grad()
def perplexity(model, args, length):
    """Over at most 40 held-out windows."""
    valid = np.load(args.out / "valid.npy")
    tables, losses = model.rope_tables(length, args.device), []
    for start in range(0, min(len(valid) - length - 1, 40 * length), length):
        window = valid[None, start:start + length + 1].astype(np.int64)
        ids = torch.tensor(window, device=args.device)
        with autocast(args.device):
            losses.append(model(ids[:, :-1], ids[:, 1:], *tables).item())
    return math.exp(np.mean(losses)) if losses else math.nan


def main():
    args = arguments()
    args.out.mkdir(parents=True, exist_ok=True)
    say = Log(args.out / "log.txt")
    torch.manual_seed(args.seed)
    torch.set_float32_matmul_precision("high")
    corpus.prepare(args.corpus, args.out, args.vocab, say)
    sizes = {field.name: getattr(args, field.name) for field in dataclasses.fields(Shape)
             if field.name != "context"}
    model = LanguageModel(Shape(**sizes, context=max(args.lengths))).to(args.device)
    say(f"{sum(weight.numel() for weight in model.parameters()) / 1e6:.2f} M parameters")
    train(model, args, say)
    for length in args.lengths:
        say(f"perplexity at {length}: {perplexity(model, args, length):.2f}")
    length = max(args.lengths)
    for length in (length // 8, length // 4, length // 2, length):
        say(f"needles at {length}: {needles_found(model, args, length, 64):.3f}")


if __name__ == "__main__":
    main()
