#!/usr/bin/env python3
"""Many servers played on paper: a trace against measured times of steps (standard library only).

    tools/serve/simulate.py measure http://127.0.0.1:8080 > times.json     # after some load
    tools/serve/simulate.py trace --rate 4 --conversations 400 > trace.jsonl
    tools/serve/simulate.py run times.json trace.jsonl --replicas 3        # TTFT, ITL, TPOT, goodput
    tools/serve/simulate.py need times.json trace.jsonl --share 0.99       # replicas for a promise
    tools/serve/simulate.py check -m smollm2                               # beside a real cluster of three

`measure` takes from servers that have had load what a pass of so many answers and a token of a prompt take
(their /metrics), their limits (/props) and the bytes that conversations reserve. A trace is lines of JSON,
a conversation each: {"at": seconds, "session": name, "shared": [beginning, tokens], "turns": [{"prompt":
new tokens, "answer": tokens, "think": seconds before it is sent}]}; a turn is sent when the one before it
is answered. Conversations go to replicas by a hash of their name, or to the "replica" that their line
names. Servers of one machine share its cores (`machine` and `speeds` of the times; `measure` of several URLs
finds them), also with proxy and clients that run there (`front_request`, `front_token`; `check` finds them).
How a replica schedules and admits is in replica.py. Conversations given up for want of memory are read again;
files of idle ones (--autosave) are not played.

`check` measures one of cluster.py's three servers while the others do nothing, and how all three slow each
other down on this machine; then it puts load (load.py) on them behind HAProxy, plays the same conversations
on paper, and shows both with their ratio. Exit code 1 where a mean, or p95 of TTFT or ITL, is off by more than
15%.
"""

import argparse
import contextlib
import hashlib
import heapq
import itertools
import json
import os
import random
import sys
import time
import urllib.error

import cluster
import load
from measure import alone, fit, measure, together
from replica import Answer, Machine, Replica, Times
from server import get

MOST = 1000  # replicas
QUIET = 0.1  # cores that other programs may have, for figures that mean something
GATED = {"ttft": ("mean", "p95"), "tpot": ("mean",), "itl": ("mean", "p95"), "seconds": ("mean",)}


class Talk:
    """A conversation of a trace."""

    def __init__(self, line):
        self.at, self.session, self.turns = float(line["at"]), str(line["session"]), line["turns"]
        beginning, tokens = line.get("shared") or (None, 0)
        self.shared = (beginning, int(tokens)) if beginning is not None else (self, 0)
        self.replica = line.get("replica")
        for turn in self.turns:
            if int(turn["prompt"]) < 1 or int(turn["answer"]) < 1:
                raise ValueError("a turn's prompt and answer have one token or more")

    def place(self, replicas):
        if self.replica is not None:
            return int(self.replica) % replicas
        return int.from_bytes(hashlib.sha256(self.session.encode()).digest()[:8], "big") % replicas


def read_trace(path):
    talks = []
    with open(path, encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            try:
                talks.append(Talk(json.loads(line)))
            except (ValueError, KeyError, TypeError) as error:
                sys.exit(f"simulate: {path}:{number}: no conversation of a trace: {error!r}")
    if not talks:
        sys.exit(f"simulate: {path}: the trace is empty")
    return talks


def read_times(path):
    try:
        with open(path, encoding="utf-8") as file:
            return Times(**json.load(file))
    except (OSError, ValueError, TypeError) as error:
        sys.exit(f"simulate: {path}: no times of `simulate.py measure`: {error}")


class Simulation:
    def __init__(self, times, talks, replicas):
        machines = [Machine(times) for _ in range(-(-replicas // times.machine))]
        self.times, self.replicas = times, [
            Replica(times, machines[i // times.machine], i) for i in range(replicas)]
        self.answers, self.events, self.order = [], [], itertools.count()
        for talk in talks:
            self.send(talk, 0, 0, talk.at)

    def push(self, at, act, *what):
        heapq.heappush(self.events, (at, next(self.order), act, what))

    def send(self, talk, turn, past, at):
        asked = talk.turns[turn]
        answer = Answer(talk, turn, past + int(asked["prompt"]), int(asked["answer"]), at)
        self.answers.append(answer)
        self.push(at + self.times.overhead, self.arrive, answer)

    def arrive(self, at, answer):
        replica = self.replicas[answer.talk.place(len(self.replicas))]
        replica.machine.serve(self.times.front_request, at)
        self.wait(replica.machine)
        replica.submit(answer)
        self.go_on(replica, at)

    def go_on(self, replica, at):
        """After all that comes at this time."""
        if replica.busy() and not replica.stepping:
            replica.stepping = True
            self.push(at, self.step, replica)

    def step(self, at, replica):
        work = None
        while work is None and replica.busy():
            work, over = replica.begin(at)
            self.answered(over)
        replica.stepping = work is not None
        if work is not None:
            replica.machine.put(replica, work, at)
            self.wait(replica.machine)

    def wait(self, machine):
        if machine.left:
            at, worker = machine.next()
            self.push(at, self.end, machine, worker, machine.changes)

    def end(self, at, machine, worker, changes):
        if changes != machine.changes:
            return  # another part began or ended since, and with it this one's end moved
        took = machine.take(worker, at)
        if worker != machine.FRONT:
            self.answered(worker.finish(at, took))
            worker.stepping = False
        self.wait(machine)
        if worker != machine.FRONT:
            self.go_on(worker, at)

    def answered(self, over):
        for answer in over:
            later = answer.talk.turns[answer.turn + 1:]
            if later and not answer.refused:
                self.send(answer.talk, answer.turn + 1, answer.prompt + answer.most,
                          answer.end + float(later[0].get("think", 0)))

    def run(self):
        at = 0.0
        while self.events:
            at, _, act, what = heapq.heappop(self.events)
            act(at, *what)
        return at


def percentiles(values):
    return {"mean": sum(values) / len(values) if values else None,
            **{f"p{p}": load.percentile(values, p) for p in load.PERCENTS}}


def within(answer, limits):
    return answer.ttft <= limits.ttft and (not answer.gaps or load.percentile(answer.gaps, 95) <= limits.itl)


def play(times, talks, replicas, limits):
    """What load.py would say of so many replicas."""
    simulation = Simulation(times, talks, replicas)
    simulation.run()
    whole = [a for a in simulation.answers if a.end is not None]
    refused = {}
    for answer in simulation.answers:
        if answer.refused:
            refused[answer.refused] = refused.get(answer.refused, 0) + 1
    asked = sum(len(talk.turns) for talk in talks)
    good = sum(within(a, limits) for a in whole)
    seconds = max((a.end for a in whole), default=0) - min(talk.at for talk in talks)
    return {"replicas": replicas, "answers": len(whole), "refused": refused, "seconds_in_all": seconds,
            "tokens_per_second": sum(a.most for a in whole) / seconds if seconds else 0.0,
            "goodput": good / seconds if seconds else 0.0, "share": good / asked,
            "held": sum(r.most_held for r in simulation.replicas),
            "dropped": sum(r.dropped for r in simulation.replicas),
            "reserved_bytes": sum(r.most_reserved for r in simulation.replicas),
            "ttft": percentiles([a.ttft for a in whole]),
            "itl": percentiles([gap for a in whole for gap in a.gaps]),
            "tpot": percentiles([a.tpot for a in whole if a.tpot is not None]),
            "seconds": percentiles([a.end - a.sent for a in whole])}


def need(times, talks, share, limits):
    """The fewest replicas under which this share of the trace's turns is within the limits, or None."""
    def enough(count):
        return play(times, talks, count, limits)["share"] >= share

    high = 1
    while not enough(high):
        if high == MOST:
            return None
        high = min(MOST, 2 * high)
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high


def made_trace(options):
    """Conversations that arrive at a rate, with lengths and pauses drawn around their means."""
    numbers, at = random.Random(options.seed), 0.0
    for i in range(options.conversations):
        turns = [{"prompt": 1 + int(numbers.expovariate(1 / options.prompt)),
                  "answer": 1 + int(numbers.expovariate(1 / options.answer)),
                  "think": numbers.expovariate(1 / options.think) if turn and options.think else 0.0}
                 for turn in range(options.turns)]
        turns[0]["prompt"] += options.system
        yield {"at": at, "session": f"s-{options.seed}-{i}", "shared": ["system", options.system],
               "turns": turns}
        at += numbers.expovariate(options.rate)


def trace_of(run, start, urls, seed):
    """The conversations that load.py had, as a trace: where each lay, and when its turns were sent."""
    talks = {}
    for answer in run.answers:
        talks.setdefault(answer.talk, []).append(answer)
    shared = max((a.cached_tokens for a in run.answers if a.turn == 0), default=0)
    for number, answers in sorted(talks.items()):
        past, turns, end = 0, [], None
        for answer in answers:
            turns.append({"prompt": answer.prompt_tokens - past, "answer": answer.tokens,
                          "think": 0.0 if end is None else answer.sent - end})
            past, end = answer.prompt_tokens + answer.tokens, answer.end
        name = f"load-{seed}-{number}"
        yield {"at": answers[0].sent - start, "session": name, "shared": ["system", shared], "turns": turns,
               "replica": next(i for i, url in enumerate(urls) if has_session(url, name))}


def has_session(url, name):
    try:
        return bool(get(url, "/v1/pith/sessions/" + name))
    except urllib.error.HTTPError as error:
        if error.code != 404:
            raise
        return False


def seconds_of(pids):
    """Processor time that all have used, that these processes have, and the clock's."""
    tick = os.sysconf("SC_CLK_TCK")
    with open("/proc/stat", encoding="ascii") as file:
        user, nice, system, _, _, interrupts, soft, stolen = map(int, file.readline().split()[1:9])
    own = 0
    for pid in pids:
        with open(f"/proc/{pid}/stat", encoding="utf-8") as file:
            own += sum(map(int, file.read().rsplit(")", 1)[1].split()[11:13]))
    return (user + nice + system + interrupts + soft + stolen) / tick, own / tick, time.perf_counter()


def front(url, pids, options):
    """What proxy and clients take of a core, for a request and for a token of an answer."""
    points = []
    for tokens in (1, max(2, options.answer)):
        before = seconds_of(pids)[1]
        run = load.Load(load.options_of([
            url, "--clients", "2", "--conversations", "24", "--turns", "1", "--words", str(options.words),
            "--max-tokens", str(tokens), "--no-sessions", "--seed", str(5000 + tokens)]))
        run.run()
        made = sum(answer.tokens for answer in run.answers) / len(run.answers)
        points.append((made, (seconds_of(pids)[1] - before) / len(run.answers)))
    request, token = fit(points)
    return {"front_request": request, "front_token": max(0.0, token)}


def beside_real(options, serve):
    """(real, simulated, times, trace): load.py's figures and those on paper."""
    with cluster.Cluster(["-m", options.model, *serve], 3, cluster.free_port()) as servers:
        url = f"http://127.0.0.1:{servers.port}"
        for _ in range(600):  # until the proxy has found its servers
            with contextlib.suppress(OSError):
                get(url, "/health")
                break
            time.sleep(0.05)
        urls = [f"http://127.0.0.1:{replica.port}" for replica in servers.replicas]
        outside = [os.getpid(), servers.proxy.pid]
        times = {**alone(urls[0], options), **together(urls, options), **front(url, outside, options)}
        run = load.Load(load.options_of([
            url, "--rate", str(options.rate), "--conversations", str(options.conversations), "--turns",
            str(options.turns), "--words", str(options.words), "--max-tokens", str(options.answer), "--think",
            str(options.think), "--seed", str(options.seed)]))
        pids = [*outside, *(replica.process.pid for replica in servers.replicas)]
        before, start = seconds_of(pids), time.perf_counter()
        real = run.run()
        used, own, clock = (b - a for a, b in zip(before, seconds_of(pids)))
        if real["wrong"] or real["refused"]:
            sys.exit(f"simulate: the real servers failed: {real['wrong'][:3]} {real['refused']}")
        trace = list(trace_of(run, start, urls, options.seed))
    return real, play(Times(**times), [Talk(line) for line in trace], 3, options), times, trace, (used - own) / clock


def check(options, serve):
    if cluster.haproxy() is None:
        sys.exit("simulate: the check needs haproxy; tools/setup.sh cluster installs it")
    real, paper, times, trace, others = beside_real(options, serve)
    if options.keep:
        os.makedirs(options.keep, exist_ok=True)
        with open(os.path.join(options.keep, "times.json"), "w", encoding="utf-8") as file:
            json.dump(times, file)
        with open(os.path.join(options.keep, "trace.jsonl"), "w", encoding="utf-8") as file:
            file.writelines(json.dumps(line) + "\n" for line in trace)
    print(f"{len(trace)} conversations of {options.turns} turns on 3 servers; other programs had {others:.2f} cores")
    print(f"proxy and load took {1000 * times['front_request']:.1f} ms of a core per request, "
          f"{1000 * times['front_token']:.2f} ms per token")
    print(f"{'':>12} {'real':>9} {'paper':>9} {'ratio':>6}")
    far = []
    for name in ("ttft", "tpot", "itl", "seconds"):
        for which in ("mean", "p50", "p95"):
            a, b = real[name][which], paper[name][which]
            print(f"{name:>7} {which:>4} {1000 * a:>9.1f} {1000 * b:>9.1f} {b / a:>6.2f}")
            if which in GATED[name] and not 1 / 1.15 <= b / a <= 1.15:
                far.append(f"{name} {which} {b / a:.2f}")
    a, b = real["tokens_per_second"], paper["tokens_per_second"]
    print(f"{'tokens/s':>12} {a:>9.1f} {b:>9.1f} {b / a:>6.2f}")
    print(f"off by more than 15%: {', '.join(far)}" if far else "means, and p95 of TTFT and ITL, are within 15%")
    if far and others > QUIET:
        print("the machine was not quiet: measure again when nothing else runs")
    return 1 if far else 0


def show(found):
    refused = ", ".join(f"{count} {why}" for why, count in sorted(found["refused"].items())) or "none"
    print(f"{found['replicas']} replicas: {found['answers']} answers in {found['seconds_in_all']:.1f} s, "
          f"refused: {refused}")
    print(f"{found['tokens_per_second']:.1f} tokens/s, goodput {found['goodput']:.2f} answers/s, "
          f"{100 * found['share']:.1f}% of turns within the limits")
    print(f"{found['held']} conversations held at most, {found['dropped']} given up, "
          f"{found['reserved_bytes'] / 2 ** 20:.1f} MiB reserved at most")
    load.show_times(found)


def options_of(arguments):
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = p.add_subparsers(dest="verb", required=True)
    limits = argparse.ArgumentParser(add_help=False)
    limits.add_argument("--ttft", type=float, default=2, help="seconds, of a good answer")
    limits.add_argument("--itl", type=float, default=0.15, help="seconds, of a good answer's gaps (p95)")
    limits.add_argument("--json", action="store_true", help="one JSON object")
    asked = argparse.ArgumentParser(add_help=False)
    asked.add_argument("--rate", type=float, default=0.6, help="conversations a second")
    asked.add_argument("--conversations", type=int, default=24)
    asked.add_argument("--turns", type=int, default=2)
    asked.add_argument("--answer", type=int, default=32, help="tokens")
    asked.add_argument("--think", type=float, default=2, help="seconds between turns")
    asked.add_argument("--seed", type=int, default=1)
    one = verbs.add_parser("measure", help="servers' times as JSON")
    one.add_argument("urls", nargs="+", help="of servers of one machine")
    one.add_argument("--words", type=int, default=100, help="of a question")
    one.add_argument("--answer", type=int, default=32, help="tokens")
    one.add_argument("--timeout", type=float, default=600)
    one = verbs.add_parser("trace", help="a trace of drawn conversations", parents=[asked])
    one.add_argument("--prompt", type=int, default=100, help="new tokens of a turn, on average")
    one.add_argument("--system", type=int, default=50, help="tokens that all begin with")
    for verb, help_text in (("run", "a trace on so many replicas"), ("need", "replicas for a promise")):
        one = verbs.add_parser(verb, help=help_text, parents=[limits])
        one.add_argument("times")
        one.add_argument("trace")
        if verb == "run":
            one.add_argument("--replicas", type=int, default=1, choices=range(1, MOST + 1), metavar="N")
        else:
            one.add_argument("--share", type=float, default=0.99, help="of turns within the limits")
    one = verbs.add_parser("check", help="beside three real servers", parents=[limits, asked])
    one.add_argument("-m", "--model", required=True)
    one.add_argument("--words", type=int, default=100, help="of a question")
    one.add_argument("--keep", metavar="FOLDER", help="for the run's times.json and trace.jsonl")
    one.add_argument("--timeout", type=float, default=600)
    return p.parse_known_args(arguments)


def main(arguments=None):
    options, rest = options_of(arguments)
    if rest and options.verb != "check":
        sys.exit(f"simulate: {options.verb} does not take {' '.join(rest)}")
    if options.verb == "measure":
        times = measure(options.urls, options)
        print(json.dumps({**times, **together(options.urls, options)} if len(options.urls) > 1 else times))
    elif options.verb == "trace":
        for line in made_trace(options):
            print(json.dumps(line))
    elif options.verb == "check":
        return check(options, rest)
    else:
        times, talks = read_times(options.times), read_trace(options.trace)
        count = options.replicas if options.verb == "run" else need(times, talks, options.share, options)
        if count is None:
            print(f"simulate: {MOST} replicas are not enough", file=sys.stderr)
            return 1
        found = play(times, talks, count, options)
        print(json.dumps(found)) if options.json else show(found)
    return 0


if __name__ == "__main__":
    sys.exit(main())
