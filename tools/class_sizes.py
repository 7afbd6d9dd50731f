#!/usr/bin/env python3
"""Classes by their lines: `tools/class_sizes.py` fails for those above 250, but for what LARGER grants.

The lines of a class or struct are those of its declaration, nested classes and comments in it
included, and of the bodies of its members, wherever these are: header and sources together. Free
functions are nobody's. A member of a nested class counts for the outermost one too. Sources have the
house format, so that a definition begins and ends in the first column; tests and `lab/` are not
counted. `--above N` prints all that have more, `--self-test` proves that a class is counted as said.
"""

import collections
import pathlib
import re
import sys

from tracked import SOURCES, tracked

MOST = 250
# Those that were larger when this check began; each may only shrink, and leaves the list at 250.
LARGER = {
    "pith::Bpe": 326, "pith::CsrRows": 346, "pith::CudaLayer": 291, "pith::Decode": 263, "pith::Dialogue": 258,
    "pith::ErrorProbe": 255, "pith::Gguf": 283, "pith::HeadGroup": 438, "pith::KvCache": 491,
    "pith::LayerCache": 255, "pith::Matmul": 266, "pith::Pass": 277, "pith::PlaneRows": 268, "pith::Prefill": 322,
    "pith::PrefixTree": 398, "pith::QjlKeys": 290, "pith::Session": 583,
    "pith::chat::Lexer": 295, "pith::cli::Talk": 255, "pith::cli::TasksCommand": 306,
    "pith::cuda::ChunkReader": 269, "pith::cuda::Coder": 417,
    "pith::cuda::DeviceProbe": 393, "pith::cuda::ExpressStore": 273, "pith::cuda::HeadStream": 263,
    "pith::cuda::LevelBuilder": 403, "pith::cuda::RaggedStore": 339, "pith::cuda::RateStore": 348,
    "pith::form::Automaton": 352, "pith::form::SchemaReader": 264, "pith::http::Connection": 278,
}
FOLDERS = ("include/", "src/", "apps/", "python/src/")
DECLARED = re.compile(r"^( *)(?:template <.*> )?(?:class|struct) (?:PITH_\w+ )?([A-Z]\w*)[^;()]*\{")
OPENED = re.compile(r"^namespace ?([\w:]*) ?\{")
MEMBER = re.compile(r"(?<![\w:])((?:\w+(?:<[\w, ]*>)?::)+)(?:~?\w+|operator[^\s(]+)\(")
INSIDE_OF_LINE = re.compile(r'"(?:\\.|[^"\\])*"|\'(?:\\.|[^\'\\])\'|//.*')


def bare(line):
    """The line without strings and comments."""
    return INSIDE_OF_LINE.sub("", line)


def blocks(lines):
    """(first line, lines, namespace) of each class and each function in the first column."""
    space, at = [], 0
    while at < len(lines):
        opened = OPENED.match(lines[at])
        if opened:
            space.append(opened.group(1))
            at += 1
            continue
        if lines[at].startswith("}  // namespace") or lines[at] == "}":
            space = space[:-1]
            at += 1
            continue
        text = bare(lines[at])
        if not text or text[0] in " #}" or text.startswith("PITH_") and text.endswith(")"):
            at += 1
            continue
        # A definition or declaration: to the line on which its braces close, or its semicolon.
        end, depth, braces = at, 0, False
        while end < len(lines):
            part = bare(lines[end])
            depth += part.count("{") - part.count("}")
            braces = braces or "{" in part
            if depth == 0 and (part.rstrip().endswith(";") or braces and part.rstrip().endswith("}")):
                break
            end += 1
        yield lines[at:end + 1], "::".join(space)
        at = end + 1


def sizes(files):
    """Lines by class, of `files`: pairs of a path and its lines. Keys: (file of hidden ones, name)."""
    declared, members = collections.Counter(), []
    for path, lines in files:
        for block, space in blocks(lines):
            hidden = path if "" in space.split("::") and space else ""
            joined = " ".join(bare(line).strip() for line in block[:8])
            head = re.split(r"[{;]", joined)[0]
            found = DECLARED.match(joined)
            if found:
                name = "::".join(p for p in space.split("::") if p) + "::" + found.group(2)
                declared[(hidden, name)] += len(block)
            elif "(" in head and "{" in joined:
                owner = MEMBER.search(head)
                if owner:
                    members.append((path, space, re.sub(r"<[^>]*>", "", owner.group(1)), len(block)))
    for path, space, owner, count in members:
        parts = owner.rstrip(":").split("::")
        outer = [p for p in space.split("::") if p]
        for depth in range(len(parts), 0, -1):  # the innermost name that is a class, and those around it
            for skip in range(len(outer), -1, -1):
                name = "::".join(outer[:skip] + parts[:depth])
                key = next((k for k in ((path, name), ("", name)) if k in declared), None)
                if key:
                    declared[key] += count
                    break
    return declared


def self_test():
    """A class in a header, its members in a source, a namesake in another namespace."""
    header = ["namespace a::b {", "class Box {", "  int x;  // {", "};", "}  // namespace a::b"]
    source = ["namespace a::b {", "namespace {", "struct Box2 {", "};", "int free(Box::Kind k) {", "  return 1;",
              "}", "}  // namespace", "int Box::get() const {", "  return x;", "}", "Box::Box(int v)",
              "    : x(v) {}", "}  // namespace a::b"]
    other = ["namespace c {", "class Box {", "};", "void Box::put() {}", "}  // namespace c"]
    got = dict(sizes([("x.h", header), ("x.cc", source), ("y.cc", other)]))
    expected = {("", "a::b::Box"): 8, ("x.cc", "a::b::Box2"): 2, ("", "c::Box"): 3}
    if got != expected:
        sys.exit(f"class_sizes self-test: {got}, not {expected}")


def main():
    if sys.argv[1:] == ["--self-test"]:
        return self_test()
    root = pathlib.Path(__file__).resolve().parent.parent
    paths = [p for p in tracked(root, SOURCES) if p.startswith(FOLDERS) and not p.endswith("_test.cc")]
    found = sizes([(p, (root / p).read_text().splitlines()) for p in paths]).most_common()
    if sys.argv[1:2] == ["--above"]:
        for (path, name), lines in found:
            if lines > int(sys.argv[2]):
                print(f"{lines:5} {name}" + (f" ({path})" if path else ""))
        return
    faults = [f"{name}: {lines} lines, {LARGER.get(name, MOST)} at most; split it" for (_, name), lines in found
              if lines > LARGER.get(name, MOST)]
    large = {name for (_, name), lines in found if lines > MOST}
    faults += [f"{name} has {MOST} lines at most now: take it out of LARGER" for name in LARGER if name not in large]
    print("\n".join(faults), end="\n" if faults else "")
    sys.exit(1 if faults else 0)


if __name__ == "__main__":
    main()
