#!/usr/bin/env python3
"""tools/serve/load.py, gate.py, soak.py, full.py, capacity.py: on the demo model, and on servers that do wrong."""

import http.server
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import threading
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from serve.harness import MODEL, PITH, ROOT, Server  # noqa: E402

TOOLS = ROOT / "tools/serve"
sys.path.insert(0, str(TOOLS))
import capacity  # noqa: E402
import gate  # noqa: E402
import load  # noqa: E402
import soak  # noqa: E402


def run(*arguments):
    done = subprocess.run([sys.executable, str(TOOLS / "load.py"), *map(str, arguments), "--json"],
                          capture_output=True, text=True)
    return done.returncode, json.loads(done.stdout) if done.stdout else done.stderr


class Wrong:
    """A server whose streams are these pieces of text, in turn; a context."""

    def __init__(self, *texts, tokens=4, finish="length", done=True):
        texts = iter(texts)

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self):
                self.rfile.read(int(self.headers["Content-Length"]))
                self.send_response(200)
                self.end_headers()
                for delta, reason in (({"content": next(texts)}, None), ({}, finish)):
                    self.event({"choices": [{"delta": delta, "finish_reason": reason}]})
                self.event({"choices": [], "usage": {"completion_tokens": tokens, "prompt_tokens": 9}})
                if done:
                    self.wfile.write(b"data: [DONE]\n\n")

            def event(self, body):
                self.wfile.write(b"data: " + json.dumps(body).encode() + b"\n\n")

            def log_message(self, *_):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        self.thread = threading.Thread(target=self.server.serve_forever)

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()


class Figures(unittest.TestCase):
    def test_percentiles_are_nearest_ranks(self):
        self.assertEqual([load.percentile(range(1, 101), p) for p in (50, 90, 99)], [50, 90, 99])
        self.assertEqual([load.percentile([3, 1, 2], p) for p in (50, 95)], [2, 3])
        self.assertIsNone(load.percentile([], 50))

    def test_times_of_an_answer(self):
        answer = load.Answer(0, 0)
        answer.sent, answer.pieces, answer.end, answer.tokens = 1.0, [3.0, 4.0, 7.0], 9.0, 4
        self.assertEqual((answer.ttft, answer.gaps, answer.tpot), (2.0, [1.0, 3.0], 2.0))
        limits = load.options_of(["url", "--ttft", "2", "--itl", "3"])
        self.assertTrue(answer.within(limits))
        for less in (["--ttft", "1.9", "--itl", "3"], ["--ttft", "2", "--itl", "2.9"]):
            self.assertFalse(answer.within(load.options_of(["url", *less])))
        answer.wrong = "wrong"
        self.assertFalse(answer.within(limits))


    def test_gaps_of_a_while(self):
        times = [1.0, 2.0, 4.0, 7.0, 11.0]
        self.assertEqual(gate.gaps(times), [1.0, 2.0, 3.0, 4.0])
        # Also those that reach into it: a user waits for them.
        self.assertEqual(gate.gaps(times, 3.0, 5.0), [2.0, 3.0])
        self.assertEqual(gate.gaps(times, 4.0, 7.0), [3.0])


    def test_growth_is_of_fifths(self):
        self.assertEqual(soak.growth([1, 5, 9, 100, 100, 100, 100, 110, 110, 110], 0.3), 1.1)
        self.assertEqual(soak.growth([100] * 10, 0.3), 1.0)


class WrongServers(unittest.TestCase):
    def fault(self, *texts, **more):
        with Wrong(*texts, **more) as server:
            code, found = run(server.url, "--clients", 1, "--conversations", 1, "--turns", 1,
                              "--max-tokens", 4, "--check", 1)
        self.assertEqual(code, 0 if not found["wrong"] else 1)
        return " ".join(found["wrong"])

    def test_each_fault_is_found(self):
        self.assertEqual(self.fault("a", "a"), "")
        self.assertIn("something else", self.fault("a", "b"))
        self.assertIn("[DONE]", self.fault("a", "a", done=False))
        self.assertIn("3 tokens", self.fault("a", "a", tokens=3))
        self.assertIn("ended by stop", self.fault("a", "a", finish="stop"))
        self.assertIn("no text", self.fault("", ""))

    def test_nobody_there(self):
        with Wrong() as server:
            url = server.url
        code, found = run(url, "--conversations", 1)
        self.assertEqual(code, 1)
        self.assertIn("ConnectionRefusedError", found["wrong"][0])


class Demo(unittest.TestCase):
    few = ("--turns", 2, "--words", 20, "--system", 80, "--max-tokens", 4)

    def test_closed_and_open_loop(self):
        with Server() as server, tempfile.TemporaryDirectory() as folder:
            out = pathlib.Path(folder, "answers")
            for loop in (("--clients", 2), ("--rate", 50)):
                code, found = run(server.url, *loop, "--conversations", 3, *self.few, "--check", 1,
                                  "--seed", 1 + len(loop[0]), "--out", out)
                self.assertEqual((code, found["answers"], found["wrong"], found["refused"]),
                                 (0, 6, [], {}), found)
                self.assertGreater(found["cached_tokens"], 0)
                self.assertLessEqual(found["ttft"]["p50"], found["ttft"]["p99"])
                self.assertLessEqual(found["goodput"], found["answers_per_second"])
                lines = [json.loads(line) for line in out.read_text().splitlines()]
                self.assertEqual(sorted((x["conversation"], x["turn"]) for x in lines),
                                 [(c, t) for c in range(3) for t in range(2)])
                self.assertTrue(all(x["tokens"] == 4 for x in lines))
            code, found = run(server.url, "--model", "nosuch", "--conversations", 2, *self.few)
            self.assertEqual((code, found["answers"], found["refused"]),
                             (1, 0, {"404 model_not_found": 2}))

    def test_the_gate_measures_and_says_so(self):
        # Whether it is met is a matter of the machine's other load; what it counts is not.
        with Server("--snapshots", "0", threads="1") as server:
            done = subprocess.run([sys.executable, str(TOOLS / "gate.py"), server.url, "--clients", "2",
                                   "--prompt", "1800", "--tokens", "20"], capture_output=True, text=True)
            self.assertEqual(server.metric("pith_reserved_bytes"), 0)
        self.assertIn(done.returncode, (0, 1), done.stderr)
        self.assertIn("of pass + chunk", done.stdout, done.stderr)
        self.assertIn("left in its prompt", done.stdout, done.stderr)

    def test_mixed_traffic_leaves_nothing(self):
        # Whether memory is flat takes minutes to see.
        code = ("import sys, tempfile, soak\n"
                "o = soak.options_of(sys.argv[1:])\n"
                "with tempfile.TemporaryDirectory() as folder:\n"
                "    s = soak.Soak(o, folder); s.run(); left = s.left_behind(); s.end()\n"
                "s.faults += [k for k, size in left.items() if size > 2048]\n"  # of few requests
                "print(s.counts); sys.exit(str(s.faults) if s.faults else 0)")
        done = subprocess.run([sys.executable, "-c", code, "-m", str(MODEL), "--minutes", "0.1", "--short", "60",
                               "--serve=--no-check-weights", "--pith", str(PITH)],
                              capture_output=True, text=True, cwd=TOOLS)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertIn("goes on", done.stdout)

    def test_the_chunk_can_be_measured(self):
        with Server("-ub", "auto") as server:
            server.log.flush()
            said = pathlib.Path(server.log.name).read_text()
            found = re.search(r"prompts are read (\d+) tokens at a time, \d+ ms each \(-ub (\d+)", said)
            self.assertIsNotNone(found, said)
            self.assertIn(int(found.group(1)), [2 ** i for i in range(6, 12)])
            self.assertEqual(found.group(1), found.group(2))
            answer = server.post("/v1/chat/completions", {
                "messages": [{"role": "user", "content": "The ship " * 150}], "max_tokens": 2})
            self.assertEqual(answer["usage"]["completion_tokens"], 2)

    def test_a_full_queue_changes_no_answer(self):
        # How quick the server is afterwards, and its memory, are matters of the machine's other load.
        done = subprocess.run([sys.executable, str(TOOLS / "full.py"), "-m", str(MODEL), "--seconds", "2",
                               "--tokens", "8", "--slower", "0", "--grown", "0", "--pith", str(PITH)],
                              capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        answers, refusals = re.match(r"(\d+) answers and (\d+) refusals", done.stdout).groups()
        self.assertGreater(int(answers), 0)
        self.assertGreater(int(refusals), 0)

    def test_a_code_is_hidden_in_a_text(self):
        text = " ".join(f"w{i}" for i in range(50))
        for number in range(5):
            asked, code = capacity.hidden(text, number)
            told, question = asked.split("\n\n")
            self.assertRegex(code, r"^\d{5}$")
            self.assertEqual(told.replace(f"The code of the harbour is {code}. Remember it. ", ""), text)
            self.assertNotIn(code, question)
        self.assertNotEqual(capacity.hidden(text, 1)[1], capacity.hidden(text, 2)[1])

    def counted(self, *more):
        done = subprocess.run(
            [sys.executable, str(TOOLS / "capacity.py"), "-m", str(MODEL), "--memory", "18MiB",
             "--words", "200", "--most", "16", "--policy", "keydiff(budget=40)+int4,sink=4,window=16",
             "--serve=-t1", "--serve=--no-check-weights", "--json", *more],
            capture_output=True, text=True, env={**os.environ, "PITH_PROGRAM": str(PITH)})
        self.assertEqual(done.returncode, 0, done.stderr)
        return [json.loads(line) for line in done.stdout.splitlines()]

    def test_capacity_is_counted(self):
        exact, int8, small, control = self.counted("--control")
        self.assertEqual((exact["same"], exact["kl"], exact["found"]), (1.0, None, None))
        self.assertGreater(exact["bytes"], 4 * small["bytes"])
        self.assertIn("streaming_llm(window=", control["policy"])
        self.assertLess(abs(control["bytes"] / small["bytes"] - 1), 0.25)
        self.assertTrue(exact["full"])
        self.assertLess(0, exact["conversations"])
        self.assertLess(exact["conversations"], int8["conversations"])
        self.assertEqual((small["conversations"], small["full"]), (16, False))  # there is room for more
        # Copies take as much as those that were read, but for a few words.
        copies = self.counted("--copies", "--compare", "1", "--facts")
        self.assertLessEqual(abs(copies[0]["conversations"] - exact["conversations"]), 1)
        self.assertEqual([row["full"] for row in copies], [True, True, False])
        self.assertTrue(all(0 <= row["found"] <= 1 for row in copies))


if __name__ == "__main__":
    unittest.main()
