#!/usr/bin/env python3
"""Measures and writes the generated part of docs/results/<what>.md with `pith probe`.

usage: results.py selectors|codecs --text FILE [--model FOLDER] [--write]

Without --write the tables go to standard output. Only what stands between the two marks of the page
is replaced, so that what people wrote around it stays. Needs build/bin/pith, and no packages.
"""

import argparse
import hashlib
import json
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
PROGRAM = ROOT / "build/bin/pith"
BEGIN, END = "<!-- generated: begin -->", "<!-- generated: end -->"
QUERIES, SEEDS = 256, 3
CONTEXTS = (4096, 8192)
SHARES = (2, 4, 8, 16)
AROUND = ",sink=4,window=64"


def selectors(context, share):
    """The policies that keep about 1/share of the rows before the queries, by name."""
    rows = (context - QUERIES) // share
    body = rows - 68  # what is left beside sink and window
    budgeted = ["h2o", "tova", "snapkv", "pyramidkv", "expected_attention", "keydiff", "knorm"]
    return {
        "express": f"express(s={context // share}){AROUND}",
        "balancekv": f"balancekv(rate={1 / share}){AROUND}",
        "buzz": f"buzz(T={body}){AROUND}",
        **{name: f"{name}(budget={body}){AROUND}" for name in budgeted},
        "streaming_llm": f"streaming_llm(window={rows - 4})",
        "local": f"local(window={rows})",
        # Controls: signs by coin where the walk would balance them, and a sample without weights.
        "express, coin": f"express(s={context // share},balance=100){AROUND}",
        "balancekv, coin": f"balancekv(rate={1 / share},balance=100){AROUND}",
        "uniform, unweighted": f"uniform(budget={body},weights=false){AROUND}",
    }


def protocol(context, share):
    """BalanceKV's own protocol: the first 256 rows exact too."""
    around = ",sink=256,window=256"
    return {
        "express": f"express(s={context // share}){around}",
        "balancekv": f"balancekv(rate={1 / share}){around}",
    }


def probe(options, context, policies):
    """What `pith probe` says of the policies, in their order."""
    command = [PROGRAM, "probe", "-m", options.model, "-f", options.text, "-c", str(context),
               "--queries", str(QUERIES), "--seeds", str(SEEDS), "--json"]
    for policy in policies:
        command += ["--kv-policy", policy]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(done.stderr.strip())
    result = json.loads(done.stdout)
    if result["null_control_error"] != 0:
        sys.exit(f"results: the null control is {result['null_control_error']}, not 0")
    return result["policies"]


def number(value):
    return "0" if value == 0 else f"{value:.4f}" if value < 0.01 else f"{value:.3f}"


def table(header, rows):
    lines = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    return lines + ["| " + " | ".join(row) + " |" for row in rows]


def summary_row(name, found):
    every = found["all"]
    compared = "ratio" in every
    return [name, f"{every['rows']:.0f}", f"{100 * every['rows'] / every['rows_seen']:.1f}%",
            f"{every['bytes'] / 1e6:.2f}", f"{every['effective_bits']:.2f}",
            number(every["error_mean"]), number(every["error_deviation"]),
            number(every["uniform_mean"]) if compared else "-",
            number(every["uniform_deviation"]) if compared else "-",
            f"{every['ratio']:.3f}" if compared else "-",
            f"{every['heads_won']}/{every['heads_compared']}" if compared else "-"]


SUMMARY = ["policy", "rows", "kept", "MB", "bits", "error", "sd", "uniform", "sd", "ratio",
           "heads won"]


def layer_row(name, found):
    cells = []
    for layer in found["layers"]:
        cell = number(layer["error_mean"])
        if "ratio" in layer:
            cell += f" ({layer['ratio']:.2f})"
            if layer["heads_won"] == layer["heads_compared"]:
                cell = f"**{cell}**"
        cells.append(cell)
    return [name, *cells]


def section(title, names, found):
    layers = [str(i) for i in range(len(found[0]["layers"]))]
    return [f"### {title}", "",
            *table(SUMMARY, [summary_row(*pair) for pair in zip(names, found)]), "",
            *table(["by layer", *layers], [layer_row(*pair) for pair in zip(names, found)]), ""]


def selector_page(options):
    out = []
    for context in CONTEXTS:
        for make, title in ((selectors, "about 1/{} of the rows"),
                            (protocol, "first and last 256 rows exact, 1/{} of the others")):
            wanted = [(share, name, policy) for share in SHARES
                      for name, policy in make(context, share).items()]
            found = probe(options, context, [policy for _, _, policy in wanted])
            for share in SHARES:
                picked = [i for i, entry in enumerate(wanted) if entry[0] == share]
                out += section(f"{context} tokens, " + title.format(share),
                               [f"`{wanted[i][2]}`" for i in picked], [found[i] for i in picked])
    return out


def head(options):
    text = pathlib.Path(options.text)
    digest = hashlib.sha256(text.read_bytes()).hexdigest()
    version = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, check=True,
                             capture_output=True, text=True).stdout.strip()
    return [f"Made by `tools/results.py {options.what} --text {text.name} --write` at {version}: "
            f"model `{options.model}`, the first tokens of {text.name} (sha256 {digest[:16]}), "
            f"the last {QUERIES} queries, seeds 0 to {SEEDS - 1}. Null control: 0 in every run.",
            ""]


PAGES = {"selectors": selector_page}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("what", choices=PAGES)
    parser.add_argument("--text", required=True, help="a text of 8192 tokens or more")
    parser.add_argument("--model", default="models/demo")
    parser.add_argument("--write", action="store_true", help="into docs/results/")
    options = parser.parse_args()
    lines = [*head(options), *PAGES[options.what](options)]
    if not options.write:
        print("\n".join(lines))
        return
    path = ROOT / "docs/results" / f"{options.what}.md"
    page = path.read_text(encoding="utf-8")
    if BEGIN not in page or END not in page:
        sys.exit(f"results: {path} has no marks to write between")
    block = "\n".join([BEGIN, "", *lines, END])
    page = re.sub(re.escape(BEGIN) + ".*?" + re.escape(END), lambda _: block, page, flags=re.S)
    path.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()
