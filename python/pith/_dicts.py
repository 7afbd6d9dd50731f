"""Completions with the names, defaults and dictionaries of llama-cpp-python, and vLLM's SamplingParams."""

import dataclasses
import time
import uuid

_FINISH = {"end of text": "stop", "stop string": "stop", "token limit": "length", "context full": "length",
           "cancelled": "cancelled", "attention error above the limit": "attention_error"}


def finish_reason(stop_reason):
    """OpenAI's word for a Generation's stop_reason."""
    return _FINISH[stop_reason]


@dataclasses.dataclass
class SamplingParams:
    """vLLM's names and defaults, for LLM.generate(prompts, SamplingParams(...))."""

    n: int = 1
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0  # off; -1 too
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    max_tokens: int | None = 16
    seed: int | None = None
    stop: list[str] | str | None = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool = False
    logprobs: int | None = None

    def arguments(self, index=0):
        """As LLM.generate's; the seeds of n answers follow each other."""
        return {"temperature": self.temperature, "top_p": self.top_p, "top_k": max(self.top_k, 0),
                "min_p": self.min_p, "repeat_penalty": self.repetition_penalty, "repeat_last_n": -1,
                "presence_penalty": self.presence_penalty, "frequency_penalty": self.frequency_penalty,
                "max_tokens": -1 if self.max_tokens is None else self.max_tokens,
                "seed": (self.seed or 0) + index, "stop": self.stop, "ends": self.stop_token_ids,
                "ignore_eos": self.ignore_eos, "logprobs": self.logprobs}


@dataclasses.dataclass
class CompletionOutput:
    index: int
    text: str
    token_ids: list[int]
    finish_reason: str
    stop_reason: str
    logprobs: list[float] | None


@dataclasses.dataclass
class RequestOutput:
    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]


def request_output(llm, prompt, params):
    """One prompt under SamplingParams."""
    ids = llm.tokenizer.encode(prompt, add_bos=True) if isinstance(prompt, str) else list(prompt)
    outputs = []
    for index in range(params.n):
        generation = llm.generate(ids, **params.arguments(index))
        logprobs = [piece.logprob for piece in generation]
        outputs.append(CompletionOutput(index, generation.text, generation.tokens,
                                        finish_reason(generation.stop_reason), generation.stop_reason,
                                        logprobs if params.logprobs is not None else None))
    return RequestOutput(prompt if isinstance(prompt, str) else None, ids, outputs)


class Completions:
    """create_completion() and create_chat_completion() of an LLM."""

    def create_completion(self, prompt, *, max_tokens=16, temperature=0.8, top_p=0.95, min_p=0.05, top_k=40,
                          repeat_penalty=1.0, stop=None, stream=False, seed=0, logprobs=None, echo=False, **more):
        """OpenAI's dictionary of one completion; stream=True: an iterator of its chunks."""
        generation = self.generate(prompt, max_tokens=-1 if max_tokens is None else max_tokens,
                                   temperature=temperature, top_p=top_p, min_p=min_p, top_k=top_k,
                                   repeat_penalty=repeat_penalty, stop=stop, seed=seed, logprobs=logprobs, **more)
        shared = self._head("text_completion", "cmpl")
        before = prompt if echo and isinstance(prompt, str) else ""

        def choice(text, reason, pieces):
            return {"index": 0, "text": text, "logprobs": self._logprobs(pieces) if logprobs is not None else None,
                    "finish_reason": reason}
        if stream:
            return self._stream(generation, lambda text, reason, pieces, first: {
                **shared, "choices": [choice((before if first else "") + text, reason, pieces)]})
        pieces = list(generation)
        return {**shared, "choices": [choice(before + generation.text, finish_reason(generation.stop_reason), pieces)],
                "usage": self._usage(generation)}

    def create_chat_completion(self, messages, *, temperature=0.2, top_p=0.95, min_p=0.05, top_k=40, max_tokens=None,
                               repeat_penalty=1.0, stop=None, stream=False, seed=0, **more):
        """OpenAI's dictionary of one answer to messages; stream=True: an iterator of its chunks."""
        generation = self.chat(messages, max_tokens=-1 if max_tokens is None else max_tokens,
                               temperature=temperature, top_p=top_p, min_p=min_p, top_k=top_k,
                               repeat_penalty=repeat_penalty, stop=stop, seed=seed, **more)
        if stream:
            shared = self._head("chat.completion.chunk", "chatcmpl")

            def chunk(text, reason, pieces, first):
                delta = ({"role": "assistant"} if first else {}) | ({"content": text} if text else {})
                return {**shared, "choices": [{"index": 0, "delta": delta, "finish_reason": reason}]}
            return self._stream(generation, chunk)
        return {**self._head("chat.completion", "chatcmpl"),
                "choices": [{"index": 0, "message": {"role": "assistant", "content": generation.text},
                             "finish_reason": finish_reason(generation.stop_reason)}],
                "usage": self._usage(generation)}

    def _head(self, kind, prefix):
        return {"id": f"{prefix}-{uuid.uuid4().hex}", "object": kind, "created": int(time.time()),
                "model": self.model.path.name}

    @staticmethod
    def _usage(generation):
        answered = len(generation.tokens)
        return {"prompt_tokens": generation.prompt_tokens, "completion_tokens": answered,
                "total_tokens": generation.prompt_tokens + answered}

    def _logprobs(self, pieces):
        def text_of(token):
            return self.tokenizer.decode([token])
        return {"tokens": [text_of(p.token) for p in pieces], "token_logprobs": [p.logprob for p in pieces],
                "top_logprobs": [{text_of(t): x for t, x in p.top_logprobs} for p in pieces]}

    @staticmethod
    def _stream(generation, chunk):
        with generation:
            first = True
            for piece in generation:
                if piece.text or first:
                    yield chunk(piece.text, None, [piece], first)
                    first = False
            yield chunk("", finish_reason(generation.stop_reason), [], first)
