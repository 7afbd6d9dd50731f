#!/usr/bin/env python3
"""tools/serve/ray_app.py: replicas come and go with reserved memory, and conversations outlive them.

Needs Ray Serve (PyPI: ray[serve]) in the Python that PITH_RAY_PYTHON names; skipped without.
"""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import threading
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from serve.harness import MODEL, ROOT, SKIPPED  # noqa: E402
from serve_cluster_test import POLICY, TALKS, Proxied, talks_of, undisturbed  # noqa: E402

sys.path.insert(0, str(ROOT / "tools/serve"))
import cluster  # noqa: E402
import ray_app  # noqa: E402

PYTHON = os.environ.get("PITH_RAY_PYTHON", sys.executable)
PATIENCE = 240  # seconds until Ray has as many replicas as it should


class Replicas(unittest.TestCase):
    def test_how_many(self):
        # Shares of 30%, 60% and 0% of what each has are 90% of one: two replicas hold 45% each.
        self.assertEqual(ray_app.replicas_for([(30, 100), (120, 200), (0, 50)], 0.5), 2)
        self.assertEqual(ray_app.replicas_for([(0, 100)], 0.5), 0)  # Ray keeps --min
        self.assertEqual(ray_app.replicas_for([(100, 100)], 1.0), 1)


    def test_a_place_without_conversations_is_taken_first(self):
        with tempfile.TemporaryDirectory() as folder:
            for place, count in ((0, 2), (1, 1)):
                idle = pathlib.Path(folder, f"server-{place}", "idle")
                idle.mkdir(parents=True)
                for i in range(count):
                    (idle / f"{i}.conversation").touch()
            slots = [ray_app.Slot(folder, 4) for _ in range(4)]
            self.assertEqual([slot.own.name for slot in slots], ["server-2", "server-3", "server-1", "server-0"])
            for slot in slots:
                slot.lock.close()


class Application(Proxied, unittest.TestCase):
    def begin(self):
        self.port = cluster.free_port()
        self.app = subprocess.Popen(
            [PYTHON, str(ROOT / "tools/serve/ray_app.py"), "-m", str(MODEL), "--port", str(self.port),
             "--share", "0.1", "--up", "1", "--down", "2", "-t", "1", "--kv-policy", POLICY, "-c", "1024",
             "--memory", "16MiB", "--no-check-weights"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        self.addCleanup(self.finish)
        while "serving at" not in (line := self.app.stdout.readline()):
            self.assertTrue(line, "the application did not start")

    def finish(self):
        self.app.stdin.close()
        self.app.stdout.read()
        self.app.stdout.close()
        self.assertEqual(self.app.wait(), 0)

    def state(self):
        self.app.stdin.write("state\n")
        self.app.stdin.flush()
        while not (line := self.app.stdout.readline()).startswith("{"):
            self.assertTrue(line, "the application has ended")
        return json.loads(line)

    def wait_for_replicas(self, count):
        end = time.monotonic() + PATIENCE
        while (found := self.state())["replicas"] != {"RUNNING": count}:
            self.assertLess(time.monotonic(), end, found)
            time.sleep(0.2)
        return found["servers"]

    def write_on(self, stop):
        """A client that has memory reserved."""
        while not stop.is_set():
            self.request("POST", "/v1/completions", {"prompt": [300, 301], "max_tokens": 900, "ignore_eos": True})

    def test_conversations_outlive_replicas_that_reserved_memory_called(self):
        self.begin()
        self.assertEqual(len(self.wait_for_replicas(1)), 1)
        talks = talks_of(TALKS)
        self.all_ask(talks, 0)
        stop = threading.Event()
        load = [threading.Thread(target=self.write_on, args=[stop]) for _ in range(8)]
        for thread in load:
            thread.start()
        try:
            self.wait_for_replicas(3)
            self.all_ask(talks, 1)  # many of them by servers that have begun since
            held = [server["sessions"] for server in self.wait_for_replicas(3)]
        finally:
            stop.set()
            for thread in load:
                thread.join()
        self.assertEqual(len([count for count in held if count]), 3, held)
        self.wait_for_replicas(1)
        self.all_ask(talks, 2)
        for talk in talks:
            self.assertEqual((talk.kinds[1:], talk.again[1:]), (["answer"] * 2, [0] * 2), talk.name)
        self.assertEqual([t.answers for t in talks], undisturbed(talks))


if __name__ == "__main__":
    if subprocess.run([PYTHON, "-c", "import ray.serve"], capture_output=True).returncode:
        print("SKIPPED: no Ray Serve; pip install 'ray[serve]', and name that Python with PITH_RAY_PYTHON")
        sys.exit(SKIPPED)
    unittest.main()
