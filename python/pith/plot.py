"""Figures of results, rows, bytes and attention errors, with matplotlib.

    ax = pith.plot.frontier(pith.results.read("docs/results/fidelity.jsonl"), y="kl")
    ax.figure.savefig("frontier.svg")

Each function draws into `ax` (None: a new figure) and returns it; none sets a style or shows anything.
"""

import itertools

import numpy as np

from . import results

try:
    import matplotlib.pyplot as plt
    from matplotlib import ticker
except ImportError as error:
    raise ImportError("pith.plot needs matplotlib: pip install 'pith-kv[plot]'") from error

__all__ = ["attention_error", "frontier", "ledger", "rows"]

# Okabe and Ito's colours, which colour-blind readers tell apart; markers differ as well.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#999933")
_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*", "<", ">")
_LABELS = {"effective_bits": "bits per number of the exact cache (f16: 16)", "bytes": "bytes of the cache",
           "rows_kept": "share of the rows kept", "kl": "KL divergence from the exact cache, nats per token",
           "score": "answers found", "ppl": "perplexity"}
_LEDGER = ("payload", "metadata", "shared", "staging", "slack", "scratch", "probe")
_LESS_IS_BETTER = ("kl", "ln_ratio", "ppl", "nll")


def _axes(ax, **size):
    return plt.subplots(layout="constrained", **size)[1] if ax is None else ax


def _label(name):
    return _LABELS.get(name, name.replace("_", " "))


def frontier(found, y="kl", x="effective_bits", hue="selector", *, task=None, length=None, ax=None):
    """What a policy loses against what it takes: a point per policy, with its standard error.

    found  rows of pith.results, or a frame of them
    y, x   a metric, and one of effective_bits, bytes, rows_kept
    hue    what has a colour and a marker: "selector", "codec" or None
    task, length   of which task and length, where there are several

    The grey line joins the policies that no other beats in both; the dashed one is the exact cache.
    """
    if hasattr(found, "to_dict"):
        found = found.to_dict("records")
    points = [row for row in results.summary(found) if row["metric"] == y and row[x] is not None
              and task in (None, row["task"]) and length in (None, row["length"])]
    if not points:
        raise ValueError(f"no result has the metric {y!r} and {x!r}"
                         + (f" for task={task!r}, length={length!r}" if task or length else ""))
    kinds = {(row["task"], row["length"], row["model_fingerprint"]) for row in points}
    if len(kinds) > 1:
        raise ValueError("results of several tasks, lengths or models, which do not compare: choose by task=, length= "
                         "or a part of the frame: " + "; ".join(sorted(f"{t} at {n}" for t, n, _ in kinds)))
    exact = [row for row in points if row["null_control"] or row["policy"] == "exact"]
    points = [row for row in points if row not in exact]
    ax = _axes(ax)
    styles = zip(itertools.cycle(_COLOURS), itertools.cycle(_MARKERS))
    groups = {}
    for row in points:
        groups.setdefault(row[hue] if hue else None, []).append(row)
    for (name, group), (colour, marker) in zip(sorted(groups.items(), key=str), styles):
        errors = [row["stderr"] or 0.0 for row in group]
        ax.errorbar([row[x] for row in group], [row["value"] for row in group], errors, fmt=marker, color=colour,
                    label=name, markersize=5, elinewidth=1, linestyle="none")
    front = _front(points, x, -1 if y in _LESS_IS_BETTER else 1)
    if len(front) > 1:
        ax.step([row[x] for row in front], [row["value"] for row in front], where="post", color="0.6", zorder=0)
    if exact and y not in ("kl", "ln_ratio"):
        ax.axhline(exact[0]["value"], color="0.4", linestyle="--", linewidth=1, label="exact")
    ax.set_xscale("log", base=2)
    ax.xaxis.set_major_formatter(ticker.FuncFormatter(lambda value, _: f"{value:g}"))
    if y == "kl" and points and min(row["value"] for row in points) > 0:
        ax.set_yscale("log")
    ax.set_xlabel(_label(x))
    ax.set_ylabel(_label(y))
    model = points[0]["model"] if points else None
    ax.set_title(", ".join(str(part) for part in (model, kinds.pop()[0], f"{(points or exact)[0]['length']} tokens")
                           if part), fontsize="medium")
    if hue and points:
        ax.legend(fontsize="small", bbox_to_anchor=(1.01, 1), loc="upper left")
    return ax


def _front(points, x, sign):
    """The policies that no other beats in both, by what they take."""
    front = []
    for row in sorted(points, key=lambda row: (row[x], -sign * row["value"])):
        if not front or sign * row["value"] > sign * front[-1]["value"]:
            front.append(row)
    return front


def rows(session, layers=None, *, ax=None):
    """Which positions a session holds: a line per layer and KV head, oldest left; larger weights are darker."""
    config = session.config
    layers = range(config.layers) if layers is None else layers
    ax = _axes(ax)
    lines = [(layer, head) for layer in layers for head in range(config.kv_heads)]
    if not lines:
        raise ValueError("layers is empty: name at least one")
    for place, (layer, head) in enumerate(lines):
        held = session.rows(layer, head)
        positions = held.positions
        weights = np.maximum(held.log_weights if len(held.log_weights) else np.zeros(len(positions)), 0.0)
        shade = 0.4 + 0.6 * weights / max(weights.max(initial=0.0), 1e-9)
        ax.scatter(positions, np.full(len(positions), place), c=_COLOURS[0], alpha=shade, s=6, marker="|",
                   linewidths=0.8)
    step = max(1, len(lines) // 16)
    ax.set_yticks(range(0, len(lines), step), [f"{layer}.{head}" for layer, head in lines[::step]], fontsize="small")
    ax.invert_yaxis()
    ax.set_xlabel("position of the token")
    ax.set_ylabel("layer.head")
    ax.set_title(str(session.policy), fontsize="medium")
    return ax


def ledger(ledgers, *, ax=None):
    """The bytes of caches by what they are for: {name: Ledger}, a bar each, in MiB."""
    if not ledgers:
        raise ValueError("no ledger was given; give {name: session.ledger()}")
    ax = _axes(ax)
    names = list(ledgers)
    left = np.zeros(len(names))
    for part, colour in zip(_LEDGER, _COLOURS):
        size = np.array([getattr(ledgers[name], part) for name in names]) / 2**20
        if size.any():
            ax.barh(names, size, left=left, color=colour, label=part)
        left += size
    ax.invert_yaxis()
    ax.set_xlabel("MiB")
    ax.legend(fontsize="small")
    return ax


def attention_error(session, *, ax=None):
    """The error probe's estimate of each layer; the session needs probe_rows."""
    errors = session.attention_errors()
    if not errors:
        raise ValueError("the session has no error probe: make it with probe_rows=256")
    ax = _axes(ax)
    estimate = np.array([e.estimate for e in errors])
    spread = [estimate - [e.low for e in errors], np.array([e.high for e in errors]) - estimate]
    ax.bar([e.layer for e in errors], estimate, yerr=np.maximum(spread, 0), color=_COLOURS[0], ecolor="0.4")
    ax.set_xlabel("layer")
    ax.set_ylabel("relative error of attention")
    ax.set_title(str(session.policy), fontsize="medium")
    return ax
