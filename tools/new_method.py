#!/usr/bin/env python3
"""Makes the files of a new method, which compile and pass the contract suite as they are.

    tools/new_method.py selector NAME    a score selector: keeps the rows with the best scores
    tools/new_method.py codec NAME       a codec: 8-bit codes, one scale per row
    tools/new_method.py --self-test      makes both in a copy of the tree and compiles them

NAME is a C++ identifier in lower case. Then change what the template computes, first of all the lines
marked as unfinished (`make lint` names them), and follow "Add a method" in AGENTS.md. For the tables, build and run
`PITH_WRITE_TABLES=1 build/bin/method_tables_test`; for the duties of a method,
`build/bin/contract_test --gtest_filter='*NAME*'`.
"""

import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent

SELECTOR = """\
// @name@: @mark@ which rows stay, the paper and section. Cost: each key is decoded once at each
// selection, 2 D operations.

#include <algorithm>
#include <cmath>

#include "methods/methods.h"
#include "methods/selectors/scores/scores.h"

namespace pith {
namespace {

constexpr size_t kTile = 64;

class @Class@ final : public Scorer {
 public:
  using Scorer::Scorer;

  std::unique_ptr<Chooser> clone() const override { return std::make_unique<@Class@>(*this); }

 private:
  void score(std::span<HeadBody> bodies, Scores& scores) const override {
    const size_t dim = site().head_dim;
    for_heads(bodies, [&](size_t h) {
      const CodedRows& keys = bodies[h].store().keys();
      std::vector<float> tile(kTile * dim);  // [kTile, D]
      for (size_t first = 0; first < keys.rows(); first += kTile) {
        const size_t n = std::min(kTile, keys.rows() - first);
        keys.decode(tile.data(), first, n);
        for (size_t t = 0; t < n; ++t) {
          double most = 0;  // @mark@ the score of a row; the largest stay
          for (size_t c = 0; c < dim; ++c)
            most = std::max(most, std::abs(double{tile[t * dim + c]}));
          scores[h][first + t] = most;
        }
      }
    });
  }
};

}  // namespace

SelectorRow @name@_row() {
  SelectorRow row = score_row("@name@", "@mark@ which rows stay", "@mark@ the paper");
  row.takes<ScoreOptions>();
  row.resolve = [](const SelectorPlace& r) {
    return best_by<@Class@>(r, "@name@", r.options.as<ScoreOptions>(), {});
  };
  return row;
}

}  // namespace pith
"""

CODEC = """\
// @name@: @mark@ how a row is stored, the paper and section. 8-bit codes and one f32 scale per
// row, x = scale * code; D + 4 bytes per row. Cost: D operations to code or read a row.

#include <algorithm>
#include <cmath>

#include "methods/methods.h"
#include "rows/cpu/compaction.h"

namespace pith {
namespace {

class @Class@Rows final : public CodedRows {
 public:
  @Class@Rows(const Context& context, const RowsRequest& request)
      : CodedRows(context.kernels, request.dim),
        codes_(context.memory, MemoryKind::kPayload),
        scales_(context.memory, MemoryKind::kMetadata) {
    codes_.set_growth_limit(request.max_rows * dim_);
    scales_.set_growth_limit(request.max_rows);
  }

  size_t rows() const override { return scales_.size(); }

  void append(const float* x, size_t stride, size_t count) override {
    const size_t before = rows();
    codes_.resize((before + count) * dim_);
    scales_.resize(before + count);
    for (size_t t = 0; t < count; ++t) {
      const float* row = x + t * stride;
      float most = 0;  // @mark@ the code of a row
      for (size_t c = 0; c < dim_; ++c) most = std::max(most, std::abs(row[c]));
      const float scale = most / 127, inverse = scale > 0 ? 1 / scale : 0;
      scales_[before + t] = scale;
      for (size_t c = 0; c < dim_; ++c)
        codes_[(before + t) * dim_ + c] = static_cast<int8_t>(std::lround(row[c] * inverse));
    }
  }

  void keep(std::span<const uint32_t> kept) override {
    keep_records(codes_, dim_, kept);
    keep_records(scales_, 1, kept);
  }

  void decode(float* out, size_t first, size_t count) const override {
    for (size_t t = 0; t < count; ++t)
      for (size_t c = 0; c < dim_; ++c)
        out[t * dim_ + c] =
            scales_[first + t] * static_cast<float>(codes_[(first + t) * dim_ + c]);
  }

  std::unique_ptr<CodedRows> clone() const override {
    return std::make_unique<@Class@Rows>(*this);
  }
  void archive(Archive& a) override {
    size_t count = rows();
    a.number(count, kMostRows, "too many rows");
    a.numbers(codes_, count * dim_);
    a.floats(scales_, count);
  }
  size_t payload_bytes() const override { return codes_.size(); }
  size_t metadata_bytes() const override { return scales_.size() * sizeof(float); }
  size_t allocated_bytes() const override {
    return codes_.capacity_bytes() + scales_.capacity_bytes();
  }

 private:
  Array<int8_t> codes_;  // [rows, D]
  Array<float> scales_;  // [rows]
};

class @Class@Codec final : public Codec {
 public:
  double bytes_per_row(size_t dim) const override {
    return static_cast<double>(dim + sizeof(float));
  }
  size_t buffers() const override { return 2; }  // codes, scales
  std::unique_ptr<CodedRows> make_rows(const Context& context,
                                       const RowsRequest& request) const override {
    return std::make_unique<@Class@Rows>(context, request);
  }
};

}  // namespace

CodecRow @name@_row() {
  CodecRow row;
  row.info = {"@name@", false, "@mark@ how a row is stored", "@mark@ the paper", {}, ""};
  row.takes<NoOptions>();
  row.make = [](const MethodOptions&, Side) -> std::unique_ptr<Codec> {
    return std::make_unique<@Class@Codec>();
  };
  return row;
}

}  // namespace pith
"""

PAGE = """\
# @name@

@mark@ which rows stay, or how a row is stored, with one formula.

## What it is good and bad at

@mark@, with figures and the command that gives them (`pith probe`, `pith eval ppl`).

## How it works

Source: @mark@. Code: `src/methods/@kind@s/@name@/`.

<!-- parameters: @name@ -->
| parameter | default | accepts | meaning |
|---|---|---|---|

@mark@ the cost per row in operations and bytes.
"""


def make(root, kind, name):
    """Writes the method's files below `root` and adds it to the list; returns what it wrote."""
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name):
        sys.exit(f"new_method: '{name}' is no name; use small letters, digits and _, as in keydiff")
    listed = root / "src/methods/methods.h"
    text = listed.read_text()
    if f"X({name})" in text or name in ("f32", "f16", "bf16"):
        sys.exit(f"new_method: there is a method '{name}'; src/methods/methods.h lists all")
    code = root / f"src/methods/{kind}s/{name}/{name}.cc"
    page = root / f"docs/methods/{name}.md"
    for path in (code, page):
        if path.exists():
            sys.exit(f"new_method: {path.relative_to(root)} exists; remove it or choose another name")
    head = f"#define PITH_{kind.upper()}S(X)"
    body = re.search(re.escape(head) + r"(?: \\\n.*)+?\)\n", text)
    if not body:
        sys.exit(f"new_method: src/methods/methods.h has no list '{head}'")
    end = body.end() - 1
    listed.write_text(text[:end] + f" \\\n  X({name})" + text[end:])
    values = {"@mark@": "TO" + "DO", "@name@": name, "@kind@": kind, "@Class@": name.title().replace("_", "")}
    for path, template in ((code, SELECTOR if kind == "selector" else CODEC), (page, PAGE)):
        for word, value in values.items():
            template = template.replace(word, value)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(template)
    if shutil.which("clang-format-14"):
        subprocess.run(["clang-format-14", "--style=file", "-i", str(code)], check=True)
    return [code, page, listed]


def self_test():
    """Both templates, in a copy: they compile without a warning, and the registry with them."""
    with tempfile.TemporaryDirectory() as folder:
        copy = pathlib.Path(folder)
        for part in ("src", "include"):
            shutil.copytree(ROOT / part, copy / part)
        shutil.copy(ROOT / ".clang-format", copy)
        for kind in ("selector", "codec"):
            code, page, listed = make(copy, kind, f"toy_{kind}")
            for source in (code, copy / "src/methods/registry.cc"):
                subprocess.run([os.environ.get("CXX", "c++"), "-std=c++20", "-fsyntax-only", "-Wall", "-Wextra",
                                "-Wconversion", "-Werror", f"-I{copy}/src", f"-I{copy}/include", str(source)],
                               check=True)
            if f"X(toy_{kind})" not in listed.read_text() or f"toy_{kind}" not in page.read_text():
                sys.exit(f"new_method: the {kind} is in no list or has no page")
    print("new_method: ok")


def main():
    arguments = sys.argv[1:]
    if arguments == ["--self-test"]:
        return self_test()
    if len(arguments) != 2 or arguments[0] not in ("selector", "codec"):
        sys.exit(__doc__)
    for path in make(ROOT, *arguments):
        print(path.relative_to(ROOT))
    print("next: the unfinished lines (tools/check.sh tree names them), then 'Add a method' in AGENTS.md")


if __name__ == "__main__":
    main()
