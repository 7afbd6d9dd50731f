#!/usr/bin/env python3
"""A server whose queue is full for a minute: nobody's answer changes, and then it is as quick as before.

    tools/serve/full.py -m models/demo                     # standard library only

Starts a server with --parallel places and a queue of --queue, times one question alone, then lets so many
clients ask it again and again for --seconds that the queue stays full. Who finds no room must be refused at
once, 503 queue_full with Retry-After; all others must get the first answer. When the clients have gone, the
second question alone may take --slower times the longest of those before (0: no bound), nothing may be
reserved or waiting, and resident memory may be --grown times that of the first half. Exit code 1 for any fault.
"""

import argparse
import collections
import json
import os
import pathlib
import sys
import threading
import time
import urllib.error
import urllib.request

import load
import server

ROOT = pathlib.Path(__file__).resolve().parents[2]
ALONE, MORE = 9, 6  # questions alone; clients beyond places and queue


class Full:
    def __init__(self, options, process, url):
        self.options, self.process, self.url = options, process, url
        self.body = json.dumps({
            "messages": [{"role": "user", "content": "The ship lay in the harbour"}], "temperature": 0,
            "max_tokens": options.tokens, "ignore_eos": True, "cache_prompt": False}).encode()
        self.lock, self.counts, self.faults = threading.Lock(), collections.Counter(), []
        self.refusals, self.expected, self.until = [], None, None

    def ask(self):
        """(status, answer or error's code, Retry-After, seconds)."""
        request = urllib.request.Request(self.url + "/v1/chat/completions", self.body,
                                         {"Content-Type": "application/json"})
        start = time.perf_counter()
        try:
            with urllib.request.urlopen(request, timeout=300) as reply:
                said = json.load(reply)["choices"][0]["message"]["content"]
                return reply.status, said, None, time.perf_counter() - start
        except urllib.error.HTTPError as error:
            with error:
                code = json.load(error)["error"]["code"]
            return error.code, code, error.headers["Retry-After"], time.perf_counter() - start

    def alone(self, count):
        times = []
        for _ in range(count):
            status, said, _, seconds = self.ask()
            self.expected = self.expected or said
            if status != 200 or said != self.expected:
                self.faults.append(f"alone: {status} {said!r}, not {self.expected!r}")
            times.append(seconds)
        return times

    def client(self):
        while time.time() < self.until:
            try:
                status, said, retry, seconds = self.ask()
            except (OSError, ValueError, KeyError) as error:
                self.fault(f"{type(error).__name__}: {error}")
                return
            if status == 503 and said == "queue_full" and int(retry or 0) >= 1:
                with self.lock:
                    self.counts["refused"] += 1
                    self.refusals.append(seconds)
                time.sleep(0.05)  # sooner than told: the queue must stay full
            elif status == 200 and said == self.expected:
                with self.lock:
                    self.counts["answered"] += 1
            else:
                self.fault(f"{status} {said!r} (Retry-After {retry}), not {self.expected!r}")

    def fault(self, text):
        with self.lock:
            self.faults.append(text)

    def metric(self, name):
        return server.metric(server.get(self.url, "/metrics"), name)

    def resident(self):
        with open(f"/proc/{self.process.pid}/status", encoding="utf-8") as status:
            return next(int(line.split()[1]) for line in status if line.startswith("VmRSS:"))

    def fill(self):
        """Samples of (requests that wait, resident KiB) while the clients ask."""
        self.until = time.time() + self.options.seconds
        threads = [threading.Thread(target=self.client)
                   for _ in range(self.options.parallel + self.options.queue + MORE)]
        for thread in threads:
            thread.start()
        samples = []
        while any(thread.is_alive() for thread in threads):
            samples.append((self.metric("vllm:num_requests_waiting"), self.resident()))
            time.sleep(min(0.5, self.options.seconds / 8))
        return samples

    def run(self):
        o = self.options
        before = self.alone(ALONE)
        samples = self.fill()
        after = self.alone(ALONE)
        waiting = [count for count, _ in samples]
        sizes = [size for _, size in samples]
        half = max(1, len(sizes) // 2)
        grown = max(sizes) / max(sizes[:half])
        if not self.counts["refused"] or max(waiting) < o.queue:
            self.faults.append(f"the queue was not full: {max(waiting):.0f} of {o.queue} waited")
        if o.slower and after[1] > o.slower * max(before):
            self.faults.append(f"the second question afterwards took {after[1]:.3f} s")
        if o.grown and grown > o.grown:
            self.faults.append(f"memory grew {grown:.3f} times")
        for name in ("pith_reserved_bytes", "vllm:num_requests_running", "vllm:num_requests_waiting"):
            if value := self.metric(name):
                self.faults.append(f"{name} is {value:.0f} at the end")
        print(f"{self.counts['answered']} answers and {self.counts['refused']} refusals; "
              f"{sum(count >= o.queue for count in waiting)} of {len(waiting)} looks found the queue full")
        print(f"{'ms':>26} {'p50':>9} {'longest':>9} {'first':>9} {'second':>9}")
        for name, times in (("alone, before", before), ("refusals", self.refusals), ("alone, after", after)):
            if len(times) > 1:
                print(f"{name:>26} " + " ".join(f"{1000 * v:>9.1f}" for v in (
                    load.percentile(times, 50), max(times), times[0], times[1])))
        print(f"resident memory: {grown:.3f} of the first half's most")
        for fault in self.faults[:20]:
            print(f"fault: {fault}")
        return 1 if self.faults else 0


def main(arguments=None):
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("-m", "--model", required=True)
    p.add_argument("--seconds", type=float, default=60)
    p.add_argument("--parallel", type=int, default=2)
    p.add_argument("--queue", type=int, default=4)
    p.add_argument("--tokens", type=int, default=32, help="of an answer")
    p.add_argument("--slower", type=float, default=2, help="bound of the second question afterwards")
    p.add_argument("--grown", type=float, default=1.02, help="bound of memory; 0: none")
    p.add_argument("--pith", default=os.environ.get("PITH_PROGRAM", str(ROOT / "build/bin/pith")))
    options = p.parse_args(arguments)
    process, url = server.start([options.pith, "serve", "-m", options.model, "--port", "0", "-q", "--parallel",
                                 str(options.parallel), "--queue", str(options.queue)], "the server")
    try:
        return Full(options, process, url).run()
    finally:
        process.terminate()
        process.wait()


if __name__ == "__main__":
    sys.exit(main())
