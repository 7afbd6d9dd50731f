#!/usr/bin/env python3
"""tools/serve/simulate.py: queues that were worked out by hand."""

import argparse
import contextlib
import io
import json
import pathlib
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tools/serve"))
import measure  # noqa: E402
import simulate  # noqa: E402
from replica import Times  # noqa: E402

LIMITS = argparse.Namespace(ttft=1.0, itl=0.2)
# All are sums of powers of two, so that times are exact: a chunk of 8 tokens takes as long as a pass of one.
STEP = 0.125


def times(**more):
    return Times(**{"passes": {1: STEP, 2: 1.5 * STEP, 4: 2 * STEP}, "token": STEP / 8, "chunk": 8, **more})


def talk(at, *turns, session="a", **more):
    return simulate.Talk({"at": at, "session": session, "turns": [
        {"prompt": p, "answer": a, "think": think} for p, a, think in turns], **more})


def tokens(talks, replicas=1, **more):
    """When each request's tokens came, in steps."""
    simulation = simulate.Simulation(times(**more), talks, replicas)
    simulation.run()
    return [[t / STEP for t in a.tokens] for a in simulation.answers], simulation


class Queue(unittest.TestCase):
    def test_one_alone(self):
        found, simulation = tokens([talk(0, (16, 3, 0))])  # two chunks, then two passes
        self.assertEqual(found, [[2, 3, 4]])
        answer = simulation.answers[0]
        self.assertEqual((answer.ttft, answer.gaps, answer.tpot), (2 * STEP, [STEP, STEP], STEP))

    def test_the_second_waits_where_one_runs_at_once(self):
        found, _ = tokens([talk(0, (16, 3, 0)), talk(0, (8, 2, 0), session="b")], parallel=1)
        self.assertEqual(found, [[2, 3, 4], [5, 6]])

    def test_a_prompt_is_read_between_passes(self):
        # The second comes in the first's chunk. After each chunk a pass has its share of the clock.
        found, _ = tokens([talk(0, (8, 5, 0)), talk(STEP / 2, (16, 1, 0), session="b")])
        self.assertEqual(found, [[1, 2, 4, 6, 7], [5]])
        # With a quarter of the clock three passes follow a chunk.
        found, _ = tokens([talk(0, (8, 8, 0)), talk(STEP / 2, (16, 1, 0), session="b")], prefill_share=0.25)
        self.assertEqual(found, [[1, 2, 3, 4, 6, 7, 8, 10], [9]])

    def test_two_write_in_one_pass(self):
        # The first's pass and the second's chunk end at 3, then passes of two take 1.5 each.
        found, _ = tokens([talk(0, (8, 4, 0)), talk(STEP / 2, (8, 3, 0), session="b")])
        self.assertEqual(found, [[1, 2, 4.5, 6], [3, 4.5, 6]])

    def test_a_chunk_takes_some_time_by_itself(self):
        self.assertEqual(tokens([talk(0, (12, 2, 0))], read=STEP / 2)[0], [[2.5, 3.5]])  # 1.5 and 1, then a pass

    def test_passes_vary_as_they_were_measured(self):
        (found,), _ = tokens([talk(0, (8, 1001, 0))], spread=[0.5, 1.5])
        gaps = [b - a for a, b in zip(found, found[1:])]
        self.assertEqual(set(gaps), {0.5, 1.5})
        self.assertLess(abs(sum(gaps) / len(gaps) - 1), 4 * 0.5 / 1000 ** 0.5)  # 4 standard errors

    def test_servers_of_one_machine_share_its_cores(self):
        talks = [talk(0, (8, 3, 0), replica=0), talk(STEP / 2, (8, 1, 0), session="b", replica=1)]
        # From 0.5 on both work at half speed: a chunk's second half ends at 1.5, the other one's at 2.5.
        half = {1: 1.0, 2: 0.5}
        self.assertEqual(tokens(talks, 2, machine=2, speeds=half)[0], [[1.5, 3, 4], [2.5]])
        self.assertEqual(tokens(talks, 2, machine=1, speeds=half)[0], [[1, 2, 3], [1.5]])
        self.assertEqual(tokens(talks, 2, machine=2, speeds={1: 1.0, 2: 1.0})[0], [[1, 2, 3], [1.5]])
        # A machine of three that share what two have, and the fourth on its own: half as fast, and as ever.
        four = [talk(0, (8, 2, 0), session=f"s{i}", replica=i) for i in range(4)]
        self.assertEqual(tokens(four, 4, machine=3, speeds={1: 1.0, 2: 0.75})[0], [[2, 4]] * 3 + [[1, 2]])
        for speeds in ({}, {2: 1.0}, {1: 1.0, 3: 0.5}):
            with self.assertRaises(ValueError):
                times(speeds=speeds)

    def test_proxy_and_clients_work_on_the_servers_machine(self):
        # While they have half a step of work, all go on at half speed: a step more until a token, then one each.
        half, more = {1: 1.0, 2: 0.5}, {"machine": 1, "speeds": {1: 1.0, 2: 0.5}}
        self.assertEqual(tokens([talk(0, (8, 3, 0))], front_request=STEP / 2, **more)[0], [[1.5, 2.5, 3.5]])
        self.assertEqual(tokens([talk(0, (8, 3, 0))], front_token=STEP / 2, **more)[0], [[1, 2.5, 4]])
        # What is left of it goes on beside the next, and another machine's servers do not feel it.
        self.assertEqual(tokens([talk(0, (8, 3, 0))], front_token=2 * STEP, **more)[0], [[1, 3, 5]])
        apart = [talk(0, (8, 3, 0), replica=0), talk(0, (8, 3, 0), session="b", replica=1)]
        self.assertEqual(tokens(apart, 2, front_token=STEP / 2, machine=1, speeds=half)[0], [[1, 2.5, 4]] * 2)

    def test_a_short_prompt_passes_a_long_one(self):
        found, _ = tokens([talk(0, (80, 1, 0)), talk(0, (8, 1, 0), session="b")])
        self.assertEqual(found, [[11], [1]])
        # Four pass it, the fifth comes after its next chunk.
        quick = [talk(0, (8, 1, 0), session=f"b{i}") for i in range(6)]
        found, _ = tokens([talk(0, (16, 1, 0)), *quick])
        self.assertEqual(found, [[6], [1], [2], [3], [4], [7], [8]])

    def test_passes_between_and_beyond_those_measured(self):
        t = times()
        self.assertEqual([t.of_pass(n) / STEP for n in (1, 3, 4, 6)], [1, 1.75, 2, 2.5])
        self.assertEqual(Times(passes={2: 3.0}, token=1).of_pass(9), 3.0)
        with self.assertRaises(ValueError):
            Times(passes={}, token=1)


class Conversations(unittest.TestCase):
    def test_the_next_turn_reads_what_is_new(self):
        # The second turn is sent one step after the first's end at 3: all but the last token drawn is held.
        found, simulation = tokens([talk(0, (8, 3, 0), (7, 2, STEP))])
        self.assertEqual(found, [[1, 2, 3], [5, 6]])
        self.assertEqual((simulation.answers[1].prompt, simulation.answers[1].cached), (18, 10))

    def test_a_common_beginning_is_read_once_a_replica(self):
        def both(replicas):
            talks = [talk(9 * i, (16, 1, 0), session=f"s{i}", shared=["system", 8], replica=i) for i in (0, 1)]
            return [a.cached for a in tokens(talks, replicas)[1].answers]
        self.assertEqual(both(1), [0, 8])
        self.assertEqual(both(2), [0, 0])

    def test_memory_is_reserved_and_idle_conversations_are_given_up(self):
        # 16 + 4 bytes each of 30: the second waits for the first, whose 19 idle bytes then have to go.
        talks = [talk(0, (16, 4, 0), (1, 4, 2)), talk(0, (16, 4, 0), session="b")]
        found, simulation = tokens(talks, memory=30, token_bytes=1)
        self.assertEqual(found[0:2], [[2, 3, 4, 5], [7, 8, 9, 10]])
        self.assertEqual([a.cached for a in simulation.answers], [0, 0, 0])  # the first is read again
        replica = simulation.replicas[0]
        self.assertEqual((replica.dropped, replica.most_held, replica.most_reserved), (2, 1, 25))
        # Rounded up to 16 tokens no more than 16 may be asked for.
        self.assertEqual(tokens([talk(0, (14, 3, 0))], memory=30, token_bytes=1, bucket=16)[1].answers[0].refused,
                         "memory_budget_exceeded")

    def test_overhead_is_a_clients_alone(self):
        found, simulation = tokens([talk(0, (8, 2, 0))], overhead=STEP)
        self.assertEqual(found, [[2, 3]])
        self.assertEqual(simulation.answers[0].ttft, 2 * STEP)

    def test_refusals(self):
        def refused(talks, **more):
            return [a.refused for a in tokens(talks, **more)[1].answers]
        self.assertEqual(refused([talk(0, (16, 4, 0), (1, 1, 0))], memory=19, token_bytes=1),
                         ["memory_budget_exceeded"])  # and no second turn
        four = [talk(0, (8, 9, 0), session=f"s{i}") for i in range(4)]
        self.assertEqual(refused(four, parallel=1, queue=1)[2:], ["queue_full"] * 2)
        self.assertEqual(refused(four, parallel=1, queue_seconds=STEP * 10),
                         [None, None, "queue_timeout", "queue_timeout"])


class Figures(unittest.TestCase):
    def test_the_nearest_line(self):
        self.assertEqual(measure.fit([(1, 3), (2, 5), (4, 9)]), (1, 2))
        self.assertEqual(measure.fit([(1, 1), (2, 3)]), (0, 1.4))  # not below 0 at 0

    def test_what_is_said(self):
        found = simulate.play(times(), [talk(0, (16, 3, 0))], 1, LIMITS)
        self.assertEqual((found["answers"], found["seconds_in_all"], found["tokens_per_second"]),
                         (1, 4 * STEP, 3 / (4 * STEP)))
        self.assertEqual((found["ttft"]["p95"], found["itl"]["mean"], found["share"], found["held"]),
                         (2 * STEP, STEP, 1.0, 1))
        slow = simulate.play(times(), [talk(0, (16, 3, 0))], 1, argparse.Namespace(ttft=0.2, itl=1))
        self.assertEqual((slow["share"], slow["goodput"]), (0.0, 0.0))

    def test_replicas_for_a_promise(self):
        # Each alone is answered in a step; together the last of 12 on a server waits for 11 others.
        talks = [talk(0, (8, 1, 0), session=f"s{i}", replica=i) for i in range(12)]
        def needed(limit):
            return simulate.need(times(), talks, 1.0, argparse.Namespace(ttft=limit * STEP, itl=1))
        self.assertEqual([needed(n) for n in (12, 6, 3, 2, 1)], [1, 2, 4, 6, 12])
        self.assertIsNone(needed(0.5))

    def test_a_thousand_replicas_and_the_command(self):
        with tempfile.TemporaryDirectory() as folder:
            trace, found = pathlib.Path(folder, "trace"), pathlib.Path(folder, "times")
            found.write_text(json.dumps({"passes": {"1": STEP}, "token": STEP / 8}))
            out = io.StringIO()
            with contextlib.redirect_stdout(out):
                simulate.main(["trace", "--conversations", "50", "--rate", "100", "--seed", "7"])
            trace.write_text(out.getvalue())
            said = []
            for _ in range(2):
                out = io.StringIO()
                with contextlib.redirect_stdout(out):
                    code = simulate.main(["run", str(found), str(trace), "--replicas", "1000", "--json"])
                self.assertEqual(code, 0)
                said.append(json.loads(out.getvalue()))
            self.assertEqual(said[0], said[1])
            self.assertEqual((said[0]["answers"], said[0]["refused"]), (100, {}))
            trace.write_text('{"at": 0}\n')
            with self.assertRaises(SystemExit) as raised:
                simulate.main(["run", str(found), str(trace)])
            self.assertIn("trace:1", str(raised.exception))


if __name__ == "__main__":
    unittest.main()
