"""LLM: generation, chats, scores; the same as the program's."""

import asyncio
import json

import numpy as np
import pytest

import pith
from conftest import DEMO, TEXT

PROMPT = "Once upon a time"
GREEDY = {"max_tokens": 16, "temperature": 0}


@pytest.fixture(scope="module")
def llm(model):
    return pith.LLM(model, threads=1, template="chatml")


@pytest.mark.parametrize("kv", ["exact", "quarter", "30%", "snapkv(budget=25%)+int4,sink=4,window=16"])
def test_the_same_text_and_policy_as_the_program(model, program, kv):
    policy = ["--kv-policy", kv] if "(" in kv else ["--kv", kv]
    told = json.loads(program("run", "-m", DEMO, "-p", TEXT, "-n", 24, "--temp", 0.7, "-s", 3, "-t", 1,
                              "--no-screen", "--json", *policy))
    llm = pith.LLM(model, kv=kv, threads=1)
    answer = llm.generate(TEXT, max_tokens=24, temperature=0.7, seed=3)
    assert answer.text == told["text"] and answer.tokens == told["tokens"]
    assert bool(llm.why) == ("(" not in kv and kv != "exact")
    assert llm.ledger().rows_kept > 0


def test_pieces_make_the_text(llm):
    generation = llm.generate(PROMPT, **GREEDY)
    pieces = list(generation)
    assert len(pieces) == 16 and [p.token for p in pieces] == generation.tokens
    assert "".join(p.text for p in pieces) == generation.text == str(generation)
    assert generation.stop_reason == "token limit" and generation.done
    assert llm.last.tokens == generation.prompt_tokens + 16
    assert pieces[0].logprob is None


def test_many_prompts_come_back_in_order(llm):
    one, two = llm.generate([PROMPT, "The king"], **GREEDY)
    assert one.text == llm.generate(PROMPT, **GREEDY).text
    assert two.text == llm.generate("The king", **GREEDY).text != one.text


def test_stop_strings_end_the_text(llm):
    whole = llm.generate(PROMPT, **GREEDY).text
    stop = whole[len(whole) // 2:][:4]
    stopped = llm.generate(PROMPT, stop=stop, **GREEDY)
    assert stopped.text == whole[:whole.index(stop)] and stopped.stop_reason == "stop string"


def test_logprobs_are_the_models(model):
    llm = pith.LLM(model, threads=1, isa="avx2")  # no products in bf16: see conftest.engine
    generation = llm.generate(PROMPT, logprobs=3, **GREEDY)
    pieces = list(generation)
    assert generation.tokens == llm.generate(PROMPT, **GREEDY).tokens
    ids = llm.tokenizer.encode(PROMPT, add_bos=True) + generation.tokens
    scores = llm.score(ids)
    np.testing.assert_allclose([p.logprob for p in pieces], scores.logprobs[-16:], atol=1e-2)
    for piece in pieces:  # greedy: the likeliest
        assert piece.top_logprobs[0] == (piece.token, piece.logprob) and len(piece.top_logprobs) == 3
    assert scores.perplexity > 1 and scores.logprob < 0


def test_closing_early_keeps_what_was_drawn(llm):
    generation = llm.generate(PROMPT, **GREEDY)
    first = [next(generation), next(generation)]
    generation.close()
    assert generation.stop_reason == "cancelled"
    assert generation.tokens == [p.token for p in first] == llm.last.token_ids[-2:]
    assert list(generation) == []


def test_a_chat_reads_only_what_is_new(llm):
    chat = llm.new_chat(system="Be brief.")
    first = chat.ask("Hello", pith.GenerateOptions(**GREEDY))
    assert first.text and chat.messages[-1] == {"role": "assistant", "content": first.text}
    before = chat.tokens
    second = chat.ask("And the ship?", pith.GenerateOptions(**GREEDY))
    assert second.tokens and chat.tokens == before + second.prompt_tokens + len(second.tokens)
    assert [m["role"] for m in chat.messages] == ["system", "user", "assistant", "user", "assistant"]


def test_messages_that_go_on_are_the_same_conversation(llm):
    llm.reset()
    one = llm.chat("Hello", **GREEDY).text
    llm.chat("And the ship?", **GREEDY).text
    said = llm.messages
    llm.chat([{"role": "user", "content": "Hello"}], **GREEDY).text  # another: begun anew
    again = llm.chat([{"role": "user", "content": "Hello"}, {"role": "assistant", "content": one},
                      {"role": "user", "content": "And the ship?"}], **GREEDY)
    assert again.text == said[-1]["content"] and llm.messages == said
    with pytest.raises(pith.InvalidArgument, match="user"):
        llm.chat([{"role": "assistant", "content": "x"}])


def test_a_chat_saved_goes_on(llm, model, tmp_path):
    llm.reset()
    llm.chat("Hello", **GREEDY).text
    llm.save(tmp_path / "chat.pith")
    other = pith.LLM(model, threads=1, template="chatml")
    other.load(tmp_path / "chat.pith")
    assert other.messages == llm.messages
    assert other.chat("Go on", **GREEDY).text == llm.chat("Go on", **GREEDY).text


def test_an_unfinished_chat_answer_is_not_lost(llm):
    llm.reset()
    generation = llm.chat("Hello", **GREEDY)
    next(generation), next(generation)
    with pytest.raises(pith.SessionBusy, match="close"):
        llm.chat("Too early", **GREEDY)
    generation.close()
    assert [m["role"] for m in llm.messages] == ["user", "assistant"]
    assert llm.chat("Now", **GREEDY).text


def test_asyncio_streams_and_is_cancelled(llm):
    async def main():
        aio = pith.AsyncLLM(llm, workers=2)
        expected = llm.generate(PROMPT, **GREEDY).text
        both = await asyncio.gather(aio.complete(PROMPT, **GREEDY), aio.complete("The king", **GREEDY))
        assert both[0] == expected
        async for piece in aio.stream(PROMPT, **GREEDY):
            break
        aio.close()
    asyncio.run(main())
