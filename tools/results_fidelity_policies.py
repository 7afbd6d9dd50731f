"""Which policies the scoreboard of a real model compares."""

import pathlib

CODECS = ["int8", "int4", "int4(hadamard=true)", "int4(hadamard=true,center=128)", "kivi(bits=4)",
          "kivi(bits=2)", "kivi(bits=2,hadamard=true)", "turboquant(bits=2,center=128)",
          "turboquant(bits=3,center=128)", "kvquant(bits=3)", "qjl", "qjl(m=256)", "csr(s=8)"]
SELECTORS = ["h2o(budget={})", "tova(budget={})", "snapkv(budget={})",
             "expected_attention(budget={})", "keydiff(budget={})", "knorm(budget={})",
             "buzz(T={})", "streaming_llm(window={})", "uniform(budget={})", "express(s={})",
             "express(heavy=0,s={})", "express(paper=true,s={})", "balancekv(rate=0.25)",
             "balancekv(heavy=0,rate=0.25)", "balancekv(paper=true,rate=0.25)"]
# Half of the rows by what stands out, the others a weighted sample: its size, then heavy.
MIXTURES = [f"{sample},heavy={heavy},heavy_keys=0.5)" for sample, heavy in (
    ("express(s=25.6%", "25%"), ("express(s=12.8%", "12.5%"), ("express(s=6.4%", "6.25%"),
    ("balancekv(rate=0.25", "25%"), ("balancekv(rate=0.125", "12.5%"),
    ("balancekv(rate=0.0625", "6.25%"))]
STANDING = (["exact"] + [f"exact+{codec}" for codec in CODECS]
            + [selector.format("25%") for selector in SELECTORS] + MIXTURES
            + [f"{policy}+int4(hadamard=true)" for policy in MIXTURES]
            + ["keydiff(budget=25%)+int4(hadamard=true)", "snapkv(budget=25%)+int4(hadamard=true)"])


def read(path):
    """One a line; # begins a remark."""
    lines = pathlib.Path(path).read_text(encoding="utf-8").splitlines()
    return [text for line in lines if (text := line.partition("#")[0].strip())]
