"""Records of `pith eval` and lines of `pith report --lines`, put together from several runs."""

import json
import pathlib
import sys


def by_device(files, folder):
    """The records of these files, in a file for each device and arithmetic: `pith report` keeps
    those apart, which measure the same."""
    records = {}
    for file in files:
        for line in file.read_text(encoding="utf-8").splitlines():
            record = json.loads(line)
            at = record["isa"], record.get("f32_arithmetic", True), record["version"]
            records.setdefault(at, []).append(line)
    for number, at in enumerate(sorted(records, key=str)):
        path = pathlib.Path(folder) / f"{number}.jsonl"
        path.write_text("".join(f"{line}\n" for line in records[at]), encoding="utf-8")
        yield path


def joined(heads):
    """One head of several: what their settings share. Of other models, texts or samples nothing is
    joined."""
    settings = [head["setting"] for head in heads]
    for field in ("model_fingerprint", "text_fingerprint", "task_seed", "query_aware"):
        if len({setting.get(field) for setting in settings}) > 1:
            at = heads[0]["result"], heads[0]["name"], heads[0]["length"]
            sys.exit(f"results: {at} of {options_text(settings, field)} do not go together")
    shared = {field: value for field, value in settings[0].items()
              if all(setting.get(field) == value for setting in settings)}
    head = {**heads[0], "setting": shared}
    null = max((head["null_control_kl"] for head in heads if "null_control_kl" in head),
               default=None)
    if null is not None:
        head["null_control_kl"] = null
    return head


def blocks_of(text):
    """Lines by setting: what it is, then its head and its policies' lines."""
    blocks = {}
    for line in map(json.loads, text.splitlines()):
        if "result" in line:
            at = line["result"], line["name"], line["length"]
            head, rows = blocks.get(at, (line, {}))
            blocks[at] = joined([head, line]), rows
        else:
            add(blocks[at][1], line)
    return blocks


def add(rows, row):
    """The line of more predictions or samples stays. Of samples with more questions than the others'
    nothing is joined."""
    asked, others = (len(one.get("by_turn", [])) for one in (row, next(iter(rows.values()), row)))
    if asked != others:
        sys.exit(f"results: {row['policy'].partition(';')[0]} was asked {asked} questions a sample, "
                 f"others {others}: they do not go together")
    if row["policy"] not in rows or row["count"] >= rows[row["policy"]]["count"]:
        rows[row["policy"]] = row


def merged(text, also):
    """The lines of `text`, and of `also` those whose policy is not there, or with more predictions or
    samples: of the same model, text and samples, whatever device they ran on."""
    new, old = blocks_of(text), blocks_of(also)
    out = []
    for at in dict.fromkeys([*new, *old]):
        there = [blocks[at] for blocks in (new, old) if at in blocks]
        rows = dict(there[-1][1])
        for row in there[0][1].values():
            add(rows, row)
        out += [joined([head for head, _ in there]), *rows.values()]
    return "".join(json.dumps(line) + "\n" for line in out)


def options_text(settings, field):
    return ", ".join(f"{field}={setting.get(field)}" for setting in settings)
