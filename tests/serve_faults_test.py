#!/usr/bin/env python3
"""`pith serve` when clients and disks fail: nobody else's answer changes, and memory is back in its books."""

import concurrent.futures
import json
import pathlib
import resource
import socket
import sys
import tempfile
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from serve.harness import Server, chat, words  # noqa: E402


def request(body, *headers):
    text = json.dumps(body).encode()
    lines = ["POST /v1/chat/completions HTTP/1.1", "Host: localhost", "Content-Type: application/json",
             f"Content-Length: {len(text)}", *headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + text


def said(answer):
    return answer["choices"][0]["message"]["content"]


class Faults(unittest.TestCase):
    def settle(self, server):
        """Until nothing runs; then nothing may be left but what a server has that was just started."""
        deadline = time.time() + 60
        while server.metric("vllm:num_requests_running") and time.time() < deadline:
            time.sleep(0.02)
        _, text, _ = server.ask("GET", "/metrics")
        caches = [line for line in text.splitlines() if line.startswith("pith_bytes{") and '"caches"' in line]
        self.assertEqual([float(line.split()[-1]) for line in caches], [0])
        for name in ("pith_reserved_bytes", "pith_snapshot_bytes", "vllm:num_requests_waiting"):
            self.assertEqual(server.metric(name), 0, name)

    def test_who_says_no_more_gets_the_answer(self):
        with Server("--snapshots", "0") as server:
            body = chat(words(400), max_tokens=12)
            expected = said(server.post("/v1/chat/completions", body))
            for stream in (False, True):
                with socket.create_connection(("127.0.0.1", server.port), timeout=120) as client:
                    client.sendall(request({**body, "stream": stream}))
                    client.shutdown(socket.SHUT_WR)
                    raw = b"".join(iter(lambda: client.recv(65536), b"")).decode()
                head, _, text = raw.partition("\r\n\r\n")
                self.assertTrue(head.startswith("HTTP/1.1 200 OK\r\n"), head)
                if stream:
                    events = [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]
                    found = "".join(e["choices"][0]["delta"].get("content", "") for e in events)
                    self.assertIn("data: [DONE]", text)
                else:
                    found = said(json.loads(text))
                self.assertEqual(found, expected)
            self.assertEqual(server.metric("pith_cancelled_total"), 0)
            self.settle(server)

    def test_who_leaves_or_never_reads_takes_nothing_from_others(self):
        with Server("--snapshots", "0", "--parallel", "16") as server:
            bodies = [chat(words(60 + 20 * i, i), max_tokens=16) for i in range(4)]
            alone = [said(server.post("/v1/chat/completions", body)) for body in bodies]
            long = chat(words(900), max_tokens=3000, ignore_eos=True)
            clients = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(6)]
            for i, client in enumerate(clients):
                client.sendall(request({**long, "stream": i % 2 == 0}))
            with concurrent.futures.ThreadPoolExecutor(4) as pool:
                together = list(pool.map(lambda b: said(server.post("/v1/chat/completions", b)), bodies))
            self.assertEqual(together, alone)
            for client in clients:
                client.close()
            self.settle(server)
            self.assertEqual(server.metric("pith_cancelled_total"), 6)

    def test_a_full_queue_refuses_and_keeps_its_word(self):
        with Server("--snapshots", "0", "--parallel", "1", "--queue", "3", "--queue-timeout", "600") as server:
            waits = [chat(words(50 + i, i), max_tokens=8) for i in range(3)]
            alone = [said(server.post("/v1/chat/completions", body)) for body in waits]
            with socket.create_connection(("127.0.0.1", server.port)) as first, \
                    concurrent.futures.ThreadPoolExecutor(3) as pool:
                first.sendall(request(chat("The ship", max_tokens=6000, ignore_eos=True, stream=True)))
                first.recv(100)
                held = [pool.submit(server.post, "/v1/chat/completions", body) for body in waits]
                deadline = time.time() + 60
                while server.metric("vllm:num_requests_waiting") < 3 and time.time() < deadline:
                    time.sleep(0.02)
                for i in range(50):
                    status, answer, headers = server.ask("POST", "/v1/chat/completions", chat(words(9, i)))
                    self.assertEqual((status, answer["error"]["code"]), (503, "queue_full"))
                    self.assertGreaterEqual(int(headers["Retry-After"]), 1)
                first.close()
                self.assertEqual([said(one.result(120)) for one in held], alone)
            self.settle(server)

    def test_a_disk_that_is_full_loses_nothing(self):
        begun = [[5 + (i + 1) * (7 * j + 3) % 4000 for j in range(500)] for i in range(4)]

        def turn(server, talks, i):
            status, answer, _ = server.ask("POST", "/v1/completions", {
                "prompt": talks[i], "temperature": 0, "max_tokens": 9, "ignore_eos": True,
                "return_tokens": True, "pith": {"session": f"talk-{i}"}})
            if status != 200:
                return answer["error"]["code"]
            talks[i] += answer["choices"][0]["tokens"] + [11, 12, 13]
            return answer["choices"][0]["tokens"], answer["usage"]["prompt_tokens_details"]["cached_tokens"]

        def limit(server, most):
            hard = resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE)[1]
            resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, (hard if most is None else most, hard))

        with Server("--memory", "256MiB") as server:
            talks = [list(talk) for talk in begun]
            expected = [[turn(server, talks, i) for i in range(4)] for _ in range(2)]
        with tempfile.TemporaryDirectory() as folder, \
                Server("--memory", "14MiB", "--snapshots", "0", "--slot-save-path", folder, "--autosave") as server:
            talks = [list(talk) for talk in begun]
            limit(server, 4096)
            first = [turn(server, talks, i) for i in range(4)]
            self.assertIn("disk_full", first)
            self.assertEqual(first[0], expected[0][0])
            self.assertGreater(server.metric("pith_disk_failures_total"), 0)
            self.assertEqual(server.metric("pith_conversations_dropped_total"), 0)
            self.assertEqual([p for p in pathlib.Path(folder).rglob("*talk*")], [])  # no half a file
            limit(server, None)
            for i in range(4):
                if first[i] == "disk_full":
                    first[i] = turn(server, talks, i)
            second = [turn(server, talks, i) for i in range(4)]
            self.assertEqual([first, second], expected)  # and what was held was not read again
            self.assertEqual(server.metric("pith_conversations_dropped_total"), 0)
            self.assertEqual(server.metric("pith_reserved_bytes"), 0)

    def test_it_is_not_open_to_others_without_a_key(self):
        with self.assertRaises(SystemExit) as raised:
            Server("--host", "0.0.0.0")
        self.assertIn("--api-key", str(raised.exception))

    def test_the_first_lines_say_how_many_conversations_fit(self):
        """As many as admission takes: each asks for the room of the whole context before it comes."""
        for memory, said_of in (("16MiB", "not one conversation"), ("64MiB", "1 conversation "), ("256MiB", "7 ")):
            with Server("--memory", memory) as server:
                server.log.flush()
                text = pathlib.Path(server.log.name).read_text()
                self.assertIn(f"for caches: {said_of}", text)
                prompt = [7] * 8100
                status, answer, _ = server.ask("POST", "/v1/completions", {"prompt": prompt, "max_tokens": 90})
                if memory == "16MiB":
                    self.assertEqual(status, 400, answer)
                    self.assertIn("16.0 MiB", text)
                else:
                    self.assertEqual(status, 200, answer)


if __name__ == "__main__":
    unittest.main()
