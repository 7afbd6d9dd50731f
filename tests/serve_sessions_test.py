#!/usr/bin/env python3
"""Conversations by name over the network: forks, saves and restores, in memory and on disk."""

import concurrent.futures
import pathlib
import socket
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from serve.harness import Server, chat, words  # noqa: E402
from serve_test import request  # noqa: E402


class Sessions(unittest.TestCase):
    def test_sessions_survive_the_server(self):
        turns = [{"role": "user", "content": words(120, 2)}]
        more = {"id_slot": 0, "temperature": 0, "max_tokens": 9}
        with tempfile.TemporaryDirectory() as folder:
            options = ("--slot-save-path", folder)
            policy = "keydiff(budget=48)+int4,sink=4,window=16"
            with Server(*options, policy=policy) as server:
                first = server.post("/v1/chat/completions", {"messages": turns, **more})
                saved = server.post("/slots/0?action=save", {"filename": "talk.pith"})
                turns += [first["choices"][0]["message"], {"role": "user", "content": "And then?"}]
                expected = server.post("/v1/chat/completions", {"messages": turns, **more})
                status, answer, _ = server.ask("POST", "/slots/0?action=save",
                                               {"filename": "../talk"})
                self.assertEqual((status, answer["error"]["param"]), (400, "name"))
            with Server(*options, policy=policy) as server:
                restored = server.post("/slots/0?action=restore", {"filename": "talk.pith"})
                self.assertEqual(restored["n_restored"], saved["n_saved"])
                answer = server.post("/v1/chat/completions", {"messages": turns, **more})
                self.assertEqual(answer["choices"], expected["choices"])
                cached = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
                self.assertEqual(cached, saved["n_saved"])
            with Server(*options, policy="exact") as server:
                status, answer, _ = server.ask("POST", "/slots/0?action=restore",
                                               {"filename": "talk.pith"})
                self.assertEqual(status, 400, answer)
                self.assertIn("policy", answer["error"]["message"])

    def test_idle_conversations_leave_memory_and_outlive_the_server(self):
        policies = ("exact", "keydiff(budget=300)+int8,sink=4,window=16")
        for policy, memory in zip(policies, ("16MiB", "13MiB")):
            with self.subTest(policy=policy), tempfile.TemporaryDirectory() as folder:
                begun = [[5 + (i + 1) * (7 * j + 3) % 4000 for j in range(500)] for i in range(5)]

                def turn(server, talk, name):
                    return server.post("/v1/completions", {
                        "prompt": talk, "temperature": 0, "max_tokens": 9, "ignore_eos": True,
                        "return_tokens": True, "pith": {"session": name}})

                def turns(server, talks):
                    """All at once."""
                    with concurrent.futures.ThreadPoolExecutor(len(talks)) as pool:
                        answers = list(pool.map(lambda i: turn(server, talks[i], f"talk-{i}"),
                                                range(len(talks))))
                    for talk, answer in zip(talks, answers):
                        talk += answer["choices"][0]["tokens"] + [11, 12, 13]
                    return [(a["choices"], a["usage"]) for a in answers]

                with Server("--memory", "256MiB", policy=policy) as server:
                    talks = [list(talk) for talk in begun]
                    expected = [turns(server, talks) for _ in range(3)]
                options = ("--memory", memory, "--slot-save-path", folder, "--autosave",
                           "--queue-timeout", "600", "--snapshots", "0.2")
                talks = [list(talk) for talk in begun]
                with Server(*options, policy=policy) as server:
                    found = [turns(server, talks) for _ in range(2)]
                    self.assertGreater(server.metric("pith_disk_writes_total"), 0)
                    self.assertGreater(server.metric("pith_disk_reads_total"), 0)
                    self.assertEqual(server.metric("pith_conversations_dropped_total"), 0)
                    _, listed, _ = server.ask("GET", "/v1/pith/sessions")
                    self.assertIn("disk", {s["where"] for s in listed["data"]})
                with Server(*options, policy=policy) as server:
                    _, listed, _ = server.ask("GET", "/v1/pith/sessions")
                    self.assertEqual({s["where"] for s in listed["data"]}, {"disk"})
                    self.assertEqual(sorted(s["id"] for s in listed["data"]),
                                     [f"talk-{i}" for i in range(5)])
                    found.append(turns(server, talks))
                    server.post("/v1/pith/sessions/talk-0/fork", {"id": "other"})
                    self.assertEqual(server.ask("DELETE", "/v1/pith/sessions/talk-0")[0], 200)
                    self.assertEqual(server.ask("GET", "/v1/pith/sessions/talk-0")[0], 404)
                    self.assertEqual(server.ask("GET", "/v1/pith/sessions/other")[0], 200)
                self.assertEqual(found, expected)
                for _, usage in found[1] + found[2]:  # all but the last token drawn and the new ones
                    cached = usage["prompt_tokens_details"]["cached_tokens"]
                    self.assertEqual(cached, usage["prompt_tokens"] - 4)

    def test_a_conversation_on_disk_is_saved_while_memory_is_full(self):
        begun = [5 + 7 * j % 4000 for j in range(500)]
        ask = {"temperature": 0, "max_tokens": 9, "ignore_eos": True, "return_tokens": True}
        with tempfile.TemporaryDirectory() as folder:
            options = ("--memory", "13MiB", "--slot-save-path", folder, "--autosave")
            with Server(*options) as server:
                first = server.post("/v1/completions",
                                    {"prompt": begun, "pith": {"session": "a"}, **ask})
            talk = begun + first["choices"][0]["tokens"] + [11, 12, 13]
            with Server(*options) as server:
                # It takes all memory that is left until it is told to end.
                long = {"prompt": [7] * 9, "max_tokens": 500, "ignore_eos": True, "stream": True}
                with socket.create_connection(("127.0.0.1", server.port)) as other:
                    other.sendall(request(b"/v1/completions", long))
                    self.assertIn(b" 200 OK", other.recv(100))
                    status, answer, headers = server.ask("POST", "/v1/pith/sessions/a/fork",
                                                         {"id": "b"})
                    self.assertEqual((status, answer["error"]["code"]), (503, "out_of_memory"))
                    self.assertEqual(headers["Retry-After"], "1")
                    saved = server.post("/v1/pith/sessions/a/save", {"name": "kept"})
                    self.assertEqual(saved["n_saved"], len(begun) + 8)
                    self.assertEqual(server.metric("vllm:num_requests_running"), 1)
                    _, one, _ = server.ask("GET", "/v1/pith/sessions/a")
                    self.assertEqual(one["where"], "disk")
            self.assertNotIn(b"conversation", pathlib.Path(folder, "kept").read_bytes())
            with Server("--slot-save-path", folder) as server:
                restored = server.post("/v1/pith/sessions/other/restore", {"name": "kept"})
                self.assertEqual(restored["n_restored"], saved["n_saved"])
                expected = server.post("/v1/completions", {"prompt": talk, **ask})
                answer = server.post("/v1/completions",
                                     {"prompt": talk, "pith": {"session": "other"}, **ask})
                self.assertEqual(answer["choices"], expected["choices"])
                self.assertEqual(answer["usage"]["prompt_tokens_details"]["cached_tokens"],
                                 saved["n_saved"])

    def test_what_is_restored_sends_idle_conversations_to_the_disk(self):
        with tempfile.TemporaryDirectory() as folder:
            options = ("--memory", "13MiB", "--slot-save-path", folder, "--autosave")
            with Server(*options) as server:
                def turn(name, first):
                    server.post("/v1/completions", {
                        "prompt": [first + 7 * j % 4000 for j in range(500)], "max_tokens": 2,
                        "pith": {"session": name}})
                turn("a", 5)
                server.post("/v1/pith/sessions/a/save", {"name": "kept"})
                for i in range(3):
                    turn(f"other-{i}", 6 + i)
                for i in range(3):
                    server.post(f"/v1/pith/sessions/again-{i}/restore", {"name": "kept"})
                    server.post("/v1/pith/sessions/a/fork", {"id": f"fork-{i}"})
                self.assertEqual(server.metric("pith_conversations_dropped_total"), 0)
                _, listed, _ = server.ask("GET", "/v1/pith/sessions")
                self.assertEqual(len(listed["data"]), 10)

    def test_refusals_name_files_and_no_folders(self):
        with tempfile.TemporaryDirectory() as folder, Server("--slot-save-path", folder) as server:
            server.post("/v1/chat/completions", chat("The ship", max_tokens=2, pith={"session": "a"}))
            server.post("/v1/pith/sessions/a/save", {"name": "kept"})
            text = pathlib.Path(folder, "kept").read_bytes()
            pathlib.Path(folder, "broken").write_bytes(text[:-9])
            pathlib.Path(folder, "other").mkdir()
            for status, code, name in ((404, "not_found", "none"), (422, "session_file_corrupt", "broken"),
                                       (400, "invalid_value", "other")):
                for path, field in (("/v1/pith/sessions/b/restore", "name"),
                                    ("/slots/0?action=restore", "filename")):
                    seen, answer, _ = server.ask("POST", path, {field: name})
                    self.assertEqual((seen, answer["error"]["code"]), (status, code), name)
                    self.assertNotIn(folder, answer["error"]["message"])
            status, answer, _ = server.ask("POST", "/v1/pith/sessions/a/fork", {"id": ""})
            self.assertEqual((status, answer["error"]["param"]), (400, "id"))
            status, answer, _ = server.ask("POST", "/v1/pith/sessions//restore", {"name": "kept"})
            self.assertEqual((status, answer["error"]["code"]), (400, "invalid_value"))

    def test_a_session_answers_one_request_at_a_time(self):
        with Server() as server:
            long = chat("The ship lay", max_tokens=4000, ignore_eos=True, stream=True,
                        pith={"session": "talk"})
            with socket.create_connection(("127.0.0.1", server.port)) as first:
                first.sendall(request(b"/v1/chat/completions", long))
                first.recv(100)
                for method, path, body in (
                        ("POST", "/v1/chat/completions", chat("A", pith={"session": "talk"})),
                        ("DELETE", "/v1/pith/sessions/talk", None),
                        ("POST", "/v1/pith/sessions/talk/fork", {})):
                    status, answer, _ = server.ask(method, path, body)
                    self.assertEqual((status, answer["error"]["code"]), (409, "session_busy"), path)
                # A key for caches is no session: its requests may come at once.
                server.post("/v1/chat/completions", chat("A", max_tokens=2, prompt_cache_key="talk"))

    def test_a_deleted_session_takes_nothing_from_others(self):
        with Server() as server:
            def turn(name, *more):
                body = {"messages": [{"role": "system", "content": words(120)},
                                     {"role": "user", "content": words(90, len(name))}, *more],
                        "temperature": 0, "max_tokens": 5, "pith": {"session": name}}
                return server.post("/v1/chat/completions", body)
            turn("a")
            other = turn("bb")
            self.assertEqual(server.ask("DELETE", "/v1/pith/sessions/a")[0], 200)
            on = turn("bb", other["choices"][0]["message"], {"role": "user", "content": "And then?"})
            self.assertEqual(on["pith"]["reuse"]["kind"], "answer", on["pith"])
            again = turn("a")  # of its own nothing is left, of the common beginning all
            self.assertGreater(again["usage"]["prompt_tokens_details"]["cached_tokens"], 100)
            self.assertEqual(again["pith"]["reuse"]["kind"], "prompt")
            self.assertLess(again["pith"]["reuse"]["tokens"],
                            on["usage"]["prompt_tokens"] - 90)

    def test_a_save_that_cannot_be_written(self):
        with tempfile.TemporaryDirectory() as folder, Server("--slot-save-path", folder) as server:
            server.post("/v1/chat/completions", chat("The ship", max_tokens=2, pith={"session": "a"}))
            server.post("/v1/pith/sessions/a/save", {"name": "one"})
            status, answer, _ = server.ask("POST", "/v1/pith/sessions/a/save", {"name": "one"})
            self.assertEqual((status, answer["error"]["code"]), (409, "file_exists"))
            pathlib.Path(folder, "one").unlink()
            pathlib.Path(folder).rmdir()
            status, answer, _ = server.ask("POST", "/v1/pith/sessions/a/save", {"name": "two"})
            self.assertEqual((status, answer["error"]["code"]), (507, "disk_full"))
            self.assertNotIn(folder, answer["error"]["message"])
            pathlib.Path(folder).mkdir()
            server.post("/v1/pith/sessions/a/save", {"name": "two"})


if __name__ == "__main__":
    unittest.main()
