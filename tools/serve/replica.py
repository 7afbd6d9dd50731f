"""One `pith serve` as simulate.py plays it: the scheduler's rules over measured times of steps.

The rules are those of src/serve/scheduler*.cc: a request begins when it fits in --parallel and when the most
that it can take is free beside what others have reserved; memory is made by giving up idle conversations,
those used least recently first. A step is a pass that gives each answer its next token, then a chunk of one
prompt, if passes have had their share of the clock since the last one. A prompt of one chunk goes before a
longer one, four times at most.
"""

import collections
import dataclasses

MOST_PASSED = 4  # kMostPassed of src/serve/passes.cc


@dataclasses.dataclass
class Times:
    """What a measured server needs; bytes and seconds."""
    passes: dict  # {sessions: seconds of a pass}
    token: float  # of reading a prompt
    chunk: int = 512  # tokens
    overhead: float = 0.0  # between a client and the scheduler, a request
    memory: float = float("inf")  # of caches
    fixed_bytes: float = 0.0  # of a conversation
    token_bytes: float = 0.0
    bucket: int = 1  # tokens to whose multiples reservations are rounded
    parallel: int = 16
    queue: int = 256
    queue_seconds: float = 60.0
    prefill_share: float = 0.5

    def __post_init__(self):
        self.passes = {int(rows): seconds for rows, seconds in self.passes.items()}
        if not self.passes or min(self.passes) < 1:
            raise ValueError("passes: no pass of one session or more was measured")

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
    def __init__(self, times):
        self.times = times
        self.waiting, self.reading, self.writing = collections.deque(), [], []
        self.idle = collections.OrderedDict()  # talk: tokens; least recently used first
        self.shared = set()  # beginnings that are kept
        self.owed = self.reserved = 0.0
        self.stepping = False
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

    def step(self, now):
        """The scheduler's loop once. (when it ends, answers that ended or were refused)."""
        over = self.drop_late(now)
        self.admit(now)
        at = now
        if self.writing:
            took = self.times.of_pass(len(self.writing))
            at += took
            self.owed -= took
            for answer in self.writing:
                answer.tokens.append(at)
            over += self.take_ended(at)
        return self.read_chunk(at, over), over

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

    def read_chunk(self, at, over):
        if not self.writing:
            self.owed = 0.0
        if not self.reading or self.owed > 0:
            return at
        t = self.times
        answer = self.next_to_read()
        tokens = min(t.chunk, answer.left)
        took = tokens * t.token
        at += took
        self.owed = took * (1 - t.prefill_share) / t.prefill_share
        answer.left -= tokens
        if answer.left == 0:
            self.reading.remove(answer)
            self.writing.append(answer)
            self.shared.add(answer.talk.shared[0])
            answer.tokens.append(at)
            over += self.take_ended(at)
        return at

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
