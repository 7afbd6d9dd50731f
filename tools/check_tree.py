#!/usr/bin/env python3
"""Faults of the tree: paths of a machine, overlong files and lines, unfinished markers.

- A path below a home or work folder in any tracked text file fails.
- A source file (C, C++, CUDA, Python) over 400 lines is named; over 450 it fails.
- Lines over 120 columns in Python and shell, which clang-format does not see, fail.
- Markers of unfinished work in source files fail.
`--self-test` proves that each rule can fail.
"""

import pathlib
import re
import sys
import tempfile

import tracked

SOURCES = (*tracked.SOURCES, ".c", ".py")
SCRIPTS = (".py", ".sh")
WARN_LINES, MOST_LINES, MOST_COLUMNS = 400, 450, 120
# Spelt in pieces, so that this file passes its own check.
MACHINE_PATH = re.compile(r"(?:^|[^\w.\-])/(?:%s)/\w" % "|".join(["work", "root", "home"]))
MARKER = re.compile(r"\b(?:%s)\b" % "|".join(["TO" + "DO", "FIX" + "ME", "X" + "XX"]))


def check(root, paths):
    """(faults, warnings) among `paths` (relative to `root`), as printable lines."""
    faults, warnings = [], []
    for path in paths:
        try:
            lines = (root / path).read_text(encoding="utf-8").splitlines()
        except UnicodeDecodeError:
            continue  # binary
        source, script = path.endswith(SOURCES), path.endswith(SCRIPTS)
        for number, line in enumerate(lines, 1):
            if MACHINE_PATH.search(line):
                faults.append(f"{path}:{number}: a path of one machine: {line.strip()[:80]}")
            if source and MARKER.search(line):
                faults.append(f"{path}:{number}: unfinished: {line.strip()[:80]}")
            if script and len(line) > MOST_COLUMNS:
                faults.append(f"{path}:{number}: {len(line)} columns, {MOST_COLUMNS} at most")
        if source and len(lines) > MOST_LINES:
            faults.append(f"{path}: {len(lines)} lines, {MOST_LINES} at most; split it")
        elif source and len(lines) > WARN_LINES:
            warnings.append(f"{path}: {len(lines)} lines; the house aims at {WARN_LINES}")
    return faults, warnings


def self_test():
    """Each bad file must be found, each good one must not."""
    home = "/" + "home/someone/pith"
    bad = {"a.md": f"Run it in {home}.", "b.json": f'"{home}/x"',
           "c.cc": "// " + "TO" + "DO: later", "d.py": "x = 1\n" * (MOST_LINES + 1),
           "e.sh": "#" * (MOST_COLUMNS + 1)}
    good = {"a.md": "See docs/home/x and https://example.org/at/home/now.", "c.cc": "// what to do",
            "d.py": "x = 1\n" * MOST_LINES, "e.sh": "#" * MOST_COLUMNS}
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)
        for cases, expected in ((bad, 1), (good, 0)):
            for path, text in cases.items():
                (root / path).write_text(text)
                if len(check(root, [path])[0]) != expected:
                    sys.exit(f"tree self-test: {path}: expected {expected} fault(s)")


def main():
    if sys.argv[1:] == ["--self-test"]:
        return self_test()
    root = pathlib.Path(__file__).resolve().parent.parent
    faults, warnings = check(root, tracked.tracked(root))
    for line in faults + [f"warning: {line}" for line in warnings]:
        print(line)
    sys.exit(1 if faults else 0)


if __name__ == "__main__":
    main()
