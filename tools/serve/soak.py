#!/usr/bin/env python3
"""A server under mixed traffic for minutes: it stays, answers rightly, and its memory is flat.

    tools/serve/soak.py -m models/demo --minutes 5                     # standard library only
    make asan && tools/serve/soak.py -m models/demo --minutes 120 --pith build/asan/bin/pith

Starts a server with little memory and a folder for idle conversations, and keeps --clients busy: chats that
go on, streams, clients that leave in the prompt or in the answer, that shut their side, that read slowly, and
requests that are wrong in many ways. Kinds and texts are functions of --seed. The same question is asked
again and again and must always be answered alike. Resident memory is taken every second; after --warm of
the time its median in the last fifth may be 2% above that of the fifth after the warm-up. A sanitizer's
allocator goes on taking memory while no more is live: there it is only shown. When the clients have gone,
short requests one by one may leave nothing on the heap (pith_heap_bytes of /metrics). At the end nothing
may be reserved or running. Exit code 1 for any fault.
"""

import argparse
import collections
import contextlib
import json
import os
import pathlib
import random
import re
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time

import load
import server

ROOT = pathlib.Path(__file__).resolve().parents[2]
FLAT = 1.02
LEFT = 256  # bytes a request: a string or two
QUESTION = {"messages": [{"role": "user", "content": "The ship lay in the harbour"}], "temperature": 0,
            "max_tokens": 12, "ignore_eos": True, "cache_prompt": False}
WRONG = ['{', '[]', '{"messages": 5}', '{"messages": []}', '{"messages": [{"role": "user"}], "n": 99}',
         '{"messages": [{"role": "user", "content": "a"}], "temperature": "hot"}',
         '{"messages": [{"role": "user", "content": "a"}], "pith": {"policy": "nosuch"}}',
         '{"messages": [{"role": "user", "content": "a"}], "seed": 99999999999999999999}']


class Soak:
    def __init__(self, options, folder):
        self.options, self.counts, self.faults = options, collections.Counter(), []
        self.lock, self.until, self.talks, self.expected = threading.Lock(), None, {}, None
        environment = {**os.environ, "ASAN_OPTIONS": "quarantine_size_mb=8:" + os.environ.get("ASAN_OPTIONS", "")}
        self.log = open(os.path.join(folder, "log"), "w+", encoding="utf-8")
        self.process = subprocess.Popen(
            [options.pith, "serve", "-m", options.model, "--port", "0", "-q", "--memory", options.memory,
             "--kv-policy", options.policy, "--parallel", "4", "--queue", "16", "-c", "2048", "--slot-save-path",
             folder, "--autosave", "--disk", "64MiB", *options.serve], stderr=self.log, env=environment)
        self.url = self.wait_for_url()
        self.port = int(self.url.rsplit(":", 1)[1])

    def wait_for_url(self):
        while self.process.poll() is None:
            found = re.search(r"serving at (http://\S+:\d+)", self.said())
            if found:
                return found.group(1)
            time.sleep(0.05)
        sys.exit(f"soak: the server did not start: {self.said()}")

    def said(self):
        return pathlib.Path(self.log.name).read_text(encoding="utf-8")

    def request(self, body):
        text = (body if isinstance(body, str) else json.dumps(body)).encode()
        return (b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
                b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(text)) + text

    def connect(self, body):
        connection = socket.create_connection(("127.0.0.1", self.port), timeout=300)
        connection.sendall(self.request(body))
        return connection

    def ask(self, body, half=False):
        """(status, answer); a refusal for want of room is asked again."""
        while True:
            with self.connect(body) as connection:
                if half:
                    connection.shutdown(socket.SHUT_WR)
                raw = b"".join(iter(lambda: connection.recv(65536), b""))
            head, _, text = raw.partition(b"\r\n\r\n")
            status = int(head.split()[1])
            if status not in (409, 503, 507):
                return status, text
            self.counts[f"asked again, {status}"] += 1
            time.sleep(0.05)

    # What clients do, each a kind.
    def same_question(self, numbers):
        status, text = self.ask(QUESTION, half=numbers.random() < 0.5)
        said = json.loads(text)["choices"][0]["message"]["content"] if status == 200 else status
        self.expected = self.expected or said
        if said != self.expected:
            raise ValueError(f"the same question was answered {said!r}, not {self.expected!r}")

    def goes_on(self, numbers):
        name = f"talk-{numbers.randrange(self.options.talks)}"
        messages = self.talks.get(name, [])
        messages = messages + [{"role": "user", "content": load.Load.text(numbers, numbers.randrange(5, 60))}]
        status, text = self.ask({"messages": messages, "max_tokens": 8, "pith": {"session": name}})
        if status != 200 and b"context_length_exceeded" not in text:
            raise ValueError(f"{name}: {status} {text[:200]!r}")
        self.talks[name] = messages + [json.loads(text)["choices"][0]["message"]] if status == 200 else []

    def leaves(self, numbers):
        body = {"messages": [{"role": "user", "content": load.Load.text(numbers, numbers.randrange(5, 900))}],
                "max_tokens": 400, "ignore_eos": True, "stream": numbers.random() < 0.5}
        with self.connect(body) as connection:
            connection.settimeout(numbers.random())
            with contextlib.suppress(socket.timeout):
                connection.recv(500)

    def reads_slowly(self, numbers):
        body = {**QUESTION, "stream": True, "max_tokens": 60}
        with self.connect(body) as connection:
            raw = b""
            while piece := connection.recv(256):
                raw += piece
                time.sleep(0.01 * numbers.random())
        if b"data: [DONE]" not in raw and b" 503 " not in raw[:20]:
            raise ValueError(f"a slow reader's stream has no end: {raw[-200:]!r}")

    def is_wrong(self, numbers):
        status, text = self.ask(numbers.choice(WRONG))
        if status != 400 or not json.loads(text)["error"]["message"]:
            raise ValueError(f"a wrong request: {status} {text[:200]!r}")

    def breaks_off(self, numbers):
        whole = self.request(QUESTION)
        with socket.create_connection(("127.0.0.1", self.port), timeout=300) as connection:
            connection.sendall(whole[:numbers.randrange(1, len(whole) - 1)])

    def client(self, number):
        numbers = random.Random(self.options.seed * 1009 + number)
        kinds = [self.same_question, self.goes_on, self.goes_on, self.goes_on, self.leaves, self.reads_slowly,
                 self.is_wrong, self.breaks_off]
        while time.time() < self.until and not self.faults and self.process.poll() is None:
            kind = numbers.choice(kinds)
            try:
                kind(numbers)
                with self.lock:
                    self.counts[kind.__name__.replace("_", " ")] += 1
            except (OSError, ValueError, KeyError, IndexError) as error:
                with self.lock:
                    self.faults.append(f"{kind.__name__}: {type(error).__name__}: {error}")

    def resident(self):
        for line in pathlib.Path(f"/proc/{self.process.pid}/status").read_text(encoding="utf-8").splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) * 1024
        raise ValueError("the server has ended")

    def live(self):
        """Bytes of the heap that are not freed; 0 where the C library does not say."""
        return server.metric(server.get(self.url, "/metrics"), "pith_heap_bytes")

    def left_behind(self):
        """Live bytes a short request leaves, by its kind, once the first ones have found their room."""
        found = {}
        for kind, body in (("a short question", {**QUESTION, "max_tokens": 1}), ("a wrong request", WRONG[1])):
            for _ in range(self.options.short):
                self.ask(body)
            before = self.live()
            for _ in range(self.options.short):
                self.ask(body)
            found[kind] = (self.live() - before) / self.options.short
        return found

    def sanitized(self):
        """Whether a sanitizer's allocator has the process's memory."""
        mapped = pathlib.Path(f"/proc/{self.process.pid}/maps").read_text(encoding="utf-8")
        return any(name in mapped for name in ("libasan", "libtsan"))

    def run(self):
        start = time.time()
        self.until = start + 60 * self.options.minutes
        threads = [threading.Thread(target=self.client, args=(i,)) for i in range(self.options.clients)]
        for thread in threads:
            thread.start()
        sizes, live = [], []
        while any(thread.is_alive() for thread in threads):
            with contextlib.suppress(OSError, ValueError):
                sizes.append(self.resident())
                live.append(self.live())
            time.sleep(min(1.0, 0.6 * self.options.minutes))
        return sizes, live

    def end(self):
        """Books and the exit, when all clients have gone."""
        if self.process.poll() is None:
            deadline = time.time() + 60
            while time.time() < deadline:
                text = server.get(self.url, "/metrics")
                if not server.metric(text, "vllm:num_requests_running"):
                    break
                time.sleep(0.1)
            for name in ("pith_reserved_bytes", "vllm:num_requests_running", "vllm:num_requests_waiting"):
                if value := server.metric(text, name):
                    self.faults.append(f"{name} is {value:.0f} at the end")
            for name in ("pith_disk_writes_total", "pith_disk_reads_total", "pith_cancelled_total"):
                self.counts[name] = int(server.metric(text, name))
            self.process.send_signal(signal.SIGTERM)
        if code := self.process.wait(300):
            self.faults.append(f"the server ended with {code}: {self.said()[-3000:]}")


def growth(sizes, warm):
    """The last fifth's median by that of the fifth behind the warm-up; of too few, 1."""
    fifth = len(sizes) // 5
    if fifth < 1:
        return 1.0
    first = int(len(sizes) * warm)
    return statistics.median(sizes[-fifth:]) / statistics.median(sizes[first:first + fifth])


def options_of(arguments):
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("-m", "--model", required=True)
    p.add_argument("--minutes", type=float, default=5)
    p.add_argument("--clients", type=int, default=6)
    p.add_argument("--talks", type=int, default=24, help="conversations that go on")
    p.add_argument("--memory", default="24MiB", help="of caches: little, so that idle ones leave it")
    p.add_argument("--policy", default="keydiff(budget=256,interval=32)+int8,sink=4,window=32")
    p.add_argument("--short", type=int, default=200, help="requests of a kind of which it is asked what they leave")
    p.add_argument("--warm", type=float, default=0.4, help="share of the time before memory is compared")
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--serve", action="append", default=[], help="a further option of pith serve; repeatable")
    p.add_argument("--pith", default=os.environ.get("PITH_PROGRAM", str(ROOT / "build/bin/pith")))
    return p.parse_args(arguments)


def main(arguments=None):
    options = options_of(arguments)
    with tempfile.TemporaryDirectory() as folder:
        soak = Soak(options, folder)
        try:
            sanitized = soak.sanitized()
            sizes, live = soak.run()
            left = soak.left_behind() if soak.process.poll() is None and not soak.faults else {}
            soak.end()
        finally:
            soak.process.kill()
            soak.log.close()
    print(", ".join(f"{name}: {count}" for name, count in sorted(soak.counts.items())))
    for name, values in (("resident", sizes), ("live on the heap", live)):
        tenths = [statistics.median(values[i * len(values) // 10:(i + 1) * len(values) // 10] or values[-1:]) / 2 ** 20
                  for i in range(10)]
        print(f"{name}, MiB in tenths of the time: {', '.join(f'{size:.1f}' for size in tenths)}")
    grown = growth(sizes, options.warm)
    print(f"after the warm-up resident memory grew by {100 * (grown - 1):.2f}%" +
          (", of which a sanitizer's allocator tells nothing" if sanitized else ""))
    if grown > FLAT and not sanitized:
        soak.faults.append(f"memory is not flat within {100 * (FLAT - 1):.0f}%")
    for kind, size in left.items():
        print(f"{kind} leaves {size:.0f} bytes on the heap")
        if size > LEFT:
            soak.faults.append(f"{kind} leaves {size:.0f} bytes, {LEFT} at most")
    for fault in soak.faults:
        print(f"fault: {fault}")
    return 1 if soak.faults else 0


if __name__ == "__main__":
    sys.exit(main())
