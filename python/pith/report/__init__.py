"""One HTML page of result files, without scripts and without anything to load: `pith report`, or

    python -m pith.report ppl.jsonl tasks.jsonl -o report.html

Every plot has a table beside it, so that nothing is told by colour or by sight alone.
"""

import collections
import html
import json
import math
import pathlib

from .. import _text
from .. import results as tables
from .._pith import InvalidArgument, result_lines
from .._text import policy_html
from . import _drawings

__all__ = ["Group", "Results", "page", "parse", "read"]

TITLE = "Pith: what compression of the KV cache costs and keeps"
_MODES = {"continue": "KL divergence after a prompt", "decode": "KL divergence, one token at a time",
          "chunks": "KL divergence of pieces read at once"}


class Group:
    """Policies that were measured in one setting: the line of the setting, and a line for each policy."""

    def __init__(self, head):
        self.head, self.rows = head, []
        self.kind, self.name, self.length = head["result"], head["name"], head["length"]
        self.is_task = self.kind == "task"

    @property
    def title(self):
        return f"{f'Task {self.name}' if self.is_task else _MODES.get(self.name, self.name)}, {self.length} tokens"

    @property
    def whole(self):
        """The policies with all predictions or samples: others are not to be compared."""
        most = max(row["count"] for row in self.rows)
        return [row for row in self.rows if row["count"] == most]

    def value_text(self, row):
        """The quantity compared: a score, or a divergence with its error."""
        return _text.percent(row["score"][0]) if self.is_task else _text.estimate(*row["kl"])


class Results:
    def __init__(self, groups, probes, costs):
        self.groups, self.probes, self.costs = groups, probes, costs
        self.compared = [group for group in groups if len(group.rows) > 1]


def read(*files):
    """Files of `pith eval --out`, `pith probe --json`, `pith bench select --csv` and `pith report --lines`."""
    return parse(result_lines([str(file) for file in files]))


def parse(lines):
    """The lines of `pith report --lines`."""
    groups, probes, costs = [], [], []
    for line in lines.splitlines():
        record = json.loads(line)
        kind = record.get("result")
        if kind is None:
            groups[-1].rows.append(record)
        elif kind in ("ppl", "task"):
            groups.append(Group(record))
        else:
            (probes if kind == "probe" else costs).append(record)
    return Results([group for group in groups if group.rows], probes, costs)


def page(results, title=TITLE):
    """The page, as text. Throws InvalidArgument if there is nothing to show."""
    sections = [(group.title, _comparison(group, number)) for number, group in enumerate(results.compared)]
    sections += [(f"Attention error by layer, {probe['tokens']} tokens", _probe(probe)) for probe in results.probes]
    sections += [("Memory against context", _memory(results)), ("Time of selectors", _costs(results.costs)),
                 ("All figures", _overview(results)), ("Measured for one policy only", _singles(results))]
    sections = [(head, body) for head, body in sections if body]
    if not sections:
        raise InvalidArgument("the files hold no result to report")
    contents = "".join(f"<li><a href='#s{n}'>{html.escape(head)}</a></li>" for n, (head, _) in enumerate(sections))
    body = "\n".join(f"<section id='s{n}'><h2>{html.escape(head)}</h2>{text}</section>"
                     for n, (head, text) in enumerate(sections))
    style = pathlib.Path(__file__).with_name("style.css").read_text(encoding="utf-8")
    title = html.escape(title)
    return (f"<!doctype html>\n<html lang='en'><head><meta charset='utf-8'>"
            f"<meta name='viewport' content='width=device-width,initial-scale=1'>"
            f"<meta name='color-scheme' content='light dark'><title>{title}</title><style>{style}</style></head>\n"
            f"<body><header><h1>{title}</h1><p>Cost and quality of each policy of the KV cache. KL: nats per "
            f"token from the exact cache, over the whole vocabulary. Bytes and bits count everything. Times are by "
            f"the clock, of one thread each and several at once: on a busy machine they say little.</p>"
            f"{_facts(results)}</header>\n<nav aria-label='Contents'><ul>{contents}</ul></nav><main>\n{body}\n"
            f"</main></body></html>\n")


def _table(caption, heads, rows):
    """In a box that scrolls sideways. Cells are HTML, or (HTML, strength of the colour); the first is a row's head."""
    name = html.escape("Table: " + caption.split(".")[0])
    lines = []
    for first, *cells in rows:
        body = "".join(f"<td class='heat' style='--v:{cell[1]:.2f}'>{cell[0]}</td>" if isinstance(cell, tuple)
                       else f"<td>{cell}</td>" for cell in cells)
        lines.append(f"<tr><th scope='row'>{first}</th>{body}</tr>\n")
    head = "".join(f"<th scope='col'>{head}</th>" for head in heads)
    return (f"<p class='caption'>{html.escape(caption)}</p><div class='wide' tabindex='0' role='region' "
            f"aria-label='{name}'><table aria-label='{name}'><thead><tr>{head}</tr></thead>"
            f"<tbody>{''.join(lines)}</tbody></table></div>")


def _folded(summary, text):
    return f"<details><summary>{summary}</summary>{text}</details>"


def _facts(results):
    heads = [group.head["setting"] for group in results.groups]
    measured = [row for group in results.groups for row in group.rows]
    drawn = [row["policy"] for probe in results.probes for row in probe["rows"]]
    policies = {row["policy"] for row in measured + results.costs} | set(drawn)
    seeds = max([row["seeds"] for row in measured]
                + [probe["seeds"] for probe in results.probes if any(row["random"] for row in probe["rows"])] + [0])
    controls = [group.head["null_control_kl"] for group in results.groups if "null_control_kl" in group.head]
    models = {head.get("model", "unknown") for head in heads} | {probe["model"] for probe in results.probes}
    versions = {head.get("version", "unknown") for head in heads}
    facts = [(", ".join(sorted(models)) or "unknown", "model"), (len(policies), "policies"),
             (len(results.groups) + len(results.probes) + bool(results.costs), "measurements"),
             *([(seeds, "seeds, randomised policies")] if seeds > 1 else []),
             (_text.figure(max(controls)) if controls else "none", "null control, largest KL"),
             (", ".join(sorted(versions)) or "unknown", "pith version")]
    items = "".join(f"<li><b>{html.escape(str(value))}</b>{what}</li>" for value, what in facts)
    return f"<ul class='facts'>{items}</ul>"


def _figure(drawing, number):
    items = "".join(f"<li>{item}</li>" for item in drawing.front)
    return (f"<figure><h3>{drawing.title}</h3>{drawing.inline(f'd{number}')}"
            f"<figcaption>{drawing.caption}<ol>{items}</ol></figcaption></figure>")


def _comparison(group, number):
    out = ""
    if "null_control_kl" in group.head:
        out = f"<p>Null control, exact against exact: KL {_text.figure(group.head['null_control_kl'])}.</p>"
    figures = "".join(_figure(drawing, f"{number}-{n}")
                      for n, drawing in enumerate(_drawings.comparisons(group)))
    setting = ", ".join(f"{name}: {value if isinstance(value, str) else json.dumps(value)}"
                        for name, value in group.head["setting"].items())
    return (f"{out}<div class='plots'>{figures}</div>"
            + _folded(f"Table: {len(group.rows)} policies", _group_table(group))
            + _folded("Setting", f"<p class='soft'>{html.escape(setting)}</p>"))


def _group_table(group):
    # The important columns first: on a phone the last columns are a swipe away.
    if group.is_task:
        said, heads = "In brackets: Wilson's 95% interval", ["score", "by turn, %"]
    else:
        said = ("±: standard error over blocks of text and seeds" if group.head.get("errors") == "blocks"
                else "±: of tokens as if each were a draw, with several seeds their deviation")
        heads = ["KL, nats", "KL median", "KL 99%", "same top", "perplexity", "ln ratio", "KL above the best"]
    heads = ["policy", *heads, "kept", "KV cache", "bits", "seconds", "seeds",
             "samples" if group.is_task else "predictions"]
    most = max(row["count"] for row in group.rows)
    rows = []
    for row in group.rows:
        if group.is_task:
            low, high = row["interval"]
            turns = row["by_turn"]
            cells = [f"{_text.percent(row['score'][0])} ({100 * low:.0f} to {100 * high:.0f})",
                     " ".join(f"{100 * turn:.0f}" for turn in turns) if len(turns) > 1 else ""]
        else:
            above = row.get("kl_above_best")
            cells = [_text.estimate(*row["kl"]), _text.figure(row["kl_50"]), _text.figure(row["kl_99"]),
                     _text.percent(row["same_top"][0]), _text.estimate(*row["perplexity"]),
                     _text.estimate(*row["ln_ratio"]), _text.estimate(*above) if above else ""]
        rows.append([policy_html(row["policy"]), *cells, _text.percent(row["kept"]), _text.size(row["bytes"]),
                     f"{row['bits']:.2f}", _text.seconds(row["seconds"]), row["seeds"],
                     row["count"] if row["count"] == most else f"{row['count']} of {most}"])
    return _table(f"{group.title}. {said}.", heads, rows)


class _Heat:
    """A colour that follows the logarithm of a value: such values span orders of magnitude. Values of the exact cache
    are not part of the scale: next to nothing, they would leave all others one colour."""

    def __init__(self, values):
        seen = [value for policy, value in values if value > 0 and not tables.is_exact(*tables.parts(policy))]
        self.least, self.most = min(seen, default=math.inf), max(seen, default=0)

    def cell(self, value, text):
        inside = self.least < value and self.least < self.most
        return text, (0.75 * min(1, math.log(value / self.least) / math.log(self.most / self.least)) if inside else 0)


def _probe(probe):
    layers = max((len(row["layers"]) for row in probe["rows"]), default=0)
    heat = _Heat((row["policy"], error) for row in probe["rows"] for error in row["layers"])
    random = f" and {probe['seeds']} seeds of what is random" if any(row["random"] for row in probe["rows"]) else ""
    rows = [[policy_html(row["policy"]), *(heat.cell(error, _text.figure(error, 2)) for error in row["layers"]),
             *[""] * (layers - len(row["layers"])), _text.estimate(*row["error"]), _text.percent(row["kept"]),
             f"{row['bits']:.2f}"] for row in probe["rows"]]
    return (f"<p>{probe['tokens']} tokens of {html.escape(probe['text'])}, the last {probe['queries']} as queries. "
            f"Null control, exact f32 rows against themselves: {_text.figure(probe['null_control_error'])}.</p>"
            + _table(f"Relative error of each layer's attention. Mean over heads{random}; the stronger the colour, the "
                     "larger (logarithm, exact left out).",
                     ["policy", *(f"L{layer}" for layer in range(layers)), "all", "kept", "bits"], rows))


def _memory(results):
    held, lengths = _drawings.bytes_by_tokens(results)
    if len(lengths) < 2:
        return ""
    rows = [[policy_html(policy), *(_text.size(sizes[n]) if n in sizes else "" for n in lengths)]
            for policy, sizes in held.items()]
    table = _table("Bytes of the cache, everything included, by tokens seen.", ["policy", *lengths], rows)
    drawing = _drawings.memory(results)
    figure = f"<div class='plots'>{_figure(drawing, 'memory')}</div>" if drawing else ""
    return figure + _folded(f"Table: {len(held)} policies", table)


def _costs(costs):
    if not costs:
        return ""
    heat = _Heat((cost["policy"], cost["update"] + cost["attend"]) for cost in costs)
    lengths = sorted({cost["tokens"] for cost in costs})
    times = collections.defaultdict(dict)
    for cost in costs:
        times[cost["policy"]][cost["tokens"]] = cost["update"] + cost["attend"]
    rows = [[policy_html(policy), *(heat.cell(by[n], _text.seconds(by[n])) if n in by else "" for n in lengths)]
            for policy, by in times.items()]
    every = [[policy_html(cost["policy"]), cost["tokens"], _text.seconds(cost["update"]),
              _text.seconds(cost["attend"]), _text.percent(cost["update"] / cost["exact_attend"]),
              _text.size(cost["bytes"]), f"{cost['bits']:.2f}"] for cost in costs]
    return (_table("Update and attention of one token, by tokens seen. The stronger the colour, the longer "
                   "(logarithm).", ["policy", *lengths], rows)
            + _folded(f"Table: {len(costs)} lines", _table(
                "Time of one token. Medians; of exact: of exact attention over as many tokens.",
                ["policy", "tokens", "update", "attend", "update, of exact", "KV cache", "bits"], every)))


def _columns(group):
    """(head, figure of a policy's row) of the overview."""
    if group.is_task:
        return [(group.name, lambda row: _text.percent(row["score"][0]))]
    columns = [(f"KL {group.name}", lambda row: _text.figure(row["kl"][0])),
               ("same top", lambda row: _text.percent(row["same_top"][0]))]
    if group.name != "continue":
        columns.append((f"PPL {group.name}", lambda row: _text.figure(row["perplexity"][0], 4)))
    return columns


def _overview(results):
    columns, policies, longest = [], {}, {}
    for group in results.compared:
        for head, text in _columns(group):
            columns.append((f"{html.escape(head)}, {group.length}", {row["policy"]: text(row) for row in group.rows}))
        for row in group.rows:
            policies[row["policy"]] = None
            if not group.is_task and group.length >= longest.get(row["policy"], (0,))[0]:
                longest[row["policy"]] = group.length, row
    for probe in results.probes:
        columns.append((f"attention error, {probe['tokens']}",
                        {row["policy"]: _text.figure(row["error"][0]) for row in probe["rows"]}))
        policies.update((row["policy"], None) for row in probe["rows"])
    if not columns:
        return ""
    rows = []
    for policy in sorted(policies, key=lambda p: -longest[p][1]["bits"] if p in longest else -math.inf):
        size = longest.get(policy)
        sizes = ["", "", "", ""] if size is None else [
            size[1]["seeds"], _text.percent(size[1]["kept"]), f"{size[1]['bits']:.2f}", _text.size(size[1]["bytes"])]
        rows.append([policy_html(policy), *sizes, *(cells.get(policy, "") for _, cells in columns)])
    return _table("Each policy's figures, by falling effective bits at its longest context (everything included, "
                  "16 = an f16 cache).",
                  ["policy", "seeds", "kept", "bits", "KV cache", *(head for head, _ in columns)], rows)


def _singles(results):
    rows = [[policy_html(row["policy"]), html.escape(group.name), group.length, row["seeds"], row["count"],
             f"score {group.value_text(row)}" if group.is_task else f"KL {_text.figure(row['kl'][0])}"]
            for group in results.groups if len(group.rows) == 1 for row in group.rows]
    return _table("Nothing to compare: one policy each.",
                  ["policy", "measured", "tokens", "seeds", "count", "figure"], rows) if rows else ""
