#!/usr/bin/env python3
"""Does everything that the documents name exist?

In every tracked *.md file:
- a relative link leads to a tracked file or folder, and its #anchor to a heading;
- a repository path in backticks or in a code block exists (`*` is a pattern; from `<` on, it is a
  template);
- `make TARGET` names a target of the Makefile;
- `pith SUB --flag` names a subcommand and a flag that the built program's --help knows
  (only where build/bin/pith is there; a run without it says so).
Source files too: a document that a comment names exists, and comments keep to the same words.
Every page of a method says what it is good and bad at, under that heading.
The prose of documents keeps to tools/doc_prose.py: words, length of lines and sentences.
`--self-test` proves that each rule can fail.
"""

import fnmatch
import pathlib
import re
import subprocess
import sys
import tempfile

from doc_prose import comment_faults, prose_faults
from tracked import tracked

FOLDERS = ("src/", "include/", "apps/", "tests/", "bench/", "tools/", "docs/", "models/", ".ci/")
PROGRAM = "build/bin/pith"
DOCS = "docs/"
METHODS = DOCS + "methods/"
JUDGEMENT = re.compile(r"^## What it is good and bad at\n\n.*?\bbad\b", re.M | re.S | re.I)
FENCE = re.compile(r"^\s*(```|~~~)")
LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)")
SPAN = re.compile(r"`([^`]+)`")
PATH = re.compile(r"(?<![\w./<>-])(?:\./)?((?:%s)[\w./*<>{},-]*)" %
                  "|".join(map(re.escape, FOLDERS)))
MAKE = re.compile(r"(?:^|[\s;&|])make((?:\s+[a-z][\w-]*)+)")
IN_SOURCE = re.compile(r"(?<![\w/])docs/[\w./-]+\.md")


class Tree:
    """Names that a document may use: tracked paths, make targets, and the program's own help."""

    def __init__(self, root):
        self.root = root
        self.files = tracked(root)
        self.folders = {str(parent) for path in self.files
                        for parent in pathlib.PurePosixPath(path).parents}
        makefile = root / "Makefile"
        text = makefile.read_text() if makefile.exists() else ""
        self.targets = set(re.findall(r"^([a-z][\w-]*)\s*:(?!=)", text, re.M))
        self.helps = {}

    def has(self, path):
        """Is `path` (may hold `*`, {a,b} or a template's `<name>`) in the tree?"""
        braces = re.search(r"\{([^{}]*)\}", path)
        if braces:
            return all(self.has(path[:braces.start()] + part + path[braces.end():])
                       for part in braces.group(1).split(","))
        path = path.partition(",")[0]  # what follows is a policy's next parameter
        if "<" in path:
            path = path[:path.index("<")].rpartition("/")[0]
        path = path.rstrip("/.,")
        if "*" in path:
            return any(fnmatch.fnmatch(known, path) for known in self.files)
        return path in self.folders or path in self.files

    def help(self, *subcommand):
        """The help text of the program or of a subcommand; None where there is no such."""
        if subcommand not in self.helps:
            program = self.root / PROGRAM
            text = None
            if program.exists():
                done = subprocess.run([program, *subcommand, "--help"], capture_output=True,
                                      text=True, stdin=subprocess.DEVNULL, timeout=60, check=False)
                text = done.stdout + done.stderr if done.returncode == 0 else None
            self.helps[subcommand] = text
        return self.helps[subcommand]


def code_of(text):
    """(line number, code) of every code span and code line; continued lines are joined."""
    pieces, fenced, held, start = [], False, "", 0
    for number, line in enumerate(text.splitlines(), 1):
        if FENCE.match(line):
            fenced = not fenced
        elif fenced:
            start = start if held else number
            held += line
            if held.endswith("\\"):
                held = held[:-1] + " "
                continue
            pieces.append((start, held))
            held = ""
        else:
            pieces += [(number, span) for span in SPAN.findall(line)]
    return pieces


def anchors_of(text):
    """The anchors of a document's headings, as GitHub writes them."""
    headings = re.findall(r"^#+\s+(.*)$", text, re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-")
            for heading in headings}


def link_faults(tree, path, text):
    faults, fenced = [], False
    for number, line in enumerate(text.splitlines(), 1):
        fenced ^= bool(FENCE.match(line))
        for target in [] if fenced else LINK.findall(SPAN.sub("", line)):
            if re.match(r"[a-z]+:", target):
                continue
            file, _, anchor = target.partition("#")
            folder = (tree.root / path).parent
            known = (folder / file).resolve() if file else tree.root / path
            relative = known.relative_to(tree.root) if known.is_relative_to(tree.root) else None
            if relative is None or (file and not tree.has(str(relative)) and str(relative) != "."):
                faults.append(f"{path}:{number}: the link {target} leads nowhere")
            elif anchor and known.suffix == ".md" and anchor not in anchors_of(known.read_text()):
                faults.append(f"{path}:{number}: no heading for the anchor in {target}")
    return faults


def command_faults(tree, path, number, code):
    """Faults of `pith ...` in one piece of code."""
    found = re.match(r"\s*(?:\$\s+)?(?:\./)?(?:build/bin/)?pith(\s.*)?$", code)
    if not found or tree.help() is None:
        return []
    # Text behind a pipe or a comment sign is another command.
    words = re.split(r"\s[|;&#>]+\s|\s#", found.group(1) or "")[0].split()
    if not words:
        return []
    if words[0].startswith("-"):
        helped, words, where = tree.help(), words, "pith"
    else:
        if not re.search(r"^\s+%s\b" % re.escape(words[0]), tree.help(), re.M) or \
                tree.help(words[0]) is None:
            return [f"{path}:{number}: pith has no subcommand {words[0]}"]
        helped, where = tree.help(words[0]), f"pith {words[0]}"
        inner = words[1] if len(words) > 1 else "-"  # a command within a command
        if re.search(r"^  %s\s" % re.escape(inner), helped, re.M) and tree.help(*words[:2]):
            helped, where = tree.help(*words[:2]), f"pith {words[0]} {inner}"
    flags = [word.partition("=")[0] for word in words if re.match(r"--?[A-Za-z]", word)]
    return [f"{path}:{number}: {where} has no flag {flag}" for flag in flags
            if not re.search(r"(?<![\w-])%s(?![\w-])" % re.escape(flag), helped)]


def document_faults(tree, path):
    text = (tree.root / path).read_text(encoding="utf-8")
    faults = link_faults(tree, path, text) + prose_faults(path, text)
    for number, code in code_of(text):
        for named in PATH.findall(code):
            if not tree.has(named):
                faults.append(f"{path}:{number}: {named} does not exist")
        for targets in MAKE.findall(code):
            faults += [f"{path}:{number}: make has no target {target}"
                       for target in targets.split() if target not in tree.targets]
        faults += command_faults(tree, path, number, code)
    if path.startswith(METHODS) and not path.endswith("README.md") and not JUDGEMENT.search(text):
        faults.append(f"{path}: does not say what the method is good and bad at")
    return faults


def check(root):
    """All faults in the tree below `root`, as printable lines."""
    tree, faults = Tree(root), []
    for path in tree.files:
        if path.endswith(".md"):
            faults += document_faults(tree, path)
        elif path.endswith((".h", ".cc", ".cu", ".cuh", ".py", ".sh", ".txt")):
            text = (root / path).read_text(encoding="utf-8", errors="replace")
            faults += [f"{path}: {named} does not exist" for named in IN_SOURCE.findall(text)
                       if not tree.has(named)]
            if path.endswith((".h", ".cc", ".cu", ".cuh")):
                faults += comment_faults(path, text)
    return faults


def self_test():
    """Each bad line must be found, each good one must not; the program is a shell script here."""
    bad = ["`src/core/gone.cc`", "See [it](gone.md).", "See [it](other.md#gone).", "`make nothing`",
           "`pith fly`", "`pith run --wings`", "`pith run fast --temp 1`",
           "```\nbuild/bin/pith run \\\n  --wings\n```",
           "`src/core/*.cu`", "`src/gone/<name>/x.h`", "`src/core/{dtype,gone}.h`",
           "It judges rows.", "Memory is lent.", "Rows in company.", "A key is turned by RoPE.",
           "It turns keys.", "It lets go of rows.", "One launch a layer.", "It goes on from there.",
           "What stays is small.", "Short. That of rows is small.", "- Those that stay are few.",
           "word " * 25, "It is " + "so " * 20 + "\nand " + "so " * 20 + "long."]
    good = ["`src/core/dtype.h`", "See [it](other.md#some-heading).", "`make test lint`",
            "`pith run fast --wings`",
            "`pith run -m x`", "```\npith run --temp=0 -n -1 | less --raw\n```", "`src/*/dtype.h`",
            "`src/core/<name>/x.h`", "`build/bin/pith --version`", "[far](https://example.org/x)",
            "make sense of it", "`a/b/c`", "What stays?", "One launch per layer.", "It turns out.",
            "`judge`", "    what " + "x" * 130, "| judge | " + "x" * 130 + " |", "# What it says",
            "It is " + "so " * 36 + "\nlong.", "It is " + "so " * 25 + "\nlong. And " + "so " * 25,
            "<!-- generated: begin -->\n\nIt judges.\n\n<!-- generated: end -->"]
    helps = ('case "$*" in "--help") printf "  --version\\n  run  runs\\n";; '
             '"run --help") printf "  -m,--model --temp -n\\n  fast  runs faster\\n";; '
             '"run fast --help") echo "  --wings";; *) exit 1;; esac\n')
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder).resolve()
        for name, text in {"src/core/dtype.h": "", DOCS + "other.md": "# Some heading\n",
                           "Makefile": "test:\nlint: test\n",
                           PROGRAM: "#!/bin/sh\n" + helps}.items():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text(text)
        (root / PROGRAM).chmod(0o755)
        subprocess.run(["git", "init", "-q"], cwd=root, check=True)
        for cases, expected in ((bad, 1), (good, 0)):
            for line in cases:
                (root / DOCS / "page.md").write_text(line + "\n")
                subprocess.run(["git", "add", "-A"], cwd=root, check=True)
                found = check(root)
                if len(found) != expected:
                    sys.exit(f"docs self-test: {line!r}: expected {expected}, found {found}")
        for line, expected in (("// What it holds.", 1), ("int rows;  ///< rows a head", 1),
                               ("// It judges\n// rows.", 1), ("f();  // it judges", 1),
                               ('auto s = "it judges";', 0), ("// Rows per head.", 0)):
            (root / "src/core/x.cc").write_text(line + "\n")
            subprocess.run(["git", "add", "-A"], cwd=root, check=True)
            found = check(root)
            if len(found) != expected:
                sys.exit(f"docs self-test: {line!r}: expected {expected}, found {found}")
        page = root / METHODS / "fast.md"
        page.parent.mkdir()
        for text, expected in (("# fast\n", 1),
                               ("# fast\n\n## What it is good and bad at\n\nGood: a. Bad: b.\n", 0)):
            page.write_text(text)
            subprocess.run(["git", "add", "-A"], cwd=root, check=True)
            found = check(root)
            if len(found) != expected:
                sys.exit(f"docs self-test: a method's page: expected {expected}, found {found}")


def main():
    if sys.argv[1:] == ["--self-test"]:
        return self_test()
    root = pathlib.Path(__file__).resolve().parent.parent
    faults = check(root)
    if not (root / PROGRAM).exists():
        print(f"docs: {PROGRAM} is not built, so its subcommands and flags were not checked")
    print("\n".join(faults), end="\n" if faults else "")
    sys.exit(1 if faults else 0)


if __name__ == "__main__":
    main()
