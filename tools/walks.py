#!/usr/bin/env python3
"""The walks of docs/lab/house.md: which files a reader opens to follow one thing from its beginning to its end.

A walk is a fenced block whose first line is `walk: NAME, N at most`; each further line names one file, in the
order in which it is opened. A header and its source count once, under the source's name; a file that is opened
again does not count again. Each must exist, no file may stand twice, and a walk may not be longer than it says.
Without faults the lengths are printed. `--self-test` proves that each rule can fail.
"""

import pathlib
import re
import sys

PAGE = "docs/lab/house.md"
WALK = re.compile(r"^    walk: (.+), (\d+) at most\n((?:    \S+\n)+)", re.M)


def check(text, exists):
    """(faults, lines to print) of a page's walks."""
    faults, lengths = [], []
    for name, most, block in WALK.findall(text):
        files = block.split()
        faults += [f"{PAGE}: {name}: {path} does not exist" for path in files if not exists(path)]
        faults += [f"{PAGE}: {name}: {path} stands twice" for path in sorted(set(files)) if files.count(path) > 1]
        if len(files) > int(most):
            faults.append(f"{PAGE}: {name}: {len(files)} files, {most} at most")
        lengths.append(f"{len(files):3} {name}")
    return faults + ([] if lengths else [f"{PAGE}: no walk"]), lengths


def self_test():
    """Each bad page must be found, the good one must not."""
    good = "# x\n\n    walk: a row, 2 at most\n    a.cc\n    b.cc\n\nend\n"
    bad = [good.replace("2 at", "1 at"), good.replace("b.cc", "a.cc"), good.replace("b.cc", "c.cc"), "# x\n"]
    if check(good, lambda p: p != "c.cc")[0] or not all(check(b, lambda p: p != "c.cc")[0] for b in bad):
        sys.exit("walks self-test: a fault was not found, or one that is none")


def main():
    if sys.argv[1:] == ["--self-test"]:
        return self_test()
    root = pathlib.Path(__file__).resolve().parent.parent
    faults, lengths = check((root / PAGE).read_text(), lambda path: (root / path).is_file())
    print("\n".join(faults or lengths))
    sys.exit(1 if faults else 0)


if __name__ == "__main__":
    main()
