# ---
# jupyter:
#   jupytext:
#     formats: py:percent
#   kernelspec:
#     name: python3
# ---

# %% [markdown]
# # A selector of your own beside twelve others
#
# A selector decides which rows of the KV cache stay. Here we write one in three lines, give it and twelve
# built-in ones a quarter of the rows over 8-bit codes, and plot what each loses against what it takes.
# Needs `pip install '.[plot]'` in the checkout. `MODEL` may be a folder, a GGUF file or a name of `pith.pull`.

# %%
import os
import pathlib

import numpy as np

import pith
import pith.plot

MODEL = os.environ.get("PITH_EXAMPLE_MODEL", "smollm2")
TOKENS = int(os.environ.get("PITH_EXAMPLE_TOKENS", "2048"))
TEXT = pathlib.Path(os.environ.get("PITH_EXAMPLE_TEXT", "README.md")).read_text(encoding="utf-8")


# %% [markdown]
# A selector gets the rows of one KV head and returns a score for each. Rows with larger scores stay.

# %%
@pith.selector("far_keys", summary="keys far from the mean key")
def far_keys(rows):
    return np.linalg.norm(rows.keys - rows.keys.mean(axis=0), axis=1)


# %% [markdown]
# The divergence from the exact cache over the last tokens of a text. The prompt before them is compressed, and they
# are read one at a time, as an answer would be.

# %%
model = pith.Model.load(MODEL)
engine = pith.Engine(model)
ids = model.tokenizer.encode(TEXT, add_bos=True)[:TOKENS]
scored = len(ids) // 8


def log_probabilities(policy):
    """float64 [scored, vocabulary], and the bytes of the cache."""
    with pith.Session(engine, policy, percent_of=len(ids)) as session:
        session.append(ids[:-scored])
        logits = np.stack([session.decode(token) for token in ids[-scored:]]).astype(np.float64)
        top = logits.max(axis=1, keepdims=True)
        return logits - top - np.log(np.exp(logits - top).sum(axis=1, keepdims=True)), session.ledger()


exact, exact_ledger = log_probabilities("exact")
again, _ = log_probabilities("exact")


def divergence(other):
    """KL(exact || other) per token, and its standard error."""
    per_token = (np.exp(exact) * (exact - other)).sum(axis=1)
    return per_token.mean(), per_token.std() / np.sqrt(len(per_token))


print(f"{len(ids)} tokens, {scored} scored; null control {divergence(again)[0]:.2g}")

# %%
SELECTORS = ["far_keys(budget=25%)", "snapkv(budget=25%)", "h2o(budget=25%)", "tova(budget=25%)", "keydiff(budget=25%)",
             "knorm(budget=25%)", "expected_attention(budget=25%)", "uniform(budget=25%)", "streaming_llm(window=25%)",
             "pyramidkv(budget=25%)", "balancekv(rate=0.25)", "express(heavy=12.5%,s=12.8%)", "buzz(T=25%)"]
found, ledgers = [], {"exact": exact_ledger}
for selector in SELECTORS:
    policy = f"{selector}+int8,sink=4"
    logits, ledger = log_probabilities(policy)
    kl, error = divergence(logits)
    ledgers[selector] = ledger
    found.append({"policy": policy, "selector": pith.Policy(policy).selector, "codec": "int8", "kind": "ppl",
                  "task": "example", "length": len(ids), "seed": 0, "piece": 0, "count": scored, "metric": "kl",
                  "value": kl, "stderr": error, "bytes": ledger.cache_bytes, "tokens": ledger.tokens,
                  "effective_bits": ledger.effective_bits, "rows_kept": ledger.rows_kept / ledger.rows_seen,
                  "null_control": False, "model": str(MODEL), "model_fingerprint": model.fingerprint})
    print(f"{selector:34} KL {kl:.4f} ±{error:.4f} at {ledger.effective_bits:.2f} bits")

# %%
ax = pith.plot.frontier(found, y="kl")
ax.figure.savefig("own_selector.svg")
pith.plot.ledger(ledgers).figure.savefig("own_selector_bytes.svg")

# %% [markdown]
# One text and one seed show how a comparison is made, not which selector is best: `pith eval` takes several pieces,
# texts, tasks and seeds.
