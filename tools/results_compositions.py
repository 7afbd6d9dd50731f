#!/usr/bin/env python3
"""KL divergence against bytes for selectors, codecs and both together; the Pareto front.

usage: results_compositions.py --text FILE [--model FOLDER] [--pieces N] [--out FILE]
                               [--write]

Runs `pith eval ppl --mode continue` (needs build/bin/pith, and no packages). Without --write the
result goes to standard output, else to docs/results/compositions.md. --out keeps finished work, and
the same command goes on from there.
"""

import argparse
import json
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
PROGRAM = ROOT / "build/bin/pith"
PAGE = ROOT / "docs/results/compositions.md"
PROMPT, SCORE, SEEDS = 2048, 64, 3
AROUND = ",sink=4,window=32"
SELECTORS = {
    "snapkv": "snapkv(budget={body})", "tova": "tova(budget={body})",
    "keydiff": "keydiff(budget={body})", "express": "express(heavy=0,s={half})",
    "balancekv": "balancekv(heavy=0,rate={rate})",
}
SHARES = (0.5, 0.25, 0.125)
CODECS = (
    "int8", "int4", "int4(center=128)", "kivi(bits=4)", "kivi(bits=2)", "kvquant(bits=4)",
    "kvquant(bits=3)", "kvquant(bits=2)", "gear(bits=2)", "turboquant(bits=4,center=128)",
    "turboquant(bits=3,center=128)", "turboquant(bits=2,center=128)",
    "k:qjl(residual=2,m=64,center=128)+v:turboquant(bits=3)", "k:qjl(paper=true)+v:kivi(bits=2)",
    "ladder(new=int8,old=turboquant(bits=3,center=128),rows=256)",
    "ladder(new=turboquant(bits=4,center=128),old=turboquant(bits=2,center=128),rows=256)",
)
# Codecs whose rows are coded alone come first: others keep what a group shares for few rows.
COMPOSED = {
    ("snapkv", "tova"): ("int8", "int4", "turboquant(bits=4)", "turboquant(bits=3)"),
    ("keydiff", "express"): ("int4", "turboquant(bits=3)"),
    ("balancekv",): ("int4",),
}


def selector(name, share):
    rows = int(PROMPT * share)
    return SELECTORS[name].format(body=rows - 36, half=rows // 2, rate=share)


def policies():
    """Policies by kind."""
    singles = [f"streaming_llm(window={int(PROMPT * share) - 4})" for share in SHARES]
    singles += [selector(name, share) + "+f16" + AROUND for name in SELECTORS for share in SHARES]
    singles += [f"exact+{codec}{AROUND}" for codec in CODECS]
    composed = [selector(name, share) + "+" + codec + AROUND
                for names, codecs in COMPOSED.items() for name in names for codec in codecs
                for share in SHARES[:2]]
    return singles, composed


# Methods whose rows or codes depend on the seed; the others run once.
RANDOMISED = ("express", "balancekv", "qjl(")


def measure(options, wanted):
    """A dictionary a policy, in the order given: KL, its spread, bytes and bits."""
    drawn = [p for p in wanted if any(name in p for name in RANDOMISED)]
    fixed = [p for p in wanted if p not in drawn]
    rows, null = run(options, fixed, 1)
    more, other = run(options, drawn, SEEDS)
    found = {row["policy"]: row for row in rows + more}
    return [found[policy] for policy in wanted], max(null, other)


def run(options, wanted, seeds):
    """The same of policies that all run with `seeds` seeds."""
    command = [PROGRAM, "eval", "ppl", "-m", options.model, "-f", options.text, "--mode",
               "continue", "-c", str(PROMPT + SCORE), "--score", str(SCORE), "--pieces",
               str(options.pieces), "--seeds", str(seeds), "--json"]
    if options.out:
        command += ["-o", options.out]
    for policy in wanted:
        command += ["--kv-policy", policy]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(done.stderr.strip())
    result = json.loads(done.stdout)
    # In the order given, after the null control; names there have their parameters sorted.
    measured = result["policies"][-len(wanted):]
    rows = []
    for policy, runs in zip(wanted, (p["seeds"] for p in measured), strict=True):
        kls = [s["summary"]["kl"]["mean"] for s in runs]
        mean = sum(kls) / len(kls)
        spread = runs[0]["summary"]["kl"]["error"] if len(kls) == 1 else (
            sum((k - mean) ** 2 for k in kls) / (len(kls) - 1)) ** 0.5
        ledgers = [s["ledger"] for s in runs]
        size = sum(ledger["bytes"]["cache"] for ledger in ledgers) / len(ledgers)
        bits = sum(ledger["effective_bits"] for ledger in ledgers) / len(ledgers)
        rows.append({"policy": policy, "kl": mean, "spread": spread, "bytes": size, "bits": bits})
    return rows, result["null_control_kl"]


def front(rows):
    """Those that no other beats in both."""
    return [r for r in rows
            if not any(o["bytes"] <= r["bytes"] and o["kl"] <= r["kl"] and o is not r
                       for o in rows)]


def ratios(singles, composed):
    """For each single method on the singles' front: the smallest composition at most as far."""
    out = []
    for single in sorted(front(singles), key=lambda r: r["bytes"]):
        near = [c for c in composed if c["kl"] <= single["kl"]]
        best = min(near, key=lambda c: c["bytes"]) if near else None
        out.append((single, best, best["bytes"] / single["bytes"] if best else None))
    return out


def line(row, kind, best):
    name = f"`{row['policy']}`"
    return (f"| {'**' + name + '**' if best else name} | {kind} | {row['bits']:.2f} | "
            f"{row['bytes'] / 1e6:.3f} | {row['kl']:.4f} | {row['spread']:.4f} |")


def page(options, singles, composed, null):
    every = singles + composed
    best = front(every)
    lines = ["# Compositions: divergence against bytes", "",
             f"Made by `tools/results_compositions.py --text {pathlib.Path(options.text).name} "
             f"--write --pieces {options.pieces}`: `{options.model}`, pieces of {PROMPT} tokens of prompt and "
             f"{SCORE} predictions read one at a time,", f"`pith eval ppl --mode continue`. KL: nats "
             "a token from the exact cache; spread: deviation over seeds, or standard error where "
             f"a seed changes nothing.\nNull control: {null:.1g}. Bits and MB: the ledger's after "
             "the last piece, everything included. Bold: the Pareto front of all lines.", "",
             f"On the front: {sum(r in best for r in composed)} compositions, "
             f"{sum(r in best for r in singles)} single methods.", "",
             "| policy | kind | bits | MB | KL | spread |", "|---|---|---|---|---|---|"]
    for row in sorted(every, key=lambda r: r["bytes"]):
        lines.append(line(row, "single" if row in singles else "composition", row in best))
    lines += ["", "## Bytes of the best composition at a single method's divergence", "",
              "Each single method on the front of single methods, and the smallest composition "
              "whose divergence is not larger.", "",
              "| single method | KL | MB | composition | KL | MB | ratio |",
              "|---|---|---|---|---|---|---|"]
    for single, other, ratio in ratios(singles, composed):
        tail = (f"`{other['policy']}` | {other['kl']:.4f} | {other['bytes'] / 1e6:.3f} | "
                f"{ratio:.2f} |" if other else "none | - | - | - |")
        lines.append(f"| `{single['policy']}` | {single['kl']:.4f} | "
                     f"{single['bytes'] / 1e6:.3f} | {tail}")
    return lines


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--text", required=True, help="prose of some 5000 tokens or more")
    parser.add_argument("--model", default="models/demo")
    parser.add_argument("--out", help="file that keeps finished work (JSON lines)")
    parser.add_argument("--pieces", type=int, default=2, help="of the text (2)")
    parser.add_argument("--write", action="store_true", help="into docs/results/")
    options = parser.parse_args()
    wanted = policies()
    rows, null = measure(options, [*wanted[0], *wanted[1]])
    text = "\n".join(page(options, rows[:len(wanted[0])], rows[len(wanted[0]):], null)) + "\n"
    if options.write:
        PAGE.write_text(text, encoding="utf-8")
    else:
        print(text, end="")


if __name__ == "__main__":
    main()
