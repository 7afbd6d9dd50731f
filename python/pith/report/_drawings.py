"""The plots of the report, each with what stands below it: drawn by pith.plot, in the colours of the page."""

import csv
import html
import io
import json
import re
import warnings

import matplotlib
import matplotlib.pyplot as plt

from .. import _text, plot
from .. import results as tables
from .._text import policy_html

# Colours of pith.plot and what they are on the page, which has a light and a dark theme.
_INK, _SOFT = "#1b1f24", "#565e68"
_THEME = {_INK: "var(--ink)", _SOFT: "var(--soft)", "#0072b2": "var(--c0)", "#d55e00": "var(--c1)",
          "#009e73": "var(--c2)", "#cc79a7": "var(--c3)", "#999999": "var(--front)", "#666666": "var(--soft)"}
_STYLE = {"svg.fonttype": "none", "svg.hashsalt": "pith", "font.size": 9, "text.color": _INK,
          "axes.labelcolor": _INK, "axes.edgecolor": _SOFT, "xtick.color": _SOFT, "ytick.color": _SOFT,
          "axes.spines.top": False, "axes.spines.right": False, "figure.facecolor": "none",
          "axes.facecolor": "none", "legend.frameon": False, "pdf.fonttype": 42}
_INCHES = (4.6, 3.6)


class Drawing:
    """`draw` draws into axes; `front` are items of HTML, one for each number in the plot."""

    def __init__(self, name, title, caption, front, draw, csv_rows):
        self.name, self.title, self.caption, self.front = name, title, caption, front
        self._draw, self._csv_rows = draw, csv_rows

    def _figure(self, titled):
        figure, ax = plt.subplots(figsize=_INCHES, layout="constrained")
        self._draw(ax)
        if not titled:
            ax.set_title("")
        legend = ax.get_legend()
        if legend is not None:
            legend.remove()
            figure.legend(loc="outside lower center", ncols=2)
        return figure

    def _saved(self, kind, titled=True, **metadata):
        with matplotlib.rc_context(_STYLE):
            figure, out = self._figure(titled), io.BytesIO()
            try:
                figure.savefig(out, format=kind, metadata=metadata, facecolor="white" if titled else "none")
            finally:
                plt.close(figure)
        return out.getvalue()

    def inline(self, prefix):
        """As an SVG within a page, whose names begin with the prefix."""
        svg = self._saved("svg", titled=False, Date=None).decode()
        svg = svg[svg.index("<svg"):]
        svg = re.sub(r"<metadata>.*?</metadata>\n?", "", svg, flags=re.DOTALL)
        svg = re.sub(r' xmlns(:\w+)?="[^"]*"', "", svg)
        svg = re.sub(r'\b(id="|href="#)|(url\(#)', lambda found: found[0] + prefix, svg)
        for colour, name in _THEME.items():
            svg = svg.replace(colour, name)
        return svg.replace("<svg", f"<svg role='img' aria-label='{html.escape(self.title)}'", 1)

    def save(self, folder):
        """As files of its own: SVG, PDF, and the points as CSV."""
        (folder / f"{self.name}.svg").write_bytes(self._saved("svg", Date=None))
        (folder / f"{self.name}.pdf").write_bytes(self._saved("pdf", CreationDate=None))
        with open(folder / f"{self.name}.csv", "w", encoding="utf-8", newline="") as file:
            csv.writer(file, lineterminator="\n").writerows(self._csv_rows)


def _found(group, rows):
    """Rows of pith.results."""
    with warnings.catch_warnings():  # the page says which null control there is
        warnings.simplefilter("ignore")
        return tables.rows([json.dumps(line) for line in (group.head, *rows)])


def comparisons(group):
    """Quality against bytes, and against time."""
    metric = "score" if group.is_task else "kl"
    found = [row for row in _found(group, group.whole) if row["metric"] == metric]
    points = [row for row in found if not row["null_control"]]
    by_policy = {row["policy"]: row for row in group.rows}
    for cost, what, written in (("bytes", "bytes", _text.size), ("seconds", "time", _text.seconds)):
        front = [row["policy"] for row in tables.front(points, metric, cost)]
        items = [f"<b>{policy_html(policy)}</b> <span>{group.value_text(by_policy[policy])},</span> "
                 f"<span>{written(by_policy[policy][cost])}</span>" for policy in front]
        lines = [("policy", cost, metric, "error", "on_front")]
        lines += [(row["policy"], f"{row[cost]:.9g}", f"{row['value']:.9g}", f"{row['stderr'] or 0:.9g}",
                   int(row["policy"] in front)) for row in found]

        def draw(ax, cost=cost):
            plot.frontier(found, metric, cost, "family", numbers=True, ax=ax)

        name = re.sub(r"[^a-z0-9_]+", "-", f"{group.name}-{group.length}-{what}")
        yield Drawing(name, f"{'Score' if group.is_task else 'Divergence'} against {what}",
                      "No other policy is better for less:", items, draw, lines)


def bytes_by_tokens(results):
    """{policy: {tokens: bytes}}, and every number of tokens."""
    held = {}
    for group in results.groups:
        if not group.is_task:
            for row in group.rows:
                held.setdefault(row["policy"], {})[row["tokens"]] = row["bytes"]
    return held, sorted({tokens for sizes in held.values() for tokens in sizes})


def memory(results):
    """Of the policies that nothing beats at the longest context; None if none was measured at another."""
    groups = [group for group in results.groups if not group.is_task]
    longest = max(groups, key=lambda group: group.length)
    found = [row for group in groups for row in _found(group, group.rows) if row["metric"] == "kl"]
    held, _ = bytes_by_tokens(results)
    front = [row["policy"] for row in tables.front(_found(longest, longest.rows), "kl", "bytes")
             if len(held[row["policy"]]) > 1]
    if not front:
        return None
    lines = [("policy", "tokens", "bytes")]
    lines += [(policy, tokens, f"{size:.9g}") for policy in front for tokens, size in sorted(held[policy].items())]
    return Drawing("memory-context", "Memory against context",
                   "The policies that nothing beats at the longest context:",
                   [f"<b>{policy_html(policy)}</b>" for policy in front],
                   lambda ax: plot.memory(found, front, numbers=True, ax=ax), lines)


def every(results):
    """The plots of the page, each with a name of its own: groups that differ in their setting alone share one."""
    drawings = [drawing for group in results.compared for drawing in comparisons(group)]
    if len(bytes_by_tokens(results)[1]) > 1:
        drawings += filter(None, [memory(results)])
    seen = {}
    for drawing in drawings:
        seen[drawing.name] = seen.get(drawing.name, 0) + 1
        if seen[drawing.name] > 1:
            drawing.name += f"-{seen[drawing.name]}"
    return drawings
