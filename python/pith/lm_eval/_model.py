"""PithLM: the three questions that lm_eval asks a model, answered from a compressed cache."""

import collections
import inspect
import os

import numpy as np
from lm_eval.api.model import TemplateLM
from lm_eval.models.utils import (handle_stop_sequences, normalize_gen_kwargs, postprocess_generated_text)
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window
from tqdm import tqdm

from .. import _pith
from ..llm import LLM, _refuse_unknown

_SAMPLING = {"temperature": "temperature", "top_k": "top_k", "top_p": "top_p", "min_p": "min_p",
             "repetition_penalty": "repeat_penalty", "seed": "seed"}
_FEW = 0.05  # of the requests: if rows were dropped in fewer, the scores say little about the policy


class PithLM(TemplateLM):
    """A model under one policy.

    pretrained     a folder, a GGUF file or a name that pull() has fetched
    policy         any policy, or a size such as "quarter"
    hold_back      tokens of a context that are read after its end, beside the continuation. With 1, every
                   scored logit reads the compressed cache, also where the continuation is one token; with 0
                   the first comes from the prompt's own pass, as in generation
    context        most tokens, 0 = the model's own; longer requests lose their beginning
    chunk          tokens of a prompt that are read together; policies act between chunks and at its end
    add_bos_token  whether a context begins with the model's first token; None: as in `pith run`

    Requests are read one after the other; a context that several continuations share is read once.
    """

    def __init__(self, pretrained, policy="exact", *, context=0, chunk=512, threads=0, seed=0, isa="",
                 device="cpu", hold_back=1, batch_size=1, max_batch_size=None, max_gen_toks=256,
                 add_bos_token=None, probe_rows=0, **unknown):
        super().__init__()
        hint = "; model_args were cut at the policy's commas: give a dict, or quotes around the policy" \
            if any(name in ("sink", "window", "dtype", "prompt") for name in unknown) else ""
        try:
            _refuse_unknown(unknown, [*inspect.signature(PithLM).parameters], "PithLM")
        except TypeError as error:
            raise TypeError(f"{error}{hint}") from None
        if batch_size not in (1, "1", "auto") or max_batch_size not in (None, 1):
            raise ValueError(f"batch_size={batch_size}, max_batch_size={max_batch_size}: "
                             "requests are read one after the other; leave it at 1")
        if int(hold_back) not in (0, 1):
            raise ValueError(f"hold_back={hold_back}: it is 0 or 1")
        self.llm = LLM(pretrained, policy=str(policy), context=int(context), chunk=int(chunk), threads=int(threads),
                       seed=int(seed), isa=str(isa), device=str(device).removesuffix(":0"), probe_rows=int(probe_rows))
        self.hold_back, self.chunk, self._max_gen_toks = int(hold_back), int(chunk), int(max_gen_toks)
        self.add_bos = self.llm.tokenizer.add_bos if add_bos_token is None else bool(add_bos_token)
        self.batch_size = 1
        self._kept, self._bits = [], []  # of each context: the share of rows, bits per number

    # What lm_eval asks about the model

    @property
    def eot_token_id(self):
        return self.llm.tokenizer.eos_ids[0]

    @property
    def prefix_token_id(self):
        bos = self.llm.tokenizer.bos
        return bos if bos >= 0 else self.eot_token_id

    @property
    def max_length(self):
        return self.llm.context

    @property
    def max_gen_toks(self):
        return self._max_gen_toks

    @property
    def tokenizer_name(self):
        return os.fspath(self.llm.model.path).replace(os.sep, "__")

    def tok_encode(self, string, add_special_tokens=None, **_):
        """None: with the token that begins a text if the model takes one and the text has none."""
        ids = self.llm.tokenizer.encode(string)
        wanted = self.add_bos if add_special_tokens is None else add_special_tokens
        bos = self.llm.tokenizer.bos
        return [bos, *ids] if wanted and bos >= 0 and ids[:1] != [bos] else ids

    def tok_decode(self, tokens, skip_special_tokens=True):
        return self.llm.tokenizer.decode([tokens] if isinstance(tokens, int) else list(tokens), skip_special_tokens)

    def apply_chat_template(self, chat_history, add_generation_prompt=True):
        return self.llm.model.render_chat(chat_history, add_generation_prompt=add_generation_prompt)

    def chat_template(self, chat_template=False):
        """Which template apply_chat_template uses, for the record."""
        return "the model's own" if chat_template else None

    def get_model_info(self):
        """Goes into the results: what ran, and what its caches held over all requests so far."""
        kept, bits = np.array(self._kept or [1.0]), np.array(self._bits or [16.0])
        return {"pith_version": _pith.__version__, "model": os.fspath(self.llm.model.path),
                "model_fingerprint": self.llm.model.fingerprint, "policy": self.llm.policy,
                "hold_back": self.hold_back, "chunk": self.chunk, "contexts": len(self._kept),
                "contexts_compressed": float(np.mean(kept < 1)),
                "rows_kept": [float(kept.min()), float(kept.mean()), float(kept.max())],
                "effective_bits": [float(bits.min()), float(bits.mean()), float(bits.max())]}

    # The three questions

    def _loglikelihood_tokens(self, requests, disable_tqdm=False, **_):
        """requests: ((context, continuation), ids, ids); (log-probability, whether greedy) of each."""
        groups = collections.defaultdict(list)
        for number, (_, context, continuation) in enumerate(requests):
            if not continuation:
                raise ValueError(f"request {number} has an empty continuation: there is nothing to score")
            room = self.max_length + 1 - len(continuation)  # the last token is scored and not read
            if room < 1:
                raise ValueError(f"request {number}: a continuation of {len(continuation)} tokens does not fit into "
                                 f"the context of {self.max_length}")
            groups[tuple(context[-room:])].append(number)
        out = [None] * len(requests)
        bar = tqdm(total=len(requests), disable=disable_tqdm, desc="loglikelihood")
        for context in sorted(groups, key=len, reverse=True):
            numbers = groups[context]
            scores = self._score(list(context), [requests[n][2] for n in numbers])
            for number, score in zip(numbers, scores):
                out[number] = score
                text = requests[number][0]
                if text is not None:
                    self.cache_hook.add_partial("loglikelihood", text, score)
                bar.update()
        bar.close()
        self._warn()
        return out

    def _score(self, context, continuations):
        held = len(context) - min(self.hold_back, len(context))
        longest = max(map(len, continuations))
        with self.llm.session(len(context) + longest) as session:
            first = session.prefill(context[:held])[None] if held and not self.hold_back else None
            if held and self.hold_back:
                session.append(context[:held])
            self._note(session)
            return [self._score_one(session, first, context[held:], ids) for ids in continuations]

    @staticmethod
    def _score_one(session, first, held_back, ids):
        read = [*held_back, *ids[:-1]]
        parts = [] if first is None else [first]
        if read:
            with session.fork() as fork:
                parts.append(fork.logits(read))
        logits = np.concatenate(parts)[-len(ids):].astype(np.float64)
        top = logits.max(axis=1)
        logprobs = logits[np.arange(len(ids)), ids] - top - np.log(np.exp(logits - top[:, None]).sum(axis=1))
        return float(logprobs.sum()), bool((logits.argmax(axis=1) == ids).all())

    def loglikelihood_rolling(self, requests, disable_tqdm=False):
        """The log-probability of whole texts, in windows of the context's size."""
        out = []
        for request in tqdm(requests, disable=disable_tqdm, desc="loglikelihood_rolling"):
            (text,) = request.args
            windows = [make_disjoint_window(window) for window in get_rolling_token_windows(
                self.tok_encode(text, add_special_tokens=False), self.prefix_token_id, self.max_length, 1)]
            scored = self._loglikelihood_tokens([(None, *window) for window in windows], disable_tqdm=True)
            out.append(sum(logprob for logprob, _ in scored))
            self.cache_hook.add_partial("loglikelihood_rolling", request.args, out[-1])
        return out

    def generate_until(self, requests, disable_tqdm=False):
        """Answers; the cache is compressed at the context's end and while the answer grows."""
        out = []
        for request in tqdm(requests, disable=disable_tqdm, desc="generate_until"):
            context, given = request.args
            options = normalize_gen_kwargs(dict(given), self.max_gen_toks)
            most, until, sample = (options.pop(name) for name in ("max_gen_toks", "until", "do_sample"))
            unknown = sorted(set(options) - set(_SAMPLING))
            if unknown:
                raise ValueError(f"generate_until: {', '.join(unknown)} is not supported; it has "
                                 f"{', '.join(sorted(_SAMPLING))}, until, do_sample, max_gen_toks")
            sampling = {_SAMPLING[name]: value for name, value in options.items()}
            if not sample:
                sampling["temperature"] = 0.0
            ids = self.tok_encode(context)[-(self.max_length - most):] if most < self.max_length else []
            if not ids:
                raise ValueError(f"generate_until: an answer of {most} tokens leaves no room for a prompt in the "
                                 f"context of {self.max_length}")
            stop = handle_stop_sequences(until, None)
            answer = self.llm.generate(ids, max_tokens=most, stop=stop, **sampling)
            text = postprocess_generated_text(answer.text, stop, None)
            self._note(self.llm.last)
            self.llm.last.close()
            self.cache_hook.add_partial("generate_until", request.args, text)
            out.append(text)
        self._warn()
        return out

    # What the caches held

    def _note(self, session):
        ledger = session.ledger()
        if ledger.rows_seen > 0:
            self._kept.append(ledger.rows_kept / ledger.rows_seen)
            self._bits.append(ledger.effective_bits)

    def _warn(self):
        info = self.get_model_info()
        rows_as_they_are = self.llm.policy.split(",")[0] == "exact"  # nothing is to be dropped or coded
        if not rows_as_they_are and info["contexts_compressed"] < _FEW and info["effective_bits"][1] >= 15.9:
            tqdm.write(f"pith: {self.llm.policy} dropped no row in {100 - 100 * info['contexts_compressed']:.0f}% of "
                       "the contexts: these scores say little about it")
