"""Markdown tables from the JSON lines of the benchmarks and peers.py.

    table.py OURS PEERS [EXPRESS]

OURS is cuda_decode_bench's, EXPRESS what cuda_express_bench and cuda_chunk_bench print.
"""

import json
import sys


def read(path):
    with open(path, encoding="utf-8") as f:
        return [json.loads(line) for line in f if line.startswith("{")]


def decode_table(ours, peers):
    for row in ours + peers:
        if "device" in row:
            print(f"{row['device']}{', PyTorch ' + row['torch'] if 'torch' in row else ''}  ")
    ceiling = max((r["TB_s"] for r in ours if r.get("what") == "read"), default=None)
    if ceiling:
        print(f"Read rate: {ceiling:.2f} TB/s\n")
    exact = {}
    for row in peers:
        if row.get("what", "").startswith("exact, "):
            shape = row["rows"], row["sequences"]
            exact.setdefault(shape, {})[row["what"].removeprefix("exact, ")] = row["us"]
    names = sorted({name for row in exact.values() for name in row})
    print("| work | rows | sequences | us | MB | TB/s | of the read rate | bits |"
          + "".join(f" {n} us | ratio |" for n in names))
    print("|---" * (8 + 2 * len(names)) + "|")
    for row in ours:
        if "what" not in row or row["what"] == "read":
            continue
        share = f"{row['TB_s'] / ceiling:.2f}" if ceiling else ""
        cells = [row["what"], row["rows"], row["sequences"], f"{row['us']:.1f}", f"{row['MB']:.1f}",
                 f"{row['TB_s']:.2f}", share, f"{row['bits']:.2f}" if "bits" in row else ""]
        decode = "coding" not in row["what"]
        for name in names:
            peer = exact.get((row["rows"], row["sequences"]), {}).get(name) if decode else None
            cells += [f"{peer:.1f}", f"{row['us'] / peer:.2f}"] if peer else ["", ""]
        print("| " + " | ".join(str(c) for c in cells) + " |")


def plain_table(rows, columns):
    if not rows:
        return
    print("\n| " + " | ".join(columns) + " |\n" + "|---" * len(columns) + "|")
    for row in rows:
        print("| " + " | ".join(str(row.get(c, "")) for c in columns) + " |")


def express_tables(rows, peers):
    halvings = [r for r in rows if r.get("what", "").startswith("halving")]
    plain_table(halvings, ["what", "size", "runs", "us", "TFLOP_s"])
    updates = [r for r in rows if r.get("what") == "express decode"]
    for row in updates:
        row["updates / attention"] = f"{row['update_us_per_token'] / row['us']:.4f}"
    plain_table(updates, ["s", "n", "rows_held", "us", "batch", "update_us_per_token",
                          "updates / attention"])
    chunks = [r for r in rows if "dim" in r]
    exact = {}
    for row in peers:
        if row.get("what", "").startswith("prefill, "):
            exact[row["rows"], row["what"].removeprefix("prefill, ")] = row["us"]
    names = sorted({name for _, name in exact})
    for row in chunks:
        row["ms"] = f"{row['us'] / 1e3:.2f}"
        for name in names:
            whole = row["what"].startswith("exact prefill") and row["dim"] == 128
            if whole and (row["rows"], name) in exact:
                peer = exact[row["rows"], name]
                row[f"{name} ms"] = f"{peer / 1e3:.1f}"
                row[f"times faster than {name}"] = f"{peer / row['us']:.1f}"
    peers_too = [c for n in names for c in (f"{n} ms", f"times faster than {n}")]
    plain_table(chunks, ["what", "rows", "dim", "ms", "TFLOP_s"] + peers_too)


def main():
    ours, peers = read(sys.argv[1]), read(sys.argv[2])
    if ours:
        decode_table(ours, peers)
    if len(sys.argv) > 3:
        express_tables(read(sys.argv[3]), peers)


if __name__ == "__main__":
    main()
