#!/usr/bin/env python3
"""How many conversations a memory holds under each policy, counted (standard library only).

    tools/serve/capacity.py -m smollm2 --memory 512MiB --policy 'keydiff(budget=25%)+int4'
    tools/serve/capacity.py -m smollm2 --memory 96MiB -c 1536 --auto 8% --control --text book.txt

For `exact`, `exact+int8`, each --policy and what `auto` chooses for each --auto one server is started with
this memory, and conversations of --words words are opened one after another until the server gives one up: so
many as were open before are held. The newest is then asked once more, and must go on without reading its text
again. With --copies the first --compare are read, and the rest are the last of them, saved to a file and restored
under other names: as many bytes each, in far less time. --control adds streaming_llm at the bytes that a
conversation of the last policy took.

More conversations are worth nothing if they say something else: beside the count is the share of
conversations that begin their answer as under `exact` (of the first --compare), and with --text, whose words
they then consist of, `pith eval ppl` gives the divergence from the exact cache (KL, in nats a token) and how
often both have the same likeliest token. With --facts each text hides a code, the question asks for it, and the
share of answers that have it is shown.
"""

import argparse
import json
import os
import pathlib
import random
import subprocess
import sys
import tempfile
import urllib.request

import load
import server

ROOT = pathlib.Path(__file__).resolve().parents[2]
ANSWER = 8  # tokens of an answer
ANSWER_WITH_CODE = 16
SINK = 4


def context(options):
    return ["-c", str(options.context)] if options.context else []


def chosen(options, budget):
    """The policy that auto takes for this budget."""
    done = subprocess.run([options.pith, "inspect", "-m", options.model, "--kv-policy", "auto", "--kv-budget",
                           budget, "--json", *context(options)], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"capacity: auto {budget}: {done.stderr}")
    return json.loads(done.stdout)["policy"]["text"]


def streaming(options, policy_bytes):
    """streaming_llm whose cache takes so many bytes."""
    done = subprocess.run([options.pith, "inspect", "-m", options.model, "--json"], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"capacity: {options.model}: {done.stderr}")
    rows = policy_bytes // json.loads(done.stdout)["bytes_per_token"]["f16"]
    return f"streaming_llm(window={max(16, rows - SINK)}),sink={SINK}"


class Server:
    def __init__(self, options, policy):
        self.folder = tempfile.TemporaryDirectory()
        command = [options.pith, "serve", "-m", options.model, "--port", "0", "--memory", options.memory,
                   "--kv-policy", policy, "--parallel", "1", "-q", "--slot-save-path", self.folder.name,
                   *context(options), *options.serve]
        self.process, self.url = server.start(command, f"capacity: the server under {policy}")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait()
        self.folder.cleanup()

    def post(self, path, body):
        request = urllib.request.Request(self.url + path, json.dumps(body).encode(),
                                         {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=600) as reply:
            return json.loads(reply.read())

    def metric(self, name):
        return server.metric(server.get(self.url, "/metrics"), name)


def words_of(options, number):
    """A conversation's text: words drawn, or the next ones of --text, which begins again at its end."""
    if not options.text:
        return load.Load.text(random.Random(number), options.words)
    words = pathlib.Path(options.text).read_text(encoding="utf-8").split()
    at = number * options.words
    return " ".join(words[(at + i) % len(words)] for i in range(options.words))


def hidden(text, number):
    """(the text with a code in it and a question after it, the code)"""
    numbers = random.Random(1000 + number)
    words, code = text.split(), f"{numbers.randrange(10000, 100000)}"
    at = numbers.randrange(len(words))
    told = f"The code of the harbour is {code}. Remember it."
    text = " ".join([*words[:at], told, *words[at:]])
    return f"{text}\n\nWhat is the code of the harbour? Answer with the number alone.", code


def name(number):
    return f"capacity-{number}"


class Held:
    """Conversations of one server."""

    def __init__(self, server, options):
        self.server, self.options = server, options
        answer = ANSWER_WITH_CODE if options.facts else ANSWER
        self.load = load.Load(load.options_of([server.url, "--max-tokens", str(answer)]))
        self.count = self.found = 0
        self.newest = []  # its messages
        self.said, self.bytes = [], 0

    def ask(self, number, messages):
        answer = load.Answer(number, 0)
        self.load.ask(answer, messages, name(number))
        if not answer.whole:
            sys.exit(f"capacity: conversation {number}: {answer.refused or answer.wrong}")
        return answer

    def begin(self, number):
        text, code = words_of(self.options, number), None
        if self.options.facts:
            text, code = hidden(text, number)
        messages = [{"role": "user", "content": text}]
        answer = self.ask(number, messages)
        self.said.append(answer.text)
        self.found += code is not None and code in answer.text
        return messages, answer

    def copy(self, number):
        if number == self.options.compare:
            self.server.post(f"/v1/pith/sessions/{name(number - 1)}/save", {"name": "copied", "replace": True})
        self.server.post(f"/v1/pith/sessions/{name(number)}/restore", {"name": "copied"})

    def open(self):
        """Until one is given up (True), or there are enough."""
        dropped = 0
        while self.count < self.options.most and not dropped:
            if self.options.copies and self.count >= self.options.compare:
                self.copy(self.count)
            else:
                messages, answer = self.begin(self.count)
                self.bytes = answer.cache_bytes
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
    """KL from the exact cache, in nats a token, and the share of the same likeliest tokens."""
    if not options.text:
        return None, None
    done = subprocess.run([options.pith, "eval", "ppl", "-m", options.model, "-f", options.text, "--json",
                           "--kv-policy", policy, "--seeds", "1", *options.eval], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"capacity: pith eval: {done.stderr}")
    # The first of the policies is the exact cache itself.
    summary = json.loads(done.stdout)["policies"][-1]["seeds"][0]["summary"]
    return summary["kl"]["mean"], summary["same_top"]["mean"]


def measure(options, policy, exact):
    """A row of the table; `exact`: what was said under it, None for itself."""
    with Server(options, policy) as running:
        held = Held(running, options)
        full = held.open()
        held.check(full)
        for number in range(len(held.said), 0 if exact else options.compare):
            held.begin(number)  # to compare with; others are given up for it
    both = list(zip(held.said, exact or held.said))
    kl, top = divergence(options, policy)
    return held, {"policy": policy, "conversations": held.count, "full": full, "bytes": held.bytes,
                  "same": sum(a == b for a, b in both) / len(both), "kl": kl, "same_top": top,
                  "found": held.found / len(held.said) if options.facts else None}


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("-m", "--model", required=True)
    p.add_argument("--memory", required=True, help="for caches, as 512MiB")
    p.add_argument("--policy", action="append", default=[], help="beside exact and exact+int8; repeatable")
    p.add_argument("--auto", action="append", default=[], metavar="BUDGET", help="what auto takes; repeatable")
    p.add_argument("--control", action="store_true", help="streaming_llm at the last policy's bytes")
    p.add_argument("-c", "--context", type=int, default=0, help="of the server; budgets in per cent are of it")
    p.add_argument("--words", type=int, default=800, help="of each conversation's text")
    p.add_argument("--compare", type=int, default=12, help="conversations whose answers are compared")
    p.add_argument("--copies", action="store_true", help="read --compare conversations, and copy the last of them")
    p.add_argument("--most", type=int, default=1000, help="conversations to stop at")
    p.add_argument("--text", help="a file for pith eval ppl")
    p.add_argument("--facts", action="store_true", help="ask each conversation for a code in its text")
    p.add_argument("--eval", action="append", default=[], help="a further option of pith eval ppl; repeatable")
    p.add_argument("--serve", action="append", default=[], help="a further option of pith serve; repeatable")
    p.add_argument("--pith", default=os.environ.get("PITH_PROGRAM", str(ROOT / "build/bin/pith")))
    p.add_argument("--json", action="store_true", help="a line of JSON a policy")
    options = p.parse_args()
    if not options.json:
        print(f"{options.memory} for caches, conversations of {options.words} words\n"
              f"{'held':>6} {'times':>6} {'MiB':>7} {'same':>6} {'found':>6} {'top':>6} {'KL':>7}  policy")
    policies = ["exact", "exact+int8", *options.policy, *(chosen(options, b) for b in options.auto)]
    first, said = None, None
    while policies:
        held, row = measure(options, policies.pop(0), said)
        first, said = first or row["conversations"], said or held.said
        if not policies and options.control:
            options.control = False
            policies.append(streaming(options, held.bytes))
        show(row, first, options.json)


def show(row, exact, as_json):
    if as_json:
        print(json.dumps(row), flush=True)
        return

    def number(value, form):
        return "-" if value is None else form % value

    print(f"{str(row['conversations']) + ('' if row['full'] else '+'):>6} "
          f"{row['conversations'] / exact if exact else 0:>6.1f} {row['bytes'] / 2 ** 20:>7.2f} "
          f"{100 * row['same']:>5.0f}% {number(row['found'] and 100 * row['found'], '%.0f%%'):>6} "
          f"{number(row['same_top'] and 100 * row['same_top'], '%.1f%%'):>6} "
          f"{number(row['kl'], '%.4f'):>7}  {row['policy'][:100]}", flush=True)


if __name__ == "__main__":
    main()
