#!/usr/bin/env python3
"""Tables of attention error, all selectors or all codecs beside each other, by `pith probe`.

usage: results.py selectors|codecs --text FILE [--text FILE ...] [--model FOLDER] [--quick]

Needs build/bin/pith, and no packages. docs/lab/demo.md has tables of the demo model.
"""

import argparse
import functools
import hashlib
import json
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
PROGRAM = ROOT / "build/bin/pith"
QUERIES, SEEDS = 256, 3
CONTEXTS = (4096, 8192)
CODEC_CONTEXT = 4096  # half an hour of one core; a codec's error hardly changes with the length
SHARES = (2, 4, 8, 16)
AROUND = ",sink=4,window=64"


@functools.cache
def methods():
    """The methods of this build: kind and names of parameters by method."""
    listed = subprocess.run([PROGRAM, "policies", "--json"], capture_output=True, text=True,
                            check=True)
    return {m["name"]: {"kind": m["kind"], "parameters": [p["name"] for p in m["parameters"]]}
            for m in json.loads(listed.stdout)["methods"]}


def selectors(context, share):
    """The policies that keep about 1/share of the rows before the queries, by name."""
    rows = (context - QUERIES) // share
    body = rows - 68  # what is left beside sink and window
    budgeted = ["h2o", "tova", "snapkv", "pyramidkv", "expected_attention", "keydiff", "knorm"]
    return {
        "express": f"express(heavy=0,s={context // share}){AROUND}",
        "balancekv": f"balancekv(heavy=0,rate={1 / share}){AROUND}",
        "buzz": f"buzz(T={body}){AROUND}",
        **{name: f"{name}(budget={body}){AROUND}" for name in budgeted},
        "streaming_llm": f"streaming_llm(window={rows - 4})",
        "local": f"local(window={rows})",
        **heavy_selectors(context, share),
        # Controls: signs by coin where the walk would balance them, and a sample without weights.
        "express, coin": f"express(heavy=0,s={context // share},balance=100){AROUND}",
        "balancekv, coin": f"balancekv(heavy=0,rate={1 / share},balance=100){AROUND}",
        "uniform, unweighted": f"uniform(budget={body},weights=false){AROUND}",
    }


def heavy_selectors(context, share):
    """Half of the rows by recent attention mass, the others by halving; where the build knows."""
    heavy = (context - QUERIES) // share // 2 - 34
    options = {"express": f"s={context // share // 2}", "balancekv": f"rate={0.5 / share}"}
    return {f"{name}, heavy": f"{name}({size},heavy={heavy}){AROUND}"
            for name, size in options.items() if "heavy" in methods()[name]["parameters"]}


def protocol(context, share):
    """BalanceKV's own protocol: the first 256 rows exact too."""
    around = ",sink=256,window=256"
    return {
        "express": f"express(heavy=0,s={context // share}){around}",
        "balancekv": f"balancekv(heavy=0,rate={1 / share}){around}",
    }


def probe(options, text, context, policies):
    """The results of `pith probe` for the policies, in their order."""
    command = [PROGRAM, "probe", "-m", options.model, "-f", text, "-c", str(context),
               "--queries", str(options.queries), "--seeds", str(options.seeds), "--json"]
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
    if 0 < value < 0.0005:
        return f"{value:.0e}"
    return "0" if value == 0 else f"{value:.4f}" if value < 0.01 else f"{value:.3f}"


def table(header, rows):
    lines = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    return lines + ["| " + " | ".join(row) + " |" for row in rows]


def overview(title, found):
    """A line per method, a column per share: error, ratio to uniform and heads won. found: by (share,
    name), in order."""
    names = dict.fromkeys(name for _, name in found)
    rows = []
    for name in names:
        cells = []
        for share in SHARES:
            every = found[share, name]["all"]
            cells.append(f"{every['rows']:.0f}: {number(every['error_mean'])} "
                         f"({every['ratio']:.2f}, {every['heads_won']})")
        rows.append([name, *cells])
    return [f"### {title}", "", *table(["rows: error (ratio, heads won)",
                                        *(f"1/{share}" for share in SHARES)], rows), ""]


def selector_page(options):
    short = []
    for text in options.text:
        for context in CONTEXTS:
            for make, title in ((selectors, "about 1/{} of the rows"),
                                (protocol, "first and last 256 rows exact, 1/{} of the others")):
                wanted = {(share, name): policy for share in SHARES
                          for name, policy in make(context, share).items()}
                policies = list(wanted.values())
                found = dict(zip(wanted, probe(options, text, context, policies)))
                where = f"{pathlib.Path(text).name}, {context} tokens"
                short += overview(f"{where}, {title.replace('1/{}', 'a share')}", found)
    return ["## Overview", "", *short]


# Settings of each codec that are compared; a codec that is not named here is measured as it comes.
VARIANTS = {
    "int8": ["", "(hadamard=true)", "(center=128)"],
    "int4": ["", "(hadamard=true)", "(center=128)"],
    "kivi": ["(bits=2)", "(bits=4)", "(bits=2,hadamard=true)"],
    "qjl": ["", "(paper=true)",
            *(f"(paper=true,m={m},sketch={sketch},outliers={outliers})" for m in (128, 256)
              for sketch in ("ortho", "gaussian", "hadamard") for outliers in (0, 8)),
            "(residual=0,m=128,outliers=0)", "(residual=0,m=256,outliers=0)", "(residual=0)",
            "(residual=1,m=64,center=64)", "(residual=2,m=64,center=0)", "(residual=2,m=64)",
            "(residual=2,m=64,sketch=gaussian)"],
    "csr": [f"(s={s})" for s in (16, 8, 6, 4)],
    "kvquant": ["(bits=2)", "(bits=3)", "(bits=4)", "(bits=2,outliers=0)", "(bits=2,outliers=4)"],
    "gear": ["(bits=2)", "(bits=4)", "(bits=2,rank=0)", "(bits=2,outliers=0)"],
    "ladder": ["(rows=256)", "(rows=1024)",
               *(f"(new={new},old=turboquant(bits=2,center=128),rows={rows})"
                 for new in ("int8", "turboquant(bits=4,center=128)") for rows in (512, 1024))],
    "turboquant": ["(bits=2)", *(f"(bits={bits},center=128)" for bits in (1, 2, 3, 4))],
}
# Codecs that do not change how values are stored.
KEYS_ONLY = ("center=", "qjl(", "ladder(")
COMPOSED = ("express(heavy=0,s={rows})", "balancekv(budget={rows},heavy=0)", "snapkv(budget={rows})",
            "keydiff(budget={rows})")


def refusal(options, policy):
    """Why this build cannot run the policy, or None when it can."""
    done = subprocess.run([PROGRAM, "inspect", "-m", options.model, "--kv-policy", policy],
                          capture_output=True, text=True, check=False)
    return done.stderr.strip().removeprefix("pith: error: ") if done.returncode != 0 else None


def codecs():
    """The codecs of this build, each with its settings."""
    names = [name for name, method in methods().items() if method["kind"] == "codec"]
    return {name: [name + variant for variant in VARIANTS.get(name, [""])] for name in names}


def codec_policies():
    """Every codec on both sides, on keys alone and, where they have settings, on values alone."""
    policies = ["exact+f16"]
    for codec in (setting for settings in codecs().values() for setting in settings):
        if codec == "f16":
            continue
        policies += [f"exact+{codec}", f"exact+k:{codec}+v:f16"]
        if not any(text in codec for text in KEYS_ONLY):
            policies.append(f"exact+k:f16+v:{codec}")
    return policies


def composed_policies(context):
    """Selectors over each codec's first setting; of the dense ones f16 stands for all."""
    chosen = [settings[0] for name, settings in codecs().items() if name not in ("f32", "bf16")]
    return [selector.format(rows=context // share) + "+" + codec + AROUND
            for share in (2, 8) for selector in COMPOSED for codec in chosen]


def front(found):
    """The policies that none beats in both error and bits."""
    points = [(f["all"]["effective_bits"], f["all"]["error_mean"]) for f in found]
    return [not any(b <= bits and e <= error and (b, e) != (bits, error) for b, e in points)
            for bits, error in points]


def codec_section(options, title, policies):
    refused = {policy: why for policy in policies if (why := refusal(options, policy))}
    policies = [policy for policy in policies if policy not in refused]
    found = probe(options, options.text[0], CODEC_CONTEXT, policies)
    rows = sorted(zip(policies, found, front(found)), key=lambda r: r[1]["all"]["effective_bits"])
    lines = []
    for policy, f, best in rows:
        bits = f"{f['all']['effective_bits']:.2f}"
        lines.append([f"`{policy}`", f"**{bits}**" if best else bits, f"{f['all']['rows']:.0f}",
                      f"{f['all']['bytes'] / 1e6:.2f}", number(f["all"]["error_mean"]),
                      number(f["all"]["error_deviation"])])
    out = [f"### {title}", "",
           *table(["policy", "bits", "rows", "MB", "error", "sd"], lines), ""]
    if refused:
        out += ["Refused in this build:", "",
                *(f"- `{policy}`: {why}" for policy, why in refused.items()), ""]
    return out


def codec_page(options):
    context = CODEC_CONTEXT
    lines = ["Sorted by effective bits; bold: no other line of the table has fewer bits and a "
             "smaller error.", "",
             *codec_section(options, f"Codecs, {context} tokens, all rows", codec_policies())]
    if not options.quick:
        lines += codec_section(options, f"Selectors over codecs, {context} tokens",
                               composed_policies(context))
    return lines


def head(options):
    texts = []
    for text in options.text:
        digest = hashlib.sha256(pathlib.Path(text).read_bytes()).hexdigest()
        texts.append(f"{pathlib.Path(text).name} (sha256 {digest[:16]})")
    given = " ".join(f"--text {pathlib.Path(text).name}" for text in options.text)
    version = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, check=True,
                             capture_output=True, text=True).stdout.strip()
    quick = " --quick" if options.quick else ""
    return [f"Made by `tools/results.py {options.what} {given}{quick}` at {version}: model "
            f"`{options.model}`, the first tokens of {' and '.join(texts)}, the last "
            f"{options.queries} queries, seeds 0 to {options.seeds - 1}. Null control: 0 in every "
            "run.", ""]


PAGES = {"selectors": selector_page, "codecs": codec_page}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("what", choices=PAGES)
    parser.add_argument("--text", required=True, action="append",
                        help="a text of 8192 tokens or more; 'codecs' reads the first one only")
    parser.add_argument("--model", default="models/demo")
    parser.add_argument("--quick", action="store_true",
                        help="128 queries, one seed, and no selectors over codecs: some minutes")
    options = parser.parse_args()
    options.queries, options.seeds = (128, 1) if options.quick else (QUERIES, SEEDS)
    lines = [*head(options), *PAGES[options.what](options)]
    print("\n".join(lines))


if __name__ == "__main__":
    main()
