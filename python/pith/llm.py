"""LLM: a model, a policy and conversations in one object."""

import asyncio
import concurrent.futures
import dataclasses
import difflib
import inspect
import os

import numpy as np

from . import _dicts, _pith

# Of GenerateOptions, with its defaults; nanobind's classes have no signature to ask.
_SAMPLING = ("max_tokens", "temperature", "top_k", "top_p", "min_p", "repeat_penalty", "presence_penalty",
             "frequency_penalty", "repeat_last_n", "seed", "stop", "ends", "ignore_eos", "logit_bias")
# Other libraries' names, and ours.
_FOREIGN = {"n_ctx": "context", "max_model_len": "context", "n_gpu_layers": "device", "n_threads": "threads",
            "type_k": "policy", "type_v": "policy", "kv_cache_dtype": "policy", "n_batch": "chunk",
            "tensor_parallel_size": "device", "max_new_tokens": "max_tokens", "n_predict": "max_tokens",
            "temp": "temperature", "repetition_penalty": "repeat_penalty", "do_sample": "temperature"}


def _refuse_unknown(given, known, where):
    for name in given:
        if name in known:
            continue
        ours = _FOREIGN.get(name)
        if ours in known:
            raise TypeError(f"{where} has no argument {name!r}; here it is {ours!r}")
        near = difflib.get_close_matches(name, known, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else f"; it has {', '.join(sorted(known))}"
        raise TypeError(f"{where} has no argument {name!r}{hint}")


def _options(sampling, where):
    _refuse_unknown(sampling, _SAMPLING, where)
    if isinstance(sampling.get("stop"), str):
        sampling["stop"] = [sampling["stop"]]
    if isinstance(sampling.get("logit_bias"), dict):
        sampling["logit_bias"] = list(sampling["logit_bias"].items())
    return _pith.GenerateOptions(**{k: v for k, v in sampling.items() if v is not None})


def _top(logprobs):
    """None or False: no probabilities; True: each token's; n: also the n likeliest."""
    if logprobs is None or logprobs is False:
        return -1
    return 0 if logprobs is True else int(logprobs)


@dataclasses.dataclass(frozen=True)
class Scores:
    """How likely each token of a text was after those before it."""

    tokens: list[int]
    logprobs: np.ndarray  # float32 [tokens]; of the first: 0, since nothing is before it
    likeliest: np.ndarray  # int32 [tokens]; of the first: -1

    @property
    def logprob(self) -> float:
        """Of the whole text."""
        return float(np.sum(self.logprobs[1:], dtype=np.float64))

    @property
    def perplexity(self) -> float:
        return float(np.exp(-np.mean(self.logprobs[1:], dtype=np.float64))) if len(self.tokens) > 1 else 1.0


class LLM(_dicts.Completions):
    """A model under one policy.

    model     a folder in Hugging Face's layout, a GGUF file, a name of known_models() that pull() has
              fetched, or a Model that is loaded already
    kv        how much memory the cache may take, or how it is kept: "exact"; "half", "quarter",
              "tenth", "30%" of what exact takes, or "16MiB", for which the best measured policy is
              chosen (`why` says which and what is expected of it); or a policy, such as
              "snapkv(budget=25%)+int4,sink=4". `policy` is another name of it
    context   tokens; 0 = the model's own
    goal      of a size: "text", "facts" or "both"; measure=True measures a model that has no figures
              first, which takes a minute or two
    template  of chats: "" = the model's own, else one of chat_template_names() or a template's source
    system    of chats: the system prompt; None = the template's own, "" = none

    Sampling arguments of generate() and chat() are llama.cpp's, with its defaults: max_tokens=-1 (until
    the model ends), temperature=0.8, top_k=40, top_p=0.95, min_p=0.05, repeat_penalty=1,
    presence_penalty=0, frequency_penalty=0, repeat_last_n=64, seed=0, stop=[], ignore_eos=False,
    logit_bias=[]. The same seed gives the same text. temperature=0 always takes the likeliest token.
    """

    def __init__(self, model, kv=None, *, policy=None, context=0, seed=0, protect="", probe_rows=0,
                 max_error=0.0, goal="both", measure=False, template="", system=None, tools=None,
                 template_variables=None, device="cpu", threads=0, chunk=512, isa="", memory_limit=0,
                 check_finite=True, **unknown):
        _refuse_unknown(unknown, [*inspect.signature(LLM).parameters], "LLM")
        if kv is not None and policy is not None:
            raise TypeError("kv and policy say the same thing; give one of them")
        if not isinstance(model, _pith.Model):
            model = _pith.Model.load(os.fspath(model), check_finite)
        self.model = model
        self.engine = _pith.Engine(model, device=device, threads=threads, chunk=chunk, isa=isa,
                                   memory_limit=memory_limit)
        self._words = {"context": context, "seed": seed, "protect": protect, "probe_rows": probe_rows,
                       "max_error": max_error}
        self._chat_words = {"template": template, "system": system, "tools": tools,
                            "variables": template_variables}
        with _pith.Session(self.engine, str(kv or policy or "exact"), goal=goal, measure=measure,
                           **self._words) as chosen:
            self.policy, self.why, self.context = str(chosen.policy), chosen.why, chosen.context
        self._chat = None
        self._last = None

    def __repr__(self):
        return f"LLM({str(self.model.path)!r}, policy={self.policy!r})"

    @property
    def tokenizer(self):
        return self.model.tokenizer

    # Sessions

    def session(self, percent_of=0):
        """A session under this policy that has seen nothing."""
        return _pith.Session(self.engine, self.policy, percent_of=percent_of, **self._words)

    def _encode(self, prompt):
        """Text with the token that begins one, if the model expects it; ids as they are."""
        return self.tokenizer.encode(prompt, add_bos=True) if isinstance(prompt, str) else list(prompt)

    def generate(self, prompt, params=None, *, logprobs=None, **sampling):
        """Goes on from a prompt, text or token ids, in a session of its own.

        Returns a Generation: iterate over it for pieces as they come, or ask for its .text, .tokens,
        .stop_reason, which run it to its end. For a list of texts, a list of finished ones. logprobs:
        True for each token's, n for those of the n likeliest too.

        With SamplingParams: vLLM's, a list of RequestOutput in the order of the prompts.
        """
        if params is not None:
            if sampling or logprobs is not None:
                raise TypeError("generate: SamplingParams say everything; leave the other arguments out")
            prompts = [prompt] if isinstance(prompt, str) else prompt
            return [_dicts.request_output(self, one, params) for one in prompts]
        options = _options(sampling, "generate")
        if isinstance(prompt, (list, tuple)) and prompt and not isinstance(prompt[0], (int, np.integer)):
            done = []
            for one in prompt:
                done.append(self.generate(one, logprobs=logprobs, **sampling))
                done[-1].text  # runs it
            return done
        ids = self._encode(prompt)
        session = self.session(_pith.read_in_all(len(ids), options.max_tokens, self.context))
        self._last = session
        return _pith.generate(session, ids, options, _top(logprobs))

    __call__ = generate

    def score(self, text):
        """How likely each token of a text (or of token ids) is under this policy: Scores."""
        ids = self._encode(text)
        with self.session(len(ids)) as session:
            logprobs, likeliest = session.score(ids)
        return Scores(ids, logprobs, likeliest)

    def logits(self, text):
        """The logits after each token of a text (or of token ids), float32 [tokens, vocabulary]."""
        ids = self._encode(text)
        with self.session(len(ids)) as session:
            return session.logits(ids)

    # Chats

    def new_chat(self, **words):
        """A conversation of messages of its own; keywords as LLM's template, system, tools."""
        return _pith.Chat(self.engine, self.policy, **{**self._words, **self._chat_words, **words})

    def chat(self, messages, *, logprobs=None, **sampling):
        """Answers a user's message in this LLM's conversation, or a list of messages.

        A text is the next message. A list ({"role": ..., "content": ...}, the last a user's) that goes
        on from the conversation reads only what is new; any other begins it anew. Returns a Generation.
        """
        options = _options(sampling, "chat")
        chat = self.conversation
        if isinstance(messages, str):
            text = messages
        else:
            *before, last = [dict(message) for message in messages] or [{}]
            text = last.get("content")
            if last.get("role") != "user" or not isinstance(text, str):
                raise _pith.InvalidArgument("chat: the last message has to be a user's, with a text as its "
                                            "content")
            if before != chat.messages:
                chat.load(before)
        self._last = chat
        return chat.ask(text, options, _top(logprobs))

    @property
    def conversation(self):
        """The Chat that chat() continues."""
        if self._chat is None or self._chat.closed:
            self._chat = self.new_chat()
        return self._chat

    @property
    def messages(self):
        return self.conversation.messages

    def reset(self):
        """Forgets the conversation, all but the system message."""
        self.conversation.reset()

    def save(self, path, replace=False):
        """Writes the conversation with all of its cache; load() continues from it."""
        self.conversation.save(os.fspath(path), replace)

    def load(self, path):
        """Goes on from a file of save(): nothing is read again."""
        self.conversation.resume(os.fspath(path))
        self._last = self.conversation

    # What is held

    @property
    def last(self):
        """The session or chat of the latest generate() or chat()."""
        if self._last is None:
            raise _pith.InvalidArgument("nothing was generated yet: generate() or chat() first")
        return self._last

    def ledger(self):
        """Every byte of the latest answer's cache, by what it is for."""
        return self.last.ledger()

    def rows(self, layer, head):
        """The rows that one KV head of one layer holds after the latest answer."""
        return self.last.rows(layer, head)

    def describe(self):
        """The policy with every budget as rows and every default spelled out."""
        return self.last.describe() if self._last is not None else self.session().describe()

    def estimate(self, tokens):
        """The ledger after so many tokens, without running them: an upper bound."""
        return _pith.estimate(self.model, self.policy, tokens, self.context)

    def close(self):
        """Frees the conversations' memory; may be called twice."""
        for held in (self._chat, self._last):
            if held is not None:
                held.close()
        self._chat = self._last = None

    def __enter__(self):
        return self

    def __exit__(self, *raised):
        self.close()


class AsyncLLM:
    """An LLM for asyncio: tokens are drawn on threads of its own, one for each running answer.

    workers: answers that run at once; more wait. A task that is cancelled ends its answer.
    """

    def __init__(self, llm, workers=1):
        self.llm = llm
        self._pool = concurrent.futures.ThreadPoolExecutor(workers, thread_name_prefix="pith")

    async def stream(self, prompt, **arguments):
        """Pieces of LLM.generate(prompt, ...)."""
        async for piece in self._pieces(lambda: self.llm.generate(prompt, **arguments)):
            yield piece

    async def chat(self, messages, **arguments):
        """Pieces of LLM.chat(messages, ...)."""
        async for piece in self._pieces(lambda: self.llm.chat(messages, **arguments)):
            yield piece

    async def complete(self, prompt, **arguments):
        """The whole text."""
        return "".join([piece.text async for piece in self.stream(prompt, **arguments)])

    async def _pieces(self, begin):
        loop = asyncio.get_running_loop()
        generation = await loop.run_in_executor(self._pool, begin)
        try:
            while (piece := await loop.run_in_executor(self._pool, next, generation, None)) is not None:
                yield piece
        finally:
            if not generation.done:
                # A step that is under way ends first; the pool has its turn.
                self._pool.submit(generation.close)

    def close(self):
        self._pool.shutdown(wait=True)
