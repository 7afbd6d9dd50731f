"""The programs of docs/python.md run as they are written, with the demo model in the real one's place."""

import importlib.util
import re

import pith
from conftest import DEMO, REPO


def test_the_programs_of_the_page(monkeypatch, tmp_path):
    page = (REPO / "docs" / "python.md").read_text(encoding="utf-8")
    programs = re.findall(r"```python\n(.*?)```", page, re.S)
    assert len(programs) == 7
    real = pith.LLM
    monkeypatch.setattr(pith, "pull", lambda name: DEMO)
    monkeypatch.setattr(pith, "LLM", lambda name, **given: real(DEMO, template="chatml", threads=1, **given))
    (tmp_path / "models").symlink_to(REPO / "models")
    (tmp_path / "docs").symlink_to(REPO / "docs")
    monkeypatch.chdir(tmp_path)
    names = {}
    for program in programs:
        if "results.read" in program:
            if importlib.util.find_spec("pandas") is None:
                continue
        exec(compile(program, "docs/python.md", "exec"), names)
    assert (tmp_path / "sky.pith").exists()
