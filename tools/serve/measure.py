"""What steps of servers take, for simulate.py: measured over HTTP, from their /metrics, /props and answers."""

import json
import random
import sys
import threading
import time
import urllib.request

import load
from server import get, metric

BUCKET = 256  # kStep of src/serve/costs.h


def fit(points):
    """(a, b) of the line y = a + b x nearest to the points, without a negative a."""
    n, x, y = len(points), sum(p[0] for p in points), sum(p[1] for p in points)
    xx, xy = sum(p[0] * p[0] for p in points), sum(p[0] * p[1] for p in points)
    slope = (n * xy - x * y) / (n * xx - x * x)
    rest = (y - slope * x) / n
    return (rest, slope) if rest >= 0 else (0.0, xy / xx)


def prompts_alone(url, sizes, options):
    """Asks prompts of so many words one after another: what one has that the scheduler does not see, seconds of
    a chunk and of its tokens, and the bytes that the last one reserves."""
    reserved, unseen, points = 0, 0.0, []
    for words in sizes:
        numbers = random.Random(time.time_ns())  # nothing is kept of such a text
        messages = [{"role": role, "content": load.Load.text(numbers, count)}
                    for role, count in (("system", 20), ("user", words))]
        body = {"messages": messages, "max_tokens": 1, "temperature": 0, "ignore_eos": True, "stream": True,
                "stream_options": {"include_usage": True}}
        request = urllib.request.Request(url.rstrip("/") + "/v1/chat/completions", json.dumps(body).encode(),
                                         {"Content-Type": "application/json"})
        start, first = time.perf_counter(), None
        with urllib.request.urlopen(request, timeout=options.timeout) as reply:
            for line in reply:
                if not line.startswith(b"data: {"):
                    continue
                event = json.loads(line[6:])
                if first is None and any(c["delta"].get("content") for c in event["choices"]):
                    first = time.perf_counter() - start
                if event.get("usage"):
                    reserved, read = event["pith"]["reserved_bytes"], event["timings"]
        points.append((read["prompt_n"], read["prompt_ms"] / 1000))
        unseen += max(0.0, (first or 0.0) - points[-1][1])
    return unseen / len(sizes), fit(points), reserved


def measure(urls, options):
    texts = [get(url, "/metrics") for url in urls]
    rows = sorted({int(line.split('rows="')[1].split('"')[0]) for text in texts for line in text.splitlines()
                   if line.startswith("pith_steps_total{") and 'rows="' in line})

    def total(name, **labels):
        return sum(metric(text, name, **labels) for text in texts)

    if not rows or not total("llamacpp:prompt_tokens_total"):
        sys.exit("simulate: the servers have answered nothing yet; put load on them first (load.py)")
    passes = {n: total("pith_step_seconds_total", part="pass", rows=n) /
              total("pith_steps_total", part="pass", rows=n) for n in rows}
    overhead, (read, token), least = prompts_alone(urls[0], (20, 200, 100, 200, 20), options)
    props, models = json.loads(get(urls[0], "/props")), json.loads(get(urls[0], "/v1/models"))
    context = props["default_generation_settings"]["n_ctx"]
    slope = (models["data"][0]["pith"]["bytes_worst_case"] - least) / max(1, context - BUCKET)
    scratch = metric(texts[0], "pith_bytes", kind="scratch")
    return {"passes": passes, "read": read, "token": token,
            "chunk": props["pith"]["chunk"], "overhead": overhead,
            "memory": metric(texts[0], "pith_budget_bytes") - scratch,
            "fixed_bytes": least - slope * BUCKET, "token_bytes": slope, "bucket": BUCKET,
            "parallel": props["total_slots"],
            "queue": props["pith"]["queue"], "queue_seconds": props["pith"]["queue_seconds"],
            "prefill_share": props["pith"]["prefill_share"]}


def ask_all(urls, seed, options, clients=1):
    """The same amount of work for each server, all at once."""
    loads = [load.Load(load.options_of([
        url, "--clients", str(clients), "--conversations", str(3 * clients), "--turns", "1", "--words",
        str(options.words), "--max-tokens", str(options.answer), "--no-sessions", "--seed", str(1000 * seed + i)]))
        for i, url in enumerate(urls)]
    threads = [threading.Thread(target=one.run) for one in loads]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [gap for one in loads for answer in one.answers for gap in answer.gaps]


def step_times(urls, before=None):
    """(seconds of passes, passes, seconds of chunks, tokens of prompts) of all servers, since `before`."""
    texts = [get(url, "/metrics") for url in urls]
    found = [sum(metric(text, name, **labels) for text in texts) for name, labels in (
        ("pith_step_seconds_total", {"part": "pass"}), ("pith_steps_total", {"part": "pass"}),
        ("pith_step_seconds_total", {"part": "chunk"}), ("llamacpp:prompt_tokens_total", {}))]
    return [a - b for a, b in zip(found, before or [0] * 4)]


def together(urls, options, rounds=3):
    """How fast each of 1, 2, ... servers of one machine works while all do, beside one alone; and how the
    gaps of that one vary."""
    sums, gaps = [[0.0] * 4 for _ in urls], []
    for turn in range(rounds):
        for count in range(1, len(urls) + 1):
            before = step_times(urls[:count])
            found = ask_all(urls[:count], 1 + 10 * turn + count, options)
            gaps += found if count == 1 else []
            sums[count - 1] = [a + b for a, b in zip(sums[count - 1], step_times(urls[:count], before))]
    # An answer's passes and its prompt, as the answers alone had them.
    passes, tokens = sums[0][1], sums[0][3]
    took = [one[0] / one[1] * passes + one[2] / one[3] * tokens for one in sums]
    mean = sum(gaps) / len(gaps)
    return {"machine": len(urls), "speeds": {count + 1: took[0] / took[count] for count in range(len(urls))},
            "spread": [load.percentile(gaps, p) / mean for p in range(1, 101)]}


def alone(url, options):
    """Times of one server while the others do nothing."""
    for clients in (1, 2, 4):
        ask_all([url], 100 + clients, options, clients)
    return measure([url], options)
