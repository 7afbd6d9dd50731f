"""Figures of results, rows, bytes and attention errors, with matplotlib.

    ax = pith.plot.frontier(pith.results.read("docs/results/fidelity.jsonl"), y="kl")
    ax.figure.savefig("frontier.svg")

Each function draws into `ax` (None: a new figure) and returns it; none sets a style or shows anything.
"""

import itertools

import numpy as np

from . import _text, results

try:
    import matplotlib.pyplot as plt
    from matplotlib import ticker
except ImportError as error:
    raise ImportError("pith.plot needs matplotlib: pip install 'pith-kv[plot]'") from error

__all__ = ["attention_error", "frontier", "ledger", "memory", "rows"]

# Okabe and Ito's colours, which colour-blind readers tell apart; markers differ as well.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#999933")
_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*", "<", ">")
_LABELS = {"effective_bits": "bits per number of the exact cache (f16: 16)", "bytes": "bytes of the cache",
           "rows_kept": "share of the rows kept", "kl": "KL divergence, nats per token",
           "score": "answers found", "ppl": "perplexity"}
_TICKS = {"bytes": lambda value, _: _text.size(value).replace(".00 ", " ").replace(".0 ", " "),
          "seconds": lambda value, _: f"{value:.3g} s", "kl": lambda value, _: f"{value:g}"}
#: Of the hue "family": who has fewer rows, and who fewer bits. Each keeps its colour and marker everywhere.
FAMILIES = ("exact", "selector (fewer rows)", "codec (fewer bits)", "selector and codec")
_LEDGER = ("payload", "metadata", "shared", "staging", "slack", "scratch", "probe")


def _axes(ax, **size):
    return plt.subplots(layout="constrained", **size)[1] if ax is None else ax


def _label(name):
    return _LABELS.get(name, name.replace("_", " "))


def _family(row):
    fewer_rows = row["selector"] != "exact"
    fewer_bits = not results.is_exact("exact", row["codec"])
    return FAMILIES[fewer_rows + 2 * fewer_bits]


def _groups(points, hue):
    """(name, rows, colour, marker) of each value of the hue."""
    groups = {}
    for row in points:
        groups.setdefault(_family(row) if hue == "family" else row[hue] if hue else None, []).append(row)
    names = FAMILIES if hue == "family" else sorted(groups, key=str)
    for name, colour, marker in zip(names, itertools.cycle(_COLOURS), itertools.cycle(_MARKERS)):
        if name in groups:
            yield name, groups[name], colour, marker


def frontier(found, y="kl", x="effective_bits", hue="selector", *, task=None, length=None, numbers=False, ax=None):
    """Loss of policies against their size: a point per policy, with its standard error.

    found  rows of pith.results, or a frame of them
    y, x   a metric, and one of effective_bits, bytes, rows_kept, seconds
    hue    what has a colour and a marker: "selector", "codec", "family" (FAMILIES) or None
    task, length   of which task and length, where there are several
    numbers        whether the policies of pith.results.front() are numbered, from 1

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
    for name, group, colour, marker in _groups(points, hue):
        errors = [row["stderr"] or 0.0 for row in group]
        ax.errorbar([row[x] for row in group], [row["value"] for row in group], errors, fmt=marker, color=colour,
                    label=name, markersize=5, elinewidth=1, linestyle="none")
    front = results.front(points, y, x)
    if len(front) > 1:
        ax.step([row[x] for row in front], [row["value"] for row in front], where="post", color="0.6", zorder=0)
    if exact and y not in ("kl", "ln_ratio"):
        ax.axhline(exact[0]["value"], color="0.4", linestyle="--", linewidth=1, label="exact")
    _scale(ax.xaxis, [row[x] for row in points], x)
    if y == "kl" and any(row["value"] > 0 for row in points):
        if min(row["value"] for row in points) > 0:
            _scale(ax.yaxis, [row["value"] for row in points], "kl")
        else:  # 0 has a place of its own, below the least that is more
            ax.set_yscale("symlog", linthresh=min(row["value"] for row in points if row["value"] > 0), linscale=0.3)
            ax.yaxis.set_major_formatter(ticker.FuncFormatter(_TICKS["kl"]))
    ax.set_xlabel(_label(x))
    ax.set_ylabel(_label(y))
    model = points[0]["model"] if points else None
    ax.set_title(", ".join(str(part) for part in (model, kinds.pop()[0], f"{(points or exact)[0]['length']} tokens")
                           if part), fontsize="medium")
    if hue and points:
        ax.legend(fontsize="small", bbox_to_anchor=(1.01, 1), loc="upper left")
    if numbers:
        _number(ax, [(row[x], row["value"]) for row in front])
    return ax


def _scale(axis, values, name):
    """By powers, or a plain axis where there would be too few marks."""
    if values and min(values) > 0 and max(values) > 4 * min(values):
        axis.axes.set(**{f"{axis.axis_name}scale": "log"})
        if name not in _TICKS:
            axis.set_major_locator(ticker.LogLocator(2))
        else:
            steps = (1,) if max(values) > 300 * min(values) else (1, 2, 5)
            axis.set_major_locator(ticker.LogLocator(10, steps))
        axis.set_minor_locator(ticker.NullLocator())
    else:
        axis.set_major_locator(ticker.MaxNLocator(5))
    axis.set_major_formatter(ticker.FuncFormatter(_TICKS.get(name, lambda value, _: f"{value:g}")))


def _number(ax, places):
    """1, 2, ... beside these places, none over another; a line leads to those that stand far off."""
    ax.figure.draw_without_rendering()  # the layout, which says where points lie
    dots_per_point = ax.figure.dpi / 72
    taken = [ax.transData.transform(place) / dots_per_point for place in places]
    for number, (place, at) in enumerate(zip(places, list(taken)), 1):
        others = taken[:number - 1] + taken[number:]
        spots = [(far * np.cos(turn), far * np.sin(turn)) for far in range(9, 90, 8)
                 for turn in np.pi * np.array([0.25, 0.75, 1.25, 1.75, 0, 1, 0.5, 1.5])]
        inside = [spot for spot in spots if ax.bbox.contains(*((at + spot) * dots_per_point))] or spots
        free = [spot for spot in inside
                if all(abs(at + spot - other)[0] > 12 or abs(at + spot - other)[1] > 9 for other in others)]
        dx, dy = (free or inside)[0]
        taken.append(at + (dx, dy))
        line = {"arrowstyle": "-", "color": "0.6", "linewidth": 0.5} if np.hypot(dx, dy) > 10 else None
        ax.annotate(str(number), place, (dx, dy), textcoords="offset points", fontsize=8, weight="bold",
                    ha="center", va="center", arrowprops=line)


def memory(found, policies=None, *, numbers=False, ax=None):
    """Bytes of the cache after so many tokens: a line for each policy that was measured at several lengths.

    policies  which, in this order (None: all)
    numbers   whether lines have numbers, from 1, in place of a legend
    """
    if hasattr(found, "to_dict"):
        found = found.to_dict("records")
    held = {}
    for row in found:
        if row["tokens"] is not None and row["bytes"] is not None:
            held.setdefault(row["policy"], {})[row["tokens"]] = row["bytes"]
    lines = {policy: sorted(held[policy].items()) for policy in (policies or held)
             if len(held.get(policy, ())) > 1}
    if not lines:
        raise ValueError("no policy was measured at two lengths")
    ax = _axes(ax)
    for (policy, line), colour, marker in zip(lines.items(), itertools.cycle(_COLOURS), itertools.cycle(_MARKERS)):
        ax.plot(*zip(*line), color=colour, marker=marker, markersize=4, linewidth=1.2, label=policy)
    _scale(ax.xaxis, [at[0] for line in lines.values() for at in line], "tokens")
    _scale(ax.yaxis, [at[1] for line in lines.values() for at in line], "bytes")
    ax.set_xlabel("tokens seen")
    ax.set_ylabel(_label("bytes"))
    if numbers:
        _number(ax, [line[-1] for line in lines.values()])
    else:
        ax.legend(fontsize="small", bbox_to_anchor=(1.01, 1), loc="upper left")
    return ax


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
