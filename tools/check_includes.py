#!/usr/bin/env python3
"""Do includes point one way, and do instruction sets stay where they belong?

    core, plan <- kernels <- rows/cpu <- attend <- rows/cuda <- select <- policy <- methods <- probe
         <- cache <- runtime <- model <- chat <- form <- session <- layer <- c <- http <- serve <- tools <- apps

A file may include its own stage and earlier stages. A public header (include/) has the stage that
PUBLIC says: that of what it declares. Beside that:
- core and plan stand side by side and do not know each other: a plan has integers only, neither
  random numbers nor devices; the macro of what kernels call too is for all;
- rows/cuda comes after attend, rows/cpu before it: on the GPU a codec brings its own attention
  kernel, on the CPU attention reads rows through the codec's contract;
- a method (src/methods/codecs/<name>/, src/methods/selectors/<name>/) is known to itself
  and to the registry only, and to the tool that makes the files that it reads; SHARED are families;
- the command line is a program of the library's users: it sees include/pith/, and the headers of
  pith_tools and of core, on which both libraries stand (PROGRAM_ROOMS);
- public headers include public headers only, of their own stage or earlier ones;
- intrinsics and Highway stay in src/kernels/ (thread_pool.cc spins with a pause instruction).
Tests (tests/, *_test.cc and test_*.h) may include anything. `--self-test` proves that each rule can fail.
"""

import pathlib
import re
import sys
import tempfile

from tracked import SOURCES, tracked

ORDER = [("core", "plan"), "kernels", "rows/cpu", "attend", "rows/cuda", "select", "policy", "methods",
         "probe", "cache", "runtime", "model", "chat", "form", "session", "layer", "c", "http", "serve", "tools",
         "apps"]
RANK = {name: rank for rank, names in enumerate(ORDER)
        for name in ([names] if isinstance(names, str) else names)}
# The public headers of each stage, under include/.
PUBLIC = {
    "core": "pith/dtype.h pith/error.h pith/nearest.h pith/utf8.h",
    "plan": "pith/rows.h",
    "kernels": "pith/isa.h",
    "rows/cpu": "pith/ledger.h",
    "policy": "pith/device.h pith/policy.h",
    "methods": "pith/own_codec.h pith/own_selector.h",
    "probe": "pith/attention_error.h",
    "runtime": "pith/runtime.h",
    "model": "pith/model.h pith/tokenizer.h",
    "chat": "pith/chat.h",
    "form": "pith/form.h",
    "session": "pith/engine.h pith/generate.h pith/prefix_tree.h pith/presets.h pith/saved.h pith/session.h "
               "pith/version.h",
    "layer": "pith/layer_cache.h",
    "c": "pith/pith.h pith/pith_chat.h pith/pith_extend.h pith/pith_layer.h pith/pith_prefix.h",
    "serve": "pith_serve/serve.h",
    "tools": "pith_tools/catalogue.h pith_tools/choose.h pith_tools/dialogue.h pith_tools/gpu.h "
             "pith_tools/results.h pith_tools/screen.h pith_tools/tune.h",
}
STAGE_OF_PUBLIC = {header: stage for stage, headers in PUBLIC.items() for header in headers.split()}
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')
# Headers that tie a file to an instruction set.
INTRINSICS = re.compile(r"^(\w*mmintrin\.h|x86(gpr)?intrin\.h|cpuid\.h|arm_\w+\.h|hwy/.*)$")
INTRINSICS_MAY = ("src/kernels/", "src/core/thread_pool.cc")
REGISTRY = "src/methods/registry.cc"
FOR_ALL = "core/both_sides.h"  # two macros
# Families: what several methods share, and who else knows them.
SHARED = {"scores"}
TOOL_OF = {"src/tools/dictionaries/": "csr"}
# Rooms whose headers the command line includes beside include/pith: its own library, and what that stands on.
PROGRAM_ROOMS = ("tools", "core")


def room_of(path):
    """The room of a path below src/: its first folder; of rows, the device's half."""
    first, second = path.split("/")[:2]
    if first == "rows":
        return "rows/cuda" if second == "cuda" else "rows/cpu"
    return first


def stage_of(path):
    """The stage of a repository path: a folder of src/, `apps`, `public`; None for the rest."""
    parts = path.split("/")
    if parts[0] == "src" and len(parts) > 2:
        return room_of("/".join(parts[1:]))
    if parts[0] == "apps":
        return "apps"
    if path.startswith("include/"):
        return STAGE_OF_PUBLIC.get(path[len("include/"):], "public")
    return None


def method_of(path):
    """The method whose folder holds this path (relative to src/), or None."""
    found = re.match(r"methods/(?:codecs|selectors)/([^/]+)/", path)
    return found.group(1) if found else None


def public_fault(here, header):
    """Why a file of stage `here` must not include this public header, or None when it may."""
    there = STAGE_OF_PUBLIC.get(header)
    if there is None or here not in RANK:
        return "a header without a place in PUBLIC of tools/check_includes.py"
    return f"{here} comes before {there}" if RANK[there] > RANK[here] else None


def fault(path, header):
    """Why `path` must not include `header`, or None when it may."""
    if INTRINSICS.match(header):
        allowed = path.startswith(INTRINSICS_MAY)
        return None if allowed else f"{header} ties a file to instruction sets: src/kernels/ only"
    here = stage_of(path)
    if here is None or "/" not in header:
        return None  # the standard library, or a neighbour
    if header.startswith(("pith/", "pith_serve/", "pith_tools/")):
        return public_fault(here, header)
    there = room_of(header)
    if there not in RANK:
        return None  # a dependency
    if path.startswith("include/"):
        return "a public header includes public headers only"
    if here == "apps" and there not in PROGRAM_ROOMS:
        return "the command line includes include/pith/, tools/ and core/ only"
    if here not in RANK:
        return f"src/{here}/ has no place in the order; add it to ORDER in tools/check_includes.py"
    if RANK[there] > RANK[here]:
        return f"{here} comes before {there}"
    if RANK[there] == RANK[here] and there != here and header != FOR_ALL:
        return f"{here} and {there} stand side by side"
    method = method_of(header)
    known = path == REGISTRY or method in SHARED or any(
        path.startswith(folder) and owned == method for folder, owned in TOOL_OF.items())
    if method and not known and method_of(path[len("src/"):]) != method:
        return f"only the registry knows the method {method}"
    return None


def check(root, paths):
    """All faults among `paths` (relative to `root`), as printable lines."""
    faults = []
    for path in paths:
        if path.startswith("tests/") or path.endswith("_test.cc") or "/test_" in path:
            continue
        for number, line in enumerate((root / path).read_text().splitlines(), 1):
            found = INCLUDE.match(line)
            reason = fault(path, found.group(2)) if found else None
            if reason:
                faults.append(f"{path}:{number}: {line.strip()}: {reason}")
    return faults


def self_test():
    """Each bad line must be found, each good one must not."""
    bad = [("src/core/a.cc", '#include "kernels/dot.h"'),
           ("src/kernels/a.h", '#include "policy/options.h"'),
           ("src/rows/cpu/a.cc", '#include "attend/merge.h"'),
           ("src/plan/a.cc", '#include "core/philox.h"'),
           ("src/plan/a.cc", '#include "kernels/dot.h"'),
           ("src/methods/selectors/buzz/buzz.cc", '#include "methods/codecs/qjl/qjl.h"'),
           ("src/cache/cache.cc", '#include "methods/codecs/qjl/qjl.h"'),
           ("src/session/a.cc", '#include "apps/pith/args.h"'),
           ("src/newstage/a.cc", '#include "core/dtype.h"'),
           ("src/cache/a.h", '#include "pith/session.h"'),
           ("src/core/a.cc", '#include "pith/unranked.h"'),
           ("include/pith/dtype.h", '#include "core/dtype.h"'),
           ("include/pith/policy.h", '#include "pith/model.h"'),
           ("include/pith/unranked.h", '#include "pith/error.h"'),
           ("src/attend/a.cc", "#  include <immintrin.h>"),
           ("apps/pith/tokens.cc", "#include <hwy/highway.h>"),
           ("apps/pith/tokens.cc", '#include "session/backend.h"')]
    good = [("src/kernels/a.cc", '#include "core/dtype.h"'),
            ("src/rows/cuda/a.h", '#include "attend/cuda/decode.h"'),
            ("src/plan/a.h", '#include "core/both_sides.h"'),
            ("src/kernels/b.cc", "#include <hwy/highway.h>"),
            ("src/core/thread_pool.cc", "#include <immintrin.h>"),
            ("src/methods/registry.cc", '#include "methods/codecs/qjl/qjl.h"'),
            ("src/methods/codecs/qjl/qjl.cc", '#include "methods/codecs/qjl/qjl.h"'),
            ("src/core/core_test.cc", '#include "session/session.h"'),
            ("src/cache/test_cache.h", '#include "pith/session.h"'),
            ("src/plan/b.h", '#include "pith/error.h"'),
            ("include/pith/session.h", '#include "pith/engine.h"'),
            ("tests/contract_test.cc", '#include "methods/codecs/qjl/qjl.h"'),
            ("apps/pith/tokens.cc", '#include "pith/session.h"'),
            ("apps/pith/tokens.cc", '#include "engine.h"'),
            ("apps/pith/token_pieces.cc", '#include "core/utf8.h"'),
            ("apps/pith/policies.cc", '#include "tools/partners.h"')]
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)
        for cases, expected in ((bad, 1), (good, 0)):
            for path, line in cases:
                (root / path).parent.mkdir(parents=True, exist_ok=True)
                (root / path).write_text("// head\n" + line + "\n")
                if len(check(root, [path])) != expected:
                    sys.exit(f"includes self-test: {path}, {line}: expected {expected} fault(s)")


def main():
    if sys.argv[1:] == ["--self-test"]:
        return self_test()
    root = pathlib.Path(__file__).resolve().parent.parent
    faults = check(root, tracked(root, SOURCES))
    print("\n".join(faults), end="\n" if faults else "")
    sys.exit(1 if faults else 0)


if __name__ == "__main__":
    main()
