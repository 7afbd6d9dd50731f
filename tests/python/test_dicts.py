"""The forms of llama-cpp-python and vLLM say what generate() and chat() say."""

import pytest

import pith

PROMPT = "Once upon a time"


@pytest.fixture(scope="module")
def llm(model):
    return pith.LLM(model, threads=1, template="chatml")


def test_completions(llm):
    expected = llm.generate(PROMPT, max_tokens=12, temperature=0)
    given = llm.create_completion(PROMPT, max_tokens=12, temperature=0, echo=True, logprobs=2)
    [choice] = given["choices"]
    assert choice["text"] == PROMPT + expected.text and choice["finish_reason"] == "length"
    assert given["object"] == "text_completion" and given["model"] == "demo"
    assert given["usage"]["completion_tokens"] == 12 and len(choice["logprobs"]["token_logprobs"]) == 12
    assert all(len(top) == 2 for top in choice["logprobs"]["top_logprobs"])
    chunks = list(llm.create_completion(PROMPT, max_tokens=12, temperature=0, stream=True))
    assert "".join(c["choices"][0]["text"] for c in chunks) == expected.text
    assert [c["choices"][0]["finish_reason"] for c in chunks] == [None] * (len(chunks) - 1) + ["length"]
    assert len(llm.create_completion(PROMPT)["choices"][0]["text"]) > 0  # 16 tokens of default


def test_chat_completions(llm):
    messages = [{"role": "user", "content": "Hello"}]
    given = llm.create_chat_completion(messages, max_tokens=8, temperature=0)
    message = given["choices"][0]["message"]
    assert message == llm.messages[-1] and given["object"] == "chat.completion"
    chunks = list(llm.create_chat_completion(messages, max_tokens=8, temperature=0, stream=True))
    assert chunks[0]["choices"][0]["delta"]["role"] == "assistant"
    assert "".join(c["choices"][0]["delta"].get("content", "") for c in chunks) == message["content"]


def test_a_stream_that_is_left_is_closed(llm):
    stream = llm.create_chat_completion("Hello", max_tokens=8, temperature=0, stream=True)
    next(stream)
    stream.close()
    assert llm.chat("Again", max_tokens=2).text is not None


def test_sampling_params(llm):
    params = pith.SamplingParams(temperature=0, max_tokens=8, logprobs=1)
    one, two = llm.generate([PROMPT, "The king"], params)
    greedy = {"temperature": 0, "max_tokens": 8, "top_k": 0, "top_p": 1, "min_p": 0}
    assert one.outputs[0].text == llm.generate(PROMPT, **greedy).text and one.prompt == PROMPT
    assert two.outputs[0].token_ids == llm.generate("The king", **greedy).tokens
    assert one.outputs[0].finish_reason == "length" and len(one.outputs[0].logprobs) == 8
    [drawn] = llm.generate(PROMPT, pith.SamplingParams(n=2, seed=5))
    assert [o.index for o in drawn.outputs] == [0, 1] and drawn.outputs[0].text != drawn.outputs[1].text
    with pytest.raises(TypeError, match="SamplingParams"):
        llm.generate(PROMPT, params, max_tokens=3)
