"""One Markdown table from the JSON lines of cuda_decode_bench and peers.py.

    table.py OURS PEERS
"""

import json
import sys


def read(path):
    with open(path, encoding="utf-8") as f:
        return [json.loads(line) for line in f if line.startswith("{")]


def main():
    ours, peers = read(sys.argv[1]), read(sys.argv[2])
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


if __name__ == "__main__":
    main()
