#!/usr/bin/env python3
"""Exports of libpith.so: every name that a public header declares for C, and nothing that none declares; all of them
of the version that its SONAME has.

exports.py LIBRARY HEADERS
"""

import pathlib
import re
import subprocess
import sys

# Members that a header declares and no user can name.
PRIVATE = {"State", "Weights"}


def names(demangled):
    """The parts of a symbol's qualified name: "vtable for pith::Engine" gives pith, Engine."""
    path = re.sub(r"^(vtable|typeinfo|typeinfo name|VTT|guard variable) for ", "", demangled)
    path = re.split(r"[(<\[]", path)[0].split(" ")[-1]
    return [re.sub("operator.*", "operator", part.lstrip("~")) for part in path.split("::")]


def main():
    library, folder = sys.argv[1], pathlib.Path(sys.argv[2])
    headers = "\n".join(re.sub(r"//.*|/\*.*?\*/", "", path.read_text(), flags=re.S if path.suffix == ".c" else 0)
                        for path in sorted(folder.glob("*.h")))
    declared = set(re.findall(r"\w+", headers))
    listed = subprocess.run(["nm", "-D", "-C", "--defined-only", library], check=True, capture_output=True, text=True)
    node = re.search(r"^PITH_\d+\.\d+", pathlib.Path(library).resolve().name.replace("libpith.so.", "PITH_"))
    version = node.group() if node else "PITH_?"
    wrong, symbols = [], []
    for line in listed.stdout.splitlines():
        symbol, _, of = line.split(" ", 2)[2].partition("@@")
        if symbol == version:
            continue
        symbols.append(symbol)
        if of != version:
            wrong.append(f"exported without the version {version}: {symbol}")
    for symbol in symbols:
        parts = names(symbol)
        ours = parts[0] == "pith" or parts[0].startswith("pith_")
        if not ours or not declared.issuperset(parts) or PRIVATE & set(parts):
            wrong.append(f"exported, and in no public header: {symbol}")
    functions = set(re.findall(r"\b(pith_[a-z0-9_]+)\(", headers))
    wrong += [f"declared, and not exported: {name}" for name in sorted(functions - set(symbols))]
    print("\n".join(wrong), end="\n" if wrong else "")
    print(f"{len(symbols)} exported names, {len(functions)} of C, {pathlib.Path(library).stat().st_size} bytes")
    return 1 if wrong or len(functions) < 50 else 0


sys.exit(main())
