#!/usr/bin/env python3
"""The `openai` package against `pith serve`: what its users do. tools/serve/clients.sh makes the
environment; without the package the test is skipped, aloud."""

import asyncio
import json
import pathlib
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from serve.harness import SKIPPED, Server, words  # noqa: E402

try:
    import openai
except ImportError:
    print("serve_openai_test: skipped: the openai package is not here (tools/serve/clients.sh)")
    sys.exit(SKIPPED)

try:
    import anthropic
except ImportError:
    anthropic = None

UNITS = ("mile", "yard")
TOOL = {"name": "add", "parameters": {
    "type": "object", "additionalProperties": False, "required": ["unit"],
    "properties": {"unit": {"enum": list(UNITS)}}}}
USER = [{"role": "user", "content": "The ship lay"}]


class Client(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server("--api-key", "secret-key", "--preset", "int4=exact+int4",
                            "--parallel", "4").__enter__()
        cls.options = {"base_url": cls.server.url + "/v1", "api_key": "secret-key"}
        cls.client = openai.OpenAI(**cls.options)

    @classmethod
    def tearDownClass(cls):
        cls.client.close()
        cls.server.__exit__()

    def create(self, **more):
        options = {"model": "demo", "messages": USER, "temperature": 0, "max_tokens": 8, **more}
        return self.client.chat.completions.create(**options)

    def test_models(self):
        models = self.client.models.list().data
        self.assertEqual([m.id for m in models], ["demo", "demo:int4"])
        self.assertEqual(self.client.models.retrieve("demo:int4").owned_by, "pith")
        self.assertGreater(models[0].max_model_len, 1000)

    def test_chat(self):
        answer = self.create()
        self.assertEqual(answer.object, "chat.completion")
        self.assertEqual(answer.choices[0].finish_reason, "length")
        self.assertEqual(answer.choices[0].message.role, "assistant")
        self.assertEqual(answer.usage.completion_tokens, 8)
        self.assertEqual(answer.usage.total_tokens, answer.usage.prompt_tokens + 8)
        newer = self.client.chat.completions.create(model="demo", messages=USER, temperature=0,
                                                    max_completion_tokens=3)
        self.assertEqual(newer.usage.completion_tokens, 3)

    def test_stream(self):
        whole = self.create().choices[0].message.content
        chunks = list(self.create(stream=True, stream_options={"include_usage": True}))
        self.assertEqual(chunks[0].choices[0].delta.role, "assistant")
        text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
        self.assertEqual(text, whole)
        self.assertEqual(chunks[-1].usage.completion_tokens, 8)
        self.assertEqual(chunks[-2].choices[0].finish_reason, "length")
        self.assertEqual(len({c.id for c in chunks}), 1)

    def test_stream_helper_and_early_end(self):
        with self.client.chat.completions.stream(model="demo", messages=USER, temperature=0,
                                                 max_tokens=400) as stream:
            for event in stream:
                if event.type == "content.delta":
                    break
        self.assertEqual(self.create(max_tokens=1).usage.completion_tokens, 1)

    def test_many_at_once(self):
        async def ask(client, i):
            stream = await client.chat.completions.create(
                model="demo:int4" if i % 2 else "demo", temperature=0, max_tokens=10, stream=True,
                messages=[{"role": "user", "content": words(30 + i, i)}])
            return "".join([c.choices[0].delta.content or "" async for c in stream])

        async def all_of_them():
            async with openai.AsyncOpenAI(**self.options) as client:
                return await asyncio.gather(*(ask(client, i % 5) for i in range(10)))

        answers = asyncio.run(all_of_them())
        self.assertEqual(answers[:5], answers[5:])

    def test_completions(self):
        answer = self.client.completions.create(model="demo", prompt=["The ship", "A whale"],
                                                max_tokens=4, temperature=0, logprobs=2)
        self.assertEqual(len(answer.choices), 2)
        shown = answer.choices[1].logprobs
        self.assertEqual("".join(shown.tokens), answer.choices[1].text)
        self.assertEqual(len(shown.top_logprobs[0]), 2)
        pieces = [c.choices[0].text for c in self.client.completions.create(
            model="demo", prompt="A whale", max_tokens=4, temperature=0, stream=True)]
        self.assertEqual("".join(pieces), answer.choices[1].text)

    def test_sampling(self):
        one, two, other = (self.create(temperature=1, seed=s, max_tokens=12) for s in (1, 1, 2))
        self.assertEqual(one.choices[0].message.content, two.choices[0].message.content)
        self.assertNotEqual(one.choices[0].message.content, other.choices[0].message.content)
        many = self.create(temperature=1, n=3, seed=1)
        self.assertEqual(len({c.message.content for c in many.choices}), 3)
        shown = self.create(logprobs=True, top_logprobs=2).choices[0].logprobs.content
        self.assertEqual(len(shown), 8)
        self.assertEqual(len(shown[0].top_logprobs), 2)

    def test_json_schema(self):
        schema = {"type": "object", "additionalProperties": False, "required": ["ship", "n", "kind"],
                  "properties": {"ship": {"type": "string", "maxLength": 12}, "n": {"type": "integer"},
                                 "kind": {"enum": ["brig", "sloop"]},
                                 "crew": {"type": "array", "maxItems": 2, "items": {"type": "boolean"}}}}
        form = {"type": "json_schema", "json_schema": {"name": "s", "schema": schema}}
        for model in ("demo", "demo:int4"):
            for seed in range(3):
                answer = self.create(model=model, response_format=form, max_tokens=200, temperature=1,
                                     seed=seed)
                self.assertEqual(answer.choices[0].finish_reason, "stop")
                found = json.loads(answer.choices[0].message.content)
                self.assertLessEqual({"ship", "n", "kind"}, set(found))
                self.assertLessEqual(set(found), set(schema["properties"]))
                self.assertLessEqual(len(found["ship"]), 12)
                self.assertIs(type(found["n"]), int)
                self.assertIn(found["kind"], ("brig", "sloop"))
        # Side by side with answers that are free, and cut: not a whole document, and it says so.
        cut = self.create(response_format=form, max_tokens=3)
        self.assertEqual(cut.choices[0].finish_reason, "length")
        with self.assertRaises(openai.BadRequestError) as refused:
            self.create(response_format={"type": "json_schema", "json_schema": {
                "name": "s", "schema": {"type": "string", "pattern": "a+"}}})
        self.assertIn("pattern", str(refused.exception))

    def test_tools(self):
        tool = {"type": "function", "function": TOOL}
        other = {"type": "function", "function": {"name": "sink", "parameters": {
            "type": "object", "additionalProperties": False, "properties": {}}}}
        for choice in ("required", {"type": "function", "function": {"name": "add"}}):
            answer = self.create(tools=[tool, other], tool_choice=choice, max_tokens=200)
            self.assertEqual(answer.choices[0].finish_reason, "tool_calls")
            call = answer.choices[0].message.tool_calls[0]
            self.assertIn(call.function.name, ("add", "sink") if choice == "required" else ("add",))
            if call.function.name == "add":
                self.assertIn(json.loads(call.function.arguments)["unit"], UNITS)
        chunks = list(self.create(tools=[tool], tool_choice="required", max_tokens=200, stream=True))
        deltas = [t for c in chunks for t in (c.choices[0].delta.tool_calls or []) if c.choices]
        self.assertEqual(deltas[0].function.name, "add")
        joined = "".join(t.function.arguments or "" for t in deltas)
        self.assertIn(json.loads(joined)["unit"], UNITS)
        self.assertEqual(chunks[-1].choices[0].finish_reason, "tool_calls")
        told = USER + [answer.choices[0].message.model_dump(exclude_none=True),
                       {"role": "tool", "tool_call_id": call.id, "content": "three"}]
        after = self.create(messages=told, tools=[tool], tool_choice="none")
        self.assertEqual(after.choices[0].finish_reason, "length")
        self.assertFalse(after.choices[0].message.tool_calls)

    def test_responses(self):
        options = {"model": "demo", "input": "The ship lay", "temperature": 0,
                   "max_output_tokens": 8}
        answer = self.client.responses.create(**options)
        self.assertEqual((answer.status, answer.incomplete_details.reason),
                         ("incomplete", "max_output_tokens"))
        self.assertEqual(answer.output_text, self.create().choices[0].message.content)
        self.assertEqual(answer.usage.output_tokens, 8)
        events = list(self.client.responses.create(**options, stream=True))
        self.assertEqual([e.sequence_number for e in events], list(range(len(events))))
        self.assertEqual(events[0].type, "response.created")
        self.assertEqual(events[-1].response.output_text, answer.output_text)
        text = "".join(e.delta for e in events if e.type == "response.output_text.delta")
        self.assertEqual(text, answer.output_text)
        turns = [{"role": "user", "content": [{"type": "input_text", "text": "The ship lay"}]}]
        again = self.client.responses.create(**{**options, "input": turns})
        self.assertEqual(again.output_text, answer.output_text)
        with self.assertRaises(openai.BadRequestError) as raised:
            self.client.responses.create(**options, previous_response_id="resp_1")
        self.assertEqual(raised.exception.param, "previous_response_id")

    def test_tools_in_responses(self):
        name, schema = TOOL["name"], TOOL["parameters"]
        tools = [{"type": "function", "name": name, "parameters": schema, "strict": True}]
        options = {"model": "demo", "temperature": 0, "max_output_tokens": 200, "tools": tools}
        for choice in ("required", {"type": "function", "name": name}):
            answer = self.client.responses.create(**options, input="The ship lay", tool_choice=choice)
            self.assertEqual((answer.status, len(answer.tools)), ("completed", 1))
            call = answer.output[0]
            self.assertEqual((call.type, call.name, call.status), ("function_call", name, "completed"))
            self.assertIn(json.loads(call.arguments)["unit"], UNITS)
        events = list(self.client.responses.create(**options, input="The ship lay", stream=True,
                                                   tool_choice="required"))
        self.assertEqual([e.sequence_number for e in events], list(range(len(events))))
        grown = {}
        for e in events:
            if e.type == "response.function_call_arguments.delta":
                grown[e.item_id] = grown.get(e.item_id, "") + e.delta
        final = events[-1].response
        self.assertEqual(grown, {i.id: i.arguments for i in final.output if i.type == "function_call"})
        self.assertEqual(json.loads(final.output[0].arguments), json.loads(call.arguments))
        told = [{"role": "user", "content": "The ship lay"}, call.model_dump(exclude_none=True),
                {"type": "function_call_output", "call_id": call.call_id, "output": "three"}]
        after = self.client.responses.create(**options, input=told, tool_choice="none")
        self.assertTrue(all(item.type == "message" for item in after.output))
        cut = self.client.responses.create(**{**options, "max_output_tokens": 9}, input="The ship lay",
                                           tool_choice="required")
        self.assertEqual((cut.status, cut.output[-1].status), ("incomplete", "incomplete"))

    @unittest.skipIf(anthropic is None, "the anthropic package is not here")
    def test_tools_in_messages(self):
        name, schema = TOOL["name"], TOOL["parameters"]
        with anthropic.Anthropic(base_url=self.server.url, api_key="secret-key") as client:
            options = {"model": "demo", "max_tokens": 200, "extra_body": {"temperature": 0},
                       "tools": [{"name": name, "input_schema": schema}]}
            for choice in ({"type": "any"}, {"type": "tool", "name": name}):
                answer = client.messages.create(**options, messages=USER, tool_choice=choice)
                self.assertEqual(answer.stop_reason, "tool_use")
                call = answer.content[0]
                self.assertEqual((call.type, call.name), ("tool_use", name))
                self.assertIn(call.input["unit"], UNITS)
            with client.messages.stream(**options, messages=USER, tool_choice=choice) as stream:
                pieces = [e.partial_json for e in stream if e.type == "input_json"]
                final = stream.get_final_message()
            self.assertEqual(final.content[0].input, call.input)
            self.assertEqual(json.loads("".join(pieces)), call.input)
            told = USER + [{"role": "assistant", "content": [c.model_dump() for c in answer.content]},
                           {"role": "user", "content": [{"type": "tool_result", "content": "three",
                                                         "tool_use_id": c.id} for c in answer.content]}]
            after = client.messages.create(**options, messages=told, tool_choice={"type": "none"})
            self.assertTrue(all(block.type == "text" for block in after.content))
            count = client.messages.count_tokens(model="demo", messages=told, tools=options["tools"])
            self.assertGreater(count.input_tokens, after.usage.input_tokens)
            cut = client.messages.create(**{**options, "max_tokens": 9}, messages=USER,
                                         tool_choice=choice)
            self.assertEqual(cut.stop_reason, "max_tokens")
            self.assertFalse([b for b in cut.content if b.type == "tool_use"])

    @unittest.skipIf(anthropic is None, "the anthropic package is not here")
    def test_messages(self):
        with anthropic.Anthropic(base_url=self.server.url, api_key="secret-key") as client:
            options = {"model": "demo", "max_tokens": 8, "messages": USER,
                       "extra_body": {"temperature": 0}}
            answer = client.messages.create(**options)
            self.assertEqual(answer.content[0].text, self.create().choices[0].message.content)
            self.assertEqual((answer.stop_reason, answer.usage.output_tokens), ("max_tokens", 8))
            with client.messages.stream(**options) as stream:
                self.assertEqual("".join(stream.text_stream), answer.content[0].text)
                self.assertEqual(stream.get_final_message().usage.output_tokens, 8)
            told = client.messages.create(**options, system=[{"type": "text", "text": "A tale."}])
            count = client.messages.count_tokens(model="demo", messages=USER, system="A tale.")
            self.assertEqual(count.input_tokens, told.usage.input_tokens)
            with self.assertRaises(anthropic.NotFoundError) as raised:
                client.messages.create(**{**options, "model": "claude"})
            self.assertEqual(raised.exception.body["error"]["type"], "not_found_error")

    def test_errors(self):
        with self.assertRaises(openai.NotFoundError) as raised:
            self.create(model="gpt-9")
        self.assertEqual(raised.exception.code, "model_not_found")
        self.assertTrue(raised.exception.request_id)
        with self.assertRaises(openai.BadRequestError) as raised:
            self.create(messages=[{"role": "user", "content": words(20000)}])
        self.assertEqual(raised.exception.code, "context_length_exceeded")
        with self.assertRaises(openai.BadRequestError) as raised:
            self.create(max_tokens=-5)
        self.assertEqual(raised.exception.param, "max_tokens")
        with self.assertRaises(openai.AuthenticationError):
            openai.OpenAI(**{**self.options, "api_key": "wrong-key"}).models.list()


if __name__ == "__main__":
    unittest.main()
