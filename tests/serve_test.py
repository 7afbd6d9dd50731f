#!/usr/bin/env python3
"""`pith serve` over plain sockets: bytes of streams, refusals, many conversations, ends."""

import concurrent.futures
import json
import pathlib
import signal
import socket
import sys
import tempfile
import threading
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from serve.harness import Server, chat, words  # noqa: E402

JSON = b"Content-Type: application/json\r\n"


def request(path, body, extra=b"", version=b"1.1", host=b"localhost"):
    text = json.dumps(body).encode()
    return (b"POST " + path + b" HTTP/" + version + b"\r\nHost: " + host + b"\r\n" + JSON + extra +
            b"Content-Length: " + str(len(text)).encode() + b"\r\n\r\n" + text)


def chunks_of(raw):
    """Head and body of a chunked answer."""
    head, _, rest = raw.partition(b"\r\n\r\n")
    body = b""
    while rest:
        size, _, rest = rest.partition(b"\r\n")
        count = int(size, 16)
        if count == 0:
            assert rest == b"\r\n", rest
            return head, body
        body, rest = body + rest[:count], rest[count + 2:]
    raise AssertionError("the last chunk is missing")


class Basics(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server("--preset", "small=keydiff(budget=48)+int4,sink=4,window=16",
                            "--memory", "256MiB").__enter__()

    @classmethod
    def tearDownClass(cls):
        cls.server.__exit__()

    def test_stream_byte_for_byte(self):
        body = chat("The ship lay", max_tokens=3, stream=True,
                    stream_options={"include_usage": True})
        head, events = chunks_of(self.server.raw(request(b"/v1/chat/completions", body)))
        self.assertTrue(head.startswith(b"HTTP/1.1 200 OK\r\n"))
        for header in (b"Content-Type: text/event-stream; charset=utf-8", b"Cache-Control: no-cache",
                       b"X-Accel-Buffering: no", b"Transfer-Encoding: chunked"):
            self.assertIn(header, head.split(b"\r\n"))
        parts = events.decode().split("\n\n")
        self.assertEqual(parts[-2:], ["data: [DONE]", ""])
        texts = [json.loads(p[6:]) for p in parts[:-2]]
        first = texts[0]
        start = ('data: {"id":"%s","object":"chat.completion.chunk","created":%d,"model":"demo",'
                 '"system_fingerprint":"%s","choices":[' %
                 (first["id"], first["created"], first["system_fingerprint"]))
        tail = '"logprobs":null,"finish_reason":%s}],"usage":null}'
        said = [t["choices"][0]["delta"]["content"] for t in texts[1:-2]]
        expected = [start + '{"index":0,"delta":{"role":"assistant","content":""},' + tail % "null"]
        expected += [start + '{"index":0,"delta":{"content":%s},' % json.dumps(piece) + tail % "null"
                     for piece in said]
        expected += [start + '{"index":0,"delta":{},' + tail % '"length"']
        self.assertEqual(parts[:-3], expected)
        self.assertTrue(parts[-3].startswith(start + '],"usage":{"prompt_tokens":'))
        self.assertEqual(texts[-1]["usage"]["completion_tokens"], 3)
        whole = self.server.post("/v1/chat/completions", chat("The ship lay", max_tokens=3))
        self.assertEqual("".join(said), whole["choices"][0]["message"]["content"])

    def test_old_http_gets_an_unchunked_stream(self):
        raw = self.server.raw(request(b"/v1/completions", {"prompt": "The", "max_tokens": 2,
                                                           "stream": True}, version=b"1.0"))
        head, _, body = raw.partition(b"\r\n\r\n")
        self.assertNotIn(b"chunked", head)
        self.assertIn(b"Connection: close", head)
        self.assertTrue(body.endswith(b"data: [DONE]\n\n"))

    def test_refusals(self):
        ask = self.server.ask
        cases = [
            (404, "not_found", "GET", "/nowhere", None),
            (405, "method_not_allowed", "GET", "/v1/chat/completions", None),
            (404, "not_found", "POST", "/v1/embeddings", {}),
            (400, "invalid_json", "POST", "/v1/chat/completions", "{"),
            (400, "invalid_json", "POST", "/v1/chat/completions", '{"a":1,"a":2}'),
            (400, "invalid_json", "POST", "/v1/chat/completions", "[" * 100),
            (400, "invalid_json", "POST", "/v1/chat/completions", b'{"a":"\xff"}'),
            (404, "model_not_found", "POST", "/v1/chat/completions", chat("a", model="gpt-9")),
            (400, "invalid_value", "POST", "/v1/chat/completions", chat("a", n=9)),
            (400, "invalid_value", "POST", "/v1/chat/completions", {"messages": []}),
            (400, "unsupported", "POST", "/v1/chat/completions",
             chat("a", response_format={"type": "json_schema", "json_schema": {
                 "name": "a", "schema": {"type": "string", "pattern": "x"}}})),
            (400, "unsupported", "POST", "/v1/chat/completions",
             {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}),
            (400, "context_length_exceeded", "POST", "/v1/completions", {"prompt": [5] * 9000}),
            (400, "context_length_exceeded", "POST", "/v1/completions", {"prompt": "the ship " * 100000}),
            (400, "context_length_exceeded", "POST", "/v1/chat/completions", chat("the ship " * 100000)),
            (400, "invalid_argument", "POST", "/v1/chat/completions",
             chat("a", pith={"policy": "nosuch(budget=1)"})),
        ]
        for status, code, method, path, body in cases:
            with self.subTest(path=path, body=str(body)[:80]):
                got, answer, _ = ask(method, path, body)
                self.assertEqual((got, answer["error"]["code"]), (status, code), answer)
                self.assertEqual(set(answer["error"]), {"message", "type", "param", "code"})
        _, answer, _ = ask("POST", "/v1/chat/completions",
                           {"messages": [{"role": "user", "content": 5}]})
        self.assertEqual(answer["error"]["param"], "messages[0].content")
        for field, text in (("policy", "auto"), ("budget", "many")):
            _, answer, _ = ask("POST", "/v1/chat/completions", chat("a", pith={field: text}))
            self.assertEqual(answer["error"]["param"], f"pith.{field}", answer)
        for path, field, body in (("completions", "prompt", {"prompt": 5}),
                                  ("completions", "prompt", {"prompt": ["a", {}]}),
                                  ("responses", "input", {"input": "the ship " * 100000}),
                                  ("messages", "messages", chat("the ship " * 100000, max_tokens=1))):
            status, answer, _ = ask("POST", f"/v1/{path}", body)
            self.assertEqual((status, answer["error"]["param"]), (400, field), answer)
            self.assertIn("string" if path == "completions" else "context", answer["error"]["message"])
        status, _, _ = ask("POST", "/tokenize", '{"content":"a"}', {"Content-Type": "text/plain"})
        self.assertEqual(status, 415)

    def test_hosts_and_origins(self):
        for host, status in ((b"localhost:1", b"200"), (b"127.0.0.1", b"200"), (b"[::1]:80", b"200"),
                             (b"evil.example", b"403"), (b"localhost.evil.example", b"403")):
            raw = self.server.raw(b"GET /health HTTP/1.1\r\nHost: " + host +
                                  b"\r\nConnection: close\r\n\r\n")
            self.assertEqual(raw[9:12], status, host)
        self.assertEqual(self.server.raw(b"GET /health HTTP/1.1\r\n\r\n")[9:12], b"403")
        status, answer, _ = self.server.ask("POST", "/tokenize", {"content": "a"},
                                            {"Origin": "http://evil.example"})
        self.assertEqual((status, answer["error"]["code"]), (403, "origin_not_allowed"))

    def test_malformed_requests(self):
        long = b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"a" * 20000 + b"\r\n\r\n"
        post = b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\n" + JSON
        cases = [
            (long, b"431"),
            (post + b"Content-Length: 99999999\r\n\r\n", b"413"),
            (post + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\n{}", b"400"),
            (post + b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n{}", b"400"),
            (post + b"Transfer-Encoding: chunked\r\n\r\n-2\r\n{}\r\n0\r\n\r\n", b"400"),
            (b"rubbish\r\n\r\n", b"400"),
            (b"GET /%00 HTTP/1.1\r\nHost: localhost\r\n\r\n", b"400"),
        ]
        for data, status in cases:
            raw = self.server.raw(data)
            self.assertEqual(raw[9:12], status, data[:60])
            self.assertIn(b'"error"', raw)
        good = post + b'Transfer-Encoding: chunked\r\n\r\n4\r\n{"co\r\nd\r\nntent":"The"}\r\n0\r\n\r\n'
        self.assertEqual(self.server.raw(good)[9:12], b"200")

    def test_pipelined_requests_are_answered_in_turn(self):
        one = request(b"/tokenize", {"content": "The"})
        raw = self.server.raw(one + one)
        self.assertEqual(raw.count(b"HTTP/1.1 200 OK"), 2)

    def test_tokens_and_back(self):
        ids = self.server.post("/tokenize", {"content": "The ship lay"})["tokens"]
        self.assertEqual(self.server.post("/detokenize", {"tokens": ids}),
                         {"content": "The ship lay"})
        pieces = self.server.post("/tokenize", {"content": "The ship", "with_pieces": True})["tokens"]
        self.assertEqual("".join(p["piece"] for p in pieces), "The ship")
        status, answer, _ = self.server.ask("POST", "/detokenize", {"token": ids})
        self.assertEqual((status, answer["error"]["param"]), (400, "tokens"))
        messages = {"messages": [{"role": "system", "content": "A"},
                                 {"role": "user", "content": "B"}]}
        self.assertEqual(self.server.post("/apply-template", messages), {"prompt": "A\nB"})
        count = self.server.post("/v1/chat/completions/input_tokens", messages)["input_tokens"]
        usage = self.server.post("/v1/chat/completions", {**messages, "max_tokens": 1})["usage"]
        self.assertEqual(count, usage["prompt_tokens"])

    def test_ids_that_were_drawn_are_returned(self):
        ask = {"prompt": "The ship lay", "max_tokens": 9, "temperature": 0, "ignore_eos": True,
               "return_tokens": True}
        whole = self.server.post("/v1/completions", ask)["choices"][0]
        self.assertEqual(len(whole["tokens"]), 9)
        for path, more in (("/v1/completions", {}), ("/v1/chat/completions", chat("The ship lay"))):
            _, events = chunks_of(self.server.raw(request(path.encode(), {**ask, **more, "stream": True})))
            found = [json.loads(e[6:])["choices"][0] for e in events.decode().split("\n\n")[:-2]]
            self.assertEqual([i for choice in found for i in choice.get("tokens", [])], whole["tokens"])
        # An answer that ends before its first token has none.
        first = self.server.post("/v1/completions", {**ask, "max_tokens": 0})["choices"][0]
        self.assertEqual(first["tokens"], [])

    def test_models_are_presets(self):
        _, models, _ = self.server.ask("GET", "/v1/models")
        self.assertEqual([m["id"] for m in models["data"]], ["demo", "demo:small"])
        exact, small = (m["pith"]["bytes_worst_case"] for m in models["data"])
        self.assertLess(small, exact / 8)
        answer = self.server.post("/v1/chat/completions",
                                  chat(words(300), model="demo:small", max_tokens=4))
        self.assertIn("keydiff", answer["pith"]["policy"])
        self.assertLess(answer["pith"]["bits"], 8)

    def test_choices_prompts_stops_and_logprobs(self):
        post = self.server.post
        answer = post("/v1/completions", {"prompt": ["The ship", "A whale"], "n": 2, "max_tokens": 5,
                                          "temperature": 0.9, "seed": 7})
        self.assertEqual([c["index"] for c in answer["choices"]], [0, 1, 2, 3])
        self.assertNotEqual(answer["choices"][0]["text"], answer["choices"][1]["text"])
        alone = post("/v1/completions", {"prompt": "A whale", "max_tokens": 5, "temperature": 0.9,
                                         "seed": 7})
        self.assertEqual(alone["choices"][0]["text"], answer["choices"][2]["text"])
        text = post("/v1/completions", {"prompt": "The ship lay", "max_tokens": 12,
                                        "temperature": 0})["choices"][0]["text"]
        stop = text.split()[3]
        cut = post("/v1/completions", {"prompt": "The ship lay", "max_tokens": 12, "temperature": 0,
                                       "stop": stop})["choices"][0]
        self.assertEqual((cut["text"], cut["finish_reason"]), (text[:text.index(stop)], "stop"))
        shown = post("/v1/chat/completions", chat("The ship lay", max_tokens=6, logprobs=True,
                                                  top_logprobs=3))["choices"][0]
        tokens = shown["logprobs"]["content"]
        self.assertEqual("".join(t["token"] for t in tokens), shown["message"]["content"])
        for token in tokens:  # temperature 0: each is the likeliest
            self.assertEqual(token["logprob"], token["top_logprobs"][0]["logprob"])
            self.assertLess(token["logprob"], 0)
            self.assertEqual(bytes(token["bytes"]).decode(), token["token"])
        nothing = post("/v1/completions", {"prompt": "The ship", "max_tokens": 0, "echo": True})
        self.assertEqual(nothing["choices"][0]["text"], "The ship")

    def test_prompts_that_begin_alike_are_read_once(self):
        turns = [{"role": "system", "content": words(200)}, {"role": "user", "content": words(80, 3)}]
        body = {"messages": turns, "temperature": 0, "max_tokens": 8}
        cold = self.server.post("/v1/chat/completions", body)
        warm = self.server.post("/v1/chat/completions", body)
        self.assertEqual(cold["usage"]["prompt_tokens_details"]["cached_tokens"], 0)
        self.assertGreater(warm["usage"]["prompt_tokens_details"]["cached_tokens"], 150)
        self.assertEqual(warm["choices"], cold["choices"])
        self.assertEqual(warm["pith"]["reuse"]["kind"], "prompt")

    def test_a_named_conversation_goes_on_from_its_answer(self):
        turns = [{"role": "user", "content": words(100, 5)}]
        pith = {"pith": {"session": "talk"}, "temperature": 0, "max_tokens": 9}
        first = self.server.post("/v1/chat/completions", {"messages": turns, **pith})
        turns += [first["choices"][0]["message"], {"role": "user", "content": "And then?"}]
        second = self.server.post("/v1/chat/completions", {"messages": turns, **pith})
        self.assertEqual(second["pith"]["reuse"]["kind"], "answer", second["pith"])
        _, listed, _ = self.server.ask("GET", "/v1/pith/sessions")
        self.assertIn("talk", [s["id"] for s in listed["data"]])
        status, one, _ = self.server.ask("GET", "/v1/pith/sessions/talk")
        self.assertEqual(status, 200)
        self.assertEqual(sum(map(sum, one["rows"])), one["ledger"]["rows_kept"])
        fork = self.server.post("/v1/pith/sessions/talk/fork", {"id": "other"})
        self.assertEqual(fork["tokens"], one["tokens"])
        status, _, _ = self.server.ask("DELETE", "/v1/pith/sessions/talk")
        self.assertEqual(status, 200)
        status, gone, _ = self.server.ask("GET", "/v1/pith/sessions/talk")
        self.assertEqual((status, gone["error"]["code"]), (404, "session_not_found"))

    def test_metrics(self):
        before = self.server.metric("vllm:generation_tokens_total")
        self.server.post("/v1/chat/completions", chat("The ship", max_tokens=5, ignore_eos=True))
        self.assertEqual(self.server.metric("vllm:generation_tokens_total"), before + 5)
        self.assertEqual(self.server.metric("pith_budget_bytes"), 256 << 20)
        self.assertEqual(self.server.metric("pith_reserved_bytes"), 0)
        # Caches and what answers need: a few MB.
        self.assertLess(self.server.metric("pith_heap_bytes"), 256 << 20)
        self.assertGreater(self.server.metric("pith_heap_bytes"), 1 << 20)


class Sharing(unittest.TestCase):
    def test_answers_do_not_depend_on_company(self):
        with Server("--parallel", "8") as server:
            def one(i):
                body = chat(words(40 + 30 * i, i), max_tokens=20, cache_prompt=False,
                            pith={"policy": ["exact", "keydiff(budget=40)+int4", "exact+int8"][i % 3]})
                return server.post("/v1/chat/completions", body)["choices"]
            alone = [one(i) for i in range(9)]
            with concurrent.futures.ThreadPoolExecutor(9) as pool:
                together = list(pool.map(one, range(9)))
            self.assertEqual(together, alone)
            self.assertGreater(server.metric("llamacpp:n_busy_slots_per_decode"), 1)

    def test_the_queue_has_an_end_and_readers_who_leave_free_their_place(self):
        with Server("--parallel", "1", "--queue", "1") as server:
            long = chat("The ship lay", max_tokens=4000, ignore_eos=True, stream=True)
            with socket.create_connection(("127.0.0.1", server.port)) as first:
                first.sendall(request(b"/v1/chat/completions", long))
                first.recv(100)
                held = threading.Thread(target=server.post, args=("/v1/chat/completions",
                                                                  chat("A", max_tokens=2)))
                held.start()
                deadline = time.time() + 20
                while server.metric("vllm:num_requests_waiting") < 1 and time.time() < deadline:
                    time.sleep(0.02)
                status, answer, headers = server.ask("POST", "/v1/chat/completions", chat("B"))
                self.assertEqual((status, answer["error"]["code"]), (503, "queue_full"))
                self.assertGreaterEqual(int(headers["Retry-After"]), 1)
            held.join(20)  # the reader has left: the next has its turn
            self.assertFalse(held.is_alive())
            self.assertEqual(server.metric("pith_cancelled_total"), 1)
            self.assertEqual(server.metric("pith_reserved_bytes"), 0)

    def test_memory_is_a_budget(self):
        with Server("--memory", "24MiB", "--parallel", "8") as server:
            status, answer, _ = server.ask("POST", "/v1/completions",
                                           {"prompt": [5] * 8000, "max_tokens": 100})
            self.assertEqual((status, answer["error"]["code"]), (400, "memory_budget_exceeded"))
            def one(i):
                return server.post("/v1/completions", {"prompt": words(600, i), "max_tokens": 200,
                                                       "temperature": 0, "ignore_eos": True})
            with concurrent.futures.ThreadPoolExecutor(6) as pool:
                answers = list(pool.map(one, range(6)))
            self.assertTrue(all(a["usage"]["completion_tokens"] == 200 for a in answers))

    def test_keys(self):
        with Server("--api-key", "secret-one", "--api-key", "secret-two") as server:
            self.assertEqual(server.ask("GET", "/health")[0], 200)
            for path in ("/v1/models", "/metrics", "/slots", "/props"):
                status, answer, _ = server.ask("GET", path)
                self.assertEqual((status, answer["error"]["type"]), (401, "authentication_error"))
            self.assertEqual(server.ask("GET", "/v1/models", None,
                                        {"Authorization": "Bearer secret-on"})[0], 401)
            one, two = ({"Authorization": f"Bearer secret-{k}"} for k in ("one", "two"))
            body = {"messages": [{"role": "system", "content": words(150)},
                                 {"role": "user", "content": "a"}], "max_tokens": 1}
            cached = []
            for key in (one, one, two):  # tenants do not share
                _, answer, _ = server.ask("POST", "/v1/chat/completions", body, key)
                cached.append(answer["usage"]["prompt_tokens_details"]["cached_tokens"] > 0)
            self.assertEqual(cached, [False, True, False])

    def test_a_signal_ends_it_when_answers_are_out(self):
        with Server() as server:
            results = []
            body = chat("The ship lay", max_tokens=150, ignore_eos=True)
            asking = threading.Thread(target=lambda: results.append(
                server.post("/v1/chat/completions", body)))
            asking.start()
            deadline = time.time() + 20
            while server.metric("vllm:num_requests_running") < 1 and time.time() < deadline:
                time.sleep(0.01)
            server.process.send_signal(signal.SIGTERM)
            asking.join(60)
            self.assertEqual(results[0]["usage"]["completion_tokens"], 150)
            self.assertEqual(server.process.wait(20), 0)


if __name__ == "__main__":
    unittest.main()
