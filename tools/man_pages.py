#!/usr/bin/env python3
"""Writes the manual pages of the program from its own help: pith.1, and pith-COMMAND.1 for each command.

    tools/man_pages.py PITH FOLDER
"""

import pathlib
import re
import subprocess
import sys


def help_of(program, *command):
    return subprocess.run([program, *command, "--help"], check=True, capture_output=True, text=True).stdout


def roff(text):
    """Text as it is, in roff: no line of it is a request."""
    text = text.replace("\\", "\\e").replace("-", "\\-")
    return "".join(("\\&" + line if line[:1] in ".'" else line) + "\n" for line in text.rstrip("\n").split("\n"))


def page(name, text, version, see):
    """The first paragraph of a help text is what the command does; then usage, then sections that end in a colon."""
    head, _, rest = text.partition("\nUsage: ")
    usage, _, body = rest.partition("\n")
    out = [f'.TH "{name.upper()}" 1 "" "pith {version}" "pith"\n', ".SH NAME\n",
           roff(f"{name} - {' '.join(head.split()).rstrip('.')}"), ".SH SYNOPSIS\n", ".nf\n", roff(usage), ".fi\n"]
    for block in re.split(r"\n(?=[A-Z][^\n]*:\n)", "\n" + body.strip("\n")):
        title, _, lines = block.strip("\n").partition(":\n")
        if not lines:
            title, lines = "Description", block.strip("\n")
        if lines:
            out += [f".SH {title.upper()}\n", ".nf\n", roff(lines), ".fi\n"]
    if see:
        out += [".SH SEE ALSO\n", roff(", ".join(see))]
    return "".join(out)


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    program, folder = sys.argv[1], pathlib.Path(sys.argv[2])
    folder.mkdir(parents=True, exist_ok=True)
    version = subprocess.run([program, "--version"], check=True, capture_output=True, text=True).stdout.split()[1]
    whole = help_of(program)
    listed = whole.partition("\nSubcommands:\n")[2].partition("\n\n")[0]
    commands = re.findall(r"^  ([a-z-]+) ", listed, re.M)
    if not commands:
        sys.exit("man_pages: the program's help lists no commands")
    (folder / "pith.1").write_text(page("pith", whole, version, [f"pith-{c}(1)" for c in commands]))
    for command in commands:
        text = help_of(program, command)
        (folder / f"pith-{command}.1").write_text(page(f"pith-{command}", text, version, ["pith(1)"]))


if __name__ == "__main__":
    main()
