"""python -m pith.report FILE... [--out PAGE] [--lines FILE] [--plots FOLDER] [--title TEXT]

A file that is "-" has lines of `pith report --lines` on standard input.
"""

import argparse
import os
import pathlib
import sys

import matplotlib

from .. import _pith
from . import TITLE, _drawings, page, parse

# In the order of the program's exit codes, from 10 on.
_KINDS = (_pith.InvalidArgument, _pith.NotFound, _pith.Corrupt, _pith.Unsupported, _pith.OutOfMemory,
          _pith.ContextFull, _pith.NonFinite, _pith.IoError)


def _write(path, text):
    """Whole, or not at all."""
    beside = f"{path}.part"
    with open(beside, "w", encoding="utf-8") as file:
        file.write(text)
    os.replace(beside, path)


def _run(o):
    for out in filter(None, (o.out, o.lines)):
        if any(os.path.exists(file) and os.path.exists(out) and os.path.samefile(file, out) for file in o.files):
            raise _pith.InvalidArgument(f"{out} is read, so it cannot be the output too; name another file")
    lines = sys.stdin.read() if o.files == ["-"] else _pith.result_lines(o.files)
    results = parse(lines)
    if o.lines:
        _write(o.lines, lines)
    if o.plots:
        folder = pathlib.Path(o.plots)
        drawings = _drawings.every(results)
        if not drawings:
            raise _pith.InvalidArgument("the files hold nothing to plot: plots compare two policies or more")
        folder.mkdir(parents=True, exist_ok=True)
        for drawing in drawings:
            drawing.save(folder)
    if o.out == "-" or not (o.out or o.lines or o.plots):
        sys.stdout.write(page(results, o.title))
    elif o.out:
        _write(o.out, page(results, o.title))


def main(arguments=None):
    parser = argparse.ArgumentParser(prog="python -m pith.report", description="Make an HTML page from result files")
    parser.add_argument("files", nargs="+", metavar="FILE",
                        help="files of 'pith eval --out', 'pith probe --json', 'pith bench select --csv'")
    parser.add_argument("-o", "--out", metavar="FILE", help="the page; default, and -: standard output")
    parser.add_argument("--lines", metavar="FILE", help="also the page's figures as JSON lines")
    parser.add_argument("--plots", metavar="FOLDER", help="also each plot as SVG, PDF and CSV in this folder")
    parser.add_argument("--title", metavar="TEXT", default=TITLE, help="of the page (default: %(default)s)")
    matplotlib.use("agg")
    try:
        _run(parser.parse_args(arguments))
    except _pith.PithError as error:
        kind = next((place for place, kind in enumerate(_KINDS) if isinstance(error, kind)), len(_KINDS))
        print(f"pith: error: {error}", file=sys.stderr)
        return 10 + kind
    except OSError as error:
        print(f"pith: error: {error.filename}: {error.strerror}", file=sys.stderr)
        return 10 + _KINDS.index(_pith.IoError)
    return 0


if __name__ == "__main__":
    sys.exit(main())
