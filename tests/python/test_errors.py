"""Failures are exceptions that say what to do; a mistake never changes a session."""

import signal
import subprocess
import sys
import threading

import numpy as np
import pytest

import pith
from conftest import DEMO


@pytest.mark.parametrize("kind, also", [
    (pith.InvalidArgument, ValueError), (pith.NotFound, FileNotFoundError), (pith.Corrupt, ValueError),
    (pith.Unsupported, NotImplementedError), (pith.OutOfMemory, MemoryError), (pith.ContextFull, ValueError),
    (pith.NonFinite, ArithmeticError), (pith.IoError, OSError), (pith.Internal, RuntimeError),
    (pith.SessionBusy, RuntimeError)])
def test_each_kind_is_a_built_in_one(kind, also):
    assert issubclass(kind, pith.PithError) and issubclass(kind, also) and kind.__module__ == "pith"


def test_models_that_are_not_there(tmp_path):
    with pytest.raises(pith.NotFound, match="nothing"):
        pith.LLM(str(tmp_path / "nothing"))
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(pith.Corrupt):
        pith.LLM(str(tmp_path))


def test_policies_and_arguments(model, engine):
    with pytest.raises(pith.InvalidArgument, match="snapkv"):
        pith.LLM(model, kv="snapki")
    with pytest.raises(pith.InvalidArgument):
        pith.LLM(model, kv="9000%")
    with pytest.raises(TypeError, match="context"):
        pith.LLM(model, n_ctx=100)
    with pytest.raises(TypeError, match="max_tokens"):
        pith.LLM(model).generate("x", max_new_tokens=3)
    with pytest.raises(TypeError, match="temperature"):
        pith.LLM(model).generate("x", temprature=3)
    with pytest.raises(TypeError, match="one of them"):
        pith.LLM(model, kv="half", policy="exact")
    with pytest.raises(pith.InvalidArgument, match="engine's"):
        pith.Session(engine, threads=2)
    with pytest.raises(pith.InvalidArgument, match="cuda"):
        pith.Engine(model, device="gpu")
    with pytest.raises(TypeError):
        pith.Session("models/demo")


def test_a_mistake_changes_nothing(engine, ids):
    with pith.Session(engine, context=100) as s:
        s.append(ids[:50])
        with pytest.raises(pith.ContextFull):
            s.append(ids[:51])
        with pytest.raises(pith.InvalidArgument):
            s.append([-1])
        with pytest.raises(pith.InvalidArgument):
            s.append([])
        assert s.tokens == 50
    with pytest.raises(pith.InvalidArgument, match="closed"):
        s.tokens
    s.close()


def test_a_memory_limit(model):
    with pytest.raises(pith.OutOfMemory):
        pith.LLM(model, memory_limit=1 << 16).generate("Once", max_tokens=1).text


def test_two_threads_in_one_session_are_refused(engine, ids):
    session, inside, out = pith.Session(engine), threading.Event(), threading.Event()
    def wait(done, total):
        inside.set()
        out.wait(10)
    reader = threading.Thread(target=lambda: session.append(ids, progress=wait))
    reader.start()
    assert inside.wait(10)
    try:
        with pytest.raises(pith.SessionBusy, match="fork"):
            session.append(ids)
        with pytest.raises(pith.SessionBusy):
            session.ledger()
        with pytest.raises(pith.SessionBusy):
            session.close()
    finally:
        out.set()
        reader.join()
    assert session.tokens == len(ids)


def test_threads_each_with_a_session_say_the_same(engine, ids):
    results = [None] * 8
    def work(i):
        with pith.Session(engine, "snapkv(budget=32)") as s:
            results[i] = s.prefill(ids[:64 + i % 2])
    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for i in range(2, 8):
        np.testing.assert_array_equal(results[i], results[i - 2])


def test_the_interpreter_runs_on_while_a_prompt_is_read(engine, ids):
    session, ticks = pith.Session(engine), 0
    reader = threading.Thread(target=lambda: session.append((ids * 20)[:3000]))
    reader.start()
    while reader.is_alive():
        ticks += 1
        reader.join(0.001)
    assert ticks > 20


def test_ctrl_c_ends_a_prompt(tmp_path):
    script = f"""
import os, pith, signal, threading
signal.signal(signal.SIGINT, signal.default_int_handler)
s = pith.Session(pith.Model.load({str(DEMO)!r}), chunk=64, threads=1)
threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
try:
    s.append([7] * 8000)
except KeyboardInterrupt:
    assert 0 < s.tokens < 8000, s.tokens
    s.append([8])
    print("stopped")
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert done.stdout == "stopped\n", done.stderr


def test_messages_that_would_change_are_refused(engine):
    chat = pith.Chat(engine, template="chatml")
    good = [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Hi.", "number": 2**63}]
    chat.load(good)
    assert chat.messages == good
    for bad in (2**64, -2**63 - 1):
        with pytest.raises(pith.InvalidArgument, match="64 bits"):
            chat.load([{"role": "user", "content": "Hello", "number": bad}])
    for bad in ([{"content": "no role"}], "text", [{"role": "user", "content": float("nan")}]):
        with pytest.raises(pith.Corrupt, match="messages"):
            chat.load(bad)
    assert chat.messages == good
