"""One `pith serve` as simulate.py plays it: the scheduler's rules over measured times of steps.

The rules are those of src/serve/scheduler*.cc: a request begins when it fits in --parallel and when the most
that it can take is free beside what others have reserved; memory is made by giving up idle conversations,
those used least recently first. A step is a pass that gives each answer its next token, then a chunk of one
prompt, if passes have had their share of the clock since the last one. A prompt of one chunk goes before a
longer one, four times at most.
"""

import collections
import dataclasses
import random

MOST_PASSED = 4  # kMostPassed of src/serve/passes.cc


@dataclasses.dataclass
class Times:
    """What a measured server needs; bytes and seconds."""
    passes: dict  # {sessions: seconds of a pass}
    token: float  # of reading a prompt
    read: float = 0.0  # that a chunk takes beside its tokens
    chunk: int = 512  # tokens
    overhead: float = 0.0  # between a client and the scheduler, a request
    front_request: float = 0.0  # of a core of its machine: what proxy and clients take
    front_token: float = 0.0
    memory: float = float("inf")  # of caches
    fixed_bytes: float = 0.0  # of a conversation
    token_bytes: float = 0.0
    bucket: int = 1  # tokens to whose multiples reservations are rounded
    parallel: int = 16
    queue: int = 256
    queue_seconds: float = 60.0
    prefill_share: float = 0.5
    spread: tuple = (1.0,)  # of passes: what they took as shares of the mean, all as likely
    machine: int = 1  # servers on one
    speeds: dict = dataclasses.field(default_factory=lambda: {1: 1.0})  # of each of so many that work at once

    def __post_init__(self):
        self.passes = {int(rows): seconds for rows, seconds in self.passes.items()}
        if not self.passes or min(self.passes) < 1:
            raise ValueError("passes: no pass of one session or more was measured")
        self.speeds = {int(servers): speed for servers, speed in self.speeds.items()}
        if self.machine < 1 or not self.speeds or list(self.speeds) != list(range(1, len(self.speeds) + 1)):
            raise ValueError("machine and speeds: of 1 server and more, each")

    def of_pass(self, rows):
        """Between those that were measured on a line; beyond them by the last ones' slope, never less."""
        known = sorted(self.passes)
        if rows in self.passes:
            return self.passes[rows]
        if len(known) == 1 or rows < known[0]:
            return self.passes[known[0]]
        above = next((i for i, n in enumerate(known) if n > rows), len(known) - 1)
        a, b = known[above - 1], known[above]
        slope = (self.passes[b] - self.passes[a]) / (b - a)
        return max(self.passes[a] + slope * (rows - a), min(self.passes[a], self.passes[b]))

    def of_chunk(self, tokens):
        return self.read + tokens * self.token

    def speed(self, servers):
        """Beyond those that were measured they share what the most of them had."""
        known = min(servers, max(self.speeds))
        return self.speeds[known] * known / servers

    def bytes(self, tokens):
        return self.fixed_bytes + self.token_bytes * tokens

    def reserved(self, answer):
        return self.bytes(-(-(answer.prompt + answer.most) // self.bucket) * self.bucket)


class Answer:
    """A request, and when its tokens came."""

    def __init__(self, talk, turn, prompt, most, sent):
        self.talk, self.turn, self.prompt, self.most, self.sent = talk, turn, prompt, most, sent
        self.begun = self.end = self.refused = None
        self.tokens, self.left, self.cached, self.passed = [], 0, 0, 0

    @property
    def ttft(self):
        return self.tokens[0] - self.sent

    @property
    def gaps(self):
        return [b - a for a, b in zip(self.tokens, self.tokens[1:])]

    @property
    def tpot(self):
        return (self.end - self.tokens[0]) / (self.most - 1) if self.most > 1 else None


class Replica:
    PASS, CHUNK = "pass", "chunk"

    def __init__(self, times, machine, number=0):
        self.times, self.machine, self.draws = times, machine, random.Random(number)
        self.part = self.chosen = None  # what it does, and whose prompt is read
        self.stepping = False
        self.waiting, self.reading, self.writing = collections.deque(), [], []
        self.idle = collections.OrderedDict()  # talk: tokens; least recently used first
        self.shared = set()  # beginnings that are kept
        self.owed = self.reserved = 0.0
        self.most_held = self.most_reserved = self.dropped = 0

    def submit(self, answer):
        t = self.times
        if t.reserved(answer) > t.memory:
            answer.refused = "memory_budget_exceeded"
        elif len(self.waiting) >= t.queue:
            answer.refused = "queue_full"
        else:
            self.waiting.append(answer)

    def busy(self):
        return bool(self.waiting or self.reading or self.writing)

    def begin(self, now):
        """The scheduler's loop goes on. (Seconds of its next part on free cores, requests that waited too long.)

        Its parts are a pass, where any answer is written, then a chunk of one prompt. None: it begins anew.
        """
        over = []
        if self.part is None:
            over = self.drop_late(now)
            self.admit(now)
            self.part = self.PASS
            if self.writing:
                return self.times.of_pass(len(self.writing)) * self.draws.choice(self.times.spread), over
        self.part = self.CHUNK
        if not self.writing:
            self.owed = 0.0
        if not self.reading or self.owed > 0:
            self.part = None
            return None, over
        self.chosen = self.next_to_read()
        return self.times.of_chunk(min(self.times.chunk, self.chosen.left)), over

    def finish(self, at, took):
        """The part that began ends now and took so long by the clock; answers that ended with it."""
        if self.part == self.PASS:
            self.owed -= took
            self.machine.serve(len(self.writing) * self.times.front_token, at)
            for answer in self.writing:
                answer.tokens.append(at)
            return self.take_ended(at)
        self.part = None
        answer = self.chosen
        self.owed = took * (1 - self.times.prefill_share) / self.times.prefill_share
        answer.left -= min(self.times.chunk, answer.left)
        if answer.left:
            return []
        self.reading.remove(answer)
        self.writing.append(answer)
        self.shared.add(answer.talk.shared[0])
        self.machine.serve(self.times.front_token, at)
        answer.tokens.append(at)
        return self.take_ended(at)

    def drop_late(self, now):
        late = [a for a in self.waiting if now - a.sent - self.times.overhead > self.times.queue_seconds]
        for answer in late:
            self.waiting.remove(answer)
            answer.refused = "queue_timeout"
        return late

    def admit(self, now):
        t = self.times
        while self.waiting and len(self.reading) + len(self.writing) < t.parallel:
            answer = self.waiting[0]
            if not self.make_room(answer):
                return
            self.waiting.popleft()
            self.reserved += t.reserved(answer)
            known = self.idle.pop(answer.talk, None)
            beginning, tokens = answer.talk.shared
            if known is not None:
                answer.cached = known
            elif beginning in self.shared and tokens < answer.prompt:
                answer.cached = tokens
            answer.left = answer.prompt - answer.cached
            answer.begun = now
            self.reading.append(answer)
            self.note()

    def held_bytes(self):
        return self.reserved + sum(self.times.bytes(tokens) for tokens in self.idle.values())

    def make_room(self, answer):
        """The conversation's own state becomes the answer's, and is given up last."""
        need = self.times.reserved(answer)
        while True:
            own = self.idle.get(answer.talk)
            have = self.held_bytes() - (0 if own is None else self.times.bytes(own))
            if have + need <= self.times.memory:
                return True
            victim = next((talk for talk in self.idle if talk is not answer.talk), None)
            if victim is None:
                return False
            del self.idle[victim]
            self.dropped += 1

    def next_to_read(self):
        chunk = self.times.chunk
        first = self.reading[0]
        if first.left <= chunk or first.passed >= MOST_PASSED:
            return first
        quick = next((a for a in self.reading if a.left <= chunk), None)
        if quick is None:
            return first
        first.passed += 1
        return quick

    def take_ended(self, at):
        ended = [a for a in self.writing if len(a.tokens) >= a.most]
        for answer in ended:
            answer.end = at
            self.writing.remove(answer)
            self.reserved -= self.times.reserved(answer)
            # The last token that was drawn is not in the cache.
            self.idle[answer.talk] = answer.prompt + answer.most - 1
        return ended

    def note(self):
        self.most_held = max(self.most_held, len(self.reading) + len(self.writing) + len(self.idle))
        self.most_reserved = max(self.most_reserved, self.reserved)


class Machine:
    """Servers that share cores: the more of them work, the slower each one's part of a step goes on. Proxy and
    clients work as one of them does."""
    FRONT = "front"

    def __init__(self, times):
        self.times, self.left, self.at = times, {}, 0.0  # {server: [seconds on free cores, when it began]}
        self.changes = 0

    def serve(self, seconds, at):
        """More work of proxy and clients."""
        if seconds > 0 and self.FRONT in self.left:
            self.go_to(at)
            self.left[self.FRONT][0] += seconds
            self.changes += 1
        elif seconds > 0:
            self.put(self.FRONT, seconds, at)

    def go_to(self, at):
        done = (at - self.at) * self.times.speed(len(self.left)) if self.left else 0.0
        self.at = at
        for work in self.left.values():
            work[0] -= done

    def put(self, worker, work, at):
        self.go_to(at)
        self.left[worker] = [work, at]
        self.changes += 1

    def take(self, worker, at):
        """What its part took by the clock."""
        self.go_to(at)
        self.changes += 1
        return at - self.left.pop(worker)[1]

    def next(self):
        """(when, which) of the part that ends first, if none begins before."""
        worker = min(self.left, key=lambda w: self.left[w][0])
        return self.at + max(0.0, self.left[worker][0]) / self.times.speed(len(self.left)), worker
