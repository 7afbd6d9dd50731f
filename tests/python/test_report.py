"""The report: its page holds every figure, loads nothing and can be read; its plots are files of their own."""

import csv
import html.parser
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys

import pytest

import pith
from conftest import DEMO, TEXT

pytest.importorskip("matplotlib", reason="tools/python.sh installs it")
from matplotlib.figure import Figure  # noqa: E402
from matplotlib.text import Text  # noqa: E402

from pith import _text, report  # noqa: E402
from pith.report import _drawings  # noqa: E402
from pith.report.__main__ import main  # noqa: E402


def head(length=2048, **more):
    return {"result": "ppl", "name": "continue", "length": length, "null_control_kl": 0.0,
            "setting": {"model": "<demo>", "version": "1"}, **more}


def row(policy, kl, size, **more):
    return {"policy": policy, "seeds": 1, "count": 10, "tokens": 2047, "bytes": size, "bits": 16 * size / 1000,
            "kept": size / 1000, "seconds": 1 + size / 1000, "perplexity": [20, 0.1], "ln_ratio": [kl, kl / 9],
            "kl": [kl, kl / 10], "kl_50": kl / 2, "kl_99": kl * 9, "same_top": [0.9, 0.01], **more}


THREE = [head(), row("exact", 0.0, 1000), row("snapkv(budget=25%)", 0.02, 250), row("knorm(budget=25%)", 0.2, 250)]


def text(lines):
    return "".join(json.dumps(line) + "\n" for line in lines)


def page(lines, title="A <title>"):
    return report.page(report.parse(text(lines)), title)


def crowded():
    """Enough policies, with names long enough, to crowd."""
    lines = []
    for length in (2048, 8192):
        lines.append(head(length))
        for i in range(40):
            size = length * 4096 / 1.08**i
            lines.append(row(f"expected_attention(budget={i}%)+int4(hadamard=true)" if i else "exact",
                             1e-5 * 1.33 ** (i * 17 % 40) if i else 0, size, tokens=length - 1, seeds=3,
                             kept=1.08**-i, bits=16 / 1.08**i, seconds=1 + i * 7 % 11))
    rows = [{"policy": f"snapkv(budget={i}%)", "random": False, "bytes": 1e6, "bits": 4, "kept": 0.25,
             "error": [0.02, 0], "layers": [0.001 * i * layer for layer in range(1, 33)]} for i in range(1, 10)]
    return [*lines, {"result": "probe", "model": "demo", "text": "b.txt", "tokens": 2048, "queries": 256, "seeds": 3,
                     "null_control_error": 0.0, "rows": rows}]


def cells(found):
    """The cells of tables, a list for each row."""
    lines = re.findall(r"<tr>(.*?)</tr>", found, re.DOTALL)
    return [[re.sub("<[^>]*>", "", cell) for cell in re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", line)] for line in lines]


def test_figures_do_not_pretend():
    assert [_text.figure(x) for x in (0, 0.00004, 0.00045, 12.345, 1234.5)] == [
        "0", "4.00e-05", "0.000450", "12.3", "1234"]
    assert [_text.estimate(*pair) for pair in ((0.0545, 0.0126), (123.4, 56), (0.5, 0), (1e-5, 1.4e-6))] == [
        "0.054 ±0.013", "123 ±56", "0.500", "1.00e-05 ±1.4e-06"]
    assert [_text.percent(x) for x in (1, 0.9999, 0.0001, 0.25, 0)] == ["100%", "99.9%", "0.01%", "25.0%", "0%"]
    assert [_text.size(x) for x in (33554432, 999, 999600)] == ["33.6 MB", "999 B", "1.00 MB"]
    assert [_text.seconds(x) for x in (2.5e-6, 0.25, 3)] == ["2.50 µs", "250 ms", "3.00 s"]
    assert _text.policy_html("a(<=1)") == "a(<wbr>&lt;=<wbr>1)<wbr>"


def test_the_front_holds_what_nothing_beats():
    rows = [{"metric": "kl", "value": v, "x": x} for x, v in ((4, 1), (1, 9), (2, 9), (2, 3), (3, 5))]
    assert [(r["x"], r["value"]) for r in pith.results.front(rows, "kl", "x")] == [(1, 9), (2, 3), (4, 1)]
    scores = [{**r, "metric": "score"} for r in rows]
    assert [(r["x"], r["value"]) for r in pith.results.front(scores, "score", "x")] == [(1, 9)]
    assert pith.results.front([]) == []


def test_the_page_has_every_policy_and_loads_nothing():
    found = page(THREE)
    for never in ("<script", "http", "url(http", "@import", "<demo>"):
        assert never not in found, never
    for wanted in ("<title>A &lt;title&gt;</title>", "0.0200 ±0.0020", "Null control, exact against exact: KL 0.",
                   "prefers-color-scheme:dark", "aria-label='Divergence against bytes'", "<b>3</b>policies"):
        assert wanted in found, wanted
    by_policy = {line[0]: line for line in cells(found) if len(line) == 14}
    assert by_policy["knorm(budget=25%)"][1:] == [
        "0.200 ±0.020", "0.100", "1.80", "90.0%", "20.00 ±0.10", "0.200 ±0.022", "", "25.0%", "250 B", "4.00",
        "1.25 s", "1", "10"]
    assert set(by_policy) == {"policy", "exact", "snapkv(budget=25%)", "knorm(budget=25%)"}
    lists = re.findall("<ol>(.*?)</ol>", found)
    assert len(lists) == 2 and all("snapkv" in items and "knorm" not in items for items in lists)


def test_tags_are_closed_and_names_are_given_once():
    class Reader(html.parser.HTMLParser):
        open_, ids = [], []

        def handle_starttag(self, tag, attributes):
            self.ids += [value for name, value in attributes if name == "id"]
            if tag not in ("meta", "wbr"):
                self.open_.append(tag)

        def handle_startendtag(self, tag, attributes):
            self.ids += [value for name, value in attributes if name == "id"]

        def handle_endtag(self, tag):
            assert self.open_.pop() == tag

    reader = Reader()
    reader.feed(page(crowded()))
    assert reader.open_ == []
    figures = [name for name in reader.ids if name.endswith("figure_1")]
    assert len(figures) == len(set(figures)) == 5


def test_unfinished_policies_are_said_to_be_so_and_not_compared():
    found = page([*THREE[:2], {**THREE[2], "count": 4}, THREE[3]])
    assert ["4 of 10"] == [line[-1] for line in cells(found) if line[0].startswith("snapkv") and len(line) == 14]
    assert "snapkv" not in re.search("<ol>(.*?)</ol>", found)[1]


def test_seeds_are_said_where_something_was_random():
    assert "seeds, randomised" not in page(THREE)
    assert "<b>3</b>seeds, randomised" in page([*THREE[:3], {**THREE[3], "seeds": 3}])


def probe(rows):
    named = [{"policy": policy, "random": random, "bytes": 1, "bits": 4.5, "kept": 1, "error": error, "layers": layers}
             for policy, random, error, layers in rows]
    return page([{"result": "probe", "model": "m", "text": "<a>.txt", "tokens": 2048, "queries": 256, "seeds": 3,
                  "null_control_error": 0, "rows": named}])


def test_errors_stand_under_their_layer():
    found = probe([("exact+int4", False, [0.2, 0.03], [0.1, 0.3]), ("exact+qjl", True, [0.25, 0], [0.5, 0])])
    assert "2048 tokens of &lt;a&gt;.txt" in found and "3 seeds of what is random" in found
    assert cells(found)[:3] == [["policy", "L0", "L1", "all", "kept", "bits"],
                                ["exact+int4", "0.10", "0.30", "0.200 ±0.030", "100%", "4.50"],
                                ["exact+qjl", "0.50", "0", "0.250", "100%", "4.50"]]


def test_the_heat_scale_does_not_begin_at_exact():
    found = probe([("exact", False, [1e-7, 0], [1e-7, 1e-7]), ("exact+int4", False, [0.02, 0], [0.01, 0.02]),
                   ("knorm(budget=25%)", False, [0.2, 0], [0.1, 0.5])])
    strengths = [float(value) for value in re.findall(r"style='--v:([0-9.]+)", found)]
    assert strengths[:3] == [0, 0, 0] and strengths[5] == 0.75, "the least and the most that are not exact"
    assert 0 < strengths[3] < 0.2 < strengths[4] < 0.75
    assert "seeds of what is random" not in found


def test_costs_of_selectors_have_a_table():
    found = page([{"result": "cost", "policy": "local", "tokens": n, "bytes": 64, "bits": 2.5, "update": 1e-6,
                   "attend": n * 1e-9, "exact_attend": 5e-6} for n in (1000, 4000)])
    assert ["local", "2.00 µs", "5.00 µs"] in cells(found)
    assert ["local", "4000", "1.00 µs", "4.00 µs", "20.0%", "64 B", "2.50"] in cells(found)


def test_nothing_is_refused():
    with pytest.raises(pith.InvalidArgument, match="no result to report"):
        page([])


def test_plots_are_files_of_their_own(tmp_path, capsys):
    lines = tmp_path / "lines.jsonl"
    # Two settings with one name: the second has a number.
    lines.write_text(text([*crowded(), head(8192, setting={"model": "other"}), *THREE[1:]]))
    assert main([str(lines), "--plots", str(tmp_path / "new" / "plots")]) == 0
    assert capsys.readouterr().out == "", "no page was asked for"
    names = {"continue-2048-bytes", "continue-2048-time", "continue-8192-bytes", "continue-8192-time",
             "continue-8192-bytes-2", "continue-8192-time-2", "memory-context"}
    found = {file.name for file in (tmp_path / "new" / "plots").iterdir()}
    assert found == {f"{name}.{kind}" for name in names for kind in ("svg", "pdf", "csv")}
    for file in (tmp_path / "new" / "plots").glob("*.pdf"):
        assert file.read_bytes().startswith(b"%PDF")
        assert "var(" not in file.with_suffix(".svg").read_text(), "converters know no custom properties"
    with open(tmp_path / "new" / "plots" / "continue-8192-bytes-2.csv", newline="") as file:
        assert list(csv.reader(file)) == [
            ["policy", "bytes", "kl", "error", "on_front"], ["exact", "1000", "0", "0", "0"],
            ["snapkv(budget=25%)", "250", "0.02", "0.002", "1"], ["knorm(budget=25%)", "250", "0.2", "0.02", "0"]]


def test_numbers_of_a_plot_do_not_overlap():
    drawing = next(_drawings.comparisons(report.parse(text(
        [head(), *(row(f"uniform(budget={i})", 0.1 / 1.03**i, 1000 * 1.02**i) for i in range(1, 13)),
         row("uniform(budget=99)", 1e-4, 1e5)])).groups[0]))
    figure = Figure(figsize=(4.6, 3.6))
    ax = figure.subplots()
    drawing._draw(ax)
    figure.draw_without_rendering()
    boxes = [Text.get_window_extent(note) for note in ax.texts]  # a note's own has its line, too
    assert [note.get_text() for note in ax.texts] == [str(n) for n in range(1, 14)]
    shown = [box.shrunk(0.8, 0.6) for box in boxes]
    assert not [(i, j) for i in range(13) for j in range(i) if shown[i].overlaps(shown[j])]


def test_errors_have_the_programs_codes(tmp_path, capsys):
    assert main([str(tmp_path / "none")]) == 11
    (tmp_path / "x").write_text("dear diary\n")
    assert main([str(tmp_path / "x")]) == 12 and "line 1 is no result" in capsys.readouterr().err
    (tmp_path / "x").write_text(text(THREE))
    assert main([str(tmp_path / "x"), "--out", str(tmp_path / "x")]) == 10
    assert main([str(tmp_path / "x"), "--out", str(tmp_path / "none" / "y")]) == 17
    assert [file.name for file in tmp_path.iterdir()] == ["x"]


def test_the_program_calls_the_package(program, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(pathlib.Path(sys.executable).parent), prepend=os.pathsep)
    results, lines = tmp_path / "ppl.jsonl", tmp_path / "lines.jsonl"
    program("eval", "ppl", "-m", DEMO, "-p", TEXT * 2, "-c", 128, "--pieces", 2, "--kv-policy", "exact+int4",
            "--kv-policy", "knorm(budget=25%)", "--seeds", 1, "-o", results)
    program("report", results, "--out", tmp_path / "page.html", "--lines", lines, "--title", "A & B")
    found = (tmp_path / "page.html").read_text()
    assert found == report.page(report.read(results), "A & B"), "the package alone makes the same page"
    assert "A &amp; B" in found and "exact+<wbr>int4" in found
    kl = {line["policy"]: line["kl"] for line in map(json.loads, lines.read_text().splitlines()) if "policy" in line}
    by_policy = {line[0]: line for line in cells(found) if len(line) == 14}
    assert by_policy["exact+int4"][1] == _text.estimate(*kl["exact+int4"])
    assert program("report", lines).replace(report.TITLE, "A &amp; B") == found


LAYOUT = r"""
<script>
addEventListener('load', () => {
  const found = [], root = document.documentElement;
  if (root.scrollWidth > innerWidth) found.push('wider than the screen: ' + root.scrollWidth);
  for (const svg of document.querySelectorAll('figure>svg')) {
    const frame = svg.getBoundingClientRect();
    const boxes = [...svg.querySelectorAll('text')].map(t => [t, t.getBoundingClientRect()]);
    boxes.forEach(([t, a], i) => {
      if (a.left < frame.left - 1 || a.right > frame.right + 1 || a.top < frame.top - 1 ||
          a.bottom > frame.bottom + 1) found.push('cut off: ' + t.textContent);
      if (a.height < 10) found.push('too small: ' + t.textContent);
      for (const [u, b] of boxes.slice(i + 1)) {
        const x = Math.min(a.right, b.right) - Math.max(a.left, b.left);
        const y = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
        if (x > 2 && y > 5) found.push('overlap: ' + t.textContent + ' and ' + u.textContent);
      }
    });
  }
  const light = ([r, g, b]) => [r, g, b].map(Number).map(v => v / 255)
    .map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
    .reduce((s, v, i) => s + v * [0.2126, 0.7152, 0.0722][i], 0);
  const colour = c => light(c.match(/[\d.]+/g));
  const ground = colour(getComputedStyle(document.body).backgroundColor);
  for (const e of document.querySelectorAll('p,li,th,td,h2,summary,a,svg text')) {
    if (e.matches('.heat')) continue;
    const s = getComputedStyle(e), c = colour(e.closest('svg') ? s.fill : s.color);
    const contrast = (Math.max(c, ground) + 0.05) / (Math.min(c, ground) + 0.05);
    if (contrast < 4.5) found.push('faint: ' + e.textContent.slice(0, 20) + ' ' + contrast);
  }
  parent.postMessage('LAYOUT ' + innerWidth + (ground < 0.2 ? ' dark ' : ' light ') +
    (found.length ? found.slice(0, 9).join('; ') : 'fine'), '*');
});
</script>
"""


def framed(width):
    """The page in a frame: a window of a browser without a screen is at least 500 wide."""
    return ("<!doctype html><meta name='color-scheme' content='light dark'><p id='answer'></p><script>"
            "addEventListener('message', e => {document.getElementById('answer').textContent = e.data;});</script>"
            f"<iframe src='checked.html' style='border:0' height='900' width='{width}'></iframe>")


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280])
def test_the_page_can_be_read_in_a_browser(width, theme, tmp_path):
    browser = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if browser is None:
        pytest.skip("no chromium or chrome here (tools/setup.sh browser): the page was not looked at")
    found = page(crowded())
    (tmp_path / "page.html").write_text(found)
    (tmp_path / "checked.html").write_text(found + LAYOUT)
    (tmp_path / "frame.html").write_text(framed(width))

    def call(*arguments):
        return subprocess.run(
            [browser, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--enable-logging=stderr",
             f"--user-data-dir={tmp_path / 'profile'}", f"--window-size={width},900", "--virtual-time-budget=20000",
             f"--blink-settings=preferredColorScheme={'0' if theme == 'dark' else '1'}", *arguments],
            check=True, capture_output=True, text=True, timeout=300)

    seen = call("--dump-dom", f"file://{tmp_path / 'frame.html'}")
    assert re.search("LAYOUT [^<]*", seen.stdout)[0] == f"LAYOUT {width} {theme} fine"
    assert ":CONSOLE" not in seen.stderr
    keep = os.environ.get("PITH_SCREENSHOTS")
    if keep:
        call(f"--screenshot={pathlib.Path(keep) / f'shot_{width}{theme}.png'}", f"file://{tmp_path / 'page.html'}")
