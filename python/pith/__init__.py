"""Language models with a compressed KV cache.

    import pith
    llm = pith.LLM("smollm2", kv="quarter")        # a folder, a GGUF file or a name of pull()
    for piece in llm.chat("Why is the sky blue?"):
        print(piece.text, end="", flush=True)

`LLM` is the short way; `Model`, `Engine` and `Session` are the engine's own parts, `Chat` a
conversation of messages. Every failure is a `PithError`: its class says the kind (and is the built-in
one, such as ValueError, too), its text what was asked, what is supported and what to do.
"""

from . import _pith, results
from ._pith import (AttentionError, BufferTooSmall, Chat, ContextFull, Conversation, Corrupt, Engine,
                    GenerateOptions, Generation, InvalidArgument, Internal, IoError, LayerCache, Ledger, MethodInfo,
                    Model, ModelConfig, NonFinite, NotFound, OutOfMemory, ParameterInfo, Piece, PithError,
                    Policy, Rows, RowsToCode, RowsToScore, Runtime, Session, SessionBusy, Tokenizer, Unsupported,
                    __version__,
                    add_codec, add_selector, chat_template_names, estimate, known_models, methods, pull, read_in_all)
from ._dicts import CompletionOutput, RequestOutput, SamplingParams
from .llm import LLM, AsyncLLM, Scores

__all__ = [
    "AsyncLLM", "AttentionError", "BufferTooSmall", "Chat", "CompletionOutput", "ContextFull",
    "Conversation", "Corrupt", "Engine", "GenerateOptions", "Generation", "Internal", "InvalidArgument",
    "IoError", "LLM", "LayerCache", "Ledger", "MethodInfo", "Model", "ModelConfig", "NonFinite", "NotFound",
    "OutOfMemory", "ParameterInfo", "Piece", "PithError", "Policy", "RequestOutput", "Rows", "RowsToCode",
    "RowsToScore", "Runtime",
    "SamplingParams", "Scores", "Session", "SessionBusy", "Tokenizer", "Unsupported", "__version__",
    "add_codec", "add_selector", "chat_template_names", "estimate", "known_models", "methods", "pull", "read_in_all",
    "codec", "results", "selector",
]


def selector(name, *, summary="", mass=None, queries=0):
    """Decorator: add_selector() of the function below it.

        @pith.selector("big_values")
        def score(rows):
            return np.linalg.norm(rows.values, axis=1)

        llm = pith.LLM(model, kv="big_values(budget=25%)+int8,sink=4")
    """
    def add(function):
        add_selector(name, function, summary or (function.__doc__ or "").strip().split("\n")[0], mass, queries)
        return function
    return add


def codec(name, *, row_bytes, summary=""):
    """Decorator: add_codec() of the class below it, whose functions are static.

        @pith.codec("halves", row_bytes=lambda head_dim: 2 * head_dim)
        class Halves:
            def encode(x, rows):                # float32 [rows, head_dim] -> uint8 [rows, row_bytes]
                return x.astype(np.float16).view(np.uint8)
            def decode(codes, rows):            # and back
                return codes.view(np.float16).astype(np.float32)

        llm = pith.LLM(model, kv="snapkv(budget=25%)+halves,sink=4")
    """
    def add(functions):
        add_codec(name, functions.encode, functions.decode, row_bytes,
                  summary or (functions.__doc__ or "").strip().split("\n")[0])
        return functions
    return add


for _name in __all__:
    _value = getattr(_pith, _name, None)
    if isinstance(_value, type):
        _value.__module__ = "pith"
del _name, _value
