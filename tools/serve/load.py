#!/usr/bin/env python3
"""Load on a server with OpenAI's API, and what its users feel (standard library only).

    tools/serve/load.py http://127.0.0.1:8080 --clients 8                  # closed loop
    tools/serve/load.py http://127.0.0.1:8080 --rate 2 --conversations 40  # open loop

Closed loop: so many clients, each with one conversation after another. Open loop: conversations arrive at
the rate (exponential gaps), however slow the server is. A conversation has --turns questions, each sent
with all that was said before, and --think seconds (exponential, on average) between an answer and the next
question. All numbers and texts are functions of --seed.

For each answer: TTFT (from sending to the first text), ITL (gaps between pieces of text), TPOT (from the
first text to the end, by tokens after the first). Goodput: answers a second that are right and within
--ttft and --itl (an answer's 95th percentile of gaps).
An answer is right if its stream ended as it should and its tokens are those that were asked for; with
--check N the first N conversations are asked again at the end, one alone, and must say the same.
Exit code 1 if any answer was wrong. Refusals (status 4xx and 5xx) are counted and are no wrong answers.
"""

import argparse
import http.client
import json
import random
import sys
import threading
import time
import urllib.parse

WORDS = ("ship captain water island morning whale boat wind hand old sea night crew storm sail harbour "
         "letter house river garden winter bread horse road stone window summer table paper field").split()
PERCENTS = (50, 90, 95, 99)


def percentile(values, percent):
    """The nearest rank; None of nothing."""
    ordered = sorted(values)
    return ordered[max(0, -(-len(ordered) * percent // 100) - 1)] if ordered else None


class Answer:
    """One answer's text and times."""

    def __init__(self, talk, turn):
        self.talk, self.turn = talk, turn
        self.text, self.finish, self.refused, self.wrong = "", None, None, None
        self.tokens = self.prompt_tokens = self.cached_tokens = self.cache_bytes = 0
        self.sent = self.end = None
        self.pieces = []  # times of pieces of text

    @property
    def whole(self):
        return self.refused is None and self.wrong is None

    @property
    def ttft(self):
        return self.pieces[0] - self.sent if self.pieces else None

    @property
    def gaps(self):
        return [b - a for a, b in zip(self.pieces, self.pieces[1:])]

    @property
    def tpot(self):
        return (self.end - self.pieces[0]) / (self.tokens - 1) if self.tokens > 1 and self.pieces else None

    def within(self, options):
        if not self.whole or self.ttft is None or self.ttft > options.ttft:
            return False
        return not self.gaps or percentile(self.gaps, 95) <= options.itl

    def line(self):
        return {"conversation": self.talk, "turn": self.turn, "ttft": self.ttft, "tpot": self.tpot,
                "seconds": self.end - self.sent, "gaps": self.gaps, "tokens": self.tokens,
                "prompt_tokens": self.prompt_tokens, "cached_tokens": self.cached_tokens,
                "refused": self.refused, "wrong": self.wrong}


class Load:
    def __init__(self, options):
        self.options = options
        self.url = urllib.parse.urlsplit(options.url if "//" in options.url else "//" + options.url)
        self.answers, self.lock = [], threading.Lock()
        self.system = self.text(random.Random(options.seed), options.system)

    @staticmethod
    def text(numbers, count):
        return " ".join(numbers.choice(WORDS) for _ in range(count))

    def questions(self, talk):
        numbers = random.Random(self.options.seed * 1000003 + talk)
        return [self.text(numbers, self.options.words) for _ in range(self.options.turns)]

    def ask(self, answer, messages, name):
        """Sends one request and takes its stream."""
        o = self.options
        body = {"messages": messages, "stream": True, "stream_options": {"include_usage": True},
                "temperature": 0, "max_tokens": o.max_tokens, "ignore_eos": True}
        if o.model:
            body["model"] = o.model
        headers = {"Content-Type": "application/json"}
        if o.key:
            headers["Authorization"] = "Bearer " + o.key
        if name and not o.no_sessions:
            headers["X-Session-ID"] = name
        connection = http.client.HTTPConnection(self.url.hostname, self.url.port or 80, timeout=o.timeout)
        answer.sent = answer.end = time.perf_counter()
        try:
            connection.request("POST", self.url.path.rstrip("/") + "/v1/chat/completions",
                               json.dumps(body), headers)
            reply = connection.getresponse()
            if reply.status != 200:
                answer.refused = f"{reply.status} {self.code(reply.read())}"
            else:
                self.take(answer, reply)
                answer.wrong = self.fault(answer)
        except (OSError, http.client.HTTPException, ValueError) as error:
            answer.wrong = f"{type(error).__name__}: {error}"
        finally:
            answer.end = time.perf_counter()
            connection.close()

    @staticmethod
    def code(body):
        try:
            return json.loads(body)["error"]["code"]
        except (ValueError, KeyError, TypeError):
            return "no error object"

    def take(self, answer, reply):
        done = False
        for line in reply:
            if not line.startswith(b"data: "):
                continue
            if line.strip() == b"data: [DONE]":
                done = True
                continue
            event = json.loads(line[6:])
            if "error" in event:
                raise ValueError(event["error"].get("code"))
            for choice in event["choices"]:
                if choice["delta"].get("content"):
                    answer.pieces.append(time.perf_counter())
                    answer.text += choice["delta"]["content"]
                answer.finish = choice["finish_reason"] or answer.finish
            if event.get("usage"):
                answer.tokens = event["usage"]["completion_tokens"]
                answer.prompt_tokens = event["usage"]["prompt_tokens"]
                details = event["usage"].get("prompt_tokens_details") or {}
                answer.cached_tokens = details.get("cached_tokens", 0)
                answer.cache_bytes = event.get("pith", {}).get("cache_bytes", 0)  # of Pith alone
        if not done:
            raise ValueError("the stream ended without [DONE]")

    def fault(self, answer):
        if answer.finish != "length" or answer.tokens != self.options.max_tokens:
            return f"{answer.tokens} tokens, ended by {answer.finish}"
        return None if answer.text else "no text"

    def talk(self, number, again=False):
        """A conversation from its first question to its last, or to a refusal."""
        o, out = self.options, []
        think = random.Random(o.seed * 7919 + number)
        messages = [{"role": "system", "content": self.system}] if self.system else []
        for turn, question in enumerate(self.questions(number)):
            if turn and o.think and not again:
                time.sleep(think.expovariate(1 / o.think))
            messages = messages + [{"role": "user", "content": question}]
            answer = Answer(number, turn)
            # Asked again it is a conversation of its own, which nothing is kept of.
            self.ask(answer, messages, f"load-{o.seed}-{number}" + ("-again" if again else ""))
            out.append(answer)
            if not answer.whole:
                break
            messages = messages + [{"role": "assistant", "content": answer.text}]
        if not again:
            with self.lock:
                self.answers += out
        return out

    def closed(self):
        numbers = iter(range(self.options.conversations))

        def client():
            while True:
                with self.lock:
                    number = next(numbers, None)
                if number is None:
                    return
                self.talk(number)

        threads = [threading.Thread(target=client) for _ in range(self.options.clients)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def open(self):
        gaps, threads, at = random.Random(self.options.seed), [], time.perf_counter()
        for number in range(self.options.conversations):
            time.sleep(max(0, at - time.perf_counter()))
            threads.append(threading.Thread(target=self.talk, args=(number,)))
            threads[-1].start()
            at += gaps.expovariate(self.options.rate)
        for thread in threads:
            thread.join()

    def check(self):
        """The same conversations alone must say the same."""
        for number in range(min(self.options.check, self.options.conversations)):
            first = {a.turn: a for a in self.answers if a.talk == number}
            for twin in self.talk(number, again=True):
                answer = first.get(twin.turn)
                if answer is not None and answer.whole and twin.whole and answer.text != twin.text:
                    answer.wrong = "asked alone it says something else"

    def run(self):
        start = time.perf_counter()
        self.open() if self.options.rate else self.closed()
        seconds = time.perf_counter() - start
        self.check()
        return self.summary(seconds)

    def summary(self, seconds):
        whole = [a for a in self.answers if a.whole]
        counts = {}
        for answer in self.answers:
            if answer.refused:
                counts[answer.refused] = counts.get(answer.refused, 0) + 1
        figures = {"ttft": [a.ttft for a in whole if a.ttft is not None],
                   "itl": [gap for a in whole for gap in a.gaps],
                   "tpot": [a.tpot for a in whole if a.tpot is not None],
                   "seconds": [a.end - a.sent for a in whole]}
        out = {"answers": len(whole), "refused": counts,
               "wrong": [f"conversation {a.talk} turn {a.turn}: {a.wrong}"
                         for a in self.answers if a.wrong],
               "seconds_in_all": seconds,
               "tokens_per_second": sum(a.tokens for a in whole) / seconds,
               "answers_per_second": len(whole) / seconds,
               "goodput": sum(a.within(self.options) for a in whole) / seconds,
               "prompt_tokens": sum(a.prompt_tokens for a in whole),
               "cached_tokens": sum(a.cached_tokens for a in whole)}
        for name, values in figures.items():
            out[name] = {"mean": sum(values) / len(values) if values else None,
                         **{f"p{p}": percentile(values, p) for p in PERCENTS}}
        return out


def show(summary):
    refused = sum(summary["refused"].values())
    print(f"{summary['answers']} answers in {summary['seconds_in_all']:.1f} s, {refused} refused, "
          f"{len(summary['wrong'])} wrong")
    for reason, count in sorted(summary["refused"].items()):
        print(f"  refused {count} times: {reason}")
    for fault in summary["wrong"][:20]:
        print(f"  wrong: {fault}")
    print(f"{summary['tokens_per_second']:.1f} tokens/s, {summary['answers_per_second']:.2f} answers/s, "
          f"goodput {summary['goodput']:.2f} answers/s, "
          f"{summary['cached_tokens']} of {summary['prompt_tokens']} prompt tokens reused")
    show_times(summary)


def show_times(summary):
    print(f"{'ms':>8} {'mean':>9} " + " ".join(f"{'p%d' % p:>9}" for p in PERCENTS))
    for name in ("ttft", "itl", "tpot", "seconds"):
        values = summary[name].values()
        print(f"{'e2e' if name == 'seconds' else name:>8} " +
              " ".join(f"{'-' if v is None else '%.1f' % (1000 * v):>9}" for v in values))


def options_of(arguments):
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("url", help="of the server, as http://127.0.0.1:8080")
    p.add_argument("--model", help="default: the server's first")
    p.add_argument("--key", help="an API key")
    p.add_argument("--clients", type=int, default=4, help="of the closed loop (default 4)")
    p.add_argument("--rate", type=float, default=0, help="conversations a second: an open loop")
    p.add_argument("--conversations", type=int, default=16)
    p.add_argument("--turns", type=int, default=2)
    p.add_argument("--words", type=int, default=100, help="of a question")
    p.add_argument("--system", type=int, default=50, help="words of the system message of all")
    p.add_argument("--max-tokens", type=int, default=32, help="of each answer, which has all of them")
    p.add_argument("--think", type=float, default=0, help="seconds before the next question")
    p.add_argument("--no-sessions", action="store_true", help="send no X-Session-ID")
    p.add_argument("--ttft", type=float, default=2, help="seconds, for goodput")
    p.add_argument("--itl", type=float, default=0.15, help="seconds, for goodput")
    p.add_argument("--check", type=int, default=0, metavar="N", help="conversations to ask again alone")
    p.add_argument("--timeout", type=float, default=600, help="seconds of silence")
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--json", action="store_true", help="one JSON object instead of a table")
    p.add_argument("--out", help="a file for a line of JSON an answer")
    o = p.parse_args(arguments)
    for name in ("clients", "conversations", "turns", "words", "max_tokens"):
        if getattr(o, name) < 1:
            p.error(f"--{name.replace('_', '-')} must be 1 or more")
    if o.rate < 0 or o.think < 0 or o.check < 0:
        p.error("--rate, --think and --check must not be negative")
    return o


def main(arguments=None):
    options = options_of(arguments)
    load = Load(options)
    summary = load.run()
    if options.out:
        with open(options.out, "w", encoding="utf-8") as file:
            for answer in load.answers:
                file.write(json.dumps(answer.line()) + "\n")
    if options.json:
        print(json.dumps(summary))
    else:
        show(summary)
    return 1 if summary["wrong"] or not summary["answers"] else 0


if __name__ == "__main__":
    sys.exit(main())
