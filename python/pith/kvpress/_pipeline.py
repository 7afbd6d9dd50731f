"""The engine behind the arguments of kvpress's pipeline."""

import os

import numpy as np

from .. import _pith


class PithEnginePipeline:
    """kvpress's "kv-press-text-generation": a context is read under the policy, and each question is answered greedily
    in a fork of it. Answers are theirs for policy "exact,dtype=f32" and f32_arithmetic=True.

    model     a folder, a GGUF file or a Model; the chat template is its own
    options   of Engine: device, threads, chunk, f32_arithmetic, ...
    `ledger` is that of the last context, before its questions.
    """

    def __init__(self, model, policy="exact", *, seed=0, protect="", **options):
        self.model_read = model if isinstance(model, _pith.Model) else _pith.Model.load(os.fspath(model))
        self.engine = _pith.Engine(self.model_read, **options)
        self.tokenizer = self.model_read.tokenizer
        self.policy = str(_pith.Policy(policy))
        self.ledger = None
        self._options = {"seed": seed, "protect": protect}

    def __call__(self, context, question=None, questions=None, answer_prefix=None, press=None, max_new_tokens=50,
                 max_context_length=None, enable_thinking=False, cache=None):
        if press is not None or cache is not None:
            raise _pith.Unsupported("press= and cache= are of torch's tensors, and this is a session: its policy= says "
                                    "what is kept")
        if question is not None and questions is not None:
            raise _pith.InvalidArgument("question= and questions=: give one of them")
        if max_new_tokens < 1:
            raise _pith.InvalidArgument(f"max_new_tokens={max_new_tokens}: an answer has one token at least")
        before, after = self._around(context, enable_thinking)
        ids = self.tokenizer.encode(before)[:max_context_length]
        texts = [text + after + (answer_prefix or "") for text in (questions or [question or ""])]
        with _pith.Session(self.engine, self.policy, percent_of=len(ids), **self._options) as session:
            session.append(ids)
            answers = []
            for text in texts:
                with session.fork() as fork:
                    answers.append(self._answer(fork, self.tokenizer.encode(text), max_new_tokens))
            self.ledger = session.ledger()
        return {"answer": answers[0]} if questions is None else {"answers": answers}

    def _around(self, context, enable_thinking):
        """The texts before and after the question."""
        mark = "#" * (len(context) + 10)
        try:
            whole = self.model_read.render_chat([{"role": "user", "content": context + mark}],
                                                variables={"enable_thinking": enable_thinking})
        except _pith.NotFound:  # a model without a template reads text
            bos = self.tokenizer.bos
            return (self.tokenizer.decode([bos]) if bos >= 0 else "") + context, "\n"
        before, after = whole.split(mark)
        return before, after

    def _answer(self, session, ids, most):
        found = [int(np.argmax(session.prefill(ids)))]
        while len(found) < most and (len(found) == 1 or found[-1] not in self.tokenizer.eos_ids):
            found.append(int(np.argmax(session.decode(found[-1]))))
        return self.tokenizer.decode(found, True)
