"""Results of `pith eval` and `pith bench` as one tidy table: a row is one number of one policy.

    frame = pith.results.read("ppl.jsonl")             # a pandas.DataFrame; or rows() without pandas
    frame[frame.metric == "kl"].sort_values("value")

Read are files of `pith eval ppl|tasks --out` (JSON lines), what `pith eval --json` and
`pith bench --json` print, and the boards in docs/results/*.jsonl. summary() joins the pieces of texts,
samples and seeds.
"""

import collections
import json
import math
import os
import warnings

from ._pith import Corrupt, PithError, Policy

#: Of a row, in this order; None where a source does not say it.
COLUMNS = ("policy", "selector", "codec", "kind", "task", "length", "seed", "piece", "count", "metric", "value",
           "stderr", "tokens", "bytes", "effective_bits", "rows_kept", "null_control", "seconds", "model",
           "model_fingerprint", "version", "isa", "file")

_BOARD_PLACE = {"policy", "seeds", "count", "tokens", "bytes", "bits", "kept", "seconds"}


def rows(*sources):
    """The rows of files or of lists of lines, as dictionaries with COLUMNS. Throws Corrupt."""
    found = []
    for source in sources:
        if isinstance(source, (str, os.PathLike)):
            with open(source, encoding="utf-8") as file:
                found += _parse(file.read(), os.fspath(source))
        else:
            found += _parse("\n".join(source), None)
    if any(row["metric"] == "kl" for row in found) and not any(row["null_control"] for row in found):
        warnings.warn("no null control among these results: nothing shows that a divergence of 0 is measured "
                      "as 0", stacklevel=2)
    return found


def read(*sources):
    """rows() as a pandas.DataFrame."""
    return frame(rows(*sources))


def frame(of_rows):
    """Rows as a pandas.DataFrame."""
    try:
        import pandas
    except ImportError as error:
        raise ImportError("frames need pandas: pip install 'pith-kv[frames]'; rows() does without") from error
    return pandas.DataFrame(of_rows, columns=list(COLUMNS))


def summary(of_rows):
    """One row for each policy, task, length and metric: the mean over pieces or samples, weighted by count, and over
    seeds. Its standard error has both sources: the text, by what pieces say of themselves or by how they differ,
    whichever is more, and the seeds."""
    if hasattr(of_rows, "to_dict"):
        of_rows = of_rows.to_dict("records")
    groups = collections.defaultdict(list)
    for row in of_rows:
        groups[tuple(row[c] for c in ("policy", "kind", "task", "length", "metric", "model_fingerprint",
                                      "null_control"))].append(row)
    return [_joined(group) for group in groups.values()]


LESS_IS_BETTER = ("kl", "ln_ratio", "ppl", "nll")


def front(of_summary, y="kl", x="effective_bits"):
    """Rows of summary() whose policies no other beats in both: less of `x` and a better metric `y`. By rising x."""
    sign = -1 if y in LESS_IS_BETTER else 1
    best = []
    for row in sorted((row for row in of_summary if row["metric"] == y),
                      key=lambda row: (row[x], -sign * row["value"])):
        if not best or sign * row["value"] > sign * best[-1]["value"]:
            best.append(row)
    return best


def _whole_seeds(group):
    """Without seeds of a few pieces: the program tries whether a seed changes anything on the first."""
    pieces = collections.Counter(row["seed"] for row in group)
    return [row for row in group if pieces[row["seed"]] == max(pieces.values())]


def _joined(group):
    group = _whole_seeds(group)
    total = sum(row["count"] or 1 for row in group)
    joined = dict(group[0])
    joined["value"], joined["stderr"] = _over_pieces(group)
    for column in ("bytes", "effective_bits", "rows_kept", "tokens"):
        known = [row[column] for row in group if row[column] is not None]
        joined[column] = sum(known) / len(known) if known else None
    joined["count"] = total
    joined["seed"] = joined["piece"] = None
    return joined


def _over_pieces(group):
    """The mean and its error. Seeds read the same text: each piece counts once, as their mean."""
    pieces, seeds = collections.defaultdict(list), collections.defaultdict(list)
    for row in group:
        pieces[row["piece"]].append(row)
        seeds[row["seed"]].append(row)
    counts = [rows[0]["count"] or 1 for rows in pieces.values()]
    values = [math.fsum(row["value"] for row in rows) / len(rows) for rows in pieces.values()]
    mean = math.fsum(n * v for n, v in zip(counts, values)) / sum(counts)
    errors = []
    if all(row["stderr"] is not None for row in group):
        own = [math.sqrt(math.fsum(row["stderr"] ** 2 for row in rows) / len(rows)) for rows in pieces.values()]
        errors.append(math.hypot(*(n * e for n, e in zip(counts, own))) / sum(counts))
    if len(pieces) > 1:
        differ = math.hypot(*(n * (v - mean) for n, v in zip(counts, values))) / sum(counts)
        errors.append(differ * math.sqrt(len(pieces) / (len(pieces) - 1)))
    if not errors:
        return mean, None
    by_seed = [_weighted(rows) for rows in seeds.values()]
    chance = _deviation(by_seed) / math.sqrt(len(by_seed))
    return mean, math.hypot(max(errors), chance)


def _weighted(of_rows):
    counts = [row["count"] or 1 for row in of_rows]
    return math.fsum(n * row["value"] for n, row in zip(counts, of_rows)) / sum(counts)


def _deviation(values):
    mean = math.fsum(values) / len(values)
    return math.sqrt(math.fsum((v - mean) ** 2 for v in values) / max(len(values) - 1, 1))


def _parse(text, file):
    try:
        whole = json.loads(text)
    except ValueError:
        whole = None
    if isinstance(whole, dict):
        maker = _maker_of(whole)
        if maker is not None:
            return [_row(file=file, **fields) for fields in maker(whole)]
    return _parse_lines(text, file)


def _maker_of(whole):
    if "policies" in whole and whole.get("kind") == "ppl":
        return _of_ppl
    if "results" in whole and whole.get("kind") == "task":
        return _of_tasks
    if "lines" in whole and "read_bytes_per_second" in whole:
        return _of_bench
    return None


def _parse_lines(text, file):
    found, head = [], None
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
            if "result" in record:
                head = record
                continue
            if record.get("kind") == "ppl":
                made = _of_piece(record)
            elif record.get("kind") == "task":
                made = _of_sample(record)
            elif head is not None and "policy" in record:
                made = _of_board(head, record)
            else:
                raise KeyError("kind")
            found += [_row(file=file, **fields) for fields in made]
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            where = f"{file or 'results'}, line {number}"
            raise Corrupt(f"{where}: no result of 'pith eval' or 'pith bench' ({error!r}); rows() reads files of "
                          "--out and --json, and docs/results/*.jsonl") from error
    return found


def _row(policy, metric, value, **fields):
    unknown = fields.keys() - set(COLUMNS)
    assert not unknown, unknown
    row = dict.fromkeys(COLUMNS)
    row.update(fields, policy=policy, metric=metric, value=value)
    row["selector"], row["codec"] = parts(policy)
    return row


def parts(policy):
    """The selector and codec of a policy; None and None if this version has none of that name."""
    try:
        parsed = Policy(policy)
        return parsed.selector, parsed.codec
    except PithError:
        return None, None


def is_exact(selector, codec):
    """Whether every row stays, as numbers and not as codes."""
    return selector == "exact" and codec in ("f32", "f16", "bf16")


def _setting(record):
    return {"model": record.get("model"), "model_fingerprint": record.get("model_fingerprint"),
            "version": record.get("version"), "isa": record.get("isa")}


def _of_ledger(ledger):
    size = ledger["cache_bytes"] if "cache_bytes" in ledger else ledger["bytes"]["cache"]
    seen = ledger["rows_seen"]
    return {"tokens": ledger["tokens"], "bytes": size, "effective_bits": ledger["effective_bits"],
            "rows_kept": ledger["rows_kept"] / seen if seen else None}


def _of_board(head, record):
    """A line of docs/results/*.jsonl: [value, error], or a value alone."""
    shared = {"policy": record["policy"], "kind": head["result"], "task": head["name"], "length": head["length"],
              "count": record.get("count"), "tokens": record.get("tokens"), "bytes": record.get("bytes"),
              "effective_bits": record.get("bits"), "rows_kept": record.get("kept"),
              "seconds": record.get("seconds"), "null_control": record["policy"] == "exact",
              **_setting(head.get("setting", {}))}
    for name, value in record.items():
        if name in _BOARD_PLACE or name in ("by_turn", "interval"):
            continue
        pair = value if isinstance(value, list) else [value, None]
        if isinstance(pair[0], (int, float)) and len(pair) == 2:
            yield {**shared, "metric": name, "value": pair[0], "stderr": pair[1]}


BLOCKS = 8  # of a piece, as `pith eval` takes them: neighbouring tokens depend on one another


def _mean(values):
    n, blocks = len(values), min(BLOCKS, len(values))
    mean = math.fsum(values) / n
    if blocks < 2:
        return mean, None
    ends = [n * i // blocks for i in range(blocks + 1)]
    sums = [math.fsum(values[a:b]) - (b - a) * mean for a, b in zip(ends, ends[1:])]
    return mean, math.hypot(*sums) / n * math.sqrt(blocks / (blocks - 1))


def _of_piece(record):
    """A line of `pith eval ppl --out`: each prediction of one piece."""
    shared = {"policy": record["policy"], "kind": "ppl", "task": record["mode"], "length": record["context"],
              "seed": record["kv_seed"], "piece": record["piece"], "seconds": record.get("seconds"),
              "null_control": record["null_control"], **_setting(record), **_of_ledger(record["ledger"])}
    for name, values in record["predictions"].items():
        if values:
            value, error = _mean(values)
            yield {**shared, "metric": name, "value": value, "stderr": error, "count": len(values)}


def _of_sample(record):
    """A line of `pith eval tasks --out`."""
    yield {"policy": record["policy"], "kind": "task", "task": record["task"], "length": record["length"],
           "seed": record["kv_seed"], "piece": record["sample"], "metric": "score", "value": record["score"],
           "count": 1, "seconds": record.get("answer_seconds"), **_setting(record),
           **_of_ledger(record["ledger"])}


def _of_ppl(whole):
    """`pith eval ppl --json`."""
    for policy in whole["policies"]:
        for seed in policy["seeds"]:
            shared = {"policy": policy["policy"], "kind": "ppl", "task": whole["mode"],
                      "length": whole["context"], "seed": seed["kv_seed"], "seconds": seed.get("seconds"),
                      "count": seed["summary"]["count"], "null_control": "null control" in policy["name"],
                      **_setting(whole), **(_of_ledger(seed["ledger"]) if "ledger" in seed else {})}
            for name, value in seed["summary"].items():
                if isinstance(value, dict) and "mean" in value:
                    yield {**shared, "metric": name, "value": value["mean"], "stderr": value["error"]}


def _of_tasks(whole):
    """`pith eval tasks --json`."""
    for result in whole["results"]:
        yield {"policy": result["policy"], "kind": "task", "task": result["task"], "length": result["length"],
               "metric": "score", "value": result["score"], "count": result["samples"], **_setting(whole),
               **_of_ledger(result["ledger"])}


def _of_bench(whole):
    """`pith bench --json`: medians."""
    for line in whole["lines"]:
        for name in ("prefill_tokens_per_second", "decode_tokens_per_second"):
            yield {"policy": line["policy"], "kind": "bench", "task": "bench", "length": line["depth"],
                   "metric": name, "value": line[name]["median"], **_setting(whole),
                   **_of_ledger(line["ledger"])}
