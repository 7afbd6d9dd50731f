#!/usr/bin/env python3
"""Conversations outlive their server: handed to another one, and behind HAProxy (tools/serve/cluster.py)."""

import http.client
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import threading
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from serve.harness import MODEL, ROOT, Server  # noqa: E402

sys.path.insert(0, str(ROOT / "tools/serve"))
import cluster  # noqa: E402

POLICY = "keydiff(budget=64,interval=32)+int4,sink=4,window=16"
# What is read again may be compressed otherwise than what was written token by token: where a server is lost
# with what it had, only exact rows give the same answers.
EXACT = "exact"
TALKS = int(os.environ.get("PITH_TALKS", "9"))  # conversations


class Talk:
    """A conversation in tokens: each answer goes back with the next question."""

    def __init__(self, name, seed):
        self.name, self.seed, self.tokens, self.answers, self.kinds, self.again = name, seed, [], [], [], []

    def ask(self, post, turn, **more):
        random = (self.seed * 31 + turn) * 2654435761
        self.tokens += [300 + (random + i * i * 97) % 7000 for i in range(40 + 9 * turn)]
        answer = post("/v1/completions", {
            "prompt": self.tokens, "temperature": 0, "max_tokens": 6, "ignore_eos": True,
            "return_tokens": True, "pith": {"session": self.name}, **more}, self.name)
        said = answer["choices"][0]["tokens"]
        # All but the last token that was drawn and what is new need not be read.
        new = 40 + 9 * turn + (1 if turn else 0)
        self.again.append(answer["usage"]["prompt_tokens"] - answer["usage"]["prompt_tokens_details"]["cached_tokens"]
                          - new)
        self.kinds.append(answer["pith"]["reuse"]["kind"])
        self.answers.append(said)
        self.tokens += said


def talks_of(count):
    return [Talk(f"talk-{i}", i + 1) for i in range(count)]


def undisturbed(talks, policy=POLICY):
    """What one server says to the same questions that has all conversations and stays.

    Tokens that were read again have other bits than those that were written one by one, so it reads again too.
    """
    again = [Talk(talk.name, talk.seed) for talk in talks]
    with Server("-c", "1024", policy=policy, threads="1") as server:
        for turn in range(len(talks[0].answers)):
            for talk, seen in zip(again, talks):
                if seen.again[turn] > 0:
                    server.ask("DELETE", "/v1/pith/sessions/" + talk.name)
                talk.ask(post_to(server), turn)
    return [talk.answers for talk in again]


def post_to(server):
    return lambda path, body, _: server.post(path, body)


class TakeOver(unittest.TestCase):
    def servers(self, folder, policy=POLICY):
        here, there = pathlib.Path(folder, "here"), pathlib.Path(folder, "there")
        for place in (here, there):
            place.mkdir()
        one = Server("--autosave", "--slot-save-path", str(here), "-c", "1024", policy=policy, threads="1")
        two = Server("--autosave", "--slot-save-path", str(there), "--take-over", str(here), "-c", "1024",
                     policy=policy, threads="1")
        return one, two

    def test_conversations_go_on_elsewhere_and_nothing_is_read_again(self):
        talks = talks_of(4)
        with tempfile.TemporaryDirectory() as folder:
            one, two = self.servers(folder)
            with two:
                with one:
                    for talk in talks:
                        talk.ask(post_to(one), 0)
                    # Nobody takes what belongs to a server that stays.
                    Talk("talk-0", 9).ask(post_to(two), 0)
                    self.assertEqual(two.metric("pith_disk_taken_over_total"), 0)
                    two.ask("DELETE", "/v1/pith/sessions/talk-0")
                for turn in (1, 2):
                    for talk in talks:
                        talk.ask(post_to(two), turn)
                self.assertEqual(two.metric("pith_disk_taken_over_total"), len(talks))
        for talk in talks:
            self.assertEqual((talk.kinds[1:], talk.again[1:]), (["answer"] * 2, [0] * 2), talk.name)
        self.assertEqual([t.answers for t in talks], undisturbed(talks))

    def test_a_server_that_was_killed(self):
        talks = talks_of(3)
        with tempfile.TemporaryDirectory() as folder:
            one, two = self.servers(folder, EXACT)
            with two:
                with one:
                    for talk in talks:
                        talk.ask(post_to(one), 0)
                    one.process.send_signal(signal.SIGKILL)
                    one.process.wait(60)
                for talk in talks:  # none was saved: they are read again
                    talk.ask(post_to(two), 1)
                self.assertEqual(two.metric("pith_disk_taken_over_total"), 0)
        self.assertEqual([t.answers for t in talks], undisturbed(talks, EXACT))

    def test_it_needs_files(self):
        done = subprocess.run([str(cluster.pith()), "serve", "-m", str(MODEL), "--take-over", "x"],
                              capture_output=True, text=True)
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("--take-over needs --autosave", done.stderr)


class Proxied:
    """What is asked at `self.port`, behind which there are several servers."""

    def request(self, method, path, body=None, session=None):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=300)
        headers = {"Content-Type": "application/json"}
        if session:
            headers["X-Session-ID"] = session
        connection.request(method, path, body and json.dumps(body), headers)
        answer = connection.getresponse()
        text = answer.read()
        connection.close()
        return answer.status, text

    def post(self, path, body, session):
        """As clients do: what broke off is asked again."""
        last = None
        for _ in range(100):
            try:
                last = status, text = self.request("POST", path, body, session)
                if status == 200:
                    return json.loads(text)
            except (OSError, http.client.HTTPException) as error:
                last = error
            time.sleep(0.1)
        self.fail(f"no answer for {session}: {last}")

    def all_ask(self, talks, turn):
        threads = [threading.Thread(target=t.ask, args=(self.post, turn)) for t in talks]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        for t in talks:
            self.assertEqual(len(t.answers), turn + 1, t.name)


class OfThree(Proxied):
    router = None  # HAProxy

    def begin(self, policy):
        options = ["-m", str(MODEL), "-t", "1", "--kv-policy", policy, "--no-check-weights", "-c", "1024"]
        self.port = cluster.free_port()
        self.cluster = cluster.Cluster(options, port=self.port, router=self.router)
        self.cluster.__enter__()
        self.addCleanup(self.cluster.__exit__)
        self.wait_for(200)

    def wait_for(self, status):
        """Until the proxy has found its servers."""
        for _ in range(600):
            try:
                if self.request("GET", "/health")[0] == status:
                    return
            except OSError:
                pass
            time.sleep(0.05)
        self.fail("the proxy does not answer")

    def metric(self, number, name):
        port = self.cluster.replicas[number].port
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        connection.request("GET", "/metrics")
        text = connection.getresponse().read().decode()
        connection.close()
        return sum(float(line.split()[-1]) for line in text.splitlines() if line.split("{")[0] == name)

    def test_drain_moves_conversations_and_nothing_is_read_again(self):
        self.begin(POLICY)
        talks = talks_of(TALKS)
        self.all_ask(talks, 0)
        self.all_ask(talks, 1)
        for talk in talks:
            self.assertEqual(talk.kinds[1], "answer", "it did not stay with its server")
        busiest = max(range(3), key=lambda i: self.metric(i, "pith_sessions"))
        self.cluster.command(["drain", busiest])
        self.all_ask(talks, 2)
        for talk in talks:
            self.assertEqual((talk.kinds[2], talk.again[2]), ("answer", 0), talk.name)
        left = [i for i in range(3) if i != busiest]
        self.assertGreater(sum(self.metric(i, "pith_disk_taken_over_total") for i in left), 0)
        self.assertEqual([t.answers for t in talks], undisturbed(talks))

    def test_one_of_three_is_killed_in_the_middle(self):
        self.begin(EXACT)
        talks = talks_of(TALKS)
        self.all_ask(talks, 0)
        killer = threading.Timer(0.2, self.cluster.command, [["kill", 1]])
        killer.start()
        self.all_ask(talks, 1)
        killer.join()
        self.all_ask(talks, 2)
        self.assertEqual([t.answers for t in talks], undisturbed(talks, EXACT))
        self.cluster.command(["start", 1])
        self.assertTrue(self.cluster.replicas[1].alive())


@unittest.skipIf(cluster.haproxy() is None, "SKIPPED: no haproxy; apt-get install haproxy")
class Cluster(OfThree, unittest.TestCase):
    pass


@unittest.skipUnless(os.environ.get("PITH_VLLM_ROUTER"), "SKIPPED: PITH_VLLM_ROUTER names no vllm-router")
class BehindRouter(OfThree, unittest.TestCase):
    router = os.environ.get("PITH_VLLM_ROUTER")


if __name__ == "__main__":
    unittest.main()
