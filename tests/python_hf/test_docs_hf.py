"""The programs of docs/transformers.md run as they are written, over a small random model."""

import pathlib
import re

import torch

from small_models import VERSION, make_model, words


def test_the_programs_of_the_page(tmp_path):
    page = (pathlib.Path(__file__).parent.parent.parent / "docs" / "transformers.md").read_text(encoding="utf-8")
    programs = re.findall(r"```python\n(.*?)```", page, re.S)
    assert len(programs) == 2
    make_model("Llama").save_pretrained(tmp_path)
    words().save_pretrained(tmp_path)
    names = {"path": str(tmp_path), "text": "a b c " * 40}
    with torch.inference_mode():
        for program in programs:
            if VERSION < (5, 24):
                program = program.replace(" cache=cache,", " past_key_values=cache,")
            exec(compile(program, "docs/transformers.md", "exec"), names)
    assert names["cache"].tokens == 139 and len(names["cache"].rows(0, 0)) < 110
    assert names["run"].cache.tokens == 139
