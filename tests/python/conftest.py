"""Shared by the tests: the demo model, loaded once."""

import os
import pathlib
import subprocess

import pytest

import pith

REPO = pathlib.Path(__file__).resolve().parent.parent.parent
DEMO = REPO / "models" / "demo"
TEXT = ("Once upon a time there was a king who lived in a house by the sea. He had three sons, and the "
        "youngest of them could talk to the birds. ") * 8


@pytest.fixture(scope="session")
def model():
    return pith.Model.load(str(DEMO))


@pytest.fixture(scope="session")
def engine(model):
    # Ways of reading are compared more closely than a CPU with bf16 products rounds prompts.
    return pith.Engine(model, threads=1, f32_arithmetic=True)


@pytest.fixture(scope="session")
def ids(model):
    return model.tokenizer.encode(TEXT, add_bos=True)


@pytest.fixture
def program():
    """Runs the program; its standard output."""
    path = os.environ.get("PITH_PROGRAM", str(REPO / "build" / "bin" / "pith"))
    if not os.path.exists(path):
        pytest.skip("the program is not built")
    return lambda *args: subprocess.run([path, *map(str, args)], check=True, capture_output=True,
                                        text=True, stdin=subprocess.DEVNULL).stdout
