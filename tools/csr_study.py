#!/usr/bin/env python3
"""Directions of CSR's Tables 3 to 7 on a model, and its errors by dictionary (docs/lab/demo.md).

usage: csr_study.py table3|table4|table5|table6|table7|errors|all
                    --train FILE --text FILE [--model FOLDER] [--dict FILE]

Dictionaries are trained on `--train`, policies measured on `--text`. Needs
build/bin/pith and no packages.
"""

import argparse
import functools
import json
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
PROGRAM = ROOT / "build/bin/pith"
AROUND = ",sink=4,window=64"


def pith(*arguments):
    done = subprocess.run([PROGRAM, *map(str, arguments), "--json"], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(done.stderr)
    return json.loads(done.stdout)


def trained(options, settings, out=None):
    """Losses as shares of the rows' power, means over dictionaries: {side: [by epoch]}."""
    return train(options.model, options.train, settings, out)


@functools.cache
def train(model, text, settings, out):
    with tempfile.TemporaryDirectory() as folder:
        path = out or pathlib.Path(folder) / "d.safetensors"
        report = pith("train-dict", "-m", model, "-f", text, "-o", path, *settings.split())
    sides = {}
    for side in ("keys", "values"):
        jobs = [j for j in report["dictionaries"] if j["side"] == side]
        sides[side] = [sum(j["losses"][e] / j["power"] for j in jobs) / len(jobs)
                       for e in range(len(jobs[0]["losses"]))]
    return sides


def sizes_and_chunks(options, side):
    lines = ["| atoms per head | s | s_n | loss |", "|---|---|---|---|"]
    name = side[:-1]
    for atoms in (128, 256):
        for pairs in (4, 8):
            for chunks in (1, 2, 4):
                losses = trained(options, f"--tokens 2048 --epochs 4 --atoms {atoms} "
                                 f"--key-pairs {pairs} --key-chunks {chunks} "
                                 f"--value-pairs {pairs} --value-chunks {chunks}")
                lines.append(f"| {atoms} | {pairs} | {chunks} | {losses[side][-1]:.4f} |")
    return [f"Trained dictionaries for {side}, s pairs for each of a {name}'s s_n parts "
            "(2048 tokens, 4 epochs).", "", *lines]


def table3(options):
    return sizes_and_chunks(options, "values")


def table4(options):
    return sizes_and_chunks(options, "keys")


def table5(options):
    lines = ["| atoms per head | loss on keys | loss on values |", "|---|---|---|"]
    for atoms in (64, 128, 256, 512):
        losses = trained(options, f"--tokens 4096 --epochs 6 --atoms {atoms}")
        lines.append(f"| {atoms} | {losses['keys'][-1]:.4f} | {losses['values'][-1]:.4f} |")
    return ["Keys s = 8, values s = 4 and s_n = 2 (4096 tokens, 6 epochs).", "", *lines]


def table6(options):
    lines = ["| L_div | side | before | epoch 5 | epoch 10 | epoch 20 |", "|---|---|---|---|---|---|"]
    for name, share in (("with", 0.1), ("without", 0)):
        losses = trained(options, f"--tokens 8192 --epochs 20 --diversity {share}")
        for side in ("keys", "values"):
            row = [f"{losses[side][e]:.4f}" for e in (0, 5, 10, 20)]
            lines.append(f"| {name} | {side} | " + " | ".join(row) + " |")
    return ["256 atoms per head (8192 tokens, 20 epochs).", "", *lines]


def probe(options, policies, tokens, seeds=2):
    arguments = ["probe", "-m", options.model, "-f", options.text, "-c", tokens, "--seeds", seeds]
    for policy in policies:
        arguments += ["--kv-policy", policy]
    return pith(*arguments)["policies"]


def digits(x):
    return f"{x:.4f}" if x < 0.1 else f"{x:.3f}"


def table7(options):
    lines = ["| s | online atoms per head | bits | error |", "|---|---|---|---|"]
    settings = [(s, online) for s in (8, 16) for online in (0, 256, 512)]
    policies = [f"exact+csr(s={s},online={n},dict={options.dict}){AROUND}" for s, n in settings]
    for (s, n), p in zip(settings, probe(options, policies, 4096, 1)):
        everything = p["all"]
        lines.append(f"| {s} | {n} | {everything['effective_bits']:.2f} | "
                     f"{digits(everything['error_mean'])} |")
    return ["Attention error on 4096 tokens with 256 trained atoms per head; mp.", "", *lines]


def errors(options):
    with tempfile.TemporaryDirectory() as folder:
        files = {"trained": options.dict}
        for method in ("gaussian", "rows", "kmeans"):
            files[method] = pathlib.Path(folder) / f"{method}.safetensors"
            trained(options, f"--tokens 32768 --method {method}", files[method])
        policies = {}
        for s in (16, 8, 6, 4):
            for name, file in files.items():
                policies[f"{name}, s={s}"] = f"s={s},online=0,dict={file}"
            policies[f"online, s={s}"] = f"s={s}"
            policies[f"trained + online, s={s}"] = f"s={s},dict={options.dict}"
            policies[f"trained, s={s}, omp"] = f"s={s},online=0,solver=omp,dict={options.dict}"
        policies["online k-means, s=8"] = "s=8,draw=kmeans"
        policies["online, s=8, omp"] = "s=8,solver=omp"
        policies["online, s=8, keys after RoPE"] = "s=8,rope=post"
        policies["trained, s=8, omp, outliers=0.4"] = (
            f"s=8,online=0,solver=omp,outliers=0.4,dict={options.dict}")
        found = probe(options, [f"exact+csr({p}){AROUND}" for p in policies.values()], 4096, 1)
    layers = len(found[0]["layers"])
    lines = ["| dictionary | bits | error | " +
             " | ".join(f"layer {i}" for i in range(layers)) + " |",
             "|---" * (3 + layers) + "|"]
    for name, p in sorted(zip(policies, found), key=lambda x: x[1]["all"]["effective_bits"]):
        row = [name, f"{p['all']['effective_bits']:.2f}", digits(p["all"]["error_mean"])]
        lines.append("| " + " | ".join(row + [digits(l["error_mean"]) for l in p["layers"]]) + " |")
    return ["4096 tokens, all rows, the last 256 queries; 256 atoms per head in each part. "
            "gaussian, rows, kmeans and trained: `pith train-dict --method ...` on the same text. "
            "mp unless said.", "", *lines]


STUDIES = {"table3": table3, "table4": table4, "table5": table5, "table6": table6,
           "table7": table7, "errors": errors}


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=[*STUDIES, "all"])
    parser.add_argument("--train", required=True)
    parser.add_argument("--text", required=True)
    parser.add_argument("--model", default="models/demo")
    parser.add_argument("--dict", default="models/demo/csr.safetensors")
    options = parser.parse_args()
    for name in STUDIES if options.what == "all" else [options.what]:
        lines = STUDIES[name](options)
        print(f"## {name}\n", *lines, "", sep="\n", flush=True)


if __name__ == "__main__":
    main()
