#!/usr/bin/env python3
"""Do others' answers go on while a long prompt arrives, and does who leaves cost no more than a chunk?

    tools/serve/gate.py http://127.0.0.1:8080             # standard library only; the server idle else

Measured in one run, as clients see it: gaps between the tokens of --clients answers alone (a pass), times
between the reports of one prompt of --prompt tokens alone (a chunk), then both together --rounds times. The
gate: the 95th percentile of gaps while the prompt is read is at most pass + chunk + 20%, each at its own
95th percentile, which varies with the machine's other load as the sum does. Then the prompt is sent again
and left after a few chunks: the server's own count (/metrics) may be one chunk more than those that were
reported when its client left, and one that had begun. Exit code 1 where either is missed.
"""

import argparse
import contextlib
import http.client
import json
import random
import socket
import sys
import threading
import time
import urllib.parse
import urllib.request

import load
import server

LIMIT = 1.2
LEAVE_AFTER = 3  # reports


class Stream:
    """One answer's events and their times; a thread reads it."""

    def __init__(self, url, prompt, tokens, **more):
        at = urllib.parse.urlsplit(url)
        self.connection = http.client.HTTPConnection(at.hostname, at.port or 80, timeout=600)
        self.tokens, self.reports, self.fault = [], [], None
        self.sent = time.perf_counter()
        self.connection.request("POST", "/v1/completions", json.dumps({
            "prompt": prompt, "max_tokens": tokens, "temperature": 0, "ignore_eos": True, "stream": True,
            "cache_prompt": False, "return_progress": True, "return_tokens": True, **more}),
            {"Content-Type": "application/json"})
        self.socket = self.connection.sock
        self.thread = threading.Thread(target=self.read, daemon=True)
        self.thread.start()

    def read(self):
        try:
            reply = self.connection.getresponse()
            if reply.status != 200:
                raise ValueError(f"{reply.status} {reply.read()[:300]!r}")
            for line in reply:
                now = time.perf_counter()
                if line.startswith(b"data: {"):
                    event = json.loads(line[6:])
                    if "error" in event:
                        raise ValueError(event["error"])
                    if event.get("prompt_progress"):
                        self.reports.append(now)
                    elif any(choice.get("text") for choice in event.get("choices", ())):
                        self.tokens.append(now)
        except (OSError, ValueError, AttributeError, http.client.HTTPException) as error:
            self.fault = f"{type(error).__name__}: {error}"

    def wait(self, there):
        while not there() and self.thread.is_alive():
            time.sleep(0.001)
        if not there():
            sys.exit(f"gate: an answer ended before its time: {self.fault or 'it was short'}")

    def leave(self):
        with contextlib.suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)

    def join(self):
        self.thread.join()
        if self.fault:
            sys.exit(f"gate: {self.fault}")


def gaps(times, start=0.0, end=float("inf")):
    """Of those that a user waits for between start and end."""
    return [b - a for a, b in zip(times, times[1:]) if b > start and a < end]


class Gate:
    def __init__(self, options):
        self.options, self.numbers = options, random.Random(options.seed)
        words = load.Load.text(self.numbers, options.prompt)
        request = urllib.request.Request(options.url.rstrip("/") + "/tokenize",
                                         json.dumps({"content": words}).encode(),
                                         {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=60) as reply:
            self.ids = json.load(reply)["tokens"]

    def prompt(self, tokens):
        return [self.numbers.choice(self.ids) for _ in range(tokens)]

    def stream(self, prompt, tokens):
        return Stream(self.options.url, self.prompt(prompt), tokens)

    def metric(self, name, **labels):
        return server.metric(server.get(self.options.url, "/metrics"), name, **labels)

    def passes(self):
        answers = [self.stream(16, self.options.tokens) for _ in range(self.options.clients)]
        for answer in answers:
            answer.join()
        begun, ended = max(a.tokens[0] for a in answers), min(a.tokens[-1] for a in answers)
        return [gap for a in answers for gap in gaps(a.tokens, begun, ended)]

    def chunks(self):
        prompt = self.stream(self.options.prompt, 1)
        prompt.join()
        return gaps(prompt.reports)

    def together(self):
        """Gaps of those who write while the prompt is read."""
        answers = [self.stream(16, self.options.most) for _ in range(self.options.clients)]
        for answer in answers:
            answer.wait(lambda a=answer: len(a.tokens) > 2)
        prompt = self.stream(self.options.prompt, 1)
        prompt.wait(lambda: bool(prompt.tokens))
        prompt.join()
        for answer in answers:
            if not answer.thread.is_alive():
                sys.exit("gate: an answer ended before the prompt was read; give more --most")
            answer.leave()
        self.settle()
        return [gap for a in answers for gap in gaps(a.tokens, prompt.reports[0], prompt.reports[-1])]

    def settle(self):
        while self.metric("vllm:num_requests_running"):
            time.sleep(0.02)

    def cancelled(self):
        """Chunks that were read after those of which the client had heard when it left."""
        before = self.metric("pith_steps_total", part="chunk")
        prompt = self.stream(self.options.prompt, 1)
        prompt.wait(lambda: len(prompt.reports) >= LEAVE_AFTER)
        heard = len(prompt.reports)
        prompt.leave()
        left = time.perf_counter()
        self.settle()
        return self.metric("pith_steps_total", part="chunk") - before - heard, time.perf_counter() - left


def show(name, values):
    print(f"{name:>26} " + " ".join(f"{1000 * v:>9.1f}" for v in (
        load.percentile(values, 50), load.percentile(values, 95), max(values))) + f" {len(values):>6}", flush=True)
    return load.percentile(values, 95)


def main(arguments=None):
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("url")
    p.add_argument("--clients", type=int, default=4, help="who write")
    p.add_argument("--prompt", type=int, default=6000, help="tokens of the prompt that arrives")
    p.add_argument("--tokens", type=int, default=60, help="of answers alone")
    p.add_argument("--most", type=int, default=2000, help="of answers beside it, which are left")
    p.add_argument("--rounds", type=int, default=1)
    p.add_argument("--seed", type=int, default=1)
    options = p.parse_args(arguments)
    gate = Gate(options)
    found = {"a pass": [], "a chunk": [], "gaps in the prompt's time": []}
    for _ in range(options.rounds):
        for values, measure in zip(found.values(), (gate.passes, gate.chunks, gate.together)):
            values += measure()
    print(f"{'ms':>26} {'p50':>9} {'p95':>9} {'longest':>9} {'count':>6}")
    a_pass, a_chunk, gap = (show(name, values) for name, values in found.items())
    ratio = gap / (a_pass + a_chunk)
    longest = max(found["gaps in the prompt's time"]) / (a_pass + a_chunk)
    print(f"gaps (p95) are {ratio:.2f} of pass + chunk, at most {LIMIT}; the longest is {longest:.2f}")
    more, seconds = gate.cancelled()
    print(f"left in its prompt: {more:.0f} chunks more, all was free after {1000 * seconds:.0f} ms")
    if ratio > LIMIT or more > 2:
        print("the gate is missed")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
