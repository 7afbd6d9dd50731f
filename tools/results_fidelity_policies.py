"""Which policies the scoreboard of a real model compares."""

import pathlib

INT4 = "int4(hadamard=true)"
FEWEST = "k:turboquant(bits=3)+v:turboquant(bits=2)"  # 2.75 bits a number: more rows fit
CSR = "pair_bits=16,solver=omp,draw=kmeans"
# Every difference from a default is said, so that a line means the same when defaults change.
CODECS = ["int8", "int4", INT4, "kivi(bits=4,hadamard=false)", "kivi(bits=2,hadamard=false)",
          "kivi(bits=2,hadamard=true)", "turboquant(bits=4,center=128)",
          "turboquant(bits=3,center=128)",
          "k:turboquant(bits=3,center=128)+v:turboquant(bits=2)",
          "turboquant(bits=2,center=128)", "kvquant(bits=3)", "qjl", "qjl(paper=true)",
          "csr(s=8,pair_bits=32,solver=mp,draw=rows)", f"csr(s=6,{CSR})", f"csr(s=13,{CSR})",
          f"k:csr(s=6,online=128,collect=2048,{CSR})+v:turboquant(bits=2)",
          f"k:csr(s=16,{CSR})+v:turboquant(bits=3)"]
SELECTORS = ["buzz(T=40%)", "buzz(T=25%)", "snapkv(budget=25%)", "expected_attention(budget=25%)",
             "tova(budget=25%)", "h2o(budget=25%)", "keydiff(budget=25%)",
             "streaming_llm(window=25%)", "uniform(budget=25%)", "express(s=25%)",
             "express(paper=true,s=25%)", "express(heavy=0,s=25%)", "balancekv(rate=0.25)",
             "balancekv(paper=true,rate=0.25)", "balancekv(heavy=0,rate=0.25)"]
# At an eighth and a half of the rows, beside SELECTORS at a quarter: what claims.md compares.
EQUAL_ROWS = [f"{name}(budget={share})" for share in ("12.5%", "50%")
              for name in ("snapkv", "expected_attention", "tova", "adakv", "pyramidkv", "keydiff",
                           "h2o", "knorm", "uniform")]
EQUAL_ROWS += ["adakv(budget=25%)", "pyramidkv(budget=25%)", "knorm(budget=25%)",
               "buzz(T=14%)", "buzz(T=55%)", "streaming_llm(window=12.5%)",
               "streaming_llm(window=50%)", "balancekv(rate=0.125)", "balancekv(rate=0.5)",
               "express(s=6.4%,heavy=6.25%)", "express(s=12.8%,heavy=16%)",
               "express(s=12.8%,heavy=35%)"]
# Heavy rows by what stands out, and a weighted sample of the others.
EXPRESS = [f"express(s={coreset},heavy={heavy})" for coreset, heavy in (
    ("25.6%", "25%"), ("12.8%", "25%"), ("12.8%", "12.5%"), ("6.4%", "6.25%"))]
BALANCEKV = [f"balancekv(rate={rate},heavy={heavy})" for rate, heavy in (
    ("0.25", "25%"), ("0.125", "12.5%"), ("0.0625", "6.25%"))]
COMPOSED = ([f"{policy}+{codec}" for codec in (INT4, FEWEST) for policy in EXPRESS]
            + [f"{policy}+{INT4}" for policy in BALANCEKV]
            + [f"keydiff(budget=25%)+{INT4}", f"snapkv(budget=25%)+{INT4}",
               f"keydiff(budget=25%)+{FEWEST}"])
STANDING = (["exact"] + [f"exact+{codec}" for codec in CODECS] + SELECTORS + EQUAL_ROWS
            + COMPOSED)

# One a method, selectors at a quarter of the rows: those without random numbers, then those with.
FINE_KEYS = f"k:int8+v:{INT4}"
SHORT = ["exact", "exact+int8", f"exact+{FINE_KEYS}", f"exact+{INT4}",
         "exact+turboquant(bits=4,center=128)", "exact+turboquant(bits=3,center=128)",
         "exact+kivi(bits=2)", "exact+csr", "snapkv(budget=25%)", "expected_attention(budget=25%)",
         "keydiff(budget=25%)", "buzz(T=25%)", "streaming_llm(window=25%)"]
SHORT_RANDOM = ["exact+qjl", "express(s=25%)", f"express(s=25%)+{FINE_KEYS}",
                f"express(s=25%)+{INT4}", "balancekv(rate=0.25)", "uniform(budget=25%)"]

# Of these at other lengths.
SHORT_DECODED = [f"exact+{INT4}", "exact+kivi(bits=2)", "express(s=25%)",
                 "balancekv(rate=0.25)", "snapkv(budget=25%)", "keydiff(budget=25%)",
                 "streaming_llm(window=25%)"]
SHORT_LONG = [f"exact+{INT4}", "express(s=25%)", "snapkv(budget=25%)",
              "keydiff(budget=25%)", "streaming_llm(window=25%)"]


def read(path):
    """One a line; # begins a remark."""
    lines = pathlib.Path(path).read_text(encoding="utf-8").splitlines()
    return [text for line in lines if (text := line.partition("#")[0].strip())]
