# ---
# jupyter:
#   jupytext:
#     formats: py:percent
#   kernelspec:
#     name: python3
# ---

# %% [markdown]
# # Which rows stay, and what it costs
#
# A text is read under two policies. We look at the rows that each layer and KV head holds, at every byte, and at the
# error of attention that the probe estimates while the text is read.

# %%
import os
import pathlib

import pith
import pith.plot

MODEL = os.environ.get("PITH_EXAMPLE_MODEL", "smollm2")
TOKENS = int(os.environ.get("PITH_EXAMPLE_TOKENS", "2048"))
TEXT = pathlib.Path(os.environ.get("PITH_EXAMPLE_TEXT", "README.md")).read_text(encoding="utf-8")
POLICIES = {"newest rows": "streaming_llm(window=25%),sink=4", "coreset": "express(heavy=12.5%,s=12.8%)+int8,sink=4"}

# %%
model = pith.Model.load(MODEL)
engine = pith.Engine(model)
ids = model.tokenizer.encode(TEXT, add_bos=True)[:TOKENS]
sessions = {}
for name, policy in POLICIES.items():
    sessions[name] = pith.Session(engine, policy, percent_of=len(ids), probe_rows=128, probe_every=4)
    for begin in range(0, len(ids), 256):
        sessions[name].append(ids[begin:begin + 256])
    ledger = sessions[name].ledger()
    print(f"{name}: {ledger.cache_bytes / 2**20:.2f} MiB, {ledger.effective_bits:.2f} bits per number, "
          f"{100 * ledger.rows_kept / ledger.rows_seen:.0f}% of the rows")

# %%
for name, session in sessions.items():
    pith.plot.rows(session, layers=range(0, model.config.layers, 4)).figure.savefig(f"rows {name}.svg")
    pith.plot.attention_error(session).figure.savefig(f"error {name}.svg")
pith.plot.ledger({name: session.ledger() for name, session in sessions.items()}).figure.savefig("bytes.svg")
