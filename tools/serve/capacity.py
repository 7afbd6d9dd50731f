#!/usr/bin/env python3
"""How many conversations a memory holds under each policy, counted (standard library only).

    tools/serve/capacity.py -m smollm2 --memory 512MiB --policy 'keydiff(budget=25%)+int4'
    tools/serve/capacity.py -m models/demo --memory 32MiB --text book.txt    # KL beside it

For `exact`, `exact+int8` and each --policy one server is started with this memory, and conversations of
--words words are opened one after another until the server gives one up: so many as were open before are
held. The newest is then asked once more, and must go on without reading its text again. With --text, `pith
eval ppl` gives the policy's divergence from the exact cache (KL, in nats a token) beside the count: more
conversations are worth nothing if they say something else.
"""

import argparse
import json
import os
import pathlib
import random
import re
import subprocess
import sys
import urllib.request

import load

ROOT = pathlib.Path(__file__).resolve().parents[2]
ANSWER = 8  # tokens of an answer


class Server:
    def __init__(self, options, policy):
        command = [options.pith, "serve", "-m", options.model, "--port", "0", "--memory", options.memory,
                   "--kv-policy", policy, "--parallel", "1", "-q", *options.serve]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        said = []
        for line in self.process.stderr:
            said.append(line)
            if found := re.search(r"serving at (http://\S+:\d+)", line):
                self.url = found.group(1)
                return
        self.process.wait()
        sys.exit(f"capacity: the server did not start under {policy}: {''.join(said)}")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.terminate()
        self.process.communicate()

    def metric(self, name):
        with urllib.request.urlopen(self.url + "/metrics", timeout=60) as reply:
            lines = reply.read().decode().splitlines()
        return sum(float(line.split()[-1]) for line in lines if line.split("{")[0] == name)


class Held:
    """Conversations of one server."""

    def __init__(self, server, options):
        self.server, self.options = server, options
        self.load = load.Load(load.options_of([server.url, "--max-tokens", str(ANSWER)]))
        self.count = 0
        self.newest = []  # its messages

    def ask(self, number, messages):
        answer = load.Answer(number, 0)
        self.load.ask(answer, messages, f"capacity-{number}")
        if not answer.whole:
            sys.exit(f"capacity: conversation {number}: {answer.refused or answer.wrong}")
        return answer

    def open(self):
        """Until one is given up (True), or there are enough."""
        dropped = 0
        while self.count < self.options.most and not dropped:
            text = load.Load.text(random.Random(self.count), self.options.words)
            messages = [{"role": "user", "content": text}]
            answer = self.ask(self.count, messages)
            self.newest = messages + [{"role": "assistant", "content": answer.text}]
            dropped = self.server.metric("pith_conversations_dropped_total")
            self.count += not dropped
        return bool(dropped)

    def check(self, full):
        answer = self.ask(self.count - (not full), self.newest + [{"role": "user", "content": "And then?"}])
        if 2 * answer.cached_tokens < answer.prompt_tokens:
            sys.exit(f"capacity: the newest conversation was read again: {answer.cached_tokens} of "
                     f"{answer.prompt_tokens} tokens were held")


def divergence(options, policy):
    """KL from the exact cache, in nats a token; None where no text was given."""
    if not options.text:
        return None
    done = subprocess.run([options.pith, "eval", "ppl", "-m", options.model, "-f", options.text, "--json",
                           "--kv-policy", policy, *options.eval], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"capacity: pith eval: {done.stderr}")
    # The first of the policies is the exact cache itself.
    return json.loads(done.stdout)["policies"][-1]["seeds"][0]["summary"]["kl"]["mean"]


def measure(options, policy):
    with Server(options, policy) as server:
        held = Held(server, options)
        full = held.open()
        held.check(full)
    return {"policy": policy, "conversations": held.count, "full": full,
            "kl": divergence(options, policy)}


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("-m", "--model", required=True)
    p.add_argument("--memory", required=True, help="for caches, as 512MiB")
    p.add_argument("--policy", action="append", default=[], help="beside exact and exact+int8; repeatable")
    p.add_argument("--words", type=int, default=800, help="of each conversation's text")
    p.add_argument("--most", type=int, default=1000, help="conversations to stop at")
    p.add_argument("--text", help="a file for pith eval ppl")
    p.add_argument("--eval", action="append", default=[], help="a further option of pith eval ppl; repeatable")
    p.add_argument("--serve", action="append", default=[], help="a further option of pith serve; repeatable")
    p.add_argument("--pith", default=os.environ.get("PITH_PROGRAM", str(ROOT / "build/bin/pith")))
    p.add_argument("--json", action="store_true", help="a line of JSON a policy")
    options = p.parse_args()
    exact = None
    if not options.json:
        print(f"{options.memory} for caches, conversations of {options.words} words\n"
              f"{'held':>6} {'times':>6} {'KL':>8}  policy")
    for policy in ["exact", "exact+int8", *options.policy]:
        row = measure(options, policy)
        exact = exact or row["conversations"]
        if options.json:
            print(json.dumps(row), flush=True)
            continue
        held = str(row["conversations"]) + ("" if row["full"] else "+")
        times = row["conversations"] / exact if exact else 0
        kl = "-" if row["kl"] is None else f"{row['kl']:.4f}"
        print(f"{held:>6} {times:>6.1f} {kl:>8}  {policy}", flush=True)


if __name__ == "__main__":
    main()
